"""Replay: the tick over recordings, on stores in memory and the recordings' own clock."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from detector.analysis.change import Candidate, Rejected, Shift
from detector.analysis.judge import Content
from detector.incident.incident import Incident
from detector.incident.lifecycle import Policy
from detector.series import iso
from detector.state import restore
from detector.store.memory import MemoryHistories, MemoryLedger
from detector.store.recording import Recording
from detector.tick import Settings, run


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay found.

    Attributes
    ----------
    incidents
        Those that opened, by job and onset; a rule on trial opens none.
    shifts
        Job, metric and lasting rise that the baseline followed.
    rejected
        Job, candidate and why it was not believed.
    poisoned
        Jobs that could not be judged, and why.
    """

    incidents: tuple[Incident, ...]
    shifts: tuple[tuple[str, str, Shift], ...]
    rejected: tuple[tuple[str, Candidate, Rejected], ...]
    poisoned: Mapping[str, str]


def replay(
    recordings: Mapping[str, Recording],
    content: Content,
    *,
    cluster: str,
    policy: Policy,
    on_entries: Callable[[int], None] = lambda _: None,
) -> Replayed:
    """Run the tick over ``recordings`` until they end.

    Parameters
    ----------
    on_entries
        Called after each pass with the number of entries it judged, for a progress bar.
    """
    histories = MemoryHistories(
        {job: recording.window for job, recording in recordings.items()},
        jobs={job: recording.job for job, recording in recordings.items()},
    )
    ends = [int(r.window.times_ms[-1]) for r in recordings.values() if len(r.window.times_ms)]
    ledger, state = MemoryLedger(), restore(content)
    settings = Settings(cluster=cluster, policy=policy)
    shifts: list[tuple[str, str, Shift]] = []
    rejected: list[tuple[str, Candidate, Rejected]] = []
    poisoned: dict[str, str] = {}
    more = bool(ends)
    while more:
        state, report = run(
            state,
            histories=histories,
            ledger=ledger,
            content=content,
            settings=settings,
            now_ms=max(ends),
        )
        shifts += report.shifts
        rejected += report.rejected
        poisoned.update(report.poisoned)
        on_entries(report.entries)
        more = report.more
    opened = [
        incident
        for incident in ledger.incidents.values()
        if incident.opened_ms is not None and not incident.shadow
    ]
    return Replayed(
        incidents=tuple(sorted(opened, key=lambda item: (item.job.id, item.onset_ms))),
        shifts=tuple(shifts),
        rejected=tuple(rejected),
        poisoned=poisoned,
    )


def as_line(incident: Incident) -> dict[str, object]:
    """Return the incident as ``replay --json`` writes it, one object a line."""
    return {
        "job": incident.job.id,
        "kind": incident.kind,
        "direction": incident.direction,
        "severity": incident.severity,
        "onset": iso(incident.onset_ms),
        "detected_at": iso(incident.detected_ms),
        "resolved_at": None if incident.resolved_ms is None else iso(incident.resolved_ms),
        "resolve_reason": incident.resolve_reason,
        "before": incident.before.value,
        "after": incident.after.value,
        "relative_change": incident.relative_change,
        "confidence": incident.confidence,
        "gpus": [gpu.uuid or str(gpu.index) for gpu in incident.gpus],
        "rule": incident.rule,
        "features": incident.features,
    }
