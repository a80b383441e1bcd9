"""The peers baseline: its settings, and what it remembers. A column is a job, a cell a GPU.

Jobs have 4 to some thousand GPUs, so what is known of single GPUs is kept flat, one job's GPUs
after another's, in the roster's order.
"""

from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np

from detector.analysis.baselines.columns import (
    Columns,
    copied,
    joined,
    packed,
    taken,
    unpacked,
    written,
)
from detector.series import Duration, FloatArray, IntArray, SmallArray

VERSION = 1

# A centre of fewer GPUs is mostly the culprit's own value.
LEAST_GPUS = 4


class Peers(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="peers",
):
    """Settings of the peers baseline.

    Attributes
    ----------
    first_samples, first_span
        How long a GPU is learned before it may be raised.
    slack
        Falls of less are no evidence. Half the fall that is found soonest.
    evidence
        ln of the mean number of samples of a job of one GPU between two false alarms; the
        ln of a job's size is added.
    hold_for, hold_samples
        How long a fall must last. Written ``for`` in models/.
    memory, memory_samples
        Time constant with which level and noise follow healthy samples, at least.
    patience
        The longest that falls which once ended by themselves make later ones wait.
    return_span
        How long a GPU must be back before its fall is over.
    """

    first_samples: int = 60
    first_span: Duration = Duration(600_000)
    slack: float = 0.04
    evidence: float = 16.0
    hold_for: Duration = msgspec.field(default=Duration(120_000), name="for")
    hold_samples: int = 6
    memory: Duration = Duration(1_800_000)
    memory_samples: int = 60
    patience: Duration = Duration(1_500_000)
    return_span: Duration = Duration(60_000)


@dataclass(slots=True, kw_only=True)
class JobColumns(Columns):
    """What is remembered of each job; all of shape ``(columns,)``.

    Attributes
    ----------
    size
        How many GPUs it has; 0 before the first sample.
    count
        How many samples were used.
    first_ms, seen_ms
        Time of the first and of the latest sample that was used.
    level
        The job's usual OFU.
    wide
        Variance of the GPUs' slow means: what their autocorrelation makes of the noise.
    torn_ms, torn_count
        Since when, and for how many samples, the GPUs have gone different ways.
    again_ms
        Nothing is raised before this time: verification refused the last candidate.
    onset_ms
        When the confirmed fall began.
    habit_ms
        A fall must last this long: shorter ones have ended by themselves.
    """

    size: IntArray
    count: IntArray
    first_ms: IntArray
    seen_ms: IntArray
    level: FloatArray
    wide: FloatArray
    torn_ms: IntArray
    torn_count: IntArray
    again_ms: IntArray
    onset_ms: IntArray
    habit_ms: IntArray


@dataclass(slots=True, kw_only=True)
class GpuColumns(Columns):
    """What is remembered of each GPU; all of shape ``(cells,)``. ``last_ms`` is its own.

    Attributes
    ----------
    count
        How many samples taught its level.
    level
        Its usual share: OFU over the job's centre. 0 before the first sample.
    var
        Variance of one sample about the level, relative.
    slow
        Slow mean of its residuals, relative.
    sum
        Evidence that it fell, nats; of one that has fallen, that it is back.
    since_ms, run
        Since when, and for how many samples, there has been evidence.
    fall
        By what share of its level it has fallen, once confirmed; 0 otherwise.
    latest, same, repeat
        The latest value, how many before it in a row were equal bit for bit, and the usual
        share of such repeats: what tells a frozen exporter from coarse rounding.
    """

    count: IntArray
    level: SmallArray
    var: SmallArray
    slow: SmallArray
    sum: SmallArray
    since_ms: IntArray
    run: IntArray
    fall: SmallArray
    latest: SmallArray
    same: SmallArray
    repeat: SmallArray


@dataclass(slots=True, kw_only=True)
class PeersState:
    """What the peers baseline remembers."""

    jobs: JobColumns
    gpus: GpuColumns

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def starts(self) -> IntArray:
        """Where each job's GPUs begin. Shape ``(columns,)``."""
        return np.cumsum(self.jobs.size) - self.jobs.size

    def copied(self) -> Self:
        """Return a state that shares no array with this one."""
        return type(self)(jobs=copied(self.jobs), gpus=copied(self.gpus))

    def taken(self, columns: IntArray) -> Self:
        """Return the state of these columns alone, in this order."""
        cells = cells_of(self.jobs.size, columns)
        return type(self)(jobs=taken(self.jobs, columns), gpus=taken(self.gpus, cells))

    def put(self, columns: IntArray, part: Self) -> Self:
        """Return the state with these columns replaced by those of ``part``."""
        state = self.resized(columns, part.jobs.size).copied()
        written(state.jobs, columns, part.jobs)
        written(state.gpus, cells_of(state.jobs.size, columns), part.gpus)
        return state

    def joined(self, more: Self) -> Self:
        """Return the columns of this state followed by those of ``more``."""
        return type(self)(jobs=joined(self.jobs, more.jobs), gpus=joined(self.gpus, more.gpus))

    def resized(self, columns: IntArray, sizes: IntArray) -> Self:
        """Return the state with these columns at these sizes; those that change start anew."""
        other = self.jobs.size[columns] != sizes
        if not other.any():
            return self
        changed, keep = columns[other], np.ones(len(self), bool)
        keep[changed] = False
        size = self.jobs.size.copy()
        size[changed] = sizes[other]
        state = type(self)(jobs=_blank_jobs(size), gpus=_blank_gpus(int(size.sum())))
        kept = np.flatnonzero(keep)
        written(state.jobs, kept, taken(self.jobs, kept))
        written(
            state.gpus,
            cells_of(size, kept),
            taken(self.gpus, cells_of(self.jobs.size, kept)),
        )
        state.jobs.last_ms[:] = self.jobs.last_ms
        return state

    def anew(self, columns: IntArray) -> Self:
        """Return the state with these columns starting anew at the size they have."""
        state = self.copied()
        sizes = self.jobs.size[columns]
        jobs = _blank_jobs(sizes)
        jobs.last_ms[:] = self.jobs.last_ms[columns]
        written(state.jobs, columns, jobs)
        written(state.gpus, cells_of(self.jobs.size, columns), _blank_gpus(int(sizes.sum())))
        return state

    def packed(self) -> bytes:
        """Return the state as bytes that :func:`unpacked_crew` reads back."""
        return msgspec.msgpack.encode((packed(self.jobs, VERSION), packed(self.gpus, VERSION)))


def blank(columns: int) -> PeersState:
    """Return the state of jobs of which nothing was seen yet."""
    return PeersState(jobs=_blank_jobs(np.zeros(columns, np.int64)), gpus=_blank_gpus(0))


def unpacked_crew(blob: bytes) -> PeersState:
    """Return the packed state.

    Raises
    ------
    ValueError
        When the blob was written by another version or is damaged: start cold.
    """
    try:
        jobs, gpus = msgspec.msgpack.decode(blob, type=tuple[bytes, bytes])
    except msgspec.MsgspecError as error:
        msg = f"packed state is damaged ({error}); start cold"
        raise ValueError(msg) from error
    return PeersState(
        jobs=unpacked(_blank_jobs(np.zeros(0, np.int64)), VERSION, jobs),
        gpus=unpacked(_blank_gpus(0), VERSION, gpus),
    )


def cells_of(sizes: IntArray, columns: IntArray) -> IntArray:
    """Return the places of these columns' cells where column k has ``sizes[k]`` of them."""
    size = sizes[columns]
    shift = (np.cumsum(sizes) - sizes)[columns] - (np.cumsum(size) - size)
    return np.repeat(shift, size) + np.arange(int(size.sum()))


def _blank_jobs(size: IntArray) -> JobColumns:
    columns = len(size)

    def zero() -> IntArray:
        return np.zeros(columns, np.int64)

    return JobColumns(
        last_ms=zero(), size=size.copy(), count=zero(), first_ms=zero(), seen_ms=zero(),
        level=np.zeros(columns), wide=np.zeros(columns), torn_ms=zero(), torn_count=zero(),
        again_ms=zero(), onset_ms=zero(), habit_ms=zero(),
    )  # fmt: skip


def _blank_gpus(cells: int) -> GpuColumns:
    def zero() -> IntArray:
        return np.zeros(cells, np.int64)

    def none() -> SmallArray:
        return np.zeros(cells, np.float32)

    return GpuColumns(
        last_ms=zero(), count=zero(), level=none(), var=none(), slow=none(), sum=none(),
        since_ms=zero(), run=zero(), fall=none(), latest=none(), same=none(), repeat=none(),
    )  # fmt: skip
