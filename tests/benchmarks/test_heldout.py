from dataclasses import replace

import numpy as np
import pytest

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import START_MS, Made
from benchmarks.detection.heldout import make
from benchmarks.detection.heldout.course import Course
from benchmarks.detection.heldout.noise import noise, summary
from benchmarks.detection.optimum import scores
from benchmarks.detection.plan import Plan, made
from benchmarks.detection.score import optimum_ms
from tests.benchmarks.truth import (
    change_at_onset,
    clean_mean,
    gpus_changes,
    level_after_transient,
)

SEED = 7
NOISES = 200


def jobs(name: str, count: int, *, cadence_s: float = 10.0) -> list[Made]:
    kind = CLASSES[name]
    return [make(kind, number, seed=SEED, cadence_s=cadence_s) for number in range(count)]


def test_a_job_is_the_same_whichever_jobs_are_made_beside_it() -> None:
    alone = make(CLASSES["drop10"], 5, seed=SEED)
    among = jobs("drop10", 6)[5]
    np.testing.assert_array_equal(alone.window.fields["ofu"], among.window.fields["ofu"])
    assert alone.truth == among.truth


def test_a_plan_makes_the_jobs_of_the_generator_that_it_names() -> None:
    part = [("quiet", 0)]
    own = made(Plan(jobs={"quiet": 1}, seed=SEED), part)
    other = made(Plan(jobs={"quiet": 1}, seed=SEED, generator="heldout"), part)
    assert (own[0].id, other[0].id) == ("quiet-0", "heldout-quiet-0")


@pytest.mark.parametrize("name", ["drop2.5x", "drop10", "drop3", "ramp25", "rise1.33x"])
def test_the_clean_level_changes_by_the_factor_at_the_onset(name: str) -> None:
    ratios = [change_at_onset(one) for one in jobs(name, 30)]
    # One standard error of the mean of 30 is about 0.2 %.
    assert np.mean(ratios) == pytest.approx(CLASSES[name].factor, abs=0.01)


def test_quiet_jobs_stay_at_their_level() -> None:
    for job in jobs("quiet", 20):
        assert clean_mean(job, 0, START_MS + 90_000_000) == pytest.approx(1, abs=0.02)


def test_deep_excursions_are_some_dozens_a_day_and_very_unequal() -> None:
    counts = []
    for job in jobs("quiet", 80):
        if job.truth.sigma / job.truth.level > 0.03:
            continue  # its noise alone crosses the line
        low = job.window.fields["ofu"] < 0.88 * job.expected
        counts.append(np.count_nonzero(np.diff(low.astype(int)) == 1))
    assert 40 < np.mean(counts) < 100
    assert np.percentile(counts, 10) < 5
    assert np.percentile(counts, 90) > 120


def test_the_clock_of_a_restart_starts_when_the_job_is_back() -> None:
    for job in jobs("restart2.5x", 20):
        onset_ms, clock_ms = job.truth.onset_ms, job.truth.clock_ms
        assert onset_ms is not None
        assert clock_ms is not None
        assert 120_000 <= clock_ms - onset_ms <= 1_220_000
        away = (job.window.times_ms > onset_ms + 1_000) & (job.window.times_ms < clock_ms)
        values = job.window.fields["ofu"][away]
        known = values[np.isfinite(values)]
        assert np.median(known) < 0.02 if len(known) else True


def test_a_transient_is_over_after_its_time() -> None:
    ratios = [level_after_transient(one) for one in jobs("transient20", 20)]
    assert np.mean(ratios) == pytest.approx(1, abs=0.01)


def test_a_straggler_is_one_gpu_and_hardly_moves_the_mean() -> None:
    job = make(CLASSES["straggler64"], 0, seed=SEED)
    place, change = job.truth.gpu, gpus_changes(job)
    assert place is not None
    assert int(np.argmin(change)) == place
    assert change[place] == pytest.approx(0.9, abs=0.01)
    assert np.delete(change, place).min() > 0.98


@pytest.mark.parametrize("cadence_s", [5.0, 10.0, 15.0, 30.0])
def test_times_increase_and_values_are_what_a_history_keeps(cadence_s: float) -> None:
    for job in jobs("quiet", 5, cadence_s=cadence_s):
        times_ms, values = job.window.times_ms, job.window.fields["ofu"]
        assert (np.diff(times_ms) > 0).all()
        assert np.median(np.diff(times_ms)) == pytest.approx(cadence_s * 1000, rel=0.01)
        assert job.expected.shape == job.clean.shape == job.warmth.shape == times_ms.shape
        known = values[np.isfinite(values)]
        assert known.min() >= 0
        assert known.max() <= 1
        np.testing.assert_array_equal(known, known.astype(np.float32))


def test_announcements_come_only_when_asked_for_and_metrics_never() -> None:
    kind = CLASSES["stress_quiet"]
    assert make(kind, 1, seed=SEED).window.events == ()
    announced = make(kind, 1, seed=SEED, announced=True).window.events
    assert {event.kind for event in announced} <= {"checkpoint", "evaluation", "restart"}
    assert announced
    with pytest.raises(ValueError, match="no metrics besides OFU"):
        make(kind, 1, seed=SEED, metrics=True)


def test_noise_is_of_mean_zero_and_its_summary_tells_how_fast_a_mean_settles() -> None:
    settled = []
    for number in range(NOISES):
        drawn, _ = noise(np.random.default_rng(number), 4_000, 10.0)
        sigma, phi = summary(drawn, 10.0)
        assert abs(drawn.mean()) < 0.02
        # Deviation of means over 20 minutes against what AR(1) of this summary would have.
        means = drawn[: 120 * 33].reshape(-1, 120).mean(axis=1)
        settled.append(means.std() / (sigma * np.sqrt((1 + phi) / (1 - phi) / 120)))
    # Wandering noise settles more slowly; the usual one as told.
    assert np.median(settled) == pytest.approx(1, abs=0.15)


def test_a_dip_takes_its_share_of_a_sample_that_it_covers_in_part() -> None:
    course = Course(rng=np.random.default_rng(0), n=6, cadence_s=10.0, burden=1.0, stress=False)
    course.dip(14.0, 21.0, 0.5)
    np.testing.assert_allclose(course.dips, [1, 0.7, 0.5, 0.75, 1, 1])


def test_the_optimum_finds_large_drops_at_once_and_is_silent_before() -> None:
    silent, found = [], []
    for job in jobs("drop2x", 40):
        times_ms, cusum = scores(job, 0.5)
        onset_ms = job.truth.onset_ms
        assert onset_ms is not None
        before = times_ms <= onset_ms
        soon = (times_ms > onset_ms) & (times_ms <= onset_ms + 900_000)
        silent.append(cusum[before].max() < 25)
        found.append(cusum[soon].max(initial=0) > 25)
    # Noise that is neither normal nor AR(1) may break its silence, an outage hide the drop.
    assert np.mean(silent) > 0.9
    assert np.mean(found) > 0.9


def test_how_long_the_optimum_takes_counts_in_the_jobs_own_samples() -> None:
    for cadence_s in (5.0, 30.0):
        truth = make(CLASSES["drop2x"], 0, seed=SEED, cadence_s=cadence_s).truth
        # Hardly any noise: one sample tells.
        assert optimum_ms(replace(truth, sigma=1e-4)) == cadence_s * 1000
