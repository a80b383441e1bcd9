"""The sample pages, each with what must be read of it (tests/data/dcgm/README.md)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from detector.reading import Reading
from detector.telemetry.exposition import Page, parse
from detector.telemetry.identity import job_of

FOLDER = Path(__file__).parent.parent / "data" / "dcgm"
NAMES = sorted(path.stem for path in FOLDER.glob("*.prom"))


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.expected.json").read_text())
    return found


def page(name: str) -> Page:
    return parse((FOLDER / f"{name}.prom").read_bytes(), time_ms=1_000)


def jobs(reading: Reading) -> list[str]:
    found = [job_of(labels) for labels in (reading.labels, *reading.sharing)]
    return [job for job in found if job]


@pytest.mark.parametrize("name", NAMES)
def test_every_gpu_of_a_sample_page_reads_as_written_down(name: str) -> None:
    readings = page(name).readings
    wanted = expected(name)["gpus"]
    assert [(r.uuid, r.instance or None) for r in readings] == [
        (gpu["uuid"], gpu["gi_id"]) for gpu in wanted
    ]
    for reading, gpu in zip(readings, wanted, strict=True):
        assert reading.host == (gpu["host"] or "")
        assert reading.index == gpu["gpu"]
        assert reading.profile == (gpu["mig_profile"] or "")
        assert reading.model == (gpu["model"] or "")
        assert set(reading.values) == set(gpu["fields"])
        for field, value in gpu["fields"].items():
            assert math.isclose(reading.values[field], value, rel_tol=1e-12), field


@pytest.mark.parametrize("name", NAMES)
def test_every_gpu_of_a_sample_page_works_for_the_jobs_written_down(name: str) -> None:
    for reading, gpu in zip(page(name).readings, expected(name)["gpus"], strict=True):
        job = gpu["job"]
        wanted = job if isinstance(job, list) else [job] if job else []
        assert jobs(reading) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_just_the_lines_written_down_are_dropped(name: str) -> None:
    dropped = page(name).dropped
    assert [(line.line, line.metric or "(none)", line.raw) for line in dropped] == [
        (line["line"], line["metric"], line["raw_value"]) for line in expected(name)["dropped"]
    ]
    assert all(line.reason for line in dropped)
