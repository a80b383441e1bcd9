"""Small lasting falls: found in quiet jobs, not in noise, wander or what ends by itself."""

import numpy as np
import pytest

from detector.analysis.baselines import Level, advance, empty
from detector.analysis.baselines.level import LevelState
from detector.analysis.baselines.noise import long_run
from detector.series import FloatArray, Panel
from tests.analysis.notation import OFU, START_MS, alarms, detect, levels, seconds, times

HOURS = 360


def noisy(count: int, *, sigma: float, phi: float, seed: int = 1) -> FloatArray:
    """Return AR(1) noise of this marginal deviation."""
    shocks = np.random.default_rng(seed).standard_normal(count) * sigma * np.sqrt(1 - phi**2)
    out = np.zeros(count)
    for k in range(1, count):
        out[k] = phi * out[k - 1] + shocks[k]
    return out


@pytest.mark.parametrize(("share", "within_s"), [(0.97, 600), (0.95, 480), (0.90, 420)])
def test_a_small_lasting_fall_of_an_old_quiet_job_is_found_within_minutes(
    share: float, within_s: float
) -> None:
    values = levels((0.5, 3 * HOURS), (0.5 * share, 120), noise=0.004)
    (change,) = alarms(detect(times(len(values)), values))
    assert 0 < seconds(change.detected_ms) - 3 * HOURS * 10 <= within_s
    assert change.relative_change == pytest.approx(share - 1, abs=0.01)
    assert change.onset.covers(START_MS + 3 * HOURS * 10_000)


def test_a_fall_by_three_percent_in_the_first_hour_is_wander() -> None:
    values = levels((0.5, 200), (0.485, 100))
    assert not alarms(detect(times(300), values))


def test_a_fall_by_three_percent_that_ends_in_three_minutes_is_no_news() -> None:
    values = levels((0.5, 3 * HOURS), (0.485, 18), (0.5, 200))
    assert not detect(times(len(values)), values).outcomes


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_the_noise_of_blocks_is_the_long_run_one_whatever_the_autocorrelation(
    phi: float,
) -> None:
    jobs, rows, sigma = 40, 4 * HOURS, 0.02
    values = 0.5 + np.stack(
        [noisy(rows, sigma=sigma, phi=phi, seed=k) for k in range(jobs)], axis=1
    )
    panel = Panel(times_ms=np.repeat(times(rows)[:, None], jobs, axis=1), values=values)
    state = advance(OFU.baseline, empty(OFU.baseline, jobs), panel).state
    assert isinstance(state, LevelState)
    truth = sigma * np.sqrt((1 + phi) / (1 - phi) / Level().block_samples)
    # Short of all of it where neighbours are most alike: five minutes do not see it all.
    assert 0.65 <= np.median(long_run(state, np.arange(jobs))) / truth <= 1.25


def test_autocorrelated_noise_alarms_nobody() -> None:
    for seed in range(2):
        values = 0.5 + noisy(6 * HOURS, sigma=0.02, phi=0.8, seed=seed)
        assert not alarms(detect(times(len(values)), values))


def test_the_first_minutes_of_a_fall_do_not_pass_for_noise() -> None:
    values = levels((0.5, 3 * HOURS), (0.48, 24), noise=0.005)
    panel = Panel(times_ms=times(len(values))[:, None], values=values[:, None])
    one = np.array([0])

    def seen(rows: int) -> float:
        part = Panel(times_ms=panel.times_ms[:rows], values=panel.values[:rows])
        state = advance(OFU.baseline, empty(OFU.baseline, 1), part).state
        assert isinstance(state, LevelState)
        return float(long_run(state, one)[0])

    assert seen(3 * HOURS + 24) <= 1.1 * seen(3 * HOURS)


def test_a_small_fall_that_comes_with_a_restart_is_found_once_the_warm_up_stops_climbing() -> (
    None
):
    ramp = 1 - 0.9 * np.exp(-np.arange(240) / 12)
    values = np.concatenate([levels((0.5, 3 * HOURS), (0.0, 60)), 0.475 * ramp])
    values[3 * HOURS + 60 :] += levels((0.0, 240)) + 0.004 * np.random.default_rng(
        3
    ).standard_normal(240)
    (change,) = alarms(detect(times(len(values)), values))
    assert seconds(change.detected_ms) - (3 * HOURS + 60) * 10 <= 1500


@pytest.mark.parametrize("every_s", [2.0, 5.0, 10.0])
def test_a_checkpoint_of_three_minutes_beside_the_training_is_no_drift_at_any_cadence(
    every_s: float,
) -> None:
    minute = round(60 / every_s)
    values = levels((0.5, 180 * minute), (0.46, 3 * minute), (0.5, 20 * minute), noise=0.005)
    stamps = times(len(values), every_s=every_s)
    assert not detect(stamps, values).outcomes


@pytest.mark.parametrize("seed", range(3))
def test_a_small_fall_of_a_noisy_job_that_crept_nearly_all_the_way_back_is_over(
    seed: int,
) -> None:
    course = np.concatenate([
        np.full(3 * HOURS, 0.5), np.full(180, 0.475), np.linspace(0.475, 0.496, HOURS),
        np.full(HOURS, 0.496),
    ])  # fmt: skip
    values = course + noisy(len(course), sigma=0.02, phi=0.0, seed=seed)
    folded = detect(times(len(values)), values)
    assert len(alarms(folded)) == 1
    assert len(folded.recoveries) == 1
