"""What a peer is, what it is given, and how its setting is chosen.

Peers run in an environment of their own (apache-otava pins an old numpy), so this module and
its neighbours ``windows`` and ``packages`` import nothing of the detector but its series.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.detection.generator import Made
from benchmarks.detection.score import Heard
from detector.series import FloatArray, IntArray

# All peers get this hygiene: what is no number, and what is nothing, is skipped.
_NOTHING = 0.02
# A share of the level; where a peer reports a fall, how large it must be.
FALLS = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10, 0.12, 0.15, 0.18, 0.22, 0.27, 0.33, 0.4, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A job's mean OFU as peers see it: usable samples, and the medians of its minutes."""

    times_ms: IntArray
    values: FloatArray
    minute_ms: IntArray
    minutes: FloatArray


Config = tuple[float, ...]
Scores = Callable[[Given, Config], tuple[IntArray, FloatArray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A detector to be compared with.

    Attributes
    ----------
    package
        The distribution whose code decides; empty for a published rule that is stated anew.
    scores
        Times and a score each; a score at or above a threshold is an alarm when the one before
        it was not.
    configs, thresholds
        The settings tried: all combinations.
    words
        What a configuration's numbers and the threshold are.
    dear
        Costs so much that fewer jobs must do.
    """

    name: str
    package: str
    scores: Scores
    configs: tuple[Config, ...]
    thresholds: tuple[float, ...]
    words: str
    dear: bool = False

    def heard(self, made: Made, config: Config, thresholds: Sequence[float]) -> list[Heard]:
        """Return the alarms that the peer gives on a job, by threshold."""
        times_ms, scores = self.scores(given(made), config)
        return [
            Heard(
                kind=made.kind.name,
                truth=made.truth,
                alarms=alarms(times_ms, scores, threshold),
            )
            for threshold in thresholds
        ]


def given(made: Made) -> Given:
    """Return what peers see of a job."""
    values = made.window.fields["ofu"]
    use = np.isfinite(values) & (values >= _NOTHING)
    times_ms, values = made.window.times_ms[use], values[use]
    minute = (times_ms - 1) // 60_000
    first = np.flatnonzero(np.append(True, np.diff(minute) != 0))
    counts = np.diff(np.append(first, len(values)))
    # Sorted within each minute, the median is the mean of the two in the middle.
    ranked = values[np.lexsort((values, minute))]
    return Given(
        times_ms=times_ms,
        values=values,
        # A minute is known when its last sample is.
        minute_ms=times_ms[first + counts - 1],
        minutes=(ranked[first + (counts - 1) // 2] + ranked[first + counts // 2]) / 2,
    )


def alarms(times_ms: IntArray, scores: FloatArray, threshold: float) -> tuple[int, ...]:
    """Return the times at which the score comes up to the threshold."""
    on = scores >= threshold
    starts = on & ~np.append(False, on[:-1])
    return tuple(times_ms[starts].tolist())
