"""The incident: one confirmed change of one job, as it is stored, shown and sent.

An incident's identity is (cluster, job, kind, onset): the same history gives the same
incident, so a repeated tick cannot make a second one. Its ``revision`` grows by one with
every transition; a store accepts a revision only once.
"""

import base64
import hashlib
from enum import StrEnum
from typing import Literal

import msgspec

from detector.analysis.change import Cause, Direction, Estimate
from detector.analysis.rules import Severity
from detector.fleet import Earlier, Gpu, Job

ResolveReason = Literal[
    "recovered",
    "job_ended",
    "expected_change",
    "false_positive",
    "superseded",
    "telemetry_lost",
    "expired",
]

TransitionType = Literal["opened", "updated", "acknowledged", "escalated", "resolved"]


class State(StrEnum):
    """Where an incident is in its life. Silenced and inhibited are properties, not states."""

    PENDING = "pending"
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class RuledOut(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that did not hold, and the row that says why."""

    rule: str
    reason: str


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One confirmed change of one job. Times in ms; values in the metric's catalogue unit.

    Attributes
    ----------
    family
        ``performance``, ``capacity``, ``telemetry`` or ``accounting``: a job has at most one
        live incident of each.
    shadow
        A rule on trial named it: recorded and shown, never delivered.
    recovering_ms
        Since when the level has been back, while ``keep_open`` runs.
    features
        What was measured; None is unknown.
    runners_up
        Names of the other rules that held, most specific first.
    earlier
        The earlier run that the level before is of; None where it is the job's own.
    gpus, gpu_places
        The GPUs the change is attributed to; empty when it is the whole job's.
    gpus_total, hosts_total
        How many the job has. Its roster is not kept in ``job``: a large job's would make
        each of its notices half a megabyte.
    measured_ms
        Up to when ``after`` was measured: what was found early, on a slope, is measured anew
        while it lasts and when it ends.
    hold_ms, keep_open_ms
        The rule's ``for`` and ``keep_open`` when it named the incident, so that editing a
        rule leaves live incidents alone; ``keep_open_ms`` None is the policy's.
    away
        Metrics that are off their baseline now: it is over when the last one is back.
    news_ms
        Sample time of the last finding that was folded in; nothing older is news.
    paged_ms, page_reason
        When it passed the page bound and people were called, else None; why it did, or why it
        has not yet.
    fallen_ms, ask_page_ms
        Since when its fall is counted for the page bound: of a further drop, since the first
        one. When the bound is asked next; None is not before the level is measured anew.
    quiet
        Its opening was too old to tell when it was first seen, so nobody was told.
    """

    id: str
    cluster: str
    job: Job
    kind: str
    family: str
    metric: str
    direction: Direction
    cause: Cause
    state: State
    revision: int
    severity: Severity
    confidence: float
    rule: str
    summary: str
    shadow: bool = False
    onset_ms: int
    onset_low_ms: int
    onset_high_ms: int
    detected_ms: int
    opened_ms: int | None = None
    acknowledged_ms: int | None = None
    acknowledged_by: str = ""
    recovering_ms: int | None = None
    resolved_ms: int | None = None
    resolve_reason: ResolveReason | None = None
    supersedes: str | None = None
    flap_count: int = 0
    before: Estimate
    after: Estimate
    relative_change: float
    measured_ms: int | None = None
    before_samples: int = 0
    after_samples: int = 0
    earlier: Earlier | None = None
    features: dict[str, float | None] = {}
    runners_up: tuple[str, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_places: tuple[int, ...] = ()
    attribution_confidence: float | None = None
    gpus_total: int | None = None
    hosts_total: int | None = None
    runbook: str = ""
    recommended_action: str = "none"
    hold_ms: int = 0
    keep_open_ms: int | None = None
    away: tuple[str, ...] = ()
    news_ms: int = 0
    paged_ms: int | None = None
    page_reason: str = ""
    fallen_ms: int | None = None
    ask_page_ms: int | None = None
    quiet: bool = False

    @property
    def live(self) -> bool:
        """Whether it is still going on."""
        return self.state is not State.RESOLVED


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One step in an incident's life: what it is after the step, which step, when."""

    type: TransitionType
    time_ms: int
    incident: Incident

    @property
    def event_id(self) -> str:
        """Deterministic: the same step of the same incident has the same id everywhere."""
        return "evt_" + _digest(self.incident.id, str(self.incident.revision))


def incident_id(*, cluster: str, job: str, kind: str, onset_ms: int) -> str:
    """Return the id that this identity always has."""
    return "inc_" + _digest(cluster, job, kind, str(onset_ms))


def _digest(*parts: str) -> str:
    """20 lower-case base32 characters (100 bits) of SHA-256 over the parts."""
    raw = hashlib.sha256("\x00".join(parts).encode()).digest()
    return base64.b32encode(raw).decode().lower()[:20]
