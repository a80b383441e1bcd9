"""The notation that people write series in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.cases import notation


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("0.42x3", [0.42, 0.42, 0.42]),
        ("0.42", [0.42]),
        ("0.4..0.2x3", [0.4, 0.3, 0.2]),
        ("1 _x2 -1e3", [1, np.nan, np.nan, -1000]),
        ("0..1x2 1..0x2", [0, 1, 1, 0]),
        ("5x0", []),
        ("", []),
    ],
)
def test_a_series_is_what_it_says(text: str, samples: list[float]) -> None:
    assert notation(text) == pytest.approx(samples, nan_ok=True)


@pytest.mark.parametrize("text", ["0.4y5", "x5", "0.4x", "0.4x-1", "__", "0.4..x3", "1,2", "e"])
def test_what_is_no_series_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no series"):
        notation(text)


@given(st.lists(st.tuples(st.integers(0, 9999), st.integers(1, 9)), max_size=8))
def test_words_join(parts: list[tuple[int, int]]) -> None:
    text = " ".join(f"{value}x{count}" for value, count in parts)
    assert notation(text).tolist() == [value for value, count in parts for _ in range(count)]
