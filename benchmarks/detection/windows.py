"""Published rules on rolling windows, stated anew; each returns times and scores.

Windows count usable samples, six to a minute.
"""

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from scipy.stats import rankdata

from benchmarks.detection.peer import FALLS, Config, Given, Peer
from detector.series import FloatArray, IntArray

_PER_MIN = 6
_SIGMAS = tuple(np.round(np.geomspace(0.1, 40, 36), 3).tolist())


def _rolling(values: FloatArray, minutes: float) -> "pd.api.typing.Rolling[pd.Series]":
    return pd.Series(values).rolling(round(minutes * _PER_MIN))


def _shifted(values: FloatArray, minutes: float) -> FloatArray:
    return np.asarray(pd.Series(values).shift(round(minutes * _PER_MIN)), np.float64)


def _told(scores: FloatArray) -> FloatArray:
    """NaN is no score: below every threshold."""
    return np.nan_to_num(scores, nan=-np.inf, posinf=1e9)


def median_rule(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """By how much the median of some minutes lies below that of the time before them."""
    short, long = config
    now = _rolling(x.values, short).median().to_numpy()
    before = _shifted(_rolling(x.values, long).median().to_numpy(), short)
    return x.times_ms, _told(1 - now / before)


def mad_rule(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """How many MADs a median lies below the two hours before it."""
    short, long = config
    now = _rolling(x.values, short).median().to_numpy()
    middle = _rolling(x.values, long).median().to_numpy()
    spread = _rolling(np.abs(x.values - middle), long).median().to_numpy() * 1.4826
    return x.times_ms, _told((_shifted(middle, short) - now) / _shifted(spread, short))


def z_rule(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """The least z, against the hour before, of the samples of some minutes."""
    short, long = config
    mean = _shifted(_rolling(x.values, long).mean().to_numpy(), short)
    sd = _shifted(_rolling(x.values, long).std().to_numpy(), short)
    highest = _rolling(x.values, short).max().to_numpy()
    return x.times_ms, _told((mean - highest) / sd)


def grafana_rule(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """Below the adaptive lower band of grafana/promql-anomaly-detection for some minutes.

    The band is the lowest of three: the mean of an hour less so many smoothed deviations (only
    hours whose deviation exceeds half of their mean count), the mean less a margin, and the
    band of a day ago (half an hour early). As published: 2 deviations, margin 0.5, 5 min.
    """
    deviations, margin, minutes = config
    mean = _rolling(x.values, 60).mean().to_numpy()
    sd = _rolling(x.values, 60).std().to_numpy()
    wild = pd.Series(np.where(sd > 0.5 * mean, sd, np.nan))
    smooth = wild.rolling(26 * 60 * _PER_MIN, min_periods=1).mean().to_numpy()
    bands = [mean - deviations * smooth, mean * (1 - margin),
             _shifted(mean - deviations * sd, 23.5 * 60)]  # fmt: skip
    with np.errstate(invalid="ignore"):
        low = np.fmin.reduce(bands)
        outside = pd.Series((x.values < low).astype(float))
    return x.times_ms, _told(outside.rolling(round(minutes * _PER_MIN)).min().to_numpy())


def perfherder_rule(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """Perfherder's t between minutes before and after, linear weights, variances pooled not.

    Its rule looks back 12 to 24 points and forward 12; alarm above 7 as published.
    """
    back, fore = int(config[0]), int(config[1])
    n = len(x.minutes) - back - fore + 1
    if n < 1:
        return x.minute_ms[:0], x.minutes[:0]
    old = sliding_window_view(x.minutes, back)[:n]
    new = sliding_window_view(x.minutes, fore)[back : back + n]
    # Weight falls off with the distance from the point between them.
    old_mean = old @ (np.arange(1, back + 1) / (back * (back + 1) / 2))
    new_mean = new @ (np.arange(fore, 0, -1) / (fore * (fore + 1) / 2))
    old_var = ((old - old_mean[:, None]) ** 2).sum(axis=1) / (back - 1)
    new_var = ((new - new_mean[:, None]) ** 2).sum(axis=1) / (fore - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (old_mean - new_mean) / np.sqrt(old_var / back + new_var / fore)
    return x.minute_ms[back + fore - 1 :], _told(t)


def mann_whitney_rule(x: Given, config: Config) -> tuple[IntArray, FloatArray]:
    """Normal score of Mann and Whitney's U: the last minutes below the ones before them."""
    back, fore = int(config[0]), int(config[1])
    if len(x.minutes) < back + fore:
        return x.minute_ms[:0], x.minutes[:0]
    ranks = rankdata(sliding_window_view(x.minutes, back + fore), axis=1)
    u = ranks[:, :back].sum(axis=1) - back * (back + 1) / 2
    expected, sd = back * fore / 2, np.sqrt(back * fore * (back + fore + 1) / 12)
    # A difference without size is no regression: a fall of 2 % at least.
    fall = 1 - np.median(sliding_window_view(x.minutes, fore)[back:], axis=1) / np.median(
        sliding_window_view(x.minutes, back)[: len(u)], axis=1
    )
    return x.minute_ms[back + fore - 1 :], np.where(fall > 0.02, (u - expected) / sd, 0.0)


RULES = (
    Peer(
        name="median m < c x median before", package="", scores=median_rule,
        configs=((20, 120), (30, 120), (40, 120), (60, 120)), thresholds=FALLS,
        words="minutes, minutes before; fall",
    ),
    Peer(
        name="median + MAD", package="", scores=mad_rule,
        configs=((10, 120), (20, 120), (30, 120), (40, 120)), thresholds=_SIGMAS,
        words="minutes, minutes before; MADs",
    ),
    Peer(
        name="z-score, all of m minutes", package="", scores=z_rule,
        configs=((5, 60), (10, 60), (20, 60), (10, 120), (20, 120)), thresholds=_SIGMAS,
        words="minutes, minutes before; sigmas",
    ),
    Peer(
        name="Grafana adaptive rules", package="", scores=grafana_rule,
        configs=tuple(
            (deviations, margin, minutes)
            for deviations in (1, 2, 3)
            for margin in (0.02, 0.05, 0.1, 0.2, 0.5)
            for minutes in (5, 10, 12, 15, 20)
        ), thresholds=(1.0,),
        words="deviations, margin, for minutes",
    ),
    Peer(
        name="Perfherder t-test", package="", scores=perfherder_rule,
        configs=((12, 12), (24, 12), (24, 20)), thresholds=_SIGMAS,
        words="minutes back, fore; t",
    ),
    Peer(
        name="Mann-Whitney windows", package="", scores=mann_whitney_rule,
        configs=((60, 15), (90, 20), (90, 30), (120, 40)),
        thresholds=tuple(np.arange(2.0, 9.5, 0.25).tolist()),
        words="minutes back, fore; z",
    ),
)  # fmt: skip
