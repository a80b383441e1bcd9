"""Glances between two scrapes, by a clock that the test moves."""

import importlib.util
import json
from pathlib import Path

import pytest

from detector.telemetry.nvml_reader import Gpm

STANDIN = Path(__file__).parents[1] / "fakes" / "pynvml_standin" / "pynvml.py"


def test_clock_and_power_are_means_of_the_glances_and_reasons_all_that_were_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "driver.json"
    monkeypatch.setenv("PYNVML_STANDIN", str(driver))
    spec = importlib.util.spec_from_file_location("pynvml_standin", STANDIN)
    assert spec is not None
    assert spec.loader is not None
    nvml = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nvml)

    def tell(now_s: int, *, clock: int, power_mw: int, bits: int) -> None:
        gpu = {"uuid": "GPU-0", "name": "NVIDIA H100", "clock": clock, "power_mw": power_mw,
               "bits": bits, "metrics": {"5": 50.0}}  # fmt: skip
        driver.write_text(json.dumps({"now_s": now_s, "gpus": [gpu]}))

    tell(0, clock=1900, power_mw=500_000, bits=0x1)
    gpm = Gpm(nvml, host="node1", pause=lambda _: None)
    gpm.read(0)
    tell(5, clock=1000, power_mw=300_000, bits=0x4)
    gpm.glance()
    tell(6, clock=1600, power_mw=300_000, bits=0x20)
    gpm.glance()
    tell(10, clock=1900, power_mw=600_000, bits=0)
    (reading,) = gpm.read(10_000).readings
    gpm.close()
    assert reading.values["sm_clock_mhz"] == pytest.approx(1500)
    assert reading.values["power_w"] == pytest.approx(400)
    assert reading.values["clock_event_bits"] == 0x24
