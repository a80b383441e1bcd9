"""What the analysis passes on: candidates, what verification made of them, recoveries.

The way of a change: the online stage (``baselines``) raises a :class:`Candidate`;
``verify`` turns it into :class:`Confirmed` or :class:`Rejected`; ``features`` and ``rules``
say what a confirmed change means. :class:`Recovery` ends one, :class:`Shift` is a lasting rise
that the baseline followed in silence.
"""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from detector.series import Interval

Direction = Literal["down", "up"]

# Why the online stage raised its hand:
#   excursion  away from the baseline for longer than the job's habits explain
#   drift      a small lasting shift, accumulated (CUSUM over block means)
#   frozen     the same value bit for bit for far too long
#   ceiling    below the most that was ever seen (GPUs that no longer report)
#   peers      GPUs that fell away from the other GPUs of their job
#   band       outside fixed bounds (a ratio that should be near 1, a share of valid samples)
# And what verification makes of the first two where the run has no level of its own before:
#   lineage    below the level of the earlier run that this one continues
Cause = Literal["excursion", "drift", "frozen", "ceiling", "band", "peers", "lineage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An alarm of the online stage that nobody believes yet.

    Attributes
    ----------
    column
        Which column of the panel.
    onset_ms
        The online stage's first guess of when it began.
    time_ms
        Time of the sample that completed the evidence: when the change was detected.
    before, after
        Expected and present level, in the metric's unit.
    scale
        Robust standard deviation of one healthy sample about the baseline, same unit.
    step_ms
        Usual distance of two samples, ms; 0 is not known.
    gpus
        Places in the roster of the GPUs it is about; empty when it is the whole job.
    early
        Raised before the series alone can tell: only what was announced can make it news.
    known_ms
        Of an early one: how long what this job is known to do at that level lasts at most.
    """

    column: int
    cause: Cause
    direction: Direction
    onset_ms: int
    time_ms: int
    before: float
    after: float
    scale: float
    step_ms: int = 0
    gpus: tuple[int, ...] = ()
    early: bool = False
    known_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A confirmed change of this column is over: the level has been back since ``since_ms``."""

    column: int
    since_ms: int
    time_ms: int
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A lasting rise: the baseline moved from ``before`` to ``after``. Never alarmed."""

    column: int
    onset_ms: int
    time_ms: int
    before: float
    after: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A level with its 95 % interval, in the metric's unit."""

    value: float
    low: float
    high: float


def exact(value: float) -> Estimate:
    """Return a level that is known without doubt."""
    return Estimate(value=value, low=value, high=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A change that an independent test on the history's window agrees with.

    Attributes
    ----------
    onset_ms, onset
        Best estimate of when the change began, and its 95 % interval.
    detected_ms
        Time of the sample that completed the online stage's evidence.
    relative_change
        ``after / before - 1``; -0.25 is a loss of a quarter. ``-1`` at a standstill.
    confidence
        1 - p of the mean-shift test, 0..1.
    before_span, after_span
        The stretches that were compared.
    excluded
        Stretches left out of the comparison (dips, announced phases), for the chart.
    gpus
        As in :class:`Candidate`; the levels are then the mean over these GPUs.
    grounds
        Why an early candidate was believed; empty where the series alone could tell.
    """

    metric: str
    cause: Cause
    direction: Direction
    onset_ms: int
    onset: Interval
    detected_ms: int
    before: Estimate
    after: Estimate
    relative_change: float
    confidence: float
    before_span: Interval
    after_span: Interval
    excluded: tuple[Interval, ...] = field(default=())
    gpus: tuple[int, ...] = ()
    grounds: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A candidate that verification refused, and why, in words an operator understands.

    Attributes
    ----------
    rebase
        It is the baseline that is wrong for this job: the present level is its own.
    again_ms
        When to ask again about an early candidate; 0 is "nothing helps in this job".
    """

    reason: str
    rebase: bool = False
    again_ms: int = 0
