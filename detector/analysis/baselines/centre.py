"""One sample of every job's GPUs held to the job's centre, and what it teaches.

What all GPUs share (a dip, a restart, a drift) divides out: the residual of GPU g is

    e_g = x_g / (a_g c) - 1

with ``a_g`` its usual share and ``c`` the job's centre at that moment, the bounded mean of
``x_g / a_g``. A sample teaches only while the job does not dip, its GPUs go the same way, and
the exporter of the GPU is not frozen.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from detector.analysis.baselines.crew import (
    LEAST_GPUS,
    GpuColumns,
    JobColumns,
    Peers,
    PeersState,
)
from detector.series import FloatArray, IntArray, SmallArray

BoolArray = npt.NDArray[np.bool_]

# More than this share fell together: something they share.
MOST_SHARE = 0.25
# A GPU at a smaller share of the job's centre does other work, or none.
_LEAST_SHARE = 0.1
# What lies further from the centre pulls at it no more than this.
_CENTRE_PULL = 0.15
# Below this part of the job's usual OFU it dips: edges of dips are not in step.
_DIPPING = 0.7
# Samples before a GPU's noise is known well enough to bound single samples by it.
_NOISE_SAMPLES = 10
# A single sample counts up to so many standard deviations in what a GPU teaches.
_PULL = 2.5
# The slow mean spans so many samples, or so long where there are more: longer than noise of
# phi 0.8 remembers at 10 s. Of its length, so much must have passed before it counts.
_SLOW_SAMPLES, _SLOW_MS, _SLOW_LENGTHS = 20, 200_000, 2
# More samples than these it never spans: 1 s of cadence.
_SLOW_MOST = 200
# Bit-identical values: their share of all is taken for no less, and a run of them that is less
# likely than this is a frozen exporter: four repeats of values that never repeat.
_LEAST_REPEAT, _FROZEN_CHANCE, _FROZEN_SAMPLES = 0.1, 3e-4, 4
# A residual this far out, in relative terms and in standard deviations, goes its own way.
_ODD, _ODD_SIGMAS = 0.1, 4.0
# A level never forgets faster than this lets it, at any cadence: 1e-4 is 2.8 h at 1 s.
_LEAST_WEIGHT = 1e-4

# Masks are multiplied rather than chosen by (np.where): a mask without a pattern costs ten
# times as much to choose by, and a fleet has 100,000 cells.


@dataclass(slots=True, kw_only=True)
class Row:
    """One sample of every job on its way through the step; cells are GPUs.

    Attributes
    ----------
    size, starts
        How many cells each job has, and where they begin. Shape ``(jobs,)``.
    known, judged, free, steady
        Which cells have a value; of those, which have a level; of those, which have not
        fallen; of those, which are near their level. Shape ``(cells,)``.
    centre
        c. Shape ``(jobs,)``.
    step_ms
        Usual time between two samples that count. Shape ``(jobs,)``.
    follow, slow
        With which weight a sample teaches once much has been seen, and its weight in the
        slow mean. Shape ``(jobs,)``.
    x, residual
        OFU, and e; the latter 0 where the GPU is not judged. Shape ``(cells,)``.
    sigma
        Standard deviation of a sample, relative. Shape ``(cells,)``.
    """

    times_ms: IntArray
    size: IntArray
    starts: IntArray
    known: BoolArray
    judged: BoolArray
    free: BoolArray
    steady: BoolArray
    centre: FloatArray
    step_ms: FloatArray
    follow: FloatArray
    slow: FloatArray
    x: SmallArray
    residual: SmallArray
    sigma: SmallArray

    def total(self, cells: SmallArray) -> FloatArray:
        """The sum of each job's cells. Shape ``(jobs,)``."""
        # Cast first: with its dtype argument, reduceat works through a buffer whose edges
        # fall anywhere, and a job's sum would depend on its neighbours in the last bit.
        return np.add.reduceat(cells.astype(np.float64), self.starts)

    def number(self, cells: BoolArray) -> FloatArray:
        """How many of each job's cells are true. Shape ``(jobs,)``."""
        if cells.all():
            return self.size.astype(np.float64)
        if not cells.any():
            return np.zeros(len(self.size))
        return np.add.reduceat(cells.astype(np.float64), self.starts)

    def each(self, values: FloatArray) -> SmallArray:
        """Give each cell its job's value. Shape ``(cells,)``."""
        return np.repeat(values.astype(np.float32), self.size)


def read(peers: Peers, state: PeersState, times_ms: IntArray, x: SmallArray) -> Row:
    """Return the sample against the job's centre."""
    jobs, gpus = state.jobs, state.gpus
    last_ms = np.where(jobs.seen_ms > 0, times_ms - jobs.seen_ms, 0)
    follow = np.clip(last_ms / peers.memory, _LEAST_WEIGHT, 1 / peers.memory_samples)
    step_ms = np.where(jobs.count > 0, times_ms - jobs.first_ms, 0) / np.maximum(jobs.count, 1)
    slow = np.clip(step_ms / _SLOW_MS, 1 / _SLOW_MOST, 1 / _SLOW_SAMPLES)
    known = np.isfinite(x)
    judged = known & (gpus.level > _LEAST_SHARE)
    row = Row(
        times_ms=times_ms, size=jobs.size, starts=state.starts, known=known, judged=judged,
        free=judged & (gpus.fall == 0), steady=judged,
        centre=np.empty(0), step_ms=step_ms, follow=follow, slow=slow, x=x, residual=x,
        sigma=np.sqrt(gpus.var),
    )  # fmt: skip
    share = np.where(judged, x / gpus.level, np.float32(0))
    # Who has gone another way for a while, up or down, does not say where the others are.
    steady = row.free & (np.abs(gpus.slow) < np.float32(2 * peers.slack))
    few = row.number(steady) < 0.5 * row.number(row.free)
    if few.any():
        steady |= row.free & np.repeat(few, row.size)
    count = row.number(steady)
    centre = row.total(share * steady) / count
    near = np.clip(
        share * row.each(1 / centre), np.float32(1 - _CENTRE_PULL), np.float32(1 + _CENTRE_PULL)
    )
    centre *= row.total(near * steady) / count
    row.steady = steady
    # At first nothing is known of any GPU, and the plain mean is the centre.
    blank = ~(count >= 0.5 * row.number(known)) | ~(centre > 0)
    if blank.any():
        plain = row.total(np.where(known, x, np.float32(0))) / row.number(known)
        centre = np.where(blank, plain, centre)
    row.centre = centre
    # A centre of 0 is let through by nobody, but NaN times a mask of 0 would stay.
    residual = share * row.each(np.where(centre > 0, 1 / centre, 0.0)) - np.float32(1)
    row.residual = np.where(judged, residual, np.float32(0))
    return row


def gate(state: PeersState, row: Row) -> tuple[BoolArray, JobColumns]:
    """Return of which jobs the sample counts, and the jobs after it.

    Not while the job dips, while few GPUs report, or when GPUs go different ways: they enter
    and leave a common dip at their own moments.
    """
    jobs, times_ms = state.jobs, row.times_ms
    there = row.number(row.known) >= np.maximum(LEAST_GPUS, jobs.size / 2)
    there &= row.centre > 0
    usable = there & (row.centre >= _DIPPING * jobs.level)
    odd = np.abs(row.residual) > np.maximum(
        np.float32(_ODD), np.float32(_ODD_SIGMAS) * row.sigma
    )
    odd &= row.free & (state.gpus.count >= _NOISE_SAMPLES)
    torn = usable & (row.number(odd) > MOST_SHARE * row.number(row.free))
    whole = usable & ~torn
    weight = there * np.maximum(1 / (jobs.count + 1), row.follow)
    level = jobs.level + weight * (np.where(there, row.centre, 0.0) - jobs.level)
    return whole, replace(
        jobs,
        count=jobs.count + whole,
        first_ms=np.where(jobs.first_ms == 0, times_ms, jobs.first_ms),
        seen_ms=np.where(there, times_ms, jobs.seen_ms),
        level=level,
        torn_ms=np.where(torn & (jobs.torn_count == 0), times_ms, jobs.torn_ms),
        torn_count=np.where(whole, 0, jobs.torn_count + torn),
    )


def moving(gpus: GpuColumns, row: Row, use: BoolArray) -> tuple[BoolArray, GpuColumns]:
    """Return of which GPUs the sample counts: not of those whose exporter is frozen.

    Values repeat where they are rounded. A run of repeats that the usual share of them makes
    too unlikely is none of those.
    """
    equal = row.known & (row.x == gpus.latest)
    same = (gpus.same + np.float32(1)) * (equal | ~row.known)
    frozen = same >= _FROZEN_SAMPLES
    some = np.flatnonzero(frozen)
    if len(some):
        usual = np.maximum(gpus.repeat[some], np.float32(_LEAST_REPEAT))
        frozen[some] = usual ** same[some] < _FROZEN_CHANCE
    taught = row.each(row.follow) * (row.known & ~frozen)
    return use & ~frozen, replace(
        gpus,
        latest=np.where(row.known, row.x, gpus.latest),
        same=same,
        repeat=gpus.repeat + taught * (equal - gpus.repeat),
    )


def learnt(peers: Peers, state: PeersState, row: Row, use: BoolArray) -> PeersState:
    """Return the state with levels and noise after what healthy GPUs taught."""
    jobs, gpus = state.jobs, state.gpus
    calm = use & row.free & (gpus.sum < np.float32(peers.evidence / 4))
    weight = np.maximum(
        np.float32(1) / (gpus.count + 1).astype(np.float32), row.each(row.follow)
    )
    pull = np.float32(_PULL) * row.sigma
    young = gpus.count < _NOISE_SAMPLES
    if young.any():
        pull = np.where(young, np.float32(1), pull)
    bounded = np.minimum(np.maximum(row.residual, -pull), pull)
    taught = weight * calm
    level = gpus.level * (np.float32(1) + taught * bounded)
    var = gpus.var + taught * (bounded * bounded - gpus.var)
    new = use & ~row.judged & (gpus.fall == 0)
    if new.any():
        ratio = row.x * row.each(1 / row.centre)
        level = np.where(new, gpus.level + weight * (ratio - gpus.level), level)
    most = np.maximum(pull, np.float32(4 * peers.slack))
    pulled = np.minimum(np.maximum(row.residual, -most), most)
    moved = row.each(row.slow) * (pulled - gpus.slow)
    mean = gpus.slow + moved * (use & row.judged)
    settled = calm & row.steady
    many = row.number(settled)
    square = row.total(mean * mean * settled) / many
    count = jobs.count - np.rint(_SLOW_LENGTHS / row.slow)
    share = np.maximum(1 / np.maximum(count, 1), row.follow)
    telling = (many > 0) & (count > 0)
    wide = np.where(telling, jobs.wide + share * (square - jobs.wide), jobs.wide)
    return PeersState(
        jobs=replace(jobs, wide=wide),
        gpus=replace(gpus, count=gpus.count + (calm | new), level=level, var=var, slow=mean),
    )
