"""Who is woken by what: whole recordings through the tick, as replay and the service run it."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from detector.analysis.baselines import Level
from detector.analysis.judge import Content
from detector.analysis.paging import Fall, Later, Passed, ask
from detector.cli.replay import command
from detector.content import load, shipped
from detector.fleet import Job
from detector.incident.incident import Incident, State, Transition
from detector.incident.ledger import Action
from detector.incident.lifecycle import Policy
from detector.replay import replay
from detector.series import ContextEvent, FloatArray, Interval, Series, Window
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
    return Window(times_ms=times_ms[kept], fields={"ofu": values[kept]}, events=tuple(events))


def incidents(values: FloatArray, *, events: Sequence[ContextEvent] = ()) -> list[Incident]:
    recording = Recording(job=Job(id="job"), window=window(values, events=events))
    found = replay({"job": recording}, content(), cluster="test", policy=Policy())
    assert found.poisoned == {}
    return list(found.incidents)


def called_after(found: Sequence[Incident]) -> list[float]:
    """Minutes from the change until people were called, for each incident that called them."""
    return [
        round((item.paged_ms - ONSET_MS) / 60_000, 1)
        for item in found
        if item.paged_ms is not None
    ]


# What follows four healthy hours: levels, for so many minutes each; NaN is no data.
CALLS = {
    "by a quarter": [(0.34, 120.0)],
    "by 30 %": [(0.315, 120.0)],
    "to a half": [(0.22, 120.0)],
    "to the level of a checkpoint": [(0.18, 120.0)],
    "to a fifth": [(0.1, 120.0)],
    "with a checkpoint on the way": [(0.3, 5.0), (0.13, 3.0), (0.3, 60.0)],
    "with an evaluation on the way": [(0.3, 6.0), (0.2, 9.0), (0.3, 60.0)],
    "to whoever comes back after 8 min, for two": [(0.3, 8.0), (0.45, 2.0), (0.3, 60.0)],
    "before a restart": [(0.3, 5.0), (0.0, 4.0), (0.3, 60.0)],
    "before a silence": [(0.3, 6.0), (np.nan, 60.0), (0.3, 60.0)],
}
SLEEPS = {
    "a checkpoint of twice its length": [(0.2, 4.6), (0.45, 60.0)],
    "a fall that is over after 11 min": [(0.3, 11.0), (0.45, 60.0)],
    "what comes back between": [(0.3, 8.0), (0.45, 2.0), (0.3, 8.0), (0.45, 60.0)],
    "a fall of 16 %": [(0.38, 120.0)],
    "a recording that ends": [(0.3, 9.0)],
    "telemetry that is lost": [(0.3, 6.0), (np.nan, 90.0)],
    "a fall that a restart mends": [(0.3, 6.0), (0.0, 8.0), (0.45, 60.0)],
    "two restarts in a row": [(0.0, 42.0), (0.45, 60.0)],
    "a rise": [(0.6, 120.0)],
}


@cache
def together() -> dict[str, list[Incident]]:
    """What the detector makes of all cases, side by side as the jobs of a fleet are."""
    cases = {**CALLS, **SLEEPS}
    recordings = {
        name: Recording(job=Job(id=name), window=window(then(*parts)))
        for name, parts in cases.items()
    }
    found = replay(recordings, content(), cluster="test", policy=Policy())
    assert found.poisoned == {}
    return {name: [i for i in found.incidents if i.job.id == name] for name in cases}


@pytest.mark.parametrize("name", list(CALLS)[:7])
def test_a_fall_of_a_quarter_and_more_calls_people_once_within_a_quarter_of_an_hour(
    name: str,
) -> None:
    (after,) = called_after(together()[name])
    assert 12 <= after <= 15


@pytest.mark.parametrize("name", list(SLEEPS))
def test_nobody_is_woken_by(name: str) -> None:
    assert called_after(together()[name]) == []


@pytest.mark.parametrize(
    ("name", "from_min"),
    [
        # The first 8 min went by, and it stands on their very level: two and a half times that.
        ("to whoever comes back after 8 min, for two", 10.0 + 8.0),
        # And its warm-up is waited for.
        ("before a restart", 9.0 + 5.0),
        # Little of a silence counts, and 6 min before it.
        ("before a silence", 66.0 - 8.0),
    ],
)
def test_the_time_starts_anew_after(name: str, from_min: float) -> None:
    (after,) = called_after(together()[name])
    assert from_min + 12 <= after <= from_min + 15


def test_whoever_is_called_reads_why_and_a_critical_incident_was_none_before() -> None:
    (item,) = incidents(then((0.3, 40)))
    assert item.severity == "critical"
    assert "33% below the level before" in item.page_reason
    (early,) = incidents(then((0.3, 10)))
    assert (early.severity, early.paged_ms) == ("warning", None)


def test_a_hang_calls_when_it_has_stood_still_for_longer_than_a_restart() -> None:
    (item,) = incidents(then((0.002, 90)))
    assert item.kind == "hang"
    assert item.paged_ms is not None
    assert 45 <= (item.paged_ms - ONSET_MS) / 60_000 <= 46


def test_a_fall_in_a_young_job_must_last_longer_than_its_first_phases() -> None:
    young = levels((0.45, 30 * MINUTE), (0.3, 200 * MINUTE))
    (item,) = incidents(young)
    assert item.paged_ms is not None
    assert item.paged_ms - START_MS >= (30 + 90) * 60_000


def test_an_evaluation_of_twice_its_usual_length_calls_nobody() -> None:
    values = levels((0.45, 6 * 60 * MINUTE))
    for number, start in enumerate(range(50 * MINUTE, len(values), 60 * MINUTE)):
        minutes = 15 if number == 4 else 7
        values[start : start + minutes * MINUTE] *= 0.6
    assert [item.paged_ms for item in incidents(values) if item.paged_ms] == []


def test_what_counts_as_a_standstill_is_the_setting_of_the_model() -> None:
    values = then((0.02, 20))

    def read(span: Interval) -> Series | None:
        series = window(values).series("ofu")
        assert series is not None
        kept = (series.times_ms > span.start_ms) & (series.times_ms <= span.end_ms)
        return Series(times_ms=series.times_ms[kept], values=series.values[kept])

    model = next(item for item in content().models if item.metric == "ofu")
    assert model.page is not None
    assert isinstance(model.baseline, Level)
    fall = Fall(onset_ms=ONSET_MS, at_ms=ONSET_MS + 15 * 60_000, before=0.45)
    assert isinstance(ask(fall, model, model.page, read), Passed)
    stiller = replace(model, baseline=replace(model.baseline, still=0.06))
    answer = ask(fall, stiller, model.page, read)
    assert "a restart stands still" in answer.reason


def test_a_fall_from_a_level_that_the_history_does_not_show_calls_nobody() -> None:
    values = healthy()
    model = next(item for item in content().models if item.metric == "ofu")
    assert model.page is not None

    def read(span: Interval) -> Series | None:
        return window(values).series("ofu")

    fall = Fall(onset_ms=START_MS + 100 * 60_000, at_ms=START_MS + 239 * 60_000, before=0.7)
    answer = ask(fall, model, model.page, read)
    assert isinstance(answer, Later)
    assert "where its history shows it before" in answer.reason


@pytest.mark.parametrize("minutes", [10, 30])
def test_a_lasting_fall_of_a_slow_series_calls_people_once_a_dozen_samples_show_it(
    minutes: int,
) -> None:
    count = 200
    values = levels((0.45, 150), (0.25, count - 150))
    series = Window(times_ms=times(count, every_s=60.0 * minutes), fields={"ofu": values})
    found = replay(
        {"job": Recording(job=Job(id="job"), window=series)},
        content(), cluster="test", policy=Policy(),
    ).incidents  # fmt: skip
    (paged,) = [item.paged_ms for item in found if item.paged_ms is not None]
    lasted = (paged - START_MS) / 60_000 / minutes - 150
    assert 11 <= lasted <= 20


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
    assert called_after(incidents(values)) == []


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
        "timestamp,job,value\n" + "".join(f"{at / 1000},job,{ofu:.5f}\n" for at, ofu in rows)
    )
    done = CliRunner().invoke(command, [str(file), "--json", str(out)])
    assert done.exit_code == 0, done.output
    (line,) = [json.loads(text) for text in out.read_text().splitlines()]
    assert line["severity"] == "critical"
    assert line["paged_at"] > line["detected_at"]
    assert "paged" in done.output
