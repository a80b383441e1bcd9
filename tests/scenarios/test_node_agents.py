"""From a node's own library to histories of its jobs, through the service and a real server."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from structlog.testing import capture_logs

from detector.config import load
from detector.service import Service
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys
from detector.telemetry.dcgm_engine import PROFILING
from tests.scenarios.stage import content
from tests.telemetry import test_dcgm, test_nvml

_T0_S = 1_800_000_000


class _Node:
    """A node with two GPUs, each of a job of its own, and the service that runs on it."""

    def __init__(self, kind: str, folder: Path, valkey: str) -> None:
        self._kind, self._file = kind, folder / "node.json"
        self.now_s = _T0_S
        self.lost = False  # the second GPU
        jobs = folder / "job-mapping"
        jobs.mkdir()
        (jobs / "0").write_text("71\n")
        (jobs / "1").write_text("72\n")
        bindings = f'bindings = "{test_dcgm.STANDIN}"\n' if kind == "dcgm" else ""
        config = folder / "config.toml"
        config.write_text(
            f'[redis]\nurl = "unix://{valkey}"\n[inbox]\nwait = "1s"\n'
            f'[collect]\nhpc_directory = "{jobs}"\n'
            f'[[source]]\ntype = "{kind}"\nhost = "n1"\n{bindings}'
        )
        self.service = Service(
            load(config), content(), clock=lambda: self.now_s * 1000, only=("collect", "tick")
        )
        self.service.renew()

    def round(self, seconds: int = 10) -> None:
        """Let time pass, collect, and judge what was collected before."""
        self.now_s += seconds
        self._file.write_text(json.dumps(self._state()))
        assert self.service._collection is not None
        self.service._collection.run()
        self.service.tick()

    def worker(self) -> int:
        """The process that reads."""
        assert self.service._collection is not None
        (asked,) = self.service._collection._collector._asked
        source: Any = asked.source
        return int(source._child.pid)

    def _state(self) -> dict[str, Any]:
        if self._kind == "nvml":
            gpus = [test_nvml.gpu(0), test_nvml.gpu(1, lost=self.lost)]
            return {"now_s": self.now_s, "gpus": gpus}
        gpus = [
            {"id": i, "uuid": uuid, "name": "NVIDIA H100", "minor": i,
             "prof": list(PROFILING), "lost": self.lost and i == 1,
             "nameless": self.lost and i == 1}
            for i, uuid in enumerate(test_dcgm.UUIDS)
        ]  # fmt: skip
        values = {"1:0": dict(test_dcgm.BUSY), "1:1": {**test_dcgm.BUSY, "1004": 0.2}}
        return {
            "now_us": self.now_s * 1_000_000,
            "gpus": gpus,
            "instances": [],
            "values": values,
        }


@pytest.fixture(params=["dcgm", "nvml"])
def node(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    valkey: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[_Node]:
    del redis_client  # empties the server
    monkeypatch.setenv("PYDCGM_STANDIN", str(tmp_path / "node.json"))
    monkeypatch.setenv("PYNVML_STANDIN", str(tmp_path / "node.json"))
    monkeypatch.setenv("PYTHONPATH", str(test_nvml.STANDIN))
    made = _Node(request.param, tmp_path, valkey)
    yield made
    made.service.close()


def test_each_job_has_the_history_of_its_gpu_and_a_worker_that_dies_costs_little(
    node: _Node, redis_client: redis.Redis
) -> None:
    with capture_logs() as logged:
        for _ in range(6):
            node.round()
        os.kill(node.worker(), 9)
        for _ in range(6):
            node.round()
        node.round(30)
    history = History(redis_client, Keys(), HistorySettings())
    ofu = {"71": 0.6 * 1500 / 1980, "72": 0.2 * 1500 / 1980}
    if node._kind == "nvml":
        ofu["72"] = ofu["71"]
    for job, expected in ofu.items():
        found = history.window(job, start_ms=0, end_ms=2 * _T0_S * 1000)
        usable = ~np.isnan(found.fields["ofu"])
        assert usable[0]  # a start, which has one sample alone, is no scrape without data
        assert found.fields["ofu"][usable] == pytest.approx(expected, abs=1e-4)
        assert set(found.fields["gpus"][usable]) == {1.0}
        # Each start costs the difference of two samples, and the dead worker's round as well.
        assert usable.sum() >= 8
    told = [one for one in logged if one["event"] == "source_trouble"]
    assert len(told) == 1
    assert "the worker ended (SIGKILL)" in told[0]["reason"]
    assert [one["event"] for one in logged].count("source_recovered") == 1


def test_a_gpu_that_is_lost_is_told_once_with_its_reason_and_when_it_is_back(
    node: _Node,
) -> None:
    with capture_logs() as logged:
        for lost in (False, True, False):
            node.lost = lost
            for _ in range(8):  # DCGM's GPUs are listed once a minute
                node.round()
    told = [one for one in logged if one["event"] in ("source_trouble", "source_recovered")]
    assert [one["event"] for one in told] == ["source_trouble", "source_recovered"]
    assert "GPU 1: " in told[0]["reason"]
    assert "lost" in told[0]["reason"]
    assert told[0]["reason"].endswith("dmesg | grep Xid on the node, then reboot it")
