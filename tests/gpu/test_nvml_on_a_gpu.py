"""The NVML source on a real GPU; skipped where there is none."""

import time
from collections.abc import Iterator

import pynvml
import pytest

from detector.telemetry.nvml import NvmlSettings, build
from detector.telemetry.worker import NodeSource


@pytest.fixture
def source() -> Iterator[NodeSource]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA driver here: {error}")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    supported = pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
    pynvml.nvmlShutdown()
    if not supported:
        pytest.skip("GPU 0 is older than Hopper: no GPM")
    made = build(NvmlSettings())
    yield made
    made.close()


def test_a_real_gpu_gives_what_ofu_is_made_of(source: NodeSource) -> None:
    source.scrape(time.time_ns() // 1_000_000)
    time.sleep(source.settle_s)
    (scrape,) = source.scrape(time.time_ns() // 1_000_000)
    assert scrape.error == ""
    assert scrape.failing == ""
    for reading in scrape.readings:
        assert 0 <= reading.values["tensor_active"] <= 1.02
        assert 100 < reading.values["sm_clock_mhz"] <= reading.values["max_sm_clock_mhz"]
        assert reading.values["power_w"] > 0
