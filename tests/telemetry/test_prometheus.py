import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from detector.reading import Reading, Scrape
from detector.series import Duration
from detector.telemetry.prometheus import Prometheus, build
from detector.telemetry.prometheus_settings import PrometheusSettings
from tests.telemetry.real_prometheus import Served

T = TypeVar("T")

GPU = (
    'gpu="0",UUID="GPU-live0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",'
    'Hostname="node-a"'
)


def page(labels: str, tensor: str = "0.4{n}") -> list[str]:
    return [
        f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{labels}}} {tensor}",
        f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} 1485",
        f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 97",
    ]


@contextmanager
def scraped(server: Served, lines: list[str], *, select: str = "{}") -> Iterator[Prometheus]:
    """Have the server scrape a page, and return the source that asks it."""
    settings = PrometheusSettings(url=server.url, select=select, window=Duration(10_000))
    source = build(settings, secret=lambda settings, key: "")
    with server.lock:
        server.exporter.lines = lines
        try:
            yield source
        finally:
            server.exporter.lines = []
            source.close()


def reading_of(source: Prometheus, wanted: Callable[[Reading], bool]) -> Reading:
    """Ask until the live GPU reads as wanted: a server scrapes in its own time."""
    return found(source, lambda scrape: [one for one in live(scrape) if wanted(one)])[0]


def found(source: Prometheus, look: Callable[[Scrape], list[T]]) -> list[T]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        (scrape,) = source.scrape(int(time.time() * 1000))
        if seen := look(scrape):
            return seen
        time.sleep(0.1)
    pytest.fail(f"never seen; last: {scrape}")


def live(scrape: Scrape) -> list[Reading]:
    return [one for one in scrape.readings if one.uuid == "GPU-live0"]


def test_a_reading_has_its_own_time_and_the_workloads_labels(prometheus: Served) -> None:
    with scraped(prometheus, page(f'{GPU},pod="llm-0",namespace="team"')) as source:
        reading = reading_of(source, lambda one: one.labels.get("exported_pod") == "llm-0")
    assert reading.own_clock
    assert abs(reading.time_ms - time.time() * 1000) < 10_000
    assert reading.labels["pod"] == "dcgm-exporter-x7"
    assert (reading.host, reading.index) == ("node-a", "0")
    assert 0.4 <= reading.values["tensor_active"] < 0.5
    assert reading.values["sm_clock_mhz"] == 1485.0


def test_a_sample_grows_old_when_scrapes_fail(prometheus: Served) -> None:
    with scraped(prometheus, page(GPU)) as source:
        reading_of(source, lambda one: True)
        prometheus.exporter.lines = []  # answers 503
        old = reading_of(source, lambda one: time.time() * 1000 - one.time_ms > 3_000)
    assert old.values["sm_clock_mhz"] == 1485.0


def test_a_blank_is_left_out_and_told(prometheus: Served) -> None:
    with scraped(prometheus, page(GPU, tensor="140737488355328")) as source:
        told = found(source, lambda scrape: list(scrape.dropped))
        reading = reading_of(source, lambda one: "tensor_active" not in one.values)
    assert {one.metric for one in told} == {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"}
    assert "fp64 sentinel" in told[0].reason
    assert reading.values["gpu_util_pct"] == 97.0


def test_a_busy_gpus_repeated_values_keep_the_time_of_their_collection(
    prometheus: Served,
) -> None:
    with scraped(prometheus, page(GPU, tensor="0.412345")) as source:
        first = reading_of(source, lambda one: one.values.get("tensor_active") == 0.412345)
        time.sleep(2.5)
        again = reading_of(source, lambda one: True)
    assert again.time_ms == first.time_ms


def test_jobs_that_share_a_gpu_are_one_reading(prometheus: Served) -> None:
    lines = [line for job in ("7", "8") for line in page(f'{GPU},hpc_job="{job}"')]
    with scraped(prometheus, lines) as source:
        reading = reading_of(source, lambda one: bool(one.sharing))
    assert {reading.labels["hpc_job"], reading.sharing[0]["hpc_job"]} == {"7", "8"}


def test_a_mig_instance_reads_the_clock_of_its_gpu(prometheus: Served) -> None:
    instance = f'{GPU},GPU_I_ID="1",GPU_I_PROFILE="1g.10gb",hpc_job="7"'
    with scraped(prometheus, [page(instance)[0], page(GPU)[1]]) as source:
        reading = reading_of(
            source, lambda one: one.instance == "1" and "sm_clock_mhz" in one.values
        )
    assert reading.values["sm_clock_mhz"] == 1485.0
    assert "tensor_active" in reading.values


def test_matchers_of_ones_own_leave_others_out(prometheus: Served) -> None:
    with scraped(prometheus, page(GPU), select='{Hostname="elsewhere"}') as source:
        (scrape,) = source.scrape(int(time.time() * 1000))
    assert not scrape.readings
    assert 'select {Hostname="elsewhere"}' in scrape.error
