"""What counts as a false alarm, their rate, and how well so much exposure shows it. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A job's first hour teaches its level, and is not counted; alarms within half an hour are one.
LEARNING_MS = 3_600_000
GROUP_MS = 1_800_000

# Two-sided 95 %.
_TAIL = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Events in an exposure, with the exact Poisson interval of 95 %."""

    events: int
    exposure: float

    @property
    def value(self) -> float:
        """Events per unit of exposure."""
        return self.events / self.exposure if self.exposure else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the greatest rate that these events speak for.

        References
        ----------
        Garwood, F. (1936). Fiducial limits for the Poisson distribution. Biometrika 28.
        """
        if not self.exposure:
            return math.nan, math.nan
        low = _mean_with(self.events - 1, 1 - _TAIL) if self.events else 0.0
        return low / self.exposure, _mean_with(self.events, _TAIL) / self.exposure


def opening(times_ms: Sequence[int], *, start_ms: int) -> list[int]:
    """Return the places of the alarms that open an incident, among ascending ones of a job.

    An alarm of the learning hour opens none, and hides none that follows.

    Parameters
    ----------
    start_ms
        When the job began.
    """
    places: list[int] = []
    for place, time_ms in enumerate(times_ms):
        if time_ms < start_ms + LEARNING_MS:
            continue
        if not places or time_ms >= times_ms[places[-1]] + GROUP_MS:
            places.append(place)
    return places


def shows(exposure: float) -> float:
    """Return the least rate that so much exposure can show: 3.69 over it, with no event."""
    return Rate(events=0, exposure=exposure).interval[1]


def _mean_with(events: int, probability: float) -> float:
    """Return the Poisson mean at which at most ``events`` happen with this probability."""
    low, high = 0.0, events + 20.0 + 10.0 * math.sqrt(events + 1)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(events, middle) > probability else (low, middle)
    return (low + high) / 2


def _at_most(events: int, mean: float) -> float:
    """Return the probability of at most ``events`` where ``mean`` are expected."""
    if mean <= 0:
        return 1.0
    logs = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(events + 1))
    return math.fsum(math.exp(log) for log in logs)
