"""What is used of DCGM's bindings: the stand-in has it, and real ones if there are any."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detector.telemetry.dcgm_bindings import PLACES

HERE = Path(__file__).parent
STANDIN = HERE.parent / "fakes" / "pydcgm_standin"
CONTRACT = json.loads((HERE / "dcgm_contract.json").read_text())
FACTS = {
    "front": True,
    "error": [
        "DCGMError_ConnectionNotValid", -21, "DCGMError_ModuleNotLoaded", -33,
    ],
    "errors are of one class": True,
    "pair": [4, 3],
    "entities": [1, 4],
    "live": 1,
}  # fmt: skip


def surface(folder: str) -> dict[str, Any]:
    answer = subprocess.run(
        [sys.executable, str(HERE / "dcgm_surface.py"), folder],
        input=json.dumps(list(CONTRACT)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def real() -> str:
    for folder in (os.environ.get("PYDCGM_PATH", ""), *PLACES):
        if folder and (Path(folder) / "pydcgm.py").is_file():
            return folder
    pytest.skip("no real DCGM bindings here: set PYDCGM_PATH to the folder of pydcgm.py")


def test_the_stand_in_has_the_very_signatures() -> None:
    assert surface(str(STANDIN)) == {"signatures": CONTRACT, "facts": FACTS}


def test_real_bindings_have_the_signatures_and_at_most_more_behind_them() -> None:
    found = surface(real())
    short = {path: found["signatures"][path][: len(names)] for path, names in CONTRACT.items()}
    assert short == CONTRACT
    assert found["facts"] == FACTS
