"""Who continues whom: new jobs begin with what the earlier run that they name was taught.

A run must be folded up to the moment at which its successor begins, whatever the order in
which histories are read: a batch is cut into parts, and a job waits for the next batch while
its predecessor has more to read. What a job takes over thus follows from the histories alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from detector.analysis.baselines import Heir, Taught
from detector.analysis.lineage import Kept, Origin, Source, obstacle, sources
from detector.analysis.ofu import GpuModel
from detector.analysis.watch import taught_by, with_heirs
from detector.fleet import Job
from detector.series import Batch
from detector.state import FleetState

# Earlier runs that are asked for one that had a level. Chosen: a job that dies in its warm-up
# is restarted a few times before somebody looks.
_MOST_RUNS = 8
# An earlier run has ended when it was silent for more than so many of its own steps. Chosen: a
# scrape may be missed, and two runs that report in turn are two jobs.
_SILENT_STEPS = 3


class Described(Protocol):
    """Who the jobs are, read when needed and at most once a pass."""

    def meet(self, jobs: Iterable[str]) -> None:
        """Read who ``jobs`` are, all in one trip."""
        ...

    def __getitem__(self, job: str) -> Job:
        """Return who ``job`` is."""
        ...

    def gpu(self, job: str) -> GpuModel | None:
        """Return the GPU model that the job runs on, where it is known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Born:
    """A new job whose description names earlier runs, and when it began."""

    job: str
    began_ms: int
    lineage: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomers:
    """The new jobs with a lineage in a batch, in the order in which they began.

    Attributes
    ----------
    batch
        The batch without those that have to wait for their predecessors.
    """

    batch: Batch
    born: Sequence[Born] = field(default=())


def newcomers(state: FleetState, batch: Batch, jobs: Described) -> Newcomers:
    """Return the batch's new jobs that name earlier runs; their descriptions are read once."""
    new = [k for k, job in enumerate(batch.jobs) if job not in state.cursors]
    if not new:
        return Newcomers(batch=batch)
    jobs.meet(batch.jobs[k] for k in new)
    lineages = {k: jobs[batch.jobs[k]].lineage for k in new}
    if not any(lineages.values()):
        return Newcomers(batch=batch)
    first = np.flatnonzero(np.diff(batch.job, prepend=-1))
    last = np.append(first[1:], len(batch.job)) - 1
    begins = dict(zip(batch.job[first].tolist(), batch.times_ms[first].tolist(), strict=True))
    ends = {
        batch.jobs[k]: time_ms
        for k, time_ms in zip(
            batch.job[last].tolist(), batch.times_ms[last].tolist(), strict=True
        )
    }
    born = [
        Born(job=batch.jobs[k], began_ms=begins[k], lineage=lineages[k][:_MOST_RUNS])
        for k in new
        if lineages[k] and k in begins
    ]
    born.sort(key=lambda one: (one.began_ms, one.job))
    waiting = _waiting(born, ends) if batch.more else set()
    if waiting:
        out = [k for k in new if batch.jobs[k] in waiting]
        batch = only(batch, ~np.isin(batch.job, out))
        born = [one for one in born if one.job not in waiting]
    return Newcomers(batch=batch, born=tuple(born))


def _waiting(born: Iterable[Born], ends: Mapping[str, int]) -> set[str]:
    """Return who has to wait: a predecessor may have more to read before they begin."""
    waiting: set[str] = set()
    for one in born:
        others = [run for run in one.lineage if run != one.job]
        if any(run in waiting or ends.get(run, one.began_ms) < one.began_ms for run in others):
            waiting.add(one.job)
    return waiting


def parts(coming: Newcomers) -> Iterator[tuple[Batch, Sequence[Born]]]:
    """Yield what is to be folded, and who begins then, in turn; most batches are one part.

    Only what comes before a successor's beginning is folded apart. Who begins later than
    somebody is not his predecessor, so that a lineage in a circle ends nowhere.
    """
    batch, pending = coming.batch, list(coming.born)
    unread = np.ones(len(batch.job), bool)
    place = {job: k for k, job in enumerate(batch.jobs)}
    while pending:
        limits = np.zeros(len(batch.jobs), np.int64)
        for one in reversed(pending):  # the earliest last: it is what a run is folded up to
            for run in one.lineage:
                if run != one.job and run in place:
                    limits[place[run]] = one.began_ms
        for one in pending:
            limits[place[one.job]] = 0
        due = unread & (batch.times_ms < limits[batch.job])
        unread &= ~due
        began = {one.job: one.began_ms for one in pending}
        ready = [
            one
            for one in pending
            if all(
                began[run] >= one.began_ms
                if run in began
                else run not in place or limits[place[run]] == one.began_ms
                for run in one.lineage
            )
        ]
        begin = {one.job for one in ready}
        pending = [one for one in pending if one.job not in begin]
        yield only(batch, due), ready
    yield (batch if unread.all() else only(batch, unread)), ()


def with_born(state: FleetState, born: Iterable[Born], jobs: Described) -> FleetState:
    """Return the state with new jobs at what their earlier runs were taught."""
    born = tuple(born)
    if not born:
        return state
    jobs.meet({run for one in born for run in one.lineage if _taught(state, run)})
    heirs: defaultdict[str, dict[str, Heir]] = defaultdict(dict)
    kept = dict(state.kept)
    for one in born:
        origin, known = _origin(state, one, jobs)
        kept[one.job] = Kept(ended_ms=one.began_ms, origin=origin)
        for name, before in known.items():
            heirs[name][one.job] = Heir(
                before=before, level=bool(origin.levels), began_ms=one.began_ms
            )
    watches = {name: with_heirs(watch, heirs[name]) for name, watch in state.watches.items()}
    return replace(state, watches=watches, kept=kept)


def _origin(
    state: FleetState, born: Born, jobs: Described
) -> tuple[Origin, Mapping[str, Taught]]:
    """Return what a job takes over: of the latest of its earlier runs that had a level."""
    reasons: list[str] = []
    for run in dict.fromkeys(born.lineage):
        known = _taught(state, run)
        refusal = _unfit(state, born, run, known)
        if refusal:
            reasons.append(f"{run} {refusal}")
            continue
        models = (_model(jobs, run), _model(jobs, born.job))
        why = obstacle(jobs[born.job], jobs[run], models=models)
        levels = {} if why else _levels(state, run, known)
        why = "; ".join([*reasons, *([why] if why else [])])
        return Origin(began_ms=born.began_ms, run=run, why=why, levels=levels), known
    return Origin(began_ms=born.began_ms, why="; ".join(reasons)), {}


def _unfit(state: FleetState, born: Born, run: str, known: Mapping[str, Taught]) -> str:
    """Return why nothing can be taken over from a run; empty when something can."""
    if run == born.job:
        return "is the job itself"
    if not known:
        watched = any(run in watch.index for watch in state.watches.values())
        return "never had a settled level" if watched or run in state.kept else "is not known"
    latest = max(known.values(), key=lambda item: item.ended_ms)
    if born.began_ms - latest.ended_ms <= _SILENT_STEPS * latest.step_ms:
        return "had not ended"
    return ""


def _taught(state: FleetState, run: str) -> Mapping[str, Taught]:
    """Return what a run leaves by model: from its baselines, or what was kept of them."""
    kept = state.kept.get(run)
    known = dict(kept.taught) if kept else {}
    for name, watch in state.watches.items():
        item = taught_by(watch, run)
        if item is not None:
            known[name] = item
    return known


def _levels(state: FleetState, run: str, known: Mapping[str, Taught]) -> dict[str, Source]:
    """Return whose levels they are: the run's, or those of the one that it stood on itself."""
    earlier = sources(state.kept, run)
    return {
        name: earlier[name]
        if not item.own and name in earlier
        else Source(
            run=run,
            until_ms=item.until_ms,
            level=item.level,
            scale=item.scale,
            step_ms=item.step_ms,
        )
        for name, item in known.items()
    }


def _model(jobs: Described, job: str) -> str:
    known = jobs.gpu(job)
    return jobs[job].gpu_model if known is None else known.name


def only(batch: Batch, keep: npt.NDArray[np.bool_]) -> Batch:
    """Return the batch with some of its entries."""
    gpus, counts = batch.gpus, batch.gpu_counts
    if gpus is not None and counts is not None:
        gpus, counts = gpus[np.repeat(keep, counts)], counts[keep]
    return replace(
        batch,
        job=batch.job[keep],
        times_ms=batch.times_ms[keep],
        fields={name: values[keep] for name, values in batch.fields.items()},
        gpus=gpus,
        gpu_counts=counts,
    )
