"""Falls that announcements tell early, what other metrics add, and what must not mislead."""

from itertools import pairwise

import numpy as np
import pytest

from detector.analysis.baselines import Level, Model, empty
from detector.analysis.candidate import Folded, fold
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.analysis.early import early_start_ms, verify_early
from detector.series import ContextEvent, Duration, FloatArray, Interval, Window
from tests.analysis.notation import (
    OFU,
    START_MS,
    alarms,
    confirmed_by,
    detect,
    levels,
    panel,
    seconds,
    times,
)

STEP_S = 10
# A checkpoint of two minutes every 25 minutes, three hours of it.
EVERY, LASTING, HOURS3 = 150, 12, 1080


def at(sample: int) -> int:
    """End of the sample of this number."""
    return START_MS + STEP_S * 1000 * (sample + 1)


def phase(
    first: int, lasting: int, kind: str = "checkpoint", *, late_s: int = 0, off_s: int = 0
) -> tuple[ContextEvent, ContextEvent]:
    """Announce a phase as it begins and again with its end: late, by a clock that is off."""
    start, end = at(first - 1), at(first + lasting - 1)
    return (
        ContextEvent(
            kind=kind,
            span=Interval(start_ms=start + 1000 * off_s, end_ms=start + 1000 * off_s),
            told_ms=start + 1000 * late_s,
        ),
        ContextEvent(
            kind=kind,
            span=Interval(start_ms=start + 1000 * off_s, end_ms=end + 1000 * off_s),
            told_ms=end + 1000 * late_s,
        ),
    )


def checkpoints(
    values: FloatArray, *, until: int | None = None, late_s: int = 0, off_s: int = 0
) -> tuple[FloatArray, list[ContextEvent]]:
    """Lay checkpoints over a series; return it and what is announced up to sample ``until``."""
    values = values.copy()
    events: list[ContextEvent] = []
    for first in range(EVERY, len(values), EVERY):
        values[first : first + LASTING] *= 0.4
        if until is None or first < until:
            events += phase(first, LASTING, late_s=late_s, off_s=off_s)
    return values, events


def delays(found: Folded, onset: int) -> list[float]:
    return [round(seconds(change.detected_ms) - STEP_S * onset) for change in alarms(found)]


ONSET = HOURS3 + 40
FALL = ((0.5, ONSET), (0.3, 60))


def test_a_fall_that_is_not_announced_is_told_early_in_a_job_that_announces() -> None:
    values, events = checkpoints(levels(*FALL))
    found = detect(times(len(values)), values, events=events)
    assert delays(found, ONSET) == [80]
    assert "announced before" in alarms(found)[0].grounds
    alone = detect(times(len(values)), values)
    assert delays(alone, ONSET) == [180]
    assert alarms(alone)[0].grounds == ""


def test_a_job_that_announces_nothing_is_judged_as_if_nobody_had_asked() -> None:
    assert isinstance(OFU.baseline, Level)
    never = Duration(10**12)
    deaf = replace_baseline(OFU, early=never)
    values, _ = checkpoints(levels(*FALL, (0.5, 200), (0.25, 200)))
    values[900:930] *= 0.6
    asked, unasked = (detect(times(len(values)), values, by=by) for by in (OFU, deaf))
    assert asked.outcomes == unasked.outcomes
    assert asked.recoveries == unasked.recoveries
    for name in asked.state.__dataclass_fields__:
        if name not in ("ask_ms", "mute_ms"):
            np.testing.assert_array_equal(
                getattr(asked.state, name), getattr(unasked.state, name), err_msg=name
            )


def replace_baseline(by: Model, *, early: Duration) -> Model:
    import msgspec

    return msgspec.structs.replace(
        by, baseline=msgspec.structs.replace(by.baseline, early=early)
    )


def questions(values: FloatArray, *, again: int = 0, every_s: float = 10.0) -> list[Candidate]:
    """Return the early candidates that a job raises, all refused."""
    asked: list[Candidate] = []

    def confirm(column: int, candidate: Candidate) -> Confirmed | Rejected:
        del column
        if candidate.early:
            asked.append(candidate)
            return Rejected(reason="for the test", again_ms=again and candidate.time_ms + again)
        return Rejected(reason="for the test")

    clock = times(len(values), every_s=every_s)
    fold(OFU, empty(OFU.baseline, 1), panel(clock, values), confirm)
    return asked


def test_a_job_in_which_asking_never_helps_is_asked_a_handful_of_times_a_day() -> None:
    values, _ = checkpoints(levels((0.5, 8640), noise=0.006))
    assert 1 <= len(questions(values)) <= 5
    assert len(questions(values, again=60_000)) > 40


def test_hiccups_of_a_minute_raise_no_question() -> None:
    values = levels((0.5, 3000), noise=0.006)
    for first in range(700, 3000, 97):
        values[first : first + 6] *= 0.5
    assert questions(values) == []


@pytest.mark.parametrize("off_s", [-60, 0, 60])
@pytest.mark.parametrize("late_s", [0, 30, 90])
def test_phases_announced_late_or_by_a_clock_that_is_off_raise_no_alarm(
    off_s: int, late_s: int
) -> None:
    values, events = checkpoints(levels((0.5, 2400), noise=0.006), off_s=off_s, late_s=late_s)
    for first in range(360 + 75, 2400, 360):
        values[first : first + 15] *= 0.6
        events += phase(first, 15, "evaluation", off_s=off_s, late_s=late_s)
    assert not alarms(detect(times(2400), values, events=events))


def test_what_is_announced_late_makes_the_wait_longer_and_not_the_alarm_wrong() -> None:
    values, events = checkpoints(levels(*FALL), late_s=90)
    (delay,) = delays(detect(times(len(values)), values, events=events), ONSET)
    assert 100 <= delay <= 180


def test_announcing_twice_changes_nothing() -> None:
    values, events = checkpoints(levels(*FALL))
    clock = times(len(values))
    once, twice = (detect(clock, values, events=given) for given in (events, events * 2))
    assert alarms(once) == alarms(twice)


def test_a_job_that_stops_announcing_is_believed_to_go_on_writing_checkpoints() -> None:
    values, events = checkpoints(levels((0.5, 4000), noise=0.006), until=HOURS3)
    assert not alarms(detect(times(4000), values, events=events))


def test_a_job_that_announces_its_checkpoints_alone_may_evaluate() -> None:
    values, events = checkpoints(levels((0.5, 3000), noise=0.006))
    for first in range(360 + 75, 3000, 360):
        values[first : first + 17] *= 0.7
    assert not alarms(detect(times(3000), values, events=events))


def test_checkpoints_without_an_end_blind_nobody_and_may_take_twice_as_long() -> None:
    values, events = checkpoints(levels(*FALL, noise=0.006))
    opened = [item for item in events if not item.span.length_ms]
    found = detect(times(len(values)), values, events=opened)
    assert delays(found, ONSET) == [80]
    values, _ = checkpoints(levels((0.5, 1500), noise=0.006))
    values[7 * EVERY + LASTING : 7 * EVERY + 2 * LASTING] *= 0.4
    assert not alarms(detect(times(1500), values, events=events))


def test_a_fall_during_an_announced_evaluation_counts_from_its_end() -> None:
    values, events = checkpoints(levels((0.5, ONSET), (0.2, 80)))
    values[ONSET - 6 : ONSET + 14] = levels((0.35, 20))
    spans = phase(ONSET - 6, 20, "evaluation")
    found = detect(times(len(values)), values, events=[*events, *spans])
    delay = delays(found, ONSET + 14)[0]
    assert 70 <= delay <= 120


def standstill(*, earlier: bool, now: bool) -> Folded:
    """A job that restarted once, announced or not, and stands still now."""
    values, events = checkpoints(levels((0.5, ONSET), (0.0, 160)))
    values[500:540] = 0.0
    if earlier:
        events += phase(500, 40, "restart")
    if now:
        events.append(phase(ONSET, 160, "restart")[0])
    values[ONSET:] = 0.0
    return detect(times(len(values)), values, events=events)


def test_a_standstill_is_a_hang_early_where_restarts_are_announced_and_it_was_not() -> None:
    (delay,) = delays(standstill(earlier=True, now=False), ONSET)
    assert delay <= 240
    assert all(late > 1000 for late in delays(standstill(earlier=False, now=False), ONSET))
    assert all(late > 1000 for late in delays(standstill(earlier=True, now=True), ONSET))


def others(values: FloatArray, *, busy: list[slice]) -> dict[str, FloatArray]:
    """SM activity and power that fall as OFU does, but for phases in which the SMs are busy."""
    noise = np.random.default_rng(3)
    share = values / 0.5
    for rows in busy:
        share[rows] = 0.95
    sm = 0.8 * share + 0.006 * noise.standard_normal(len(values))
    return {"sm": np.clip(sm, 0, 1), "power": 120 + 400 * np.clip(sm, 0, 1)}


def with_others(
    values: FloatArray, fields: dict[str, FloatArray], events: list[ContextEvent]
) -> Folded:
    clock = times(len(values))

    def confirm(column: int, candidate: Candidate) -> Confirmed | Rejected:
        del column
        if not candidate.early:
            return confirmed_by(clock, values, candidate, events=events)
        past = (clock >= early_start_ms(candidate, OFU)) & (clock <= candidate.time_ms)
        seen = {name: column[past] for name, column in {**fields, "ofu": values}.items()}
        told = tuple(item for item in events if item.heard_ms <= candidate.time_ms)
        window = Window(times_ms=clock[past], fields=seen, events=told)
        return verify_early(candidate, window, OFU)

    return fold(OFU, empty(OFU.baseline, 1), panel(clock, values), confirm)


def evaluating() -> tuple[FloatArray, list[slice], list[ContextEvent]]:
    """A job that evaluates at the very level that it falls to, for 200 s each time."""
    values, busy = levels(*FALL), []
    events: list[ContextEvent] = []
    for first in range(200, ONSET - 40, 200):
        values[first : first + 20] *= 0.6
        busy.append(slice(first, first + 20))
        events += phase(first, 20, "evaluation")
    return values, busy, events


def test_a_fall_with_idle_sms_is_no_evaluation_with_busy_ones() -> None:
    values, busy, events = evaluating()
    found = with_others(values, others(values, busy=busy), events)
    assert delays(found, ONSET) == [80]
    assert "other metrics" in alarms(found)[0].grounds


def test_a_fall_that_looks_like_an_evaluation_in_all_metrics_is_waited_for() -> None:
    values, busy, events = evaluating()
    for same in ([], [*busy, slice(ONSET, None)]):
        (delay,) = delays(with_others(values, others(values, busy=same), events), ONSET)
        assert 280 <= delay <= 320


def test_other_metrics_alone_change_nothing() -> None:
    values, busy, _ = evaluating()
    found = with_others(values, others(values, busy=busy), [])
    assert found.outcomes == detect(times(len(values)), values).outcomes


def test_cuts_of_the_samples_do_not_matter_to_early_candidates() -> None:
    values, events = checkpoints(levels(*FALL, (0.5, 60)))
    clock = times(len(values))
    whole = detect(clock, values, events=events)

    def confirm(column: int, candidate: Candidate) -> Confirmed | Rejected:
        del column
        return confirmed_by(clock, values, candidate, events=events)

    edges = [0, 151, 160, 700, ONSET + 3, ONSET + 5, ONSET + 40, len(values)]
    state = empty(OFU.baseline, 1)
    outcomes: list[tuple[int, Candidate, Confirmed | Rejected]] = []
    for first, end in pairwise(edges):
        part = fold(OFU, state, panel(clock[first:end], values[first:end]), confirm)
        state, outcomes = part.state, [*outcomes, *part.outcomes]
    assert tuple(outcomes) == whole.outcomes
    for name in state.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(state, name), getattr(whole.state, name))
