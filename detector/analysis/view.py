"""What features are measured on: a change, its window, and the levels on both sides of it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from detector.analysis import quantile
from detector.analysis.change import Confirmed
from detector.analysis.ofu import GpuModel
from detector.analysis.peers import Attribution, Mask, attribute, inside
from detector.series import FloatArray, Window

# A median of fewer samples is no better than its worst one.
_LEAST_SAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class View:
    """What features are measured on."""

    change: Confirmed
    window: Window
    gpu: GpuModel | None
    precision: str

    @cached_property
    def before(self) -> Mask:
        """Which samples lie in the stretch before. Shape ``(n,)``."""
        return inside(self.window.times_ms, self.change.before_span, self.change.excluded)

    @cached_property
    def after(self) -> Mask:
        """Which samples lie in the stretch after. Shape ``(n,)``."""
        return inside(self.window.times_ms, self.change.after_span, self.change.excluded)

    @cached_property
    def attribution(self) -> Attribution | None:
        """Which GPUs fell by themselves."""
        return attribute(self.change, self.window)

    @cached_property
    def step_ms(self) -> float | None:
        """The usual time between two entries, ms."""
        times = self.window.times_ms
        return quantile.median(np.diff(times)) if len(times) > 1 else None

    def values(self, metric: str, where: Mask) -> FloatArray:
        """The metric's finite values among the samples of ``where``."""
        values = self.window.fields.get(metric)
        if values is None:
            return np.empty(0)
        chosen: FloatArray = values[where]
        return chosen[np.isfinite(chosen)]

    def level_before(self, metric: str) -> float | None:
        """The level verification found, for its own metric; else the median before."""
        if metric == self.change.metric:
            return self.change.before.value
        return median(self.values(metric, self.before))

    def level_after(self, metric: str) -> float | None:
        """As :meth:`level_before`, after the onset."""
        if metric == self.change.metric:
            return self.change.after.value
        return median(self.values(metric, self.after))

    def relative(self, metric: str) -> float | None:
        """The metric's relative change; None where it was 0 before."""
        return relative_change(self.level_before(metric), self.level_after(metric))


def median(values: FloatArray) -> float | None:
    """Return the median, or None of fewer than three values."""
    return quantile.median(values) if len(values) >= _LEAST_SAMPLES else None


def relative_change(before: float | None, after: float | None) -> float | None:
    """Return ``after / before - 1``, or None where it means nothing."""
    if before is None or after is None or before <= 0:
        return None
    return after / before - 1
