"""The two examples of docs/api.md, run against a served API."""

import re
import subprocess
import sys
from collections.abc import Iterator
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


def test_megatrons_log_becomes_tokens_and_mfu(
    address: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    script = tmp_path / "report.py"
    script.write_text(example("From Megatron's log"))
    url = f"http://{address}/api/v1/jobs/4711/metrics"
    result = subprocess.run(
        [sys.executable, str(script), url, "8192", "989.4"],
        input="noise\n" + LINE,
        env={"OFU_TOKEN": "t"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    (entry,) = entries(redis_client)
    assert float(entry[b"tokens"]) == pytest.approx(512 * 8192 / 2.048)
    assert float(entry[b"mfu"]) == pytest.approx(0.5)


def test_a_training_loop_reports_and_goes_on_when_nobody_listens(
    address: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    source = example("From a PyTorch training loop")
    script = tmp_path / "loop.py"
    calls = "report(1000, rank=0, every_s=0)\nreport(1000, rank=1, every_s=0)\nprint('done')\n"
    # The page's clock is ours in the test: a report of today is from the future of NOW.
    source = source.replace("time.time()", str(NOW / 1000))
    for place in (address, "127.0.0.1:9"):
        script.write_text(source.replace("ofu.example.com:9467", place) + calls)
        result = subprocess.run(
            [sys.executable, str(script)],
            env={"OFU_TOKEN": "t", "SLURM_JOB_ID": "4711"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (result.stdout, result.stderr) == ("done\n", "")
    (entry,) = entries(redis_client)
    assert entry[b"job"] == b"4711"
    assert float(entry[b"tokens"]) > 0
