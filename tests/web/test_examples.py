"""The two examples of docs/api.md, run against a served API."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
import redis

from detector.store.intake import Intake
from detector.store.keys import Keys
from detector.web.app import Web, application
from detector.web.settings import WebSettings

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
NOW = 1_764_000_000_000

# As Megatron-LM's training log prints an iteration (format of its own words, numbers ours).
LINE = (
    " [2026-01-02 03:04:05] iteration      120/  500000 | consumed samples:        61440 |"
    " elapsed time per iteration (ms): 2048.0 | throughput per GPU (TFLOP/s/GPU): 494.7 |"
    " learning rate: 3.0E-04 | global batch size:   512 | lm loss: 2.1E+00 |\n"
)


def example(heading: str) -> str:
    text = PAGE.read_text(encoding="utf-8").partition(f"## {heading}")[2]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def entries(client: redis.Redis) -> list[dict[bytes, bytes]]:
    found = cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange("ofu:in"))
    return [fields for _, fields in found]


@pytest.fixture
def address(redis_client: redis.Redis) -> Iterator[str]:
    app = application(Intake(redis_client, Keys()), token="t", clock=lambda: NOW)
    web = Web(WebSettings(listen="127.0.0.1:0"), app)
    try:
        yield web.address
    finally:
        web.close()


def megatron(
    address: str, tmp_path: Path, text: str, token: str = "t"
) -> "subprocess.CompletedProcess[str]":
    script = tmp_path / "report.py"
    script.write_text(example("From Megatron's log"))
    url = f"http://{address}/api/v1/jobs/4711/metrics"
    return subprocess.run(
        [sys.executable, str(script), url, "8192", "989.4"],
        input=text,
        env={"OFU_TOKEN": token},
        capture_output=True,
        text=True,
        check=True,
    )


def test_megatrons_log_becomes_tokens_and_mfu(
    address: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    log = "noise\n" + LINE.replace("2048.0", "0.0") + LINE + LINE.replace("2048.0", "2.048E+03")
    assert megatron(address, tmp_path, log, token="t\n").stderr == ""
    found = entries(redis_client)
    assert len(found) == 2
    for entry in found:
        assert float(entry[b"tokens"]) == pytest.approx(512 * 8192 / 2.048)
        assert float(entry[b"mfu"]) == pytest.approx(0.5)


def test_megatrons_log_is_read_on_when_a_report_is_not_taken(
    address: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    wrong = LINE.replace("494.7", "494.7E9")
    errors = megatron(address, tmp_path, wrong + LINE).stderr
    assert errors.startswith("report not taken: HTTP Error 400")
    assert len(entries(redis_client)) == 1


@contextmanager
def babbling() -> Iterator[str]:
    """Listen like a server, and answer with what is no HTTP."""

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(b"220 mail ready\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_training_loop_reports_and_goes_on_whatever_it_meets(
    address: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    source = example("From a PyTorch training loop")
    script = tmp_path / "loop.py"
    calls = "report(1000, rank=0, every_s=0)\nreport(1000, rank=1, every_s=0)\nprint('done')\n"
    # The page's clock is ours in the test: a report of today is from the future of NOW.
    source = source.replace("time.time()", str(NOW / 1000))
    with babbling() as strange:
        for place, token in (
            (address, "t\n"),
            (address, "t\nX-Other: 1"),
            ("127.0.0.1:9", "t"),
            (strange, "t"),
        ):
            script.write_text(source.replace("ofu.example.com:9467", place) + calls)
            result = subprocess.run(
                [sys.executable, str(script)],
                env={"OFU_TOKEN": token, "SLURM_JOB_ID": "4711"},
                capture_output=True,
                text=True,
                check=True,
            )
            assert (result.stdout, result.stderr) == ("done\n", "")
    (entry,) = entries(redis_client)
    assert entry[b"job"] == b"4711"
    assert float(entry[b"tokens"]) > 0
