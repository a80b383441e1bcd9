"""Verification: whether the job's history agrees that something changed.

Independent of the online stage: levels, place and significance are computed anew from the
window. Heavy, since a candidate is rare: a regression on a step with autocorrelation-robust
errors. Refuses in words an operator understands.
"""

from itertools import pairwise
from typing import assert_never

import numpy as np

from detector.analysis.baselines import Model, Verification
from detector.analysis.change import Candidate, Confirmed, Estimate, Rejected, exact
from detector.analysis.changepoint import latest_level, locate
from detector.analysis.comparison import frozen, outside, shortage
from detector.analysis.peers import compare
from detector.analysis.phases import announced
from detector.analysis.quantile import median
from detector.analysis.sides import sides, spike, too_few
from detector.series import FloatArray, IntArray, Interval, Series, Window

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
            return frozen(candidate, series, model)
        case "ceiling":
            return shortage(candidate, series, model)
        case "band":
            return outside(candidate, series, model)
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
    compared = sides(candidate, series, settings)
    if isinstance(compared, Rejected):
        return compared
    old, lasting = compared
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
    if (few := too_few(before, after, settings)) is not None:
        return few
    level, present = median(before), median(after)
    low = after < (level + present) / 2
    if (refused := spike(low)) is not None:
        return refused
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
        return exact(old), exact(new), float(new == old)
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
