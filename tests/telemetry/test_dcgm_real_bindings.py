"""NVIDIA's own Python bindings, where there are any, over a stand-in for libdcgm."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detector.series import Duration
from detector.telemetry.dcgm import DcgmSettings, build

LIBRARY = Path(__file__).parents[1] / "fakes" / "libdcgm_standin.c"
OFFSETS = """
import sys
sys.path.append(sys.argv[1])
import pydcgm, dcgm_structs
whole = dcgm_structs.c_dcgmDeviceAttributes_v3
part = dcgm_structs.c_dcgmDeviceIdentifiers_v1
print(*(whole.identifiers.offset + one.offset for one in (part.uuid, part.deviceName)))
"""


@pytest.fixture
def bindings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the folder of real bindings that load the stand-in for the library."""
    folder = os.environ.get("PYDCGM_PATH", "")
    compiler = shutil.which("cc")
    if not (Path(folder) / "pydcgm.py").is_file() or compiler is None:
        pytest.skip("needs PYDCGM_PATH, the folder of real DCGM bindings, and a C compiler")
    uuid_at, name_at = subprocess.run(
        [sys.executable, "-c", OFFSETS, folder], capture_output=True, text=True, check=True
    ).stdout.split()[-2:]
    library = tmp_path / "libdcgm.so.4"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-DUUID_AT={uuid_at}", f"-DNAME_AT={name_at}",
         "-o", library, LIBRARY],
        check=True,
    )  # fmt: skip
    (tmp_path / "libdcgm.so.3").symlink_to(library)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return folder


def test_real_bindings_hand_on_what_the_library_samples(bindings: str) -> None:
    source = build(DcgmSettings(bindings=bindings, host="n1", interval=Duration(1_000)))
    try:
        for _ in range(3):
            (scrape,) = source.scrape(time.time_ns() // 1_000_000)
            assert scrape.error == ""
            time.sleep(1.1)
    finally:
        source.close()
    (reading,) = scrape.readings
    assert (reading.uuid, reading.model, reading.host) == ("GPU-0", "NVIDIA H100", "n1")
    assert reading.labels == {"minor_number": "3"}
    assert reading.values == {
        "tensor_active": 0.6, "gr_engine_active": 0.9, "sm_clock_mhz": 1500.0,
        "max_sm_clock_mhz": 1980.0, "power_w": 650.0,
    }  # fmt: skip
    assert scrape.failing == ""
