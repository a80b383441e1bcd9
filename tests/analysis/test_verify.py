"""Verification, on windows whose answer is known by construction."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.change import Candidate, Cause, Confirmed, Direction, Rejected
from detector.analysis.verify import verify, window_start_ms
from detector.series import ContextEvent, FloatArray, Interval, Window
from tests.analysis.notation import OFU, START_MS, levels, model, seconds, times, window


def candidate(
    *, onset: int, at: int, before: float = 0.5, after: float = 0.3, scale: float = 0.004,
    cause: Cause = "excursion",    direction: Direction = "down",
) -> Candidate:  # fmt: skip
    """Return what the online stage would raise about 10 s samples, by their numbers."""
    return Candidate(
        column=0, cause=cause, direction=direction, onset_ms=START_MS + onset * 10_000,
        time_ms=START_MS + at * 10_000, before=before, after=after, scale=scale, step_ms=10_000,
    )  # fmt: skip


def judged(
    values: FloatArray, raised: Candidate, *events: ContextEvent
) -> Confirmed | Rejected:
    return verify(raised, window(times(len(values)), values, events=events), OFU)


def confirmed(values: FloatArray, raised: Candidate, *events: ContextEvent) -> Confirmed:
    outcome = judged(values, raised, *events)
    assert isinstance(outcome, Confirmed), outcome
    return outcome


def refused(values: FloatArray, raised: Candidate, *events: ContextEvent) -> str:
    outcome = judged(values, raised, *events)
    assert isinstance(outcome, Rejected), outcome
    return outcome.reason


def test_a_fall_of_which_no_sample_stands_at_one_level_is_refused() -> None:
    values = np.concatenate([levels((0.39, 60), noise=0.01), [0.136, 0.294, 0.237, 0.296]])
    raised = candidate(onset=60, at=64, before=0.389, after=0.275, scale=0.0165)
    assert refused(values, raised) == "too few samples: 0 at the level since the onset"


def test_a_drift_is_not_confirmed_by_the_dip_in_which_it_ends() -> None:
    values = levels((0.5, 360), (0.492, 100), (0.45, 8), noise=0.002)
    raised = candidate(onset=360, at=468, after=0.485, cause="drift")
    whole = candidate(onset=360, at=468, after=0.485)
    # The latest level alone, as an excursion is judged, would do.
    assert isinstance(judged(values, whole), Confirmed)
    assert "smaller than an alarm is worth: -2" in refused(values, raised)


def event(kind: str, start: int, end: int) -> ContextEvent:
    span = Interval(start_ms=START_MS + start * 10_000, end_ms=START_MS + end * 10_000)
    return ContextEvent(kind=kind, span=span)


def test_a_drop_is_measured_with_its_intervals() -> None:
    change = confirmed(levels((0.5, 300), (0.3, 30)), candidate(onset=300, at=330))
    assert change.before.low < change.before.value < change.before.high
    assert change.before.value == pytest.approx(0.5, abs=0.001)
    assert change.after.value == pytest.approx(0.3, abs=0.002)
    assert change.relative_change == pytest.approx(-0.4, abs=0.01)
    assert change.confidence > 0.9999
    assert seconds(change.onset_ms) == 3000
    assert change.onset.covers(change.onset_ms)
    assert seconds(change.detected_ms) == 3300
    assert change.before_span.end_ms <= change.onset_ms <= change.after_span.start_ms
    assert not change.excluded


def test_the_onset_is_found_though_the_online_stage_guessed_late() -> None:
    change = confirmed(levels((0.5, 300), (0.4, 60)), candidate(onset=312, at=360, after=0.4))
    assert seconds(change.onset_ms) == 3000


@settings(max_examples=20, deadline=None)
@given(unit=st.floats(0.05, 1.0))
def test_the_unit_changes_no_verdict(unit: float) -> None:
    values = levels((0.5, 200), (0.42, 30), noise=0.01)
    raised = candidate(onset=200, at=230, before=0.5 * unit, after=0.42 * unit)
    change = confirmed(values * unit, raised)
    same = confirmed(values, candidate(onset=200, at=230, after=0.42))
    assert change.relative_change == pytest.approx(same.relative_change)
    assert change.onset == same.onset


def test_dips_before_and_after_are_left_out_and_named() -> None:
    values = levels((0.5, 300), (0.4, 40))
    values[100:110] = 0.1
    values[320:323] = 0.1
    change = confirmed(values, candidate(onset=300, at=340, after=0.4))
    assert change.before.value == pytest.approx(0.5, abs=0.01)
    assert change.after.value == pytest.approx(0.4, abs=0.01)
    assert [seconds(span.start_ms) for span in change.excluded] == [1000, 3200]
    assert seconds(change.excluded[0].end_ms) == 1100


def test_only_the_latest_level_counts_as_before() -> None:
    values = levels((0.3, 150), (0.5, 150), (0.4, 40))
    change = confirmed(values, candidate(onset=300, at=340, after=0.4))
    assert change.before.value == pytest.approx(0.5, abs=0.01)
    assert change.before_span.start_ms >= START_MS + 1_500_000


def test_a_standstill_is_a_loss_of_everything() -> None:
    change = confirmed(levels((0.5, 300), (0.0, 30)), candidate(onset=300, at=330, after=0.0))
    assert change.relative_change == -1
    assert change.after.value == 0


def test_a_job_too_young_says_so() -> None:
    assert "too few samples: 5 before" in refused(
        levels((0.5, 5), (0.3, 20)), candidate(onset=5, at=25)
    )


def test_a_single_spike_is_refused() -> None:
    values = levels((0.5, 320))
    values[310] = 0.1
    assert "spike" in refused(values, candidate(onset=310, at=320, after=0.1))


def test_a_loss_too_small_for_an_alarm_is_refused_with_its_size() -> None:
    reason = refused(
        levels((0.5, 300), (0.4925, 40)), candidate(onset=300, at=340, after=0.4925)
    )
    assert reason == "smaller than an alarm is worth: -1.5%"


def test_a_fall_within_the_noise_is_not_significant() -> None:
    values = np.concatenate([levels((0.5, 300), noise=0.03), [0.445, 0.445, 0.495, 0.495]])
    raised = candidate(onset=300, at=304, after=0.47, scale=0.03)
    assert "not significant" in refused(values, raised)


def test_an_evaluation_at_the_level_of_the_fall_does_not_hide_it() -> None:
    values = levels((0.5, 250), (0.45, 40), (0.5, 10), (0.45, 40), noise=0.005)
    change = confirmed(values, candidate(onset=300, at=340, after=0.45))
    assert change.relative_change == pytest.approx(-0.1, abs=0.01)


@pytest.mark.parametrize("kind", ["checkpoint", "evaluation", "restart"])
def test_an_announced_phase_explains_a_fall_only_while_it_goes_on(kind: str) -> None:
    values, raised = levels((0.5, 300), (0.3, 30)), candidate(onset=300, at=330)
    assert f"an announced {kind}" in refused(values, raised, event(kind, 298, 340))
    assert confirmed(values, raised, event(kind, 298, 320))
    assert confirmed(values, raised, event(kind, 100, 120))


def test_an_announcement_without_an_end_explains_twenty_minutes() -> None:
    values = levels((0.5, 300), (0.3, 130))
    mark = event("restart", 299, 299)
    assert "restart" in refused(values, candidate(onset=300, at=330), mark)
    assert confirmed(values, candidate(onset=300, at=425), mark)


def test_a_planned_change_explains_the_lower_level_for_good() -> None:
    values = levels((0.5, 300), (0.3, 130))
    mark = event("planned_change", 299, 299)
    assert "planned change" in refused(values, candidate(onset=300, at=430), mark)
    assert confirmed(values, candidate(onset=300, at=430), event("planned_change", 50, 50))
    assert confirmed(values, candidate(onset=300, at=430), event("deploy", 299, 299))


def test_a_window_without_the_metric_is_refused() -> None:
    bare = Window(times_ms=times(30), fields={"ofu": np.full(30, np.nan)})
    outcome = verify(candidate(onset=20, at=30), bare, OFU)
    assert outcome == Rejected(reason="the history holds no ofu around the onset")


def test_constant_levels_are_told_apart_without_noise() -> None:
    change = confirmed(levels((0.5, 300), (0.3, 30), noise=0), candidate(onset=300, at=330))
    assert change.confidence == 1
    assert change.before.low == change.before.high == 0.5


def test_samples_after_the_candidate_are_not_looked_at() -> None:
    values = levels((0.5, 300), (0.3, 30), (0.1, 50))
    raised = candidate(onset=300, at=330)
    assert judged(values, raised) == judged(values[:330], raised)


def test_a_frozen_exporter_is_identical_values_that_varied_before() -> None:
    values = levels((0.5, 300), (0.5, 40))
    values[299:340] = values[299]
    raised = candidate(onset=300, at=340, after=0.5, cause="frozen")
    assert confirmed(values, raised).relative_change == 0
    values[320] += 0.01
    assert "identical values in a row" in refused(values, raised)
    assert "never varied" in refused(np.full(340, 0.5), raised)


def test_a_shortage_of_gpus_is_counted() -> None:
    gpus = model("gpus_reporting")
    raised = candidate(onset=100, at=120, before=64, after=56, cause="ceiling")
    values = np.array([64.0] * 100 + [56.0] * 20)
    change = verify(raised, window(times(120), values, metric="gpus"), gpus)
    assert isinstance(change, Confirmed)
    assert change.after.value == 56
    assert change.relative_change == pytest.approx(-0.125)
    values[110] = 64
    back = verify(raised, window(times(120), values, metric="gpus"), gpus)
    assert back == Rejected(reason="all 64 were there in the meantime")


def test_a_ratio_outside_of_its_band_is_measured_against_what_it_should_be() -> None:
    ratio = model("mfu_ratio")
    raised = candidate(onset=100, at=160, before=1.0, after=1.33, cause="band", direction="up")
    values = levels((0.50, 100), (0.665, 60)) * 2
    change = verify(raised, window(times(160), values, metric="mfu_ratio"), ratio)
    assert isinstance(change, Confirmed)
    assert change.direction == "up"
    assert change.relative_change == pytest.approx(0.33, abs=0.01)
    calm = levels((0.50, 160)) * 2
    outcome = verify(raised, window(times(160), calm, metric="mfu_ratio"), ratio)
    assert isinstance(outcome, Rejected)
    assert "in the band" in outcome.reason


def test_slow_series_are_looked_at_further_back() -> None:
    quick = candidate(onset=300, at=330)
    assert quick.onset_ms - window_start_ms(quick, OFU) == OFU.verify.lookback
    slow = Candidate(column=0, cause="drift", direction="down", onset_ms=START_MS,
                     time_ms=START_MS, before=0.5, after=0.4, scale=0.01,
                     step_ms=3_600_000)  # fmt: skip
    assert slow.onset_ms - window_start_ms(slow, OFU) == 60 * 3_600_000


def test_nothing_heavy_is_imported_before_a_candidate_needs_it() -> None:
    code = (
        "import sys, detector.analysis.verify, detector.analysis.candidate\n"
        "heavy = {'statsmodels', 'scipy', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "raise SystemExit(', '.join(sorted(heavy)) or 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
