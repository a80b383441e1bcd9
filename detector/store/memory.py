"""Stores that live in memory: what a replay runs on instead of Redis."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from detector.fleet import Job
from detector.incident.incident import Incident
from detector.incident.ledger import Action, Commit, Saved, shard_of
from detector.series import Batch, ContextEvent, Interval, SmallArray, Wanted, Window


class MemoryHistories:
    """Histories that were read whole, handed out in slices as a live store would.

    Parameters
    ----------
    slice_entries
        The most entries of a job that one call hands out.
    slices
        When given, each job's history is handed out in at most about so many slices of its
        own size, for whoever looks at the state in between.
    """

    def __init__(
        self,
        recordings: Mapping[str, Window],
        *,
        jobs: Mapping[str, Job],
        slice_entries: int = 360,
        slices: int | None = None,
    ) -> None:
        self._recordings = recordings
        self._jobs = jobs
        self._slice = {
            job: max(1, -(-len(window.times_ms) // slices)) if slices else slice_entries
            for job, window in recordings.items()
        }

    def increments(self, cursors: Mapping[str, int], *, now_ms: int) -> Batch:
        """Return at most a slice of each job's entries after its cursor, up to ``now_ms``."""
        parts: list[tuple[str, Window, int, int]] = []
        more = False
        for job, recording in self._recordings.items():
            after = cursors.get(job)
            first = 0
            if after is not None:
                first = int(np.searchsorted(recording.times_ms, after, side="right"))
            end = int(np.searchsorted(recording.times_ms, now_ms, side="right"))
            last = min(end, first + self._slice[job])
            more |= last < end
            if last > first:
                parts.append((job, recording, first, last))
        return _batch(parts, more=more)

    def windows(self, wanted: Sequence[Wanted]) -> list[Window]:
        """Return parts of recordings, without what was announced."""
        return [self._window(item) for item in wanted]

    def _window(self, wanted: Wanted) -> Window:
        part = self._recordings[wanted.job].within(wanted.span)
        return replace(part, gpus=part.gpus if wanted.gpus else None, events=())

    def announced(
        self, jobs: Sequence[str]
    ) -> list[Callable[[Interval], tuple[ContextEvent, ...]]]:
        """Return the recordings' events that touch a span and were announced in time for it.

        A decision is about the end of its span: what was announced later was not known then.
        """
        return [partial(_known_in, self._recordings[job].events) for job in jobs]

    def describe_many(self, jobs: Iterable[str]) -> dict[str, Job]:
        """Return who the jobs are."""
        return {job: self._jobs[job] for job in jobs}


def _known_in(events: Iterable[ContextEvent], span: Interval) -> tuple[ContextEvent, ...]:
    return tuple(
        event
        for event in events
        if event.heard_ms < span.end_ms and event.span.end_ms >= span.start_ms
    )


class MemoryLedger:
    """A ledger that keeps the newest revision of every incident, and forgets what is owed."""

    def __init__(self) -> None:
        self._saved: dict[int, Saved] = {}
        self.incidents: dict[str, Incident] = {}

    def load(self, shards: Collection[int]) -> Iterable[Saved]:
        """Return what was last committed of each shard, with all of its incidents."""
        by_shard: dict[int, list[Incident]] = defaultdict(list)
        for incident in self.incidents.values():
            by_shard[shard_of(incident.job.id)].append(incident)
        return [
            replace(self._saved[shard], incidents=tuple(by_shard[shard]))
            for shard in shards
            if shard in self._saved
        ]

    def actions(self, shards: Collection[int]) -> Mapping[int, Sequence[Action]]:
        """Return nothing: nobody is there to ask for anything."""
        del shards
        return {}

    def commit(self, commits: Sequence[Commit]) -> None:
        """Keep each incident's revision that is above the one it has, and the newest states."""
        for commit in commits:
            for incident in commit.incidents:
                known = self.incidents.get(incident.id)
                if known is None or incident.revision > known.revision:
                    self.incidents[incident.id] = incident
            saved = self._saved.get(commit.shard, Saved(shard=commit.shard))
            if commit.states is not None and commit.cursors is not None:
                saved = replace(
                    saved,
                    states=commit.states,
                    cursors=commit.cursors,
                    kept=commit.kept or {},
                )
            self._saved[commit.shard] = saved


def _batch(parts: Sequence[tuple[str, Window, int, int]], *, more: bool) -> Batch:
    names = sorted({name for _, recording, _, _ in parts for name in recording.fields})
    lengths = [last - first for _, _, first, last in parts]
    total = sum(lengths)
    times = np.empty(total, np.int64)
    fields = {name: np.full(total, np.nan) for name in {"ofu", *names}}
    gpus: list[SmallArray] = []
    widths = np.zeros(len(parts), np.int64)
    for k, (_, recording, first, last) in enumerate(parts):
        if recording.gpus is not None:
            widths[k] = recording.gpus.shape[1]
            gpus.append(recording.gpus[first:last].astype(np.float32).ravel())
    at = 0
    for (_, recording, first, last), length in zip(parts, lengths, strict=True):
        times[at : at + length] = recording.times_ms[first:last]
        for name, values in recording.fields.items():
            fields[name][at : at + length] = values[first:last]
        at += length
    return Batch(
        jobs=tuple(job for job, _, _, _ in parts),
        job=np.repeat(np.arange(len(parts)), lengths),
        times_ms=times,
        fields=fields,
        more=more,
        gpus=np.concatenate(gpus) if gpus else None,
        gpu_counts=np.repeat(widths, lengths) if gpus else None,
    )
