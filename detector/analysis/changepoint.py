"""Where in a stretch of samples the level changed, and how sure that is."""

from dataclasses import dataclass

import numpy as np

from detector.series import FloatArray

# 95 % critical value of the likelihood ratio of a change's place (Hansen 2000, table 1).
_HANSEN_95 = 7.35
# Autocorrelation beyond this makes the interval as wide as the window; chosen.
_MOST_AUTOCORRELATION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """The first sample of the new level, and the range of it with 95 % confidence.

    Attributes
    ----------
    index, low, high
        ``low <= index <= high``, indices of samples.
    gain
        Share of the stretch's sum of squares that the change explains, 0..1.
    """

    index: int
    low: int
    high: int
    gain: float


def locate(values: FloatArray, *, least: int = 1) -> ChangePoint | None:
    r"""Return the split into two levels with the smallest sum of squares.

    The interval holds every split whose likelihood ratio against the best one,
    :math:`n (RSS_k - RSS) / RSS`, deflated for autocorrelation by :math:`(1-r)/(1+r)`, is
    below the 95 % critical value.

    Parameters
    ----------
    values
        Finite samples, oldest first. Shape ``(n,)``.
    least
        Least samples on either side. Fewer than two sides' worth of samples give None.

    References
    ----------
    Hansen, B. E. (2000). Sample splitting and threshold estimation. Econometrica 68, 575-603.
    """
    n = len(values)
    if n < 2 * least:
        return None
    centred = values - values.mean()
    total = float(centred @ centred)
    place = np.arange(1, n)
    explained = np.cumsum(centred)[:-1] ** 2 * n / (place * (n - place))
    explained[(place < least) | (place > n - least)] = -1.0
    best = int(explained.argmax())
    rss = max(total - float(explained[best]), 0.0)
    # What rounding leaves of a constant.
    if total <= n * (1e-12 * float(abs(values).max())) ** 2:
        return ChangePoint(index=best + 1, low=1, high=n - 1, gain=0.0)
    ratio = n * (explained[best] - explained) / max(rss, 1e-12 * total)
    residual = values - np.where(
        np.arange(n) <= best, values[: best + 1].mean(), values[best + 1 :].mean()
    )
    inside = np.flatnonzero((ratio * _deflation(residual) <= _HANSEN_95) & (explained >= 0))
    return ChangePoint(
        index=best + 1, low=int(inside[0]) + 1, high=int(inside[-1]) + 1, gain=1 - rss / total
    )


def latest_level(values: FloatArray, *, least: int, effect: float) -> int:
    """Return the index from which on the values stand on their latest level.

    Splits as long as a split tells two levels apart: by more than ``effect`` (relative) and by
    four standard errors that allow for autocorrelation.

    Parameters
    ----------
    least
        Least samples of a level.
    """
    start = 0
    while len(values) - start >= 2 * least:
        part = values[start:]
        change = locate(part, least=least)
        if change is None:
            break
        left, right = part[: change.index], part[change.index :]
        residual = np.concatenate([left - left.mean(), right - right.mean()])
        variance = float(residual @ residual) / len(part) / _deflation(residual)
        error = np.sqrt(variance * (1 / len(left) + 1 / len(right)))
        gap = abs(float(right.mean() - left.mean()))
        if gap < effect * abs(float(left.mean())) or gap < 4 * error:
            break
        start += change.index
    return start


def _deflation(residual: FloatArray) -> float:
    """Return the share of the samples that count as independent, from the lag-1 correlation."""
    power = float(residual @ residual)
    if len(residual) < 3 or power <= 0:
        return 1.0
    r = float(residual[1:] @ residual[:-1]) / power
    r = min(max(r, 0.0), _MOST_AUTOCORRELATION)
    return (1 - r) / (1 + r)
