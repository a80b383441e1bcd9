"""The real ``nvidia-ml-py`` over a stand-in for the driver's library."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from detector.telemetry.nvml import NvmlSettings, build

LIBRARY = Path(__file__).parents[1] / "fakes" / "libnvidia_ml_standin.c"


def test_the_real_package_hands_on_what_the_library_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, LIBRARY], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    source = build(NvmlSettings(host="n1"))
    try:
        for _ in range(2):
            (scrape,) = source.scrape(time.time_ns() // 1_000_000)
    finally:
        source.close()
    assert (scrape.error, scrape.failing, scrape.dropped) == ("", "", ())
    whole, small, large = scrape.readings
    assert (whole.entity, whole.model) == ("GPU-0", "NVIDIA H100 80GB HBM3")
    assert whole.labels == {"minor_number": "7"}
    assert whole.values == {
        "tensor_active": pytest.approx(0.6), "sm_clock_mhz": 1500.0, "power_w": 650.0,
        "max_sm_clock_mhz": 1980.0, "energy_j": 5.0, "gpu_util_pct": 100.0,
        "pcie_rx_bytes": 2.0 * 2**20,
    }  # fmt: skip
    assert (small.entity, small.profile) == ("GPU-1/7", "1g.10gb")
    assert (large.entity, large.profile) == ("GPU-1/2", "3g.40gb")
    for instance, tensor in ((small, 0.7), (large, 0.2)):
        assert instance.values == {
            "tensor_active": pytest.approx(tensor), "sm_clock_mhz": 1500.0,
            "max_sm_clock_mhz": 1980.0,
        }  # fmt: skip
