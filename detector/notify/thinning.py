"""Series made ready to be drawn: few enough points, and gaps that stay gaps. Pure."""

import numpy as np

from detector.series import FloatArray, IntArray

# A silence of this many usual steps is drawn as a gap; chosen: two lost samples are not one.
_GAP_STEPS = 3.5


def thinned(
    times_ms: IntArray, values: FloatArray, *, columns: int
) -> tuple[IntArray, FloatArray]:
    """Return at most three samples a pixel column: its least, its greatest, and a gap.

    Dips of a single sample stay visible, which means and every-nth would lose.

    Parameters
    ----------
    times_ms, values
        Shape ``(n,)``; NaN is a gap.
    """
    if len(times_ms) <= 3 * columns:
        return times_ms, values
    reach = max(1, int(times_ms[-1] - times_ms[0]))
    column = ((times_ms - times_ms[0]) * columns) // (reach + 1)
    # Sorted by column, then value: the first of a column is its least, the last its greatest;
    # NaN sorts to the very end, so infinity stands in for it to keep the greatest finite.
    finite = np.isfinite(values)
    order = np.lexsort((np.where(finite, values, np.inf), column))
    first = np.flatnonzero(np.diff(column[order], prepend=-1))
    known = np.bincount(column[finite], minlength=columns)[column[order][first]]
    greatest = order[first + np.maximum(known - 1, 0)]
    keep = np.unique(np.concatenate([order[first], greatest]))
    return times_ms[keep], values[keep]


def with_gaps(times_ms: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the series with a NaN in each silence, so that no line is drawn across it."""
    if len(times_ms) < 3:
        return times_ms, values
    steps = np.diff(times_ms)
    silent = np.flatnonzero(steps > _GAP_STEPS * np.median(steps))
    middles = times_ms[silent] + steps[silent] // 2
    return np.insert(times_ms, silent + 1, middles), np.insert(values, silent + 1, np.nan)
