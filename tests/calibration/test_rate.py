"""Rates of rare events, against the chi-squared form of the same interval."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from detector.calibration.rate import Rate, shows


@given(events=st.integers(0, 400), exposure=st.floats(0.1, 10_000))
def test_the_interval_is_garwoods(events: int, exposure: float) -> None:
    low, high = Rate(events=events, exposure=exposure).interval
    below = chi2.ppf(0.025, 2 * events) / 2 if events else 0.0
    above = chi2.ppf(0.975, 2 * events + 2) / 2
    assert low == pytest.approx(below / exposure, rel=1e-6)
    assert high == pytest.approx(above / exposure, rel=1e-6)


def test_no_event_in_so_much_time_shows_a_rate_of_three_and_two_thirds_over_it() -> None:
    assert shows(1_000) == pytest.approx(3.69e-3, rel=1e-3)


def test_without_exposure_nothing_is_known() -> None:
    assert math.isnan(Rate(events=0, exposure=0).value)
    assert all(math.isnan(end) for end in Rate(events=0, exposure=0).interval)
