"""The rules of scoring: what an alarm counts for, and the figures that follow.

An alarm opens an incident; alarms of the same job within half an hour of its start belong to
it. Alarms of a job's first hour are ignored, while its level is being learnt. A change is found
when an incident *starts* within an hour of it: one that was open already does not count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import START_MS, Truth
from detector.calibration.rate import LEARNING_MS, Rate, opening

WITHIN_MS = 3_600_000
DAY_MS = 86_400_000
# The bound that settings are chosen for, false alarms a job-day.
BOUND = 0.1
# A change whose optimum is below this is an easy one.
EASY_MS = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One job and the alarms that a detector gave on it: times in ms, ascending.

    Attributes
    ----------
    pages
        Those among the alarms that would wake somebody.
    named
        Those that name GPUs.
    """

    kind: str
    truth: Truth
    alarms: tuple[int, ...]
    pages: tuple[int, ...] = ()
    named: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """How many of a class's changes were found, and how fast.

    Attributes
    ----------
    delays_s
        Of those found, ascending.
    ratios
        Delay over the optimum's, at least five minutes, of those found.
    easy, easy_found
        Jobs whose optimum is below five minutes, and how many of them were found.
    """

    jobs: int
    delays_s: tuple[float, ...]
    ratios: tuple[float, ...] = ()
    easy: int = 0
    easy_found: int = 0

    @property
    def value(self) -> float:
        """Share of the changes that were found."""
        return len(self.delays_s) / self.jobs if self.jobs else math.nan

    @property
    def easy_value(self) -> float:
        """The same among the jobs whose optimum is below five minutes."""
        return self.easy_found / self.easy if self.easy else math.nan

    def delay_s(self, percent: float) -> float:
        """Percentile of the delays of what was found."""
        return float(np.percentile(self.delays_s, percent)) if self.delays_s else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 % for the recall."""
        n, p, z = self.jobs, self.value, 1.96
        if not n:
            return math.nan, math.nan
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)


def incidents(alarms: Sequence[int]) -> list[int]:
    """Return the starts of the incidents that ascending alarms open."""
    return [alarms[place] for place in opening(alarms, start_ms=START_MS)]


def false_alarms(
    heard: Sequence[Heard], *, which: Literal["alarms", "pages", "named"] = "alarms"
) -> Rate:
    """Return incidents per job-day of quiet jobs, the learning hour not counted."""
    events, exposure = 0, 0.0
    for item in heard:
        events += len(incidents(getattr(item, which)))
        exposure += (CLASSES[item.kind].hours * 3_600_000 - LEARNING_MS) / DAY_MS
    return Rate(events=events, exposure=exposure)


def recall(
    heard: Sequence[Heard], *, within_ms: int = WITHIN_MS, pages: bool = False
) -> Recall:
    """Return what was found of the changes of one class."""
    delays: list[float] = []
    ratios: list[float] = []
    easy = easy_found = 0
    for item in heard:
        delay_ms = found_after(item, within_ms=within_ms, pages=pages)
        best_ms = optimum_ms(item.truth)
        easy += best_ms < EASY_MS
        if delay_ms is not None:
            easy_found += best_ms < EASY_MS
            delays.append(delay_ms / 1000)
            ratios.append(delay_ms / max(best_ms, EASY_MS))
    return Recall(
        jobs=len(heard),
        delays_s=tuple(sorted(delays)),
        ratios=tuple(sorted(ratios)),
        easy=easy,
        easy_found=easy_found,
    )


def found_after(item: Heard, *, within_ms: int = WITHIN_MS, pages: bool = False) -> int | None:
    """Return after how many ms the job's change was found; None when it was not."""
    clock_ms = item.truth.clock_ms
    assert clock_ms is not None  # only jobs with a change are asked
    for start in incidents(item.pages if pages else item.alarms):
        if clock_ms <= start <= clock_ms + within_ms:
            return start - clock_ms
    return None


def optimum_ms(truth: Truth, *, rate: float = BOUND) -> float:
    r"""Return the mean delay of the best sequential test at this rate of false alarms, ms.

    The test knows level, noise and size of the change; nothing disturbs the job. Siegmund's
    approximation of the CUSUM for a shift of AR(1) noise:

    .. math:: I = \frac{(\delta/\sigma)^2}{2} \frac{1-\phi}{1+\phi}, \quad
        k = \sqrt{2I}/2, \quad b = h/2k + 1.166

    .. math:: ARL = (e^{2kb} - 1 - 2kb)/2k^2, \quad D = (e^{-2kb} - 1 + 2kb)/2k^2

    References
    ----------
    Siegmund, D. (1985). Sequential Analysis. Lorden, G. (1971). Procedures for reacting to a
    change in distribution. Ann. Math. Statist. 42, 1897-1908.
    """
    delta = abs(1 - truth.factor) * truth.level / truth.sigma
    information = delta * delta / 2 * (1 - truth.phi) / (1 + truth.phi)
    if information <= 0:
        return math.inf
    k = math.sqrt(2 * information) / 2
    arl = DAY_MS / truth.cadence_ms / rate
    # y = 2kb solves e^y - 1 - y = 2 k^2 ARL.
    y = math.log1p(2 * k * k * arl)
    for _ in range(50):
        y = math.log(2 * k * k * arl + 1 + y)
    samples = (math.exp(-y) - 1 + y) / (2 * k * k)
    return max(samples, 1.0) * truth.cadence_ms
