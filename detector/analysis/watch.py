"""A watch: one model's columns, which jobs they belong to, and their state."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat

import msgspec
import numpy as np

from detector.analysis.baselines import (
    Heir,
    Model,
    Peers,
    State,
    Taught,
    accept,
    append,
    empty,
    inherit,
    pack,
    put,
    take,
    taught,
    unpack,
)
from detector.analysis.candidate import fold
from detector.analysis.change import Candidate, Confirmed, Recovery, Rejected, Shift
from detector.series import Batch, FloatArray, IntArray, Panel

# Verifies the candidate of a job.
Confirm = Callable[[str, Candidate], Confirmed | Rejected]
# Is told which jobs' candidates are verified next.
Ahead = Callable[[Sequence[tuple[str, Candidate]]], None]


# Shares that are 1 in nearly every entry of nearly every job.
_SHARES = ("valid", "usable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The columns that one model holds to their own past.

    Attributes
    ----------
    index
        Job -> its column, in the order of columns.
    """

    model: Model
    index: Mapping[str, int]
    state: State

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs in the order of their columns."""
        return tuple(self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What came of new samples, by job, and the watch after them."""

    watch: Watch
    outcomes: tuple[tuple[str, Candidate, Confirmed | Rejected], ...] = ()
    recoveries: tuple[tuple[str, Recovery], ...] = ()
    shifts: tuple[tuple[str, Shift], ...] = ()
    poisoned: Mapping[str, str] = field(default_factory=dict)


def start(model: Model) -> Watch:
    """Return a watch that has seen nothing."""
    return Watch(model=model, index={}, state=empty(model.baseline, 0))


def observe(
    watch: Watch,
    batch: Batch,
    values: FloatArray | None,
    *,
    confirm: Confirm,
    ahead: Ahead = lambda _: None,
) -> Observed:
    """Fold the batch's samples of the watch's metric and verify what stands out.

    Parameters
    ----------
    values
        The metric's values, aligned with the batch's entries; None when it has none.
    confirm, ahead
        As in ``fold``, by job.

    Notes
    -----
    A job enters the watch with the first entry that says something about its metric: a finite
    value, or for ``valid`` and ``usable`` the first that is not whole. From then on each of its
    entries counts.
    """
    if values is None or not len(values):
        return Observed(watch=watch)
    share = watch.model.metric in _SHARES
    telling = values < 1.0 if share else np.isfinite(values)
    if not (watch.index or telling.any()):
        return Observed(watch=watch)
    lookup = _columns(watch, batch.jobs)
    known = lookup >= 0
    known[batch.job[telling]] = True
    # An OFU entry without a usable value still moves the job's time on; a job that reports
    # MFU or tokens at every sixth entry has no sample of them at the other five.
    use = known[batch.job] & (telling | share | (watch.model.metric == "ofu"))
    if not use.any():
        return Observed(watch=watch)
    new = known & (lookup < 0)
    if new.any():
        watch = _with_jobs(watch, [batch.jobs[k] for k in np.flatnonzero(new)])
        lookup = _columns(watch, batch.jobs)
    column = lookup[batch.job[use]]
    order = np.argsort(column, kind="stable")
    columns, local = np.unique(column[order], return_inverse=True)
    chosen = np.flatnonzero(use)[order]
    if not isinstance(watch.model.baseline, Peers):
        batch = replace(batch, gpus=None)
    panel = _panel(local, batch, chosen, values, columns=len(columns))
    return _fold_isolated(watch, columns, panel, confirm=confirm, ahead=ahead)


def accepted(watch: Watch, jobs: Iterable[str]) -> Watch:
    """Return the watch after people said that these jobs' present level is the right one."""
    columns = [watch.index[job] for job in jobs if job in watch.index]
    if not columns:
        return watch
    state = accept(watch.model.baseline, watch.state, np.array(columns, np.int64))
    return replace(watch, state=state)


def taught_by(watch: Watch, job: str) -> Taught | None:
    """Return what ``job`` leaves to a later run; None where there is nothing."""
    column = watch.index.get(job)
    return None if column is None else taught(watch.state, column)


def with_heirs(watch: Watch, heirs: Mapping[str, Heir]) -> Watch:
    """Return the watch with new jobs that begin with what earlier runs were taught."""
    new = {job: heir for job, heir in heirs.items() if job not in watch.index}
    return _grown(watch, tuple(new), inherit(tuple(new.values()))) if new else watch


def without(watch: Watch, jobs: Collection[str]) -> Watch:
    """Return the watch without the columns of ``jobs``."""
    if not any(job in watch.index for job in jobs):
        return watch
    keep = [k for k, job in enumerate(watch.jobs) if job not in jobs]
    names = watch.jobs
    return Watch(
        model=watch.model,
        index={names[k]: column for column, k in enumerate(keep)},
        state=take(watch.state, np.array(keep, np.int64)),
    )


def packed(watch: Watch, jobs: Iterable[str]) -> bytes:
    """Return the state of ``jobs`` as bytes that :func:`restored` reads back."""
    mine = [job for job in jobs if job in watch.index]
    columns = np.array([watch.index[job] for job in mine], np.int64)
    return msgspec.msgpack.encode((mine, pack(take(watch.state, columns))))


def restored(watch: Watch, blob: bytes) -> Watch:
    """Return the watch with the jobs of a packed state added.

    Raises
    ------
    ValueError
        When the blob was written by another version of the model's baseline or is damaged.
    """
    jobs, state = msgspec.msgpack.decode(blob, type=tuple[tuple[str, ...], bytes])
    more = unpack(watch.model.baseline, state)
    if len(more) != len(jobs):
        msg = f"packed watch has {len(jobs)} jobs and {len(more)} columns; start cold"
        raise ValueError(msg)
    return _grown(watch, jobs, more)


def _columns(watch: Watch, jobs: Sequence[str]) -> IntArray:
    """Return each job's column; -1 where it has none."""
    return np.fromiter(map(watch.index.get, jobs, repeat(-1)), np.int64, len(jobs))


def _with_jobs(watch: Watch, jobs: Sequence[str]) -> Watch:
    return _grown(watch, jobs, empty(watch.model.baseline, len(jobs)))


def _grown(watch: Watch, jobs: Sequence[str], more: State) -> Watch:
    """Return the watch with new jobs behind the ones it has."""
    columns = range(len(watch.index), len(watch.index) + len(jobs))
    index = {**watch.index, **dict(zip(jobs, columns, strict=True))}
    return replace(watch, index=index, state=append(watch.state, more))


def _panel(
    column: IntArray, batch: Batch, chosen: IntArray, values: FloatArray, *, columns: int
) -> Panel:
    """Place the chosen entries, sorted by column and time, each column's k-th into row k.

    GPUs stay where they are: a panel says where each sample's stand.
    """
    first = np.searchsorted(column, np.arange(columns))
    row = np.arange(len(column)) - first[column]
    shape = (int(row.max()) + 1, columns)
    times = np.zeros(shape, np.int64)
    matrix = np.full(shape, np.nan)
    times[row, column] = batch.times_ms[chosen]
    matrix[row, column] = values[chosen]
    if batch.gpus is None or batch.gpu_counts is None:
        return Panel(times_ms=times, values=matrix)
    starts, counts = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    starts[row, column] = (np.cumsum(batch.gpu_counts) - batch.gpu_counts)[chosen]
    counts[row, column] = batch.gpu_counts[chosen]
    return Panel(
        times_ms=times, values=matrix, gpus=batch.gpus, gpu_starts=starts, gpu_counts=counts
    )


def _fold_isolated(
    watch: Watch, columns: IntArray, panel: Panel, *, confirm: Confirm, ahead: Ahead
) -> Observed:
    """Fold; when a column breaks the fold, find it by halving, and judge all the others.

    The broken column keeps the state it had, so that nothing false is learnt from it. OSError
    is the store's (a window could not be read): it stops the pass, which is then repeated.
    """
    everything = len(columns) == len(watch.index) and bool((np.diff(columns) == 1).all())
    part = watch.state if everything else take(watch.state, columns)
    names = watch.jobs

    def job(k: int) -> str:
        return names[int(columns[k])]

    try:
        folded = fold(
            watch.model,
            part,
            panel,
            lambda k, raised: confirm(job(k), raised),
            lambda group: ahead([(job(raised.column), raised) for raised in group]),
        )
    except OSError:
        raise
    except Exception as exception:
        if len(columns) == 1:
            reason = f"{type(exception).__name__}: {exception}"
            return Observed(watch=watch, poisoned={job(0): reason})
        half = len(columns) // 2
        again = partial(_fold_isolated, confirm=confirm, ahead=ahead)
        left = again(watch, columns[:half], panel.cut(slice(0, half)))
        right = again(left.watch, columns[half:], panel.cut(slice(half, None)))
        return _joined(left, right)
    state = folded.state if everything else put(watch.state, columns, folded.state)
    return Observed(
        watch=replace(watch, state=state),
        outcomes=tuple((job(k), raised, outcome) for k, raised, outcome in folded.outcomes),
        recoveries=tuple((job(item.column), item) for item in folded.recoveries),
        shifts=tuple((job(item.column), item) for item in folded.shifts),
    )


def _joined(left: Observed, right: Observed) -> Observed:
    return Observed(
        watch=right.watch,
        outcomes=left.outcomes + right.outcomes,
        recoveries=left.recoveries + right.recoveries,
        shifts=left.shifts + right.shifts,
        poisoned={**left.poisoned, **right.poisoned},
    )
