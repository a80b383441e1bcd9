"""Where a level changed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.changepoint import latest_level, locate
from tests.analysis.notation import levels


@given(st.integers(5, 60), st.integers(5, 60))
def test_a_clean_step_is_placed_to_the_sample(before: int, after: int) -> None:
    change = locate(levels((0.5, before), (0.3, after), noise=0.0))
    assert change is not None
    assert change.index == change.low == change.high == before
    assert change.gain > 0.999


def test_the_interval_covers_the_place_nineteen_times_in_twenty() -> None:
    inside = 0
    for seed in range(200):
        change = locate(levels((0.50, 60), (0.48, 30), noise=0.02, seed=seed))
        assert change is not None
        inside += change.low <= 60 <= change.high
    # 95 % of 200 with a binomial deviation of 3: the interval may be a little too wide.
    assert inside >= 181


def test_too_few_samples_have_no_place() -> None:
    assert locate(np.array([0.4])) is None
    assert locate(np.full(9, 0.4), least=5) is None


def test_a_constant_series_explains_nothing() -> None:
    change = locate(np.full(20, 0.4))
    assert change is not None
    assert change.gain == 0


def test_the_latest_level_starts_after_the_last_step() -> None:
    values = levels((0.3, 40), (0.5, 40), (0.4, 40))
    assert latest_level(values, least=8, effect=0.02) == 80


def test_noise_alone_is_one_level() -> None:
    cuts = [latest_level(levels((0.4, 120), noise=0.02, seed=k), least=8, effect=0.02)
            for k in range(50)]  # fmt: skip
    assert sum(cut > 0 for cut in cuts) <= 2
