"""The real `ofuwatch serve` as a process of its own: killed, ended, started twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detector.demo.loopback import SECRET, TOKEN, Loopback
from detector.incident.ledger import SHARDS
from detector.store.connection import RedisSettings, open_store
from detector.store.keys import Keys
from tests.scenarios.stage import END_MS, START_MS, config_file, roots, told, write

PATIENCE_S = 30.0

# Under nohup the tests, and all that they start, inherit that SIGHUP is ignored; the service
# is to begin as on a terminal. In the child itself, since preexec_fn can deadlock with threads.
_SERVE = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from detector.cli import main
main()
"""


class Served:
    """`ofuwatch serve` on a state folder of its own, and what it logs."""

    def __init__(self, folder: Path, loopback: Loopback) -> None:
        self.folder, self.state = folder, folder / "state"
        redis_table = f'state = "{self.state}"'
        self.config = config_file(folder, loopback, redis=redis_table, lease="2s")
        self.log = folder / "serve.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _SERVE, "serve", "--config", str(self.config)],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "REDIS_URL": ""},
            )

    def again(self) -> None:
        """Start it anew after its end."""
        self.process = self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Every line of the log, which must be an object each."""
        lines = self.log.read_text().rpartition("\n")[0].splitlines()
        assert all(line.startswith("{") for line in lines), lines
        found = [json.loads(line) for line in lines]
        return [event for event in found if name in ("", event["event"])]

    def delivered(self) -> set[str]:
        """The receivers that took an alert."""
        return {event["receiver"] for event in self.events("delivered")}

    def server_pid(self) -> int:
        return int(json.loads((self.state / "store" / "owner.lock").read_bytes())["server"])

    def write(self, *, after_ms: int = 0, until_ms: int = END_MS) -> None:
        store = open_store(RedisSettings(state=str(self.state)), attach=True, environ={})
        write(store.client, after_ms=after_ms, until_ms=until_ms)
        store.close()


def soon(holds: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def served(tmp_path: Path, loopback: Loopback) -> Iterator[Served]:
    served = Served(tmp_path, loopback)
    try:
        assert soon(lambda: served.events("lead_taken")), served.log.read_text()
        yield served
    finally:
        served.kill()


def test_killed_in_mid_delivery_and_started_again_it_posts_one_message(
    served: Served, loopback: Loopback
) -> None:
    loopback.delay_next("/api/chat.postMessage", 1.0)
    served.write()
    assert soon(lambda: roots(loopback))  # Slack has it, the service has no answer yet
    first = served.server_pid()
    served.kill()
    assert soon(lambda: gone(first)), "the embedded server outlived the service"
    served.again()
    assert soon(lambda: "slack" in served.delivered() and told(loopback))
    assert len(roots(loopback)) == 1
    # A program may get an event twice, with the same id: at least once is what it is promised.
    assert [step for step, _ in told(loopback)] == ["opened"]
    assert len(served.events("incident_opened")) == 1


def test_killed_before_anybody_took_the_alert_it_is_delivered_after_the_restart(
    served: Served, loopback: Loopback
) -> None:
    loopback.fail_next("/api", status=503)
    loopback.fail_next("/webhook", status=503)
    served.write()
    assert loopback.wait(lambda: len(loopback.requests) >= 2, timeout_s=PATIENCE_S)
    served.kill()
    served.again()
    assert soon(lambda: served.delivered() == {"slack", "resiliency"})
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]


def test_a_killed_embedded_server_is_started_again_and_nothing_is_lost(
    served: Served, loopback: Loopback
) -> None:
    half_ms = (START_MS + END_MS) // 2
    served.write(until_ms=half_ms)
    first = served.server_pid()
    os.kill(first, signal.SIGKILL)
    assert soon(lambda: served.events("embedded_server_started"))
    assert served.server_pid() != first
    served.write(after_ms=half_ms)
    assert soon(lambda: served.delivered() == {"slack", "resiliency"})
    os.kill(served.server_pid(), signal.SIGKILL)
    assert soon(lambda: len(served.events("embedded_server_started")) == 2)
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]


def test_it_ends_when_asked_to_with_its_state_saved_and_no_secret_in_its_log(
    served: Served, loopback: Loopback
) -> None:
    served.write()
    assert soon(lambda: served.delivered() == {"slack", "resiliency"})
    server = served.server_pid()
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=PATIENCE_S) == 0
    assert soon(lambda: gone(server))
    assert served.events()[-1]["event"] == "service_stopped"
    assert served.events("state_not_saved") == []
    text = served.log.read_text()
    assert TOKEN not in text
    assert SECRET.removeprefix("whsec_") not in text
    store = open_store(RedisSettings(state=str(served.state)), attach=True, environ={})
    keys = [Keys().shard(shard, "state") for shard in range(SHARDS)]
    assert store.client.exists(*keys) == SHARDS
    assert store.client.exists(*(Keys().shard(shard, "lease") for shard in range(SHARDS))) == 0
    store.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_key_press_and_a_closed_terminal_end_it_in_order(
    served: Served, number: signal.Signals
) -> None:
    served.process.send_signal(number)
    assert served.process.wait(timeout=PATIENCE_S) == 0
    assert served.events()[-1]["event"] == "service_stopped"


def test_a_second_one_on_the_same_folder_is_refused_in_one_line(served: Served) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "detector.cli", "serve", "--config", str(served.config)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "REDIS_URL": ""},
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert f"process {served.process.pid} already runs the embedded server" in done.stderr
    assert served.process.poll() is None
