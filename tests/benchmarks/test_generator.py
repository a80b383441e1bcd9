from dataclasses import replace

import numpy as np
import pytest

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import CADENCE_MS, SEEDS, START_MS, Made, make
from benchmarks.detection.plan import Plan, parts, sizes
from tests.benchmarks.truth import (
    change_at_onset,
    clean_mean,
    gpus_changes,
    level_after_transient,
)

SEED = 7


def jobs(name: str, count: int) -> list[Made]:
    return [make(CLASSES[name], number, seed=SEED) for number in range(count)]


def test_a_job_is_the_same_whichever_jobs_are_made_beside_it() -> None:
    alone = make(CLASSES["drop10"], 5, seed=SEED)
    among = jobs("drop10", 6)[5]
    np.testing.assert_array_equal(alone.window.fields["ofu"], among.window.fields["ofu"])
    assert alone.truth == among.truth


def test_a_job_at_another_cadence_is_the_same_job_with_fewer_samples() -> None:
    usual, seldom = (make(CLASSES["drop10"], 5, seed=SEED, cadence_s=c) for c in (10.0, 30.0))
    places = np.searchsorted(usual.window.times_ms, seldom.window.times_ms)
    np.testing.assert_array_equal(
        usual.window.fields["ofu"][places], seldom.window.fields["ofu"]
    )
    assert np.median(np.diff(seldom.window.times_ms)) == pytest.approx(30_000, rel=0.02)
    assert seldom.truth.onset_ms == usual.truth.onset_ms
    with pytest.raises(ValueError, match="no multiple"):
        make(CLASSES["drop10"], 5, seed=SEED, cadence_s=15.0)


def test_calibration_and_test_jobs_are_different_jobs() -> None:
    kind = CLASSES["quiet"]
    ours = [make(kind, 0, seed=SEEDS[name]).truth.level for name in ("calibration", "test")]
    assert ours[0] != ours[1]


@pytest.mark.parametrize("name", ["drop2.5x", "drop10", "drop3", "ramp25", "rise1.33x"])
def test_the_clean_level_changes_by_the_factor_at_the_onset(name: str) -> None:
    ratios = [change_at_onset(one) for one in jobs(name, 20)]
    # One standard error of the mean of 20 is about 0.3 %.
    assert np.mean(ratios) == pytest.approx(CLASSES[name].factor, abs=0.012)


def test_quiet_jobs_stay_at_their_level() -> None:
    for made in jobs("quiet", 20):
        assert clean_mean(made, 0, START_MS + 90_000_000) == pytest.approx(1, abs=0.02)


def test_a_healthy_day_has_some_eighty_deep_excursions() -> None:
    counts = []
    for made in jobs("quiet", 60):
        if made.truth.sigma / made.truth.level > 0.03:
            continue  # its noise alone crosses the line
        low = made.window.fields["ofu"] < 0.88 * made.expected
        counts.append(np.count_nonzero(np.diff(low.astype(int)) == 1))
    assert len(counts) > 10
    assert 60 < np.mean(counts) < 110


def test_the_clock_of_a_restart_starts_when_the_job_is_back() -> None:
    for made in jobs("restart2.5x", 20):
        onset_ms, clock_ms = made.truth.onset_ms, made.truth.clock_ms
        assert onset_ms is not None
        assert clock_ms is not None
        assert 110_000 <= clock_ms - onset_ms <= 1_210_000
        away = (made.window.times_ms > onset_ms + CADENCE_MS) & (
            made.window.times_ms < clock_ms
        )
        values = made.window.fields["ofu"][away]
        assert np.nanmedian(values) < 0.02 if len(values) else True


def test_a_transient_is_over_after_its_time() -> None:
    ratios = [level_after_transient(one) for one in jobs("transient20", 20)]
    assert np.mean(ratios) == pytest.approx(1, abs=0.01)


def test_a_straggler_is_one_gpu_and_hardly_moves_the_mean() -> None:
    made = make(CLASSES["straggler64"], 0, seed=SEED)
    place, change = made.truth.gpu, gpus_changes(made)
    assert place is not None
    assert int(np.argmin(change)) == place
    assert change[place] == pytest.approx(0.9, abs=0.01)
    assert np.delete(change, place).min() > 0.98


def test_stress_is_the_same_kind_of_job_with_more_of_each_habit() -> None:
    usual, harder = (
        np.mean([1 - made.clean.mean() for made in jobs(name, 40)])
        for name in ("quiet", "stress_quiet")
    )
    assert 1.5 < harder / usual < 3.5


def test_times_increase_and_values_are_what_a_history_keeps() -> None:
    for made in jobs("quiet", 5):
        assert (np.diff(made.window.times_ms) > 0).all()
        values = made.window.fields["ofu"]
        known = values[np.isfinite(values)]
        assert known.min() >= 0
        assert known.max() <= 1
        np.testing.assert_array_equal(known, known.astype(np.float32))


def test_side_channels_come_only_when_asked_for() -> None:
    kind = CLASSES["drop2x"]
    plain = make(kind, 1, seed=SEED)
    rich = make(kind, 1, seed=SEED, announced=True, metrics=True)
    assert plain.window.events == ()
    assert set(plain.window.fields) == {"ofu"}
    assert {"checkpoint"} <= {event.kind for event in rich.window.events}
    assert {"sm", "power", "dram", "pcie", "clock"} < set(rich.window.fields)
    np.testing.assert_array_equal(plain.window.fields["ofu"], rich.window.fields["ofu"])


def test_every_job_of_a_plan_is_in_exactly_one_part() -> None:
    plan = Plan(jobs=sizes(quiet=9, change=5), seed=SEED)
    named = [job for part in parts(plan) for job in part]
    assert len(named) == len(set(named)) == sum(plan.jobs.values())


def test_a_class_of_jobs_can_be_made_shorter() -> None:
    kind = replace(CLASSES["drop10"], hours=4.0, onset_h=(2.0, 3.0))
    made = make(kind, 0, seed=SEED)
    assert made.window.times_ms[-1] <= START_MS + 4 * 3_600_000 + CADENCE_MS
