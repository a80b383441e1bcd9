"""The cumulative sum."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.cusum import fall_evidence

ONE = np.ones(1)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_the_sum_is_never_negative_and_no_sample_adds_more_than_the_cap(
    falls: list[float],
) -> None:
    evidence = np.zeros(1)
    for fall in falls:
        more = fall_evidence(np.array([fall]), evidence, shift=ONE, scale=ONE, cap=2.0)
        assert more[0] >= 0
        assert more[0] - evidence[0] <= 2.0 + 1e-9
        evidence = more


def test_a_fall_of_the_sought_size_adds_half_of_its_squared_size() -> None:
    got = fall_evidence(
        np.array([3.0]), np.zeros(1), shift=np.array([3.0]), scale=ONE, cap=99.0
    )
    assert got[0] == 4.5


@given(st.floats(0.01, 100))
def test_the_unit_is_irrelevant(unit: float) -> None:
    fall, shift, scale = np.array([0.4]), np.array([0.3]), np.array([0.2])
    one = fall_evidence(fall, ONE, shift=shift, scale=scale, cap=9.0)
    other = fall_evidence(fall * unit, ONE, shift=shift * unit, scale=scale * unit, cap=9.0)
    np.testing.assert_allclose(one, other)
