"""The level that a series stands on now, for what was found before it had settled."""

import numpy as np

from detector.analysis.change import Estimate
from detector.analysis.quantile import quantile
from detector.series import Interval, Window

# As in verification: a sample below this share of what most of them reach is a dip.
_DIP = 0.88
# Fewer samples tell no level.
_LEAST = 3


def present_level(window: Window, metric: str, span: Interval) -> Estimate | None:
    """Return the mean of the metric's samples in ``(start, end]``, dips left out.

    A sample's time is the end of what it stands for, hence the span is open at its start. The
    95 % interval allows for the samples' lag-1 correlation. None when the span holds too few.
    """
    series = window.series(metric)
    if series is None:
        return None
    inside = (series.times_ms > span.start_ms) & (series.times_ms <= span.end_ms)
    values = series.values[inside]
    if len(values) < _LEAST:
        return None
    values = values[values >= _DIP * quantile(values, 0.7)]
    mean = float(values.mean())
    off = values - mean
    power = float(off @ off)
    r = min(max(float(off[1:] @ off[:-1]) / power, 0.0), 0.9) if power > 0 else 0.0
    independent = max(len(values) * (1 - r) / (1 + r), 1.0)
    half = 1.96 * np.sqrt(power / len(values) / independent)
    return Estimate(value=mean, low=mean - float(half), high=mean + float(half))
