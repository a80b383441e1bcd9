"""The detector that knows everything but when: what no other can beat by much.

It knows the job's undisturbed level and how it warms up, the law of its noise, the size of the
change, and which samples a nuisance touches; these it leaves out. What remains is Page's CUSUM
of the likelihood ratio of the noise's innovations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.detection.generator import Made
from benchmarks.detection.peer import alarms
from benchmarks.detection.score import Heard
from detector.series import FloatArray, IntArray

# Thresholds tried, nats; ln of the samples in ten days is 11.4.
THRESHOLDS = tuple(np.arange(3.0, 25.0, 0.5).tolist())


def scores(made: Made, factor: float) -> tuple[IntArray, FloatArray]:
    """Return the times of the job's clean samples and the CUSUM for a fall to ``factor``."""
    use = made.clean & np.isfinite(made.window.fields["ofu"])
    times_ms = made.window.times_ms[use]
    level, truth = made.expected[use], made.truth
    # How a job warms up is known too, and its noise is smaller in the same measure.
    residual = made.window.fields["ofu"][use] / made.warmth[use] - level
    shift = (1 - factor) * level
    # The next sample of the grid follows its neighbour's noise; one after a gap stands alone.
    next_to = np.append(False, np.diff(times_ms) < 1.5 * truth.cadence_ms)
    phi = np.where(next_to, truth.phi, 0.0)
    innovation = residual - phi * np.append(0.0, residual[:-1])
    sd = truth.sigma * np.sqrt(1 - phi * phi)
    ratio = _log_density((innovation + shift * (1 - phi)) / sd, heavy=truth.heavy)
    ratio -= _log_density(innovation / sd, heavy=truth.heavy)
    total = np.cumsum(ratio)
    return times_ms, total - np.minimum.accumulate(np.minimum(total, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The optimum for a change to one factor, as what can be calibrated."""

    factor: float
    configs: tuple[tuple[float, ...], ...] = ((),)
    thresholds: tuple[float, ...] = THRESHOLDS

    def heard(
        self, made: Made, config: tuple[float, ...], thresholds: Sequence[float]
    ) -> list[Heard]:
        """Return the alarms on a job, by threshold."""
        del config
        times_ms, cusum = scores(made, self.factor)
        return [
            Heard(
                kind=made.kind.name,
                truth=made.truth,
                alarms=alarms(times_ms, cusum, threshold),
            )
            for threshold in thresholds
        ]


def _log_density(x: FloatArray, *, heavy: bool) -> FloatArray:
    """Up to a constant, of unit variance: normal, or Student t(4) when heavy."""
    if not heavy:
        return np.asarray(-x * x / 2, np.float64)
    # t(4) has variance 2: its unit-variance form is t(4) / sqrt(2).
    return np.asarray(-2.5 * np.log1p(x * x / 2), np.float64)
