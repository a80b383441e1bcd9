"""Who is woken by what: whole recordings through the tick, as replay and the service run it."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from detector.analysis.judge import Content
from detector.cli.replay import command
from detector.content import load, shipped
from detector.fleet import Job
from detector.incident.incident import Incident, State, Transition
from detector.incident.ledger import Action
from detector.incident.lifecycle import Policy
from detector.replay import replay
from detector.series import ContextEvent, FloatArray, Interval, Window
from detector.state import restore
from detector.store.memory import MemoryHistories, MemoryLedger
from detector.store.recording import Recording
from detector.tick import Settings, run
from tests.analysis.notation import START_MS, levels, times

MINUTE = 6  # samples
ONSET_MIN = 240
ONSET_MS = START_MS + ONSET_MIN * 60_000


@cache
def content() -> Content:
    return load(shipped() / "models", shipped() / "rules")


def healthy(minutes: float = ONSET_MIN) -> FloatArray:
    """A level of 0.45; every half hour a checkpoint of 2 min at 0.2."""
    values = levels((0.45, round(minutes * MINUTE)))
    for start in range(20 * MINUTE, len(values), 30 * MINUTE):
        values[start : start + 2 * MINUTE] *= 0.2 / 0.45
    return values


def then(*parts: tuple[float, float]) -> FloatArray:
    """Four healthy hours, and then levels for so many minutes each; NaN is no data."""
    known = [(np.nan_to_num(level), round(minutes * MINUTE)) for level, minutes in parts]
    gaps = np.repeat([np.isnan(level) for level, _ in parts], [count for _, count in known])
    return np.concatenate([healthy(), np.where(gaps, np.nan, levels(*known, seed=2))])


def window(values: FloatArray, *, events: Sequence[ContextEvent] = ()) -> Window:
    kept = ~np.isnan(values)
    times_ms = times(len(values))
    return Window(
        times_ms=times_ms[kept], fields={"ofu": values[kept]}, events=tuple(events)
    )


def incidents(values: FloatArray, *, events: Sequence[ContextEvent] = ()) -> list[Incident]:
    recording = Recording(job=Job(id="job"), window=window(values, events=events))
    found = replay({"job": recording}, content(), cluster="test", policy=Policy())
    assert found.poisoned == {}
    return list(found.incidents)


def paged_after(values: FloatArray) -> list[float]:
    """Minutes from the change until people were called, for each incident that called them."""
    return [
        round((item.paged_ms - ONSET_MS) / 60_000, 1)
        for item in incidents(values)
        if item.paged_ms is not None
    ]


@pytest.mark.parametrize("level", [0.34, 0.315, 0.22, 0.18, 0.1])
def test_a_fall_of_a_quarter_and_more_calls_people_once_within_a_quarter_of_an_hour(
    level: float,
) -> None:
    (after,) = paged_after(then((level, 120)))
    assert 11.5 <= after <= 15


def test_whoever_is_called_reads_why_and_a_critical_incident_was_none_before() -> None:
    (item,) = incidents(then((0.3, 40)))
    assert item.severity == "critical"
    assert "33% below the level before" in item.page_reason
    (early,) = incidents(then((0.3, 10)))
    assert (early.severity, early.paged_ms) == ("warning", None)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(0.2, 4.6), (0.45, 60)], id="a checkpoint of twice its length"),
        pytest.param([(0.3, 11), (0.45, 60)], id="a fall that is over after 11 min"),
        pytest.param([(0.3, 8), (0.45, 2), (0.3, 8), (0.45, 60)], id="it comes back between"),
        pytest.param([(0.38, 120)], id="a fall of 16 %"),
        pytest.param([(0.3, 9)], id="the recording ends"),
        pytest.param([(0.3, 6), (np.nan, 90)], id="telemetry is lost"),
        pytest.param([(0.3, 6), (0.0, 8), (0.45, 60)], id="a restart mends it"),
        pytest.param([(0.0, 22), (0.45, 60)], id="a restart of 22 min"),
        pytest.param([(0.6, 120)], id="a rise"),
    ],
)
def test_nobody_is_woken_by(parts: list[tuple[float, float]]) -> None:
    assert paged_after(then(*parts)) == []


def test_a_checkpoint_during_the_fall_does_not_put_the_call_off() -> None:
    (after,) = paged_after(then((0.3, 5), (0.13, 3), (0.3, 60)))
    assert after <= 15


def test_a_restart_during_the_fall_starts_the_time_anew() -> None:
    (after,) = paged_after(then((0.3, 5), (0.0, 4), (0.3, 60)))
    assert 9 + 11.5 <= after <= 9 + 15


def test_what_is_seen_again_after_a_silence_has_to_last_before_it_calls() -> None:
    (after,) = paged_after(then((0.3, 6), (np.nan, 60), (0.3, 60)))
    assert 66 + 2 <= after <= 66 + 12


def test_a_hang_calls_when_it_has_stood_still_for_longer_than_a_restart() -> None:
    (item,) = incidents(then((0.002, 90)))
    assert item.kind == "hang"
    assert item.paged_ms is not None
    assert 30 <= (item.paged_ms - ONSET_MS) / 60_000 <= 31


def test_a_fall_in_a_young_job_must_last_longer_than_its_first_phases() -> None:
    young = levels((0.45, 30 * MINUTE), (0.3, 200 * MINUTE))
    (item,) = incidents(young)
    assert item.paged_ms is not None
    assert item.paged_ms - START_MS >= (30 + 90) * 60_000


def test_a_long_evaluation_that_recurs_never_calls() -> None:
    values = levels((0.45, 6 * 60 * MINUTE))
    for start in range(50 * MINUTE, len(values), 60 * MINUTE):
        values[start : start + 13 * MINUTE] *= 0.6
    assert [item.paged_ms for item in incidents(values) if item.paged_ms] == []


def test_a_further_drop_stays_critical_and_calls_again_only_if_it_is_as_deep() -> None:
    first, second = incidents(then((0.3, 60), (0.27, 60)))
    assert first.paged_ms is not None
    assert first.resolve_reason == "superseded"
    assert (second.severity, second.paged_ms) == ("critical", None)
    _, deeper = incidents(then((0.3, 60), (0.15, 60)))
    assert deeper.severity == "critical"
    assert deeper.paged_ms is not None


def test_an_announced_evaluation_calls_nobody_while_it_goes_on() -> None:
    span = Interval(start_ms=ONSET_MS, end_ms=ONSET_MS + 30 * 60_000)
    event = ContextEvent(kind="evaluation", span=span)
    found = incidents(then((0.3, 30), (0.45, 60)), events=[event])
    assert [item.paged_ms for item in found] == []


def test_a_frozen_exporter_calls_nobody() -> None:
    values = then((0.3, 60))
    values[len(healthy()) :] = 0.3
    assert paged_after(values) == []


def told(values: FloatArray, *, slice_entries: int, taken: bool = False) -> list[Transition]:
    """What the tick tells of a recording that it reads in slices of this size."""
    histories = MemoryHistories(
        {"job": window(values)}, jobs={"job": Job(id="job")}, slice_entries=slice_entries
    )
    ledger, state = _Taking() if taken else MemoryLedger(), restore(content())
    steps: list[Transition] = []
    more = True
    while more:
        state, report = run(
            state,
            histories=histories,
            ledger=ledger,
            content=content(),
            settings=Settings(cluster="test", policy=Policy()),
            now_ms=int(window(values).times_ms[-1]),
        )
        steps += report.transitions
        more = report.more
    return steps


class _Taking(MemoryLedger):
    """A ledger in which somebody takes on every incident as soon as it is there."""

    def actions(self, shards: object) -> dict[int, list[Action]]:
        del shards
        asked: dict[int, list[Action]] = {}
        for incident in self.incidents.values():
            if incident.state is State.OPEN:
                shard = next(iter(self._saved))
                action = Action(
                    verb="acknowledge",
                    incident=incident.id,
                    actor="alice",
                    time_ms=incident.detected_ms,
                )
                asked.setdefault(shard, []).append(action)
        return asked


@pytest.mark.parametrize("slice_entries", [1, 7, 61, 100_000])
def test_how_the_samples_are_cut_changes_nothing(slice_entries: int) -> None:
    values = then((0.3, 5), (0.13, 3), (0.3, 20), (0.45, 10), (0.2, 30))
    assert told(values, slice_entries=slice_entries) == told(values, slice_entries=360)


def test_an_incident_that_somebody_has_taken_calls_nobody() -> None:
    steps = told(then((0.3, 60)), slice_entries=6, taken=True)
    assert [step.type for step in steps][:2] == ["opened", "acknowledged"]
    assert all(step.incident.paged_ms is None for step in steps)


def test_the_call_is_one_escalation_after_the_opening() -> None:
    steps = told(then((0.3, 60)), slice_entries=6)
    assert [step.type for step in steps].count("escalated") == 1
    call = next(step for step in steps if step.type == "escalated")
    assert call.time_ms == call.incident.paged_ms
    opening = next(step for step in steps if step.type == "opened")
    assert opening.incident.severity == "warning"


def test_replay_tells_when_people_would_have_been_called(tmp_path: Path) -> None:
    values = then((0.3, 30))
    file, out = tmp_path / "job.csv", tmp_path / "out.jsonl"
    rows = zip(times(len(values)).tolist(), values.tolist(), strict=True)
    file.write_text(
        "timestamp,job,value\n" + "".join(f"{at / 1000},job,{value:.5f}\n" for at, value in rows)
    )
    done = CliRunner().invoke(command, [str(file), "--json", str(out)])
    assert done.exit_code == 0, done.output
    (line,) = [json.loads(text) for text in out.read_text().splitlines()]
    assert line["severity"] == "critical"
    assert line["paged_at"] > line["detected_at"]
    assert "paged" in done.output
