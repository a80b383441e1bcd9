"""What may happen to a job, as far as its incidents are concerned."""

from dataclasses import dataclass

from detector.analysis.judge import Finding
from detector.incident.incident import ResolveReason
from detector.incident.ledger import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A change was confirmed and judged. ``family`` is that of the model whose metric it is."""

    time_ms: int
    finding: Finding
    family: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A metric that had fallen has been back at its level since ``since_ms``."""

    time_ms: int
    since_ms: int
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The job is gone (``job_ended``), or what it says no longer reaches us."""

    time_ms: int
    reason: ResolveReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """Somebody acknowledges or resolves an incident, at a wall time."""

    time_ms: int
    action: Action


Happening = Found | Recovered | Ended | Acted
