"""The two sides of a change: which samples stand on the level before, which on that since.

Dips and their edges, evaluations and the levels of earlier changes belong to neither.
"""

import numpy as np
import numpy.typing as npt

from detector.analysis.baselines import Verification
from detector.analysis.change import Candidate, Rejected
from detector.analysis.changepoint import latest_level
from detector.analysis.quantile import median, quantile
from detector.series import FloatArray, IntArray, Series

BoolArray = npt.NDArray[np.bool_]

# A sample further below its stretch's level than this share of it is a dip and not compared,
_DIP = 0.12
# ... unless the job's noise reaches so far: of a normal one this leaves out 1 in 700.
_DIP_DEVIATIONS = 3.0
# Samples of a running median: most dips are longer than half of it.
_SMOOTH = 7
# At least this share of the samples since the onset must be low: else it was a spike.
_LOW_SHARE = 0.5


def sides(
    candidate: Candidate, series: Series, settings: Verification
) -> tuple[IntArray, IntArray] | Rejected:
    """Return which samples make the level before the onset, and which what came since."""
    first = int(np.searchsorted(series.times_ms, candidate.onset_ms, side="right"))
    before, after = series.values[:first], series.values[first:]
    if (few := too_few(before, after, settings)) is not None:
        return few
    # Half of it: what moves a level by less than that can neither make nor hide a change.
    effect = settings.min_effect / 2
    # Evaluations at the level of the fall and edges of dips are no level to fall from.
    least = candidate.before * (1 - settings.min_effect) - 2 * candidate.scale
    smooth = _smooth(before)
    old = np.flatnonzero(_undipped(before, smooth, candidate) & (smooth >= least))
    if len(old) < settings.min_before:
        return Rejected(reason=f"too few samples: {len(old)} at the level before the onset")
    old = _level_before(before, old, candidate, settings)
    low = after < median(before[old]) * (1 - effect)
    if (refused := spike(low)) is not None:
        return refused
    new = np.flatnonzero(_undipped(after, _smooth(after), candidate))
    if len(new) < settings.min_after:
        return Rejected(reason=f"too few samples: {len(new)} at the level since the onset")
    return old, first + new


def _level_before(
    before: FloatArray, use: IntArray, candidate: Candidate, settings: Verification
) -> IntArray:
    """Return which of the samples in use stand on the level that was fallen from.

    That is the latest one, unless it is the fallen one already: where the online stage saw the
    onset late, the level before that.
    """
    fallen = (candidate.before + candidate.after) / 2
    while True:
        start = latest_level(
            before[use], least=settings.min_before, effect=settings.min_effect / 2
        )
        if start < settings.min_before or median(before[use[start:]]) > fallen:
            return use[start:]
        use = use[:start]


def _undipped(values: FloatArray, smooth: FloatArray, candidate: Candidate) -> BoolArray:
    """Return which samples are no dips below the level that most of them stand on.

    After an earlier drop most samples lie above the level that was expected, so that is the
    most that it can be. Noise that hides a dip's samples does not hide their median.
    """
    level = min(quantile(smooth, 0.7), candidate.before)
    single, several = (
        level - max(_DIP * level, deviations * candidate.scale)
        for deviations in (_DIP_DEVIATIONS, 2)
    )
    return np.asarray((values >= single) & (smooth >= several))


def _smooth(values: FloatArray) -> FloatArray:
    """Return the running median of a minute of 10 s samples, fewer at the ends."""
    half = min(_SMOOTH // 2, (len(values) - 1) // 2)
    padded = np.concatenate([values[half:0:-1], values, values[-2 : -half - 2 : -1]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    # The width is odd: the median is the sample in the middle.
    return np.asarray(np.partition(windows, half, axis=1)[:, half])


def too_few(before: FloatArray, after: FloatArray, settings: Verification) -> Rejected | None:
    """Refuse to compare sides one of which has too few samples."""
    if len(before) >= settings.min_before and len(after) >= settings.min_after:
        return None
    return Rejected(
        reason=f"too few samples: {len(before)} before the onset and {len(after)} after it"
    )


def spike(low: BoolArray) -> Rejected | None:
    """Refuse what is back already: too few of the samples since the onset are low."""
    if low.mean() >= _LOW_SHARE:
        return None
    return Rejected(reason=f"a spike: only {low.sum()} of {len(low)} samples low")
