"""Verification of changes that a comparison shows and no statistic is needed for.

A value that stands still, GPUs that no longer report, a ratio outside its bounds: what the
history holds either agrees or does not.
"""

import numpy as np

from detector.analysis.baselines import Band, Level, Model
from detector.analysis.change import Candidate, Confirmed, Estimate, Rejected, exact
from detector.analysis.quantile import median, quantile
from detector.series import Interval, Series


def frozen(candidate: Candidate, series: Series, model: Model) -> Confirmed | Rejected:
    """Return the change of a value that stands still, or why it does not."""
    values = series.values
    differing = np.flatnonzero(values != values[-1])
    first = int(differing[-1]) + 1 if len(differing) else 0
    least = model.baseline.frozen_samples if isinstance(model.baseline, Level) else 2
    if len(values) - first < least:
        return Rejected(reason=f"only {len(values) - first} identical values in a row")
    if not len(differing):
        return Rejected(reason="the value has never varied in the history compared")
    return _plain(candidate, series, model, first=first, before=float(values[-1]))


def shortage(candidate: Candidate, series: Series, model: Model) -> Confirmed | Rejected:
    """Return the change of a count that stays below its most, or why it does not."""
    since = series.times_ms > candidate.onset_ms
    after = series.values[since]
    if len(after) < model.verify.min_after:
        return Rejected(reason=f"too few samples: {len(after)} since the onset")
    if after.max() >= candidate.before:
        return Rejected(reason=f"all {candidate.before:g} were there in the meantime")
    return _plain(
        candidate, series, model, first=int(np.argmax(since)), before=candidate.before
    )


def outside(candidate: Candidate, series: Series, model: Model) -> Confirmed | Rejected:
    """Return the change of a value outside its band, or why it is not."""
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
        before=exact(before),
        after=Estimate(value=middle, low=low, high=high),
        relative_change=middle / before - 1 if before else 0.0,
        confidence=1.0,
        before_span=Interval(start_ms=int(series.times_ms[0]), end_ms=start_ms),
        after_span=Interval(start_ms=start_ms, end_ms=int(series.times_ms[-1])),
    )
