"""What is known of the fleet between two passes, how it is restored and how it is committed."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from detector.analysis.judge import Content
from detector.analysis.lineage import Kept
from detector.analysis.watch import (
    Watch,
    accepted,
    packed,
    restored,
    start,
    taught_by,
    without,
)
from detector.incident.incident import Incident
from detector.incident.ledger import Saved, shard_of
from detector.series import Batch, Duration

# A job that has been silent this long leaves the watches; should it come back, it starts anew
# with what its history holds. Chosen: longer than any checkpoint, queue time or reboot.
_FORGET_MS = 6 * 3_600_000
# Resolved incidents are remembered this long, so that a finding made again from old samples is
# recognised; at least what `first_look` reads again after a loss of state.
_REMEMBER_MS = 24 * 3_600_000
# A cursor is dropped when the job's keys have long expired (HistorySettings.keep and a day).
_DROP_MS = 8 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """All that is known between two passes; never changed, only replaced.

    Attributes
    ----------
    watches
        Model name -> the columns it holds.
    cursors, steps
        Job -> time of its last entry, and the time between its last two entries, ms.
    clock_ratios
        Job that reports MFU -> what its OFU is multiplied by to be MFU on the data sheet.
    incidents
        Job -> its incidents: live ones, and those resolved lately.
    kept
        Job -> where its baselines come from, and what it leaves to later runs once it has
        left the watches. Only jobs of which there is such a thing to say.
    aside
        Poison jobs: job -> until when it is left out, ms of wall time.
    """

    watches: Mapping[str, Watch]
    cursors: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    clock_ratios: Mapping[str, float] = field(default_factory=dict)
    incidents: Mapping[str, tuple[Incident, ...]] = field(default_factory=dict)
    kept: Mapping[str, Kept] = field(default_factory=dict)
    aside: Mapping[str, int] = field(default_factory=dict)

    @property
    def watermark_ms(self) -> int:
        """Time of the newest entry of the whole fleet; 0 when there is none."""
        return max(self.cursors.values(), default=0)

    def moved(self, batch: Batch) -> Self:
        """Return the state with each job's cursor at its last entry of ``batch``."""
        if not len(batch.job):
            return self
        ends = np.flatnonzero(np.append(np.diff(batch.job) != 0, True))
        before = np.maximum(ends - 1, 0)
        has_two = (batch.job[before] == batch.job[ends]) & (ends > before)
        cursors, steps = dict(self.cursors), dict(self.steps)
        for k, end_ms, two, before_ms in zip(
            batch.job[ends].tolist(),
            batch.times_ms[ends].tolist(),
            has_two.tolist(),
            batch.times_ms[before].tolist(),
            strict=True,
        ):
            job = batch.jobs[k]
            last_ms = before_ms if two else cursors.get(job)
            if last_ms is not None:
                steps[job] = end_ms - last_ms
            cursors[job] = end_ms
        return replace(self, cursors=cursors, steps=steps)

    def silent(self, longer_than: Duration) -> tuple[str, ...]:
        """Return the jobs with live incidents that have stopped to report.

        Measured against the fleet's newest entry: when all collection stops, no job has ended
        and it is the service that is blind. A job of slow cadence gets 20 of its own steps.
        """
        newest = self.watermark_ms
        return tuple(
            job
            for job, incidents in self.incidents.items()
            if any(incident.live for incident in incidents)
            and newest - self.cursors.get(job, newest)
            > max(longer_than, 20 * self.steps.get(job, 0))
        )

    def accepting(self, incidents: Iterable[Incident]) -> Self:
        """Return the state after the present level of these incidents' metrics was accepted."""
        watches = dict(self.watches)
        for incident in incidents:
            for name, watch in watches.items():
                if watch.model.metric == incident.metric:
                    watches[name] = accepted(watch, [incident.job.id])
        return replace(self, watches=watches)

    def tidied(self) -> Self:
        """Return the state without jobs and incidents that are long over."""
        newest = self.watermark_ms
        gone = {job for job, time_ms in self.cursors.items() if newest - time_ms > _FORGET_MS}
        expired = {job for job in gone if newest - self.cursors[job] > _DROP_MS}
        kept = {
            job: tuple(
                item
                for item in items
                if item.live or newest - (item.resolved_ms or 0) < _REMEMBER_MS
            )
            for job, items in self.incidents.items()
        }
        return replace(
            self,
            watches={name: without(watch, gone) for name, watch in self.watches.items()},
            cursors={job: at for job, at in self.cursors.items() if job not in expired},
            steps={job: step for job, step in self.steps.items() if job not in gone},
            clock_ratios={
                job: ratio for job, ratio in self.clock_ratios.items() if job not in gone
            },
            incidents={job: items for job, items in kept.items() if items},
            kept=self._remembered(gone, newest=newest),
        )

    def _remembered(self, gone: Collection[str], *, newest: int) -> Mapping[str, Kept]:
        """Return what is kept when these jobs leave the watches."""
        remembered = {
            job: item
            for job, item in self.kept.items()
            if newest - self.cursors.get(job, item.ended_ms) <= _DROP_MS
        }
        for job in gone:
            ended_ms = self.cursors[job]
            known = {name: taught_by(watch, job) for name, watch in self.watches.items()}
            taught = {name: item for name, item in known.items() if item is not None}
            if taught and newest - ended_ms <= _DROP_MS:
                origin = remembered[job].origin if job in remembered else None
                remembered[job] = Kept(ended_ms=ended_ms, origin=origin, taught=taught)
        return remembered

    def packed(
        self, jobs: Collection[str]
    ) -> tuple[dict[str, bytes], dict[str, int], dict[str, Kept]]:
        """Return states by model, cursors and what is kept of ``jobs``, for a commit."""
        states = {name: packed(watch, jobs) for name, watch in self.watches.items()}
        cursors = {job: self.cursors[job] for job in jobs if job in self.cursors}
        return states, cursors, {job: self.kept[job] for job in jobs if job in self.kept}

    def by_shard(self, shards: Collection[int]) -> dict[int, list[str]]:
        """Return the jobs of each of ``shards``."""
        members: dict[int, list[str]] = {shard: [] for shard in shards}
        # What is kept may outlive the cursors, where a shard's state could not be read.
        for job in self.cursors.keys() | self.kept.keys():
            shard = shard_of(job)
            if shard in members:
                members[shard].append(job)
        return members


def restore(content: Content, saved: Iterable[Saved] = ()) -> FleetState:
    """Return the fleet as the store last saw it, or an empty one.

    A shard whose state was written by another version, or for other models, starts cold: its
    jobs are read from their histories again, and its incidents keep them from being
    announced twice.
    """
    watches = {model.name: start(model) for model in content.models}
    cursors: dict[str, int] = {}
    incidents: dict[str, tuple[Incident, ...]] = {}
    kept: dict[str, Kept] = {}
    for shard in saved:
        kept.update(shard.kept)
        for incident in shard.incidents:
            job = incident.job.id
            incidents[job] = (*incidents.get(job, ()), incident)
        if shard.states.keys() != watches.keys():
            continue
        try:
            grown = {name: restored(watches[name], shard.states[name]) for name in watches}
        except ValueError:
            continue
        watches = grown
        cursors.update(shard.cursors)
    return FleetState(watches=watches, cursors=cursors, incidents=incidents, kept=kept)
