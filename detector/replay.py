"""Replay: the tick over recordings, on stores in memory and the recordings' own clock."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.analysis.baselines import band_of
from detector.analysis.change import Candidate, Confirmed, Rejected, Shift
from detector.analysis.judge import Content
from detector.analysis.lineage import Origin
from detector.analysis.readiness import unready, watch_of_ofu
from detector.incident.incident import Incident
from detector.incident.lifecycle import Policy
from detector.notify.chart import Band
from detector.series import Interval, iso
from detector.state import FleetState, restore
from detector.store.memory import MemoryHistories, MemoryLedger
from detector.store.recording import Recording
from detector.tick import Settings, run

# How often the baseline is looked at for a chart. Chosen: a point every six of 1200 pixels.
_LOOKS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay found.

    Attributes
    ----------
    incidents
        Those that opened, by job and onset; a rule on trial opens none.
    shifts
        Job, metric and lasting rise that the baseline followed, by job and onset.
    rejected
        Job, candidate and why it was not believed, by job and onset.
    poisoned
        Jobs that could not be judged, and why.
    expected
        Job -> the OFU that its baseline expected as time went by; empty unless asked for.
    unready
        Job -> why it has no baseline of OFU when its recording ends, and when it would.
    inherited
        Job -> what came of the earlier runs that its description names.
    excluded
        Job -> stretches that verification left out of its comparisons of OFU.
    """

    incidents: tuple[Incident, ...]
    shifts: tuple[tuple[str, str, Shift], ...]
    rejected: tuple[tuple[str, Candidate, Rejected], ...]
    poisoned: Mapping[str, str]
    expected: Mapping[str, Band] = field(default_factory=dict)
    excluded: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    unready: Mapping[str, str] = field(default_factory=dict)
    inherited: Mapping[str, Origin] = field(default_factory=dict)


def replay(
    recordings: Mapping[str, Recording],
    content: Content,
    *,
    cluster: str,
    policy: Policy,
    expected: bool = False,
    on_entries: Callable[[int], None] = lambda _: None,
) -> Replayed:
    """Run the tick over ``recordings`` until they end.

    Parameters
    ----------
    expected
        Look at the baselines on the way, for charts. It takes longer and changes nothing.
    on_entries
        Called after each pass with the number of entries it judged, for a progress bar.
    """
    histories = MemoryHistories(
        {job: recording.window for job, recording in recordings.items()},
        jobs={job: recording.job for job, recording in recordings.items()},
        slices=_LOOKS if expected else None,
    )
    ends = [int(r.window.times_ms[-1]) for r in recordings.values() if len(r.window.times_ms)]
    ledger, state = MemoryLedger(), restore(content)
    settings = Settings(cluster=cluster, policy=policy)
    looks = _Looks()
    confirmed: list[tuple[str, Confirmed]] = []
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
        if expected:
            looks.take(state)
        confirmed += report.confirmed
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
        incidents=tuple(sorted(opened, key=lambda item: (item.job.id, item.onset_ms, item.id))),
        shifts=tuple(sorted(shifts, key=lambda item: (item[0], item[2].onset_ms, item[1]))),
        rejected=tuple(sorted(rejected, key=lambda item: (item[0], item[1].onset_ms))),
        poisoned=poisoned,
        expected=looks.bands(),
        excluded=_excluded(confirmed),
        unready=_unready(state, sorted(recordings)),
        inherited={job: item.origin for job, item in sorted(state.kept.items()) if item.origin},
    )


def _unready(state: FleetState, jobs: Iterable[str]) -> dict[str, str]:
    watch = watch_of_ofu(state.watches.values())
    if watch is None:
        return {}
    reasons = {job: unready(watch, job) for job in jobs}
    return {job: reason for job, reason in reasons.items() if reason is not None}


class _Looks:
    """What the baselines of OFU expected, pass by pass."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, list[tuple[int, float, float]]] = defaultdict(list)

    def take(self, state: FleetState) -> None:
        """Note what is expected of each job now, at its last entry."""
        for watch in state.watches.values():
            if watch.model.metric != "ofu":
                continue
            level, low = band_of(watch.model.baseline, watch.state)
            for job, expected, edge in zip(
                watch.jobs, level.tolist(), low.tolist(), strict=True
            ):
                time_ms, seen = state.cursors[job], self._seen[job]
                if seen and seen[-1][0] == time_ms:
                    continue
                # A level that is held through a change keeps the width it had: the edge is
                # that of the level below, which follows what the job does now.
                held = bool(seen) and seen[-1][1] == expected
                seen.append((time_ms, expected, seen[-1][2] if held else edge))

    def bands(self) -> dict[str, Band]:
        """Return the looks at each job as a band; its upper edge is as far off as its lower."""
        bands = {}
        for job, seen in self._seen.items():
            times, level, low = (np.array(column) for column in zip(*seen, strict=True))
            bands[job] = Band(times_ms=times, level=level, low=low, high=2 * level - low)
        return bands


def _excluded(confirmed: list[tuple[str, Confirmed]]) -> dict[str, tuple[Interval, ...]]:
    """Return what was left out by job, overlapping stretches joined."""
    spans: defaultdict[str, list[Interval]] = defaultdict(list)
    for job, change in confirmed:
        if change.metric == "ofu":
            # What was left out of an earlier run is none of this job's history.
            since_ms = change.onset_ms if change.cause == "lineage" else 0
            spans[job] += [
                Interval(start_ms=max(span.start_ms, since_ms), end_ms=span.end_ms)
                for span in change.excluded
                if span.end_ms > since_ms
            ]
    return {job: _joined(found) for job, found in spans.items() if found}


def _joined(spans: list[Interval]) -> tuple[Interval, ...]:
    joined: list[Interval] = []
    for span in sorted(spans, key=lambda item: item.start_ms):
        if joined and span.start_ms <= joined[-1].end_ms:
            end_ms = max(joined[-1].end_ms, span.end_ms)
            joined[-1] = Interval(start_ms=joined[-1].start_ms, end_ms=end_ms)
        else:
            joined.append(span)
    return tuple(joined)


def as_line(incident: Incident) -> dict[str, object]:
    """Return the incident as ``replay --json`` writes it, one object a line."""
    return {
        "job": incident.job.id,
        "kind": incident.kind,
        "direction": incident.direction,
        "severity": incident.severity,
        "onset": iso(incident.onset_ms),
        "detected_at": iso(incident.detected_ms),
        "paged_at": None if incident.paged_ms is None else iso(incident.paged_ms),
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
