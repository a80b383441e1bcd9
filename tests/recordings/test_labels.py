import csv
import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDERS = ("real", "fleet_gpu")

# What may be given on with an Apache-2.0 project, its text and attribution beside it.
LICENCES = {"Apache-2.0", "MIT"}


def labels(folder: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((HERE / folder / "labels.json").read_text())
    return loaded


RECORDINGS = [(folder, name) for folder in FOLDERS for name in labels(folder)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_recording_has_a_label_and_every_label_a_recording(folder: str) -> None:
    files = {path.stem for path in (HERE / folder).glob("*.csv")}
    assert files == set(labels(folder))


@pytest.mark.parametrize(("folder", "name"), RECORDINGS)
def test_a_recording_says_where_it_comes_from_and_may_be_given_on(
    folder: str, name: str
) -> None:
    label = labels(folder)[name]
    assert label["licence"] in LICENCES
    assert label["source"].startswith("github.com/")
    repository = label["source"].split()[0]
    assert repository in (HERE / "README.md").read_text()


@pytest.mark.parametrize(("folder", "name"), RECORDINGS)
def test_a_recording_is_in_order_and_its_values_are_ratios(folder: str, name: str) -> None:
    with (HERE / folder / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["job"] for row in rows} == {name}
    times = [float(row["timestamp"]) for row in rows]
    assert times == sorted(times)
    assert all(0 <= float(row["value"]) <= 1 for row in rows)


@pytest.mark.parametrize("name", list(labels("real")))
def test_an_event_lies_within_its_recording(name: str) -> None:
    with (HERE / "real" / f"{name}.csv").open() as file:
        times = [float(row["timestamp"]) for row in csv.DictReader(file)]
    for event in labels("real")[name]["events"]:
        assert times[0] <= event["start"] <= times[-1]
        assert event["end"] is None or event["start"] < event["end"]


def test_what_the_demonstration_plays_is_what_is_recorded_here() -> None:
    played = sorted((HERE.parents[1] / "detector/demo/recordings").glob("*.csv"))
    assert played
    for path in played:
        assert path.read_bytes() == (HERE / "real" / path.name).read_bytes()
