"""Laws of medians and quantiles."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.quantile import median, quantile

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40).map(np.array)


@given(values=values, percent=st.sampled_from([0.0, 2.5, 50.0, 70.0, 97.5, 100.0]))
def test_a_quantile_is_numpys(values: np.typing.NDArray[np.float64], percent: float) -> None:
    np.testing.assert_allclose(
        quantile(values, percent / 100), np.percentile(values, percent), rtol=1e-12, atol=1e-9
    )


@given(values=values)
def test_a_median_is_numpys_bit_for_bit(values: np.typing.NDArray[np.float64]) -> None:
    assert median(values) == np.median(values)
