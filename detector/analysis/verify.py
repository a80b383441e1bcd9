"""Verification: whether the job's history agrees that something changed.

Independent of the online stage: levels, place and significance are computed anew from the
window. Heavy, since a candidate is rare: a regression on a step with autocorrelation-robust
errors. Refuses in words an operator understands.
"""

from itertools import pairwise
from typing import assert_never

import numpy as np
import numpy.typing as npt

from detector.analysis.baselines import Band, Level, Model, Verification
from detector.analysis.change import Candidate, Confirmed, Estimate, Rejected
from detector.analysis.changepoint import latest_level, locate
from detector.analysis.peers import compare
from detector.analysis.phases import announced
from detector.analysis.quantile import median, quantile
from detector.series import FloatArray, IntArray, Interval, Series, Window

BoolArray = npt.NDArray[np.bool_]

# A sample further below its stretch's level than this share of it is a dip and not compared,
_DIP = 0.12
# ... unless the job's noise reaches so far: of a normal one this leaves out 1 in 700.
_DIP_DEVIATIONS = 3.0
# Samples of a running median: most dips are longer than half of it.
_SMOOTH = 7
# At least this share of the samples since the onset must be low: else it was a spike.
_LOW_SHARE = 0.5
# More than this share of a job's GPUs fell: something they share.
_MOST_SHARE = 0.25
# Samples before the onset that verification wants of a slow series.
_LEAST_LOOKBACK = 60
# A run whose number of GPUs differs by more than this share is another one: a node of 50 may
# be replaced late. Chosen.
_RESIZED = 0.02
# Two-sided 95 % of a normal estimate.
_Z95 = 1.96


def verify(candidate: Candidate, window: Window, model: Model) -> Confirmed | Rejected:
    """Return the change that the window's history shows, or why it shows none.

    Parameters
    ----------
    window
        The job's history from :func:`window_start_ms` to the candidate's time, with
        ``fields[model.metric]``.
    """
    # What an early candidate owes to announcements has been judged before.
    explained = None if candidate.early else announced(candidate, window.events)
    if explained is not None:
        return explained
    if candidate.cause == "peers":
        return _apart(candidate, window, model)
    series = window.series(model.metric)
    if series is None:
        return Rejected(reason=f"the history holds no {model.metric} around the onset")
    until = series.times_ms <= candidate.time_ms
    series = Series(times_ms=series.times_ms[until], values=series.values[until])
    match candidate.cause:
        case "excursion" | "drift":
            return _mean_shift(candidate, series, model, window)
        case "frozen":
            return _frozen(candidate, series, model)
        case "ceiling":
            return _shortage(candidate, series, model)
        case "band":
            return _outside(candidate, series, model)
        case "lineage":  # what verification makes of the first two; never raised
            msg = "no candidate is raised as lineage"
            raise ValueError(msg)
        case _:
            assert_never(candidate.cause)


def window_start_ms(candidate: Candidate, model: Model) -> int:
    """Return from when on verification wants the job's history.

    At least the model's lookback, and more where samples are so rare that it holds few.
    """
    lookback_ms = max(int(model.verify.lookback), _LEAST_LOOKBACK * candidate.step_ms)
    return candidate.onset_ms - lookback_ms


def _mean_shift(
    candidate: Candidate, series: Series, model: Model, window: Window
) -> Confirmed | Rejected:
    """Compare the level since the onset with the level before it.

    Where the run itself shows too little of that level, it is the earlier run's.
    """
    times_ms, values, settings = series.times_ms, series.values, model.verify
    sides = _sides(candidate, series, settings)
    if isinstance(sides, Rejected):
        return sides
    old, lasting = sides
    # Half of it: what moves a level by less can neither make nor hide a change.
    effect = settings.min_effect / 2
    new = lasting[latest_level(values[lasting], least=settings.min_after, effect=effect) :]
    own = times_ms[old] >= window.own_ms
    inherited = window.own_ms > 0 and int(own.sum()) < settings.min_before
    if inherited:
        resized = _resized(window)
        if resized is not None:
            return resized
        old = old[~own]
        if len(old) < settings.min_before:
            return Rejected(reason=f"too few samples: {len(old)} of the earlier run")
    level, present = median(values[old]), median(values[new])
    # All after the last healthy sample: the online stage may have guessed late.
    since = np.concatenate([old, np.arange(old[-1] + 1, len(values))])
    onset_ms, onset = _onset(series, since, level, min(present, level))
    if inherited:  # not in the earlier run, nor in between
        onset_ms = max(onset_ms, window.own_ms)
        onset = Interval(
            start_ms=max(onset.start_ms, window.own_ms), end_ms=max(onset.end_ms, onset_ms)
        )
    if (times_ms[new] > onset_ms).sum() >= settings.min_after:
        # The sample in which it began is neither.
        new = new[times_ms[new] > onset_ms]
    before, after, p = _step(values[old], values[new], width=settings.min_after)
    change = after.value / before.value - 1 if before.value > 0 else 0.0
    refused = _too_little(change, p, settings)
    if refused is None and candidate.cause == "drift":
        # It was said to last: the dip in which it ends must not be all there is to it.
        _, since_then, p = _step(values[old], values[lasting], width=settings.min_after)
        refused = _too_little(since_then.value / before.value - 1, p, settings)
    if refused is not None:
        return refused
    return Confirmed(
        metric=model.metric,
        cause="lineage" if inherited else candidate.cause,
        direction=candidate.direction,
        onset_ms=onset_ms,
        onset=onset,
        detected_ms=candidate.time_ms,
        before=before,
        after=after,
        relative_change=max(change, -1.0),
        confidence=1 - p,
        before_span=Interval(start_ms=int(times_ms[old[0]]), end_ms=int(times_ms[old[-1]])),
        after_span=Interval(start_ms=int(times_ms[new[0] - 1]), end_ms=int(times_ms[new[-1]])),
        excluded=_gaps(times_ms, np.concatenate([old, new])),
    )


def _resized(window: Window) -> Rejected | None:
    """Refuse to compare with an earlier run on another number of GPUs, as entries report it.

    Its description may not say so, and the first entries of a job may miss some.
    """
    counts = window.series("gpus")
    if counts is None:
        return None
    own = counts.times_ms >= window.own_ms
    if not own.any() or own.all():
        return None
    there, here = np.median(counts.values[~own]), np.median(counts.values[own])
    if abs(here - there) <= _RESIZED * there:
        return None
    reason = (
        f"another level is expected: {here:g} GPUs report, in the earlier run {there:g} did"
    )
    return Rejected(reason=reason, rebase=True)


def _too_little(change: float, p: float, settings: Verification) -> Rejected | None:
    """Return why a step is too small or too doubtful to be told, or None when it is neither."""
    if change > -settings.min_effect:
        return Rejected(reason=f"smaller than an alarm is worth: {change:+.1%}")
    if p > settings.significance:
        return Rejected(reason=f"not significant: p = {p:.2g} with the noise this job has")
    return None


def _sides(
    candidate: Candidate, series: Series, settings: Verification
) -> tuple[IntArray, IntArray] | Rejected:
    """Return which samples make the level before the onset, and which what came since."""
    first = int(np.searchsorted(series.times_ms, candidate.onset_ms, side="right"))
    before, after = series.values[:first], series.values[first:]
    if len(before) < settings.min_before or len(after) < settings.min_after:
        return Rejected(
            reason=f"too few samples: {len(before)} before the onset and {len(after)} after it"
        )
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
    if low.mean() < _LOW_SHARE:
        return Rejected(reason=f"a spike: only {low.sum()} of {len(after)} samples are low")
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


def _apart(candidate: Candidate, window: Window, model: Model) -> Confirmed | Rejected:
    """Compare GPUs with the others of their job, before the onset and since."""
    settings = model.verify
    compared = compare(
        window,
        candidate.gpus,
        onset_ms=candidate.onset_ms,
        until_ms=candidate.time_ms,
        least=settings.min_effect,
    )
    if compared is None:
        return Rejected(reason="the history does not show that these GPUs fell")
    if compared.others > _MOST_SHARE:
        return Rejected(reason=f"{compared.others:.0%} of the job's other GPUs fell as well")
    rows, values, times_ms = compared.rows, compared.values, window.times_ms
    since = times_ms[rows] > candidate.onset_ms
    before, after = values[~since], values[since]
    if len(before) < settings.min_before or len(after) < settings.min_after:
        return Rejected(
            reason=f"too few samples: {len(before)} before the onset and {len(after)} after it"
        )
    level, present = median(before), median(after)
    low = after < (level + present) / 2
    if low.mean() < _LOW_SHARE:
        return Rejected(reason=f"a spike: only {low.sum()} of {len(after)} samples are low")
    series = Series(times_ms=times_ms[rows], values=values)
    onset_ms, onset = _onset(series, np.arange(len(values)), level, min(present, level))
    later = since & (times_ms[rows] > onset_ms)
    since = later if later.sum() >= settings.min_after else since
    old, new, p = _step(values[~since & (times_ms[rows] <= onset_ms)], values[since],
                        width=settings.min_after)  # fmt: skip
    change = new.value / old.value - 1
    refused = _too_little(change, p, settings)
    if refused is not None:
        return refused
    return Confirmed(
        metric=model.metric,
        cause=candidate.cause,
        direction=candidate.direction,
        onset_ms=onset_ms,
        onset=onset,
        detected_ms=candidate.time_ms,
        before=_scaled(old, compared.level),
        after=_scaled(new, compared.level),
        relative_change=max(change, -1.0),
        confidence=1 - p,
        before_span=Interval(start_ms=int(times_ms[rows[0]]), end_ms=onset_ms),
        after_span=Interval(start_ms=onset_ms, end_ms=int(times_ms[rows[-1]])),
        excluded=_gaps(times_ms, rows),
        gpus=compared.gpus,
    )


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


def _step(
    before: FloatArray, after: FloatArray, *, width: int
) -> tuple[Estimate, Estimate, float]:
    """Return both levels with their intervals, and p of "no step", by least squares.

    Errors are heteroskedasticity and autocorrelation robust (Newey and West 1987). Least
    squares on two levels are their means, so that only the robust covariance is left to
    statsmodels: a whole OLS fit takes twenty times as long for the same numbers.
    """
    from scipy.special import stdtr
    from statsmodels.stats.sandwich_covariance import S_hac_simple

    old, new = float(before.mean()), float(after.mean())
    if np.ptp(before) + np.ptp(after) <= 1e-9 * max(abs(old), 1e-9):
        return _exact(old), _exact(new), float(new == old)
    counts = np.array([len(before), len(after)])
    n = int(counts.sum())
    residual = np.concatenate([before - old, after - new])[:, None]
    # Newey-West's rule of thumb is 4 (n/100)^(2/9): too short for AR(1) noise of 10 s samples.
    lags = min(max(width, round(1.3 * np.sqrt(n))), n - 1)
    # One noise for both sides: that of few samples alone says little about itself.
    power = float((residual**2).sum())
    robust = max(float(S_hac_simple(residual, nlags=lags)[0, 0]), power)
    degrees = max(n - 2, 1)
    spread = np.sqrt(robust / degrees / counts)
    t = (new - old) / float(np.hypot(*spread))
    p = float(2 * stdtr(degrees, -abs(t)))
    return _estimate(old, float(spread[0])), _estimate(new, float(spread[1])), p


def _estimate(value: float, spread: float) -> Estimate:
    return Estimate(value=value, low=value - _Z95 * spread, high=value + _Z95 * spread)


def _scaled(estimate: Estimate, by: float) -> Estimate:
    return Estimate(value=estimate.value * by, low=estimate.low * by, high=estimate.high * by)


def _exact(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


def _onset(series: Series, use: IntArray, old: float, new: float) -> tuple[int, Interval]:
    """Return when the level left ``old`` for ``new``: best guess and 95 % interval.

    Samples beyond either level are pulled to it, so that dips and glitches place nothing.
    """
    change = locate(np.clip(series.values[use], new, old))
    # Both sides have samples, hence there is a place.
    assert change is not None
    # A sample's time is the end of what it stands for: the change lies before sample k ended
    # and not before the sample that precedes it did.
    times_ms = series.times_ms
    return int(times_ms[use[change.index] - 1]), Interval(
        start_ms=int(times_ms[use[change.low] - 1]), end_ms=int(times_ms[use[change.high]])
    )


def _gaps(times_ms: IntArray, used: IntArray) -> tuple[Interval, ...]:
    """Return the stretches between the first and the last used sample that were not used."""
    return tuple(
        Interval(start_ms=int(times_ms[left]), end_ms=int(times_ms[right - 1]))
        for left, right in pairwise(used)
        if right - left > 1
    )


def _frozen(candidate: Candidate, series: Series, model: Model) -> Confirmed | Rejected:
    values = series.values
    differing = np.flatnonzero(values != values[-1])
    first = int(differing[-1]) + 1 if len(differing) else 0
    least = model.baseline.frozen_samples if isinstance(model.baseline, Level) else 2
    if len(values) - first < least:
        return Rejected(reason=f"only {len(values) - first} identical values in a row")
    if not len(differing):
        return Rejected(reason="the value has never varied in the history compared")
    return _plain(candidate, series, model, first=first, before=float(values[-1]))


def _shortage(candidate: Candidate, series: Series, model: Model) -> Confirmed | Rejected:
    since = series.times_ms > candidate.onset_ms
    after = series.values[since]
    if len(after) < model.verify.min_after:
        return Rejected(reason=f"too few samples: {len(after)} since the onset")
    if after.max() >= candidate.before:
        return Rejected(reason=f"all {candidate.before:g} were there in the meantime")
    return _plain(
        candidate, series, model, first=int(np.argmax(since)), before=candidate.before
    )


def _outside(candidate: Candidate, series: Series, model: Model) -> Confirmed | Rejected:
    since = series.times_ms > candidate.onset_ms
    after = series.values[since]
    if len(after) < model.verify.min_after:
        return Rejected(reason=f"too few samples: {len(after)} since the onset")
    if isinstance(model.baseline, Band):
        factor = candidate.before / model.baseline.expected
        low, high = model.baseline.low * factor, model.baseline.high * factor
        middle = median(after)
        if low <= middle <= high:
            return Rejected(reason=f"the median since the onset, {middle:.3g}, is in the band")
    return _plain(
        candidate, series, model, first=int(np.argmax(since)), before=candidate.before
    )


def _plain(
    candidate: Candidate, series: Series, model: Model, *, first: int, before: float
) -> Confirmed:
    """Return a change whose test was a comparison, not a statistic: its levels are counts."""
    after = series.values[first:]
    low, middle, high = (quantile(after, share) for share in (0.025, 0.5, 0.975))
    start_ms = int(series.times_ms[max(first - 1, 0)])
    return Confirmed(
        metric=model.metric,
        cause=candidate.cause,
        direction=candidate.direction,
        onset_ms=start_ms,
        onset=Interval(start_ms=start_ms, end_ms=int(series.times_ms[first])),
        detected_ms=candidate.time_ms,
        before=_exact(before),
        after=Estimate(value=middle, low=low, high=high),
        relative_change=middle / before - 1 if before else 0.0,
        confidence=1.0,
        before_span=Interval(start_ms=int(series.times_ms[0]), end_ms=start_ms),
        after_span=Interval(start_ms=start_ms, end_ms=int(series.times_ms[-1])),
    )
