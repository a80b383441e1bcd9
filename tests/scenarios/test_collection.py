"""From an exporter over HTTP to a job's history, through the service and a real server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import redis
from structlog.testing import capture_logs

from detector.config import Config, load
from detector.series import Window
from detector.service import Service
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys
from tests.scenarios.stage import content
from tests.telemetry.api import Api, Asked, Reply, serving

_PAGE = Path(__file__).parents[1] / "data" / "dcgm" / "01_h100_8gpu_host.prom"
_JOB = "48213"
_T0 = 1_796_000_000_000


class _Exporter:
    """Serves the page with a tensor activity that moves from scrape to scrape."""

    def __init__(self) -> None:
        self.scrapes = 0

    def __call__(self, asked: Asked) -> Reply:
        del asked
        self.scrapes += 1
        page = _PAGE.read_bytes()
        # Collected anew each time: another power on each GPU.
        return 200, page.replace(b"688.214000", b"%d.250000" % (600 + self.scrapes % 90))


@pytest.fixture
def exporter() -> Iterator[Api]:
    with serving(_Exporter()) as api:
        yield api


def _config(folder: Path, valkey: str, url: str, more: str = "") -> Config:
    path = folder / "config.toml"
    path.write_text(
        f'[redis]\nurl = "unix://{valkey}"\n[inbox]\nwait = "1s"\n'
        f'[[source]]\ntype = "exporter"\ntargets = ["{url}/metrics"]\n{more}'
    )
    return load(path)


class _Clock:
    def __init__(self) -> None:
        self.now_ms = _T0

    def __call__(self) -> int:
        return self.now_ms


@contextmanager
def _running(config: Config, clock: _Clock, *, only: tuple[str, ...]) -> Iterator[Service]:
    service = Service(config, content(), clock=clock, only=only)
    try:
        yield service
    finally:
        service.close()


def _collect(service: Service) -> None:
    assert service._collection is not None
    service._collection.run()


def _history(client: redis.Redis) -> Window:
    history = History(client, Keys(), HistorySettings())
    return history.window(_JOB, start_ms=0, end_ms=_T0 * 2)


def test_what_one_process_collects_another_judges(
    redis_client: redis.Redis, valkey: str, exporter: Api, tmp_path: Path
) -> None:
    config, clock = _config(tmp_path, valkey, exporter.url), _Clock()
    with (
        _running(config, clock, only=("collect",)) as collecting,
        _running(config, clock, only=("tick",)) as judging,
    ):
        assert judging._collection is None
        judging.renew()
        for _ in range(6):
            _collect(collecting)
            clock.now_ms += 10_000
            judging.tick()
        clock.now_ms += 30_000
        judging.tick()
    found = _history(redis_client)
    assert list(np.diff(found.times_ms)) == [10_000] * 5
    assert found.fields["ofu"] == pytest.approx(np.full(6, 0.308678), abs=2e-4)
    assert set(found.fields["gpus"]) == {8.0}
    assert found.gpus is not None
    assert found.gpus.shape == (6, 8)


def test_two_collectors_at_once_write_what_one_writes(
    redis_client: redis.Redis, valkey: str, exporter: Api, tmp_path: Path
) -> None:
    config, clock = _config(tmp_path, valkey, exporter.url), _Clock()
    with (
        _running(config, clock, only=("collect",)) as first,
        _running(config, clock, only=("collect",)) as second,
        _running(config, clock, only=("tick",)) as judging,
    ):
        judging.renew()
        for _ in range(4):
            _collect(first)
            clock.now_ms += 400
            _collect(second)
            clock.now_ms += 9_600
            judging.tick()
        clock.now_ms += 30_000
        judging.tick()
    found = _history(redis_client)
    assert list(np.diff(found.times_ms)) == [10_000] * 3
    assert set(found.fields["gpus"]) == {8.0}


def test_a_target_that_goes_down_is_told_once_and_once_when_it_is_back(
    redis_client: redis.Redis, valkey: str, exporter: Api, tmp_path: Path
) -> None:
    del redis_client
    config, clock = _config(tmp_path, valkey, exporter.url), _Clock()
    well = exporter.answer

    def down(asked: Asked) -> Reply:
        del asked
        return 503, b""

    with capture_logs() as logged, _running(config, clock, only=("collect",)) as service:
        for answer in (well, down, well, down, well, well, down, well, well, well):
            exporter.answer = answer
            _collect(service)
            clock.now_ms += 10_000
    told = [entry["event"] for entry in logged if entry["event"].startswith("source_")]
    clocks = [entry for entry in logged if "clock of" in str(entry.get("reason", ""))]
    assert told.count("source_trouble") == 1 + len(clocks)
    assert told.count("source_recovered") == 1


def test_gpus_that_work_for_no_job_are_told_once(
    redis_client: redis.Redis, valkey: str, exporter: Api, tmp_path: Path
) -> None:
    del redis_client
    config, clock, named = _config(tmp_path, valkey, exporter.url), _Clock(), exporter.answer

    def nameless(asked: Asked) -> Reply:
        page = named(asked)[1]
        assert isinstance(page, bytes)
        return 200, page.replace(b'hpc_job="48213"', b'hpc_job=""')

    with capture_logs() as logged, _running(config, clock, only=("collect",)) as service:
        for answer in (named, *[nameless] * 15, named):
            exporter.answer = answer
            _collect(service)
            clock.now_ms += 10_000
    (told,) = [entry for entry in logged if entry["event"] == "gpus_of_no_job"]
    assert told["hosts"] == "gpu-a-07.example.com"
