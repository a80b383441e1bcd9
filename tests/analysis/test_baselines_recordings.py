"""The bars: what must be found in real recordings, and where silence is right."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from detector.analysis.baselines import empty
from detector.analysis.candidate import fold
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.series import FloatArray, IntArray, Panel
from tests.analysis.notation import OFU, confirmed_by

SHIPPED = Path(__file__).parents[1] / "recordings" / "real"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "recordings" / "real"
# The licence of these does not allow copies: they are judged where they can be read.
NOT_SHIPPED = ["pai_job4_w2", "pai_job4_w4", "pai_job4_w6"]
NAMES = sorted(path.stem for path in SHIPPED.glob("*.csv")) + NOT_SHIPPED


def folder(name: str) -> Path:
    return SHARED if name in NOT_SHIPPED else SHIPPED


def recording(name: str) -> tuple[IntArray, FloatArray]:
    with (folder(name) / f"{name}.csv").open() as lines:
        rows = [(float(row["timestamp"]), float(row["value"])) for row in csv.DictReader(lines)]
    times_s, values = np.array(rows).T
    return np.round(times_s * 1000).astype(np.int64), values


@pytest.fixture(scope="module")
def judged() -> dict[str, tuple[IntArray, list[Confirmed]]]:
    """Every recording's times and alarms, all folded side by side."""
    names = [name for name in NAMES if (folder(name) / f"{name}.csv").exists()]
    series = [recording(name) for name in names]
    rows = max(len(times_ms) for times_ms, _ in series)
    times_ms = np.zeros((rows, len(names)), np.int64)
    values = np.full((rows, len(names)), np.nan)
    for column, (stamps, samples) in enumerate(series):
        times_ms[: len(stamps), column] = stamps
        values[: len(stamps), column] = samples

    def confirm(column: int, candidate: Candidate) -> Confirmed | Rejected:
        return confirmed_by(*series[column], candidate)

    panel = Panel(times_ms=times_ms, values=values)
    folded = fold(OFU, empty(OFU.baseline, len(names)), panel, confirm)
    found: dict[str, tuple[IntArray, list[Confirmed]]] = {
        name: (stamps, []) for name, (stamps, _) in zip(names, series, strict=True)
    }
    for column, _, outcome in folded.outcomes:
        if isinstance(outcome, Confirmed):
            found[names[column]][1].append(outcome)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_required_events_are_found_in_time_and_nothing_else(
    name: str, judged: dict[str, tuple[IntArray, list[Confirmed]]]
) -> None:
    if name not in judged:
        pytest.skip(f"{name} may not be shipped, and {folder(name)} is not there")
    label = json.loads((folder(name) / "labels.json").read_text())[name]
    times_ms, found = judged[name]
    start_s, end_s = times_ms[0] / 1000, times_ms[-1] / 1000
    step_s = float(np.median(np.diff(times_ms))) / 1000
    due = [change.detected_ms / 1000 for change in found]
    explained = {at for at in due for first, last, _ in label["ignore"] if first <= at <= last}
    for event in label["events"]:
        if event["kind"] == "level_shift_up":
            continue
        first, last = event["alert_window"][0] - step_s, event["alert_window"][1] + 2 * step_s
        hits = [at for at in due if first <= at <= last]
        free = event.get("optional") or event["kind"] == "planned"
        assert hits or free, f"{event['kind']} {event['magnitude_rel']:+.0%} was missed"
        until = max(event["end"] or end_s, last)
        explained |= {at for at in due if min(hits, default=first) <= at <= until}
    wrong = [round(at - start_s) for at in due if at not in explained]
    assert not wrong, f"alarms {wrong} s after the start where nothing happened"
    assert all(change.direction == "down" for change in found)


@pytest.mark.parametrize("slower", [1.3, 1.6, 2.0])
@pytest.mark.parametrize("name", ["lora70b_b200x8a_r9", "lora70b_b200x8b_r5"])
def test_a_switch_of_precision_is_no_restart_in_a_run_of_slower_steps(
    name: str, slower: float
) -> None:
    """Its first sample comes after five steps of silence, however long a step is."""
    stamps, values = recording(name)
    times_ms = stamps[0] + np.rint((stamps - stamps[0]) * slower).astype(np.int64)
    step_ms = np.median(np.diff(times_ms))

    def confirm(_: int, candidate: Candidate) -> Confirmed | Rejected:
        return confirmed_by(times_ms, values, candidate)

    panel = Panel(times_ms=times_ms[:, None], values=values[:, None])
    folded = fold(OFU, empty(OFU.baseline, 1), panel, confirm)
    (change,) = [out for _, _, out in folded.outcomes if isinstance(out, Confirmed)]
    assert change.detected_ms - change.onset_ms <= 9.5 * step_ms
