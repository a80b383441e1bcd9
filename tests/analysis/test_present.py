"""The level that a series stands on now."""

import numpy as np
import pytest

from detector.analysis.present import present_level
from detector.series import FloatArray, Interval, Window


def window(values: FloatArray) -> Window:
    return Window(times_ms=1000 * np.arange(1, len(values) + 1), fields={"ofu": values})


def span(start_s: int, end_s: int) -> Interval:
    return Interval(start_ms=1000 * start_s, end_ms=1000 * end_s)


def test_only_samples_of_the_span_count_and_the_one_at_its_start_does_not() -> None:
    values = np.array([0.4, 0.4, 0.2, 0.2, 0.2, 0.4])
    level = present_level(window(values), "ofu", span(2, 5))
    assert level is not None
    assert (level.low, level.value, level.high) == pytest.approx((0.2, 0.2, 0.2))


def test_dips_are_left_out() -> None:
    values = np.full(40, 0.3)
    values[[5, 17, 30]] = 0.01
    level = present_level(window(values), "ofu", span(0, 40))
    assert level is not None
    assert level.value == pytest.approx(0.3)


def test_the_interval_covers_the_truth_in_autocorrelated_noise() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        noise = np.zeros(300)
        for k in range(1, 300):
            noise[k] = 0.5 * noise[k - 1] + rng.normal(0, 0.005)
        level = present_level(window(0.4 + noise), "ofu", span(0, 300))
        assert level is not None
        covered += level.low <= 0.4 <= level.high
    # 95 % nominal; seeded, and 200 trials leave two standard errors of 3 %.
    assert covered >= 180


@pytest.mark.parametrize("values", [[], [0.3, 0.3], [np.nan] * 9])
def test_too_few_samples_tell_no_level(values: list[float]) -> None:
    assert present_level(window(np.array(values)), "ofu", span(0, 100)) is None


def test_a_standstill_is_a_level() -> None:
    level = present_level(window(np.zeros(10)), "ofu", span(0, 10))
    assert level is not None
    assert level.value == 0.0
