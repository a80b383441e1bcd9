"""The peers baseline: each GPU of a job held to its own past against the job's other GPUs.

What all GPUs share (a dip, a restart, a drift) divides out: the residual of GPU g is

    e_g = x_g / (a_g c) - 1

with ``a_g`` its usual share and ``c`` the job's centre at that moment, the bounded mean of
``x_g / a_g``. Evidence of a fall is a one-sided CUSUM (Page 1954) of log likelihood ratios for
a fall of twice the slack, over the long-run variance, so that autocorrelation is paid for.
Who stands out of a shift of more than a quarter of the GPUs is nobody: the job starts anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from detector.analysis.baselines.crew import GpuColumns, JobColumns, PeersState
from detector.analysis.baselines.rows import Found, unread
from detector.analysis.change import Candidate, Confirmed, Recovery, Rejected
from detector.series import Duration, FloatArray, IntArray, Panel, SmallArray

BoolArray = npt.NDArray[np.bool_]

# A centre of fewer GPUs is mostly the culprit's own value.
LEAST_GPUS = 4
# More than this share fell together: something they share.
_MOST_SHARE = 0.25
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
# Relative noise of a sample at least: OFU comes rounded.
_LEAST_SIGMA = 0.002
# The slow mean is still too fast to hold all autocorrelation.
_MARGIN = 1.2
# A residual this far out, in relative terms and in standard deviations, goes its own way.
_ODD, _ODD_SIGMAS = 0.1, 4.0
# A level never forgets faster than this lets it, at any cadence: 1e-4 is 2.8 h at 1 s.
_LEAST_WEIGHT = 1e-4
# A fall must outlast those that ended by themselves by this; the level's habits have the same.
_HABIT_FACTOR = 2
# Samples that go different ways for this long are the new ways.
_TORN_SAMPLES, _TORN_MS = 30, 300_000
# How long a refused candidate is not raised again, and after which silence a GPU's evidence
# is void, or one that has fallen is gone. Chosen: several times what raising takes.
_AGAIN_MS, _AGAIN_STEPS = 600_000, 10


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
class _Row:
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

    def silence_ms(self) -> IntArray:
        """After which silence nothing is known of a GPU any more. Shape ``(cells,)``."""
        return np.repeat(np.maximum(_AGAIN_MS, _AGAIN_STEPS * self.step_ms), self.size)

    def each(self, values: FloatArray) -> SmallArray:
        """Give each cell its job's value. Shape ``(cells,)``."""
        return np.repeat(values.astype(np.float32), self.size)


def advance(
    peers: Peers, state: PeersState, panel: Panel
) -> tuple[PeersState, Found, Panel | None, IntArray]:
    """Return the state after the panel's rows, what was found, and the unread rest."""
    found = Found(columns=np.arange(0))
    running = np.ones(panel.columns, bool)
    stopped_at = np.full(panel.columns, panel.rows)
    last_ms = state.jobs.last_ms.copy()
    part: PeersState | None = None
    for row in range(panel.rows):
        times_ms, values = panel.times_ms[row], panel.values[row]
        fresh = running & (times_ms > last_ms)
        last_ms[fresh] = times_ms[fresh]
        assert panel.gpu_counts is not None
        use = np.flatnonzero(
            fresh & np.isfinite(values) & (panel.gpu_counts[row] >= LEAST_GPUS)
        )
        if not len(use):
            continue
        sizes, x = _gpus(panel, row, use)
        same = part is not None and np.array_equal(use, found.columns)
        if part is None or not same or not np.array_equal(part.jobs.size, sizes):
            if part is not None:
                state = state.put(found.columns, part)
            _dissolve(state, use, sizes, times_ms, found)
            state = state.resized(use, sizes)
            found.columns = use
            part = state if len(use) == panel.columns else state.taken(use)
        before = len(found.candidates)
        part = _step(peers, part, times_ms[use], x, found)
        for candidate in found.candidates[before:]:
            running[candidate.column] = False
            stopped_at[candidate.column] = row + 1
    if part is not None:
        whole = len(found.columns) == panel.columns
        state = part if whole else state.put(found.columns, part)
    state = replace(state, jobs=replace(state.jobs, last_ms=last_ms))
    rest, columns = unread(panel, stopped_at, running)
    return state, found, rest, columns


def _gpus(panel: Panel, row: int, use: IntArray) -> tuple[IntArray, SmallArray]:
    """Return how many GPUs the row's samples have, and their values, flat."""
    assert panel.gpus is not None
    assert panel.gpu_starts is not None
    assert panel.gpu_counts is not None
    starts, sizes = panel.gpu_starts[row, use], panel.gpu_counts[row, use]
    shift = starts - (np.cumsum(sizes) - sizes)
    cells = int(sizes.sum())
    if (shift == shift[0]).all():
        return sizes, panel.gpus[shift[0] : shift[0] + cells]
    return sizes, panel.gpus[np.repeat(shift, sizes) + np.arange(cells)]


def _dissolve(
    state: PeersState, use: IntArray, sizes: IntArray, times_ms: IntArray, found: Found
) -> None:
    """End what had fallen in rosters that change their size."""
    for k in use[(state.jobs.size[use] != sizes) & (state.jobs.onset_ms[use] > 0)]:
        found.recoveries.append(_over(int(k), int(times_ms[k]), int(times_ms[k])))


def _over(column: int, since_ms: int, time_ms: int) -> Recovery:
    return Recovery(column=column, since_ms=since_ms, time_ms=time_ms, level=1.0)


# Below, masks are multiplied rather than chosen by (np.where): a mask without a pattern costs
# ten times as much to choose by, and a fleet has 100,000 cells.


def _step(
    peers: Peers, state: PeersState, times_ms: IntArray, x: SmallArray, found: Found
) -> PeersState:
    """Return the state after one sample of each job."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        row = _read(peers, state, times_ms, x)
        whole, jobs = _gate(state, row)
        use, gpus = _moving(state.gpus, row, np.repeat(whole, row.size) & row.known)
        state = _learnt(peers, PeersState(jobs=jobs, gpus=gpus), row, use)
        state = _weighed(peers, state, row, use)
    if (state.gpus.fall > 0).any():
        state = _ended(peers, state, row, found)
    return _raised(peers, state, row, use, found)


def _read(peers: Peers, state: PeersState, times_ms: IntArray, x: SmallArray) -> _Row:
    """Return the sample against the job's centre."""
    jobs, gpus = state.jobs, state.gpus
    last_ms = np.where(jobs.seen_ms > 0, times_ms - jobs.seen_ms, 0)
    follow = np.clip(last_ms / peers.memory, _LEAST_WEIGHT, 1 / peers.memory_samples)
    step_ms = np.where(jobs.count > 0, times_ms - jobs.first_ms, 0) / np.maximum(jobs.count, 1)
    slow = np.clip(step_ms / _SLOW_MS, 1 / _SLOW_MOST, 1 / _SLOW_SAMPLES)
    known = np.isfinite(x)
    judged = known & (gpus.level > _LEAST_SHARE)
    row = _Row(
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


def _gate(state: PeersState, row: _Row) -> tuple[BoolArray, JobColumns]:
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
    torn = usable & (row.number(odd) > _MOST_SHARE * row.number(row.free))
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


def _moving(gpus: GpuColumns, row: _Row, use: BoolArray) -> tuple[BoolArray, GpuColumns]:
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


def _learnt(peers: Peers, state: PeersState, row: _Row, use: BoolArray) -> PeersState:
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


def _weighed(peers: Peers, state: PeersState, row: _Row, use: BoolArray) -> PeersState:
    """Return the state with the sample's evidence added."""
    jobs, gpus = state.jobs, state.gpus
    var = np.maximum(gpus.var, np.float32(_LEAST_SIGMA**2))
    long_run = var * row.each(_inflation(state, row, var))
    lost = gpus.fall > 0
    # Of one that fell by f, evidence that it is back: residuals above -f/2.
    shift = np.where(lost, gpus.fall, np.float32(2 * peers.slack))
    gain = shift / long_run * (row.residual + shift / np.float32(2))
    gain = np.where(lost, gain, -gain)
    bar = _bar(peers, jobs)
    # No single sample may decide, however far out it lies.
    once = row.each(bar / peers.hold_samples)
    gain = np.minimum(np.maximum(gain, -once), once)
    times_ms = np.repeat(row.times_ms, row.size)
    warm = gpus.count >= peers.first_samples
    warm &= np.repeat(row.times_ms - jobs.first_ms >= peers.first_span, row.size)
    counts = use & row.judged & (warm | lost)
    void = times_ms - gpus.last_ms > row.silence_ms()
    total = np.maximum(gpus.sum * ~void + gain, np.float32(0))
    total = np.where(counts, np.minimum(total, row.each(bar)), gpus.sum)
    some = total > 0
    return replace(
        state,
        gpus=replace(
            gpus,
            last_ms=np.where(row.known, times_ms, gpus.last_ms),
            sum=total,
            since_ms=times_ms + (gpus.since_ms - times_ms) * some,
            run=(gpus.run + counts) * some,
        ),
    )


def _inflation(state: PeersState, row: _Row, var: SmallArray) -> FloatArray:
    """By how much autocorrelation widens the noise of the jobs' GPUs. Shape ``(jobs,)``."""
    plain = row.total(var) / row.size
    # Variance of an exponential mean of white noise is this part of a sample's.
    white = row.slow / (2 - row.slow)
    return np.maximum(_MARGIN * state.jobs.wide / (white * plain), 1.0)


def _bar(peers: Peers, jobs: JobColumns) -> FloatArray:
    """How much evidence is asked of a GPU: the more there are, the more lie far out."""
    return peers.evidence + np.log(jobs.size)


def _full(peers: Peers, state: PeersState, row: _Row) -> BoolArray:
    """Which GPUs' evidence is complete; sums stop there. Shape ``(cells,)``."""
    # A float32 sum stops at a float32 bar; the margin is for neither's rounding.
    return np.asarray(state.gpus.sum >= row.each(0.999 * _bar(peers, state.jobs)))


def _ended(peers: Peers, state: PeersState, row: _Row, found: Found) -> PeersState:
    """Return the state without falls that are over, and tell of jobs that have none left."""
    jobs, gpus = state.jobs, state.gpus
    times_ms = np.repeat(row.times_ms, row.size)
    back = _full(peers, state, row) & (times_ms - gpus.since_ms >= peers.return_span)
    gone = times_ms - gpus.last_ms > row.silence_ms()
    over = (gpus.fall > 0) & (back | gone)
    if not over.any():
        return state
    since_ms = np.where(gone, gpus.last_ms, gpus.since_ms)
    held = ~over
    gpus = replace(
        gpus, fall=gpus.fall * held, sum=gpus.sum * held, slow=gpus.slow * held,
        run=gpus.run * held,
    )  # fmt: skip
    jobs = replace(jobs, onset_ms=jobs.onset_ms.copy(), habit_ms=jobs.habit_ms.copy())
    done = (row.number(over) > 0) & (row.number(gpus.fall > 0) == 0)
    for k in np.flatnonzero(done):
        cells = slice(int(row.starts[k]), int(row.starts[k] + row.size[k]))
        last_ms = int(since_ms[cells][over[cells]].max())
        found.recoveries.append(_over(int(found.columns[k]), last_ms, int(row.times_ms[k])))
        wait_ms = _HABIT_FACTOR * (last_ms - int(jobs.onset_ms[k]))
        if wait_ms <= peers.patience:
            jobs.habit_ms[k] = max(int(jobs.habit_ms[k]), wait_ms)
        jobs.onset_ms[k] = 0
    return PeersState(jobs=jobs, gpus=gpus)


def _raised(
    peers: Peers, state: PeersState, row: _Row, use: BoolArray, found: Found
) -> PeersState:
    """Raise the jobs of which a GPU stands out; start those anew whose GPUs moved together."""
    jobs, gpus = state.jobs, state.gpus
    anew = (jobs.torn_count >= _TORN_SAMPLES) & (row.times_ms - jobs.torn_ms >= _TORN_MS)
    strong = _full(peers, state, row) & use & (gpus.fall == 0)
    if strong.any():
        low = row.judged & (gpus.fall == 0) & (gpus.slow < np.float32(-peers.slack))
        hold_ms = np.maximum(int(peers.hold_for), jobs.habit_ms)
        long = np.repeat(row.times_ms - hold_ms, row.size) >= gpus.since_ms
        due = strong & low & long & (gpus.run >= peers.hold_samples)
        ready = row.number(due) > 0
        ready &= (jobs.onset_ms == 0) & (row.times_ms >= jobs.again_ms) & ~anew
        crowd = row.number(low) > _MOST_SHARE * row.number(row.judged)
        named = low & (gpus.sum >= row.each(_bar(peers, jobs) / 2))
        for k in np.flatnonzero(ready & ~crowd):
            found.candidates.append(
                _candidate(state, row, int(k), column=int(found.columns[k]), cells=(named, due))
            )
        anew |= ready & crowd
    if not anew.any():
        return state
    columns = np.flatnonzero(anew)
    for k in columns[jobs.onset_ms[columns] > 0]:
        time_ms = int(row.times_ms[k])
        found.recoveries.append(_over(int(found.columns[k]), time_ms, time_ms))
    return state.anew(columns)


def _candidate(
    state: PeersState, row: _Row, k: int, *, column: int, cells: tuple[BoolArray, BoolArray]
) -> Candidate:
    """Return the candidate of job k; ``cells``: whom it names, and for whom it is raised."""
    named, due = cells
    start = int(row.starts[k])
    mine = slice(start, start + int(row.size[k]))
    gpus = state.gpus
    whose = np.flatnonzero(named[mine])
    share = gpus.level[mine][whose].astype(np.float64)
    before = float((share * row.centre[k]).mean())
    fall = float((share * -gpus.slow[mine][whose]).mean() / share.mean())
    return Candidate(
        column=column,
        cause="peers",
        direction="down",
        onset_ms=int(gpus.since_ms[mine][due[mine]].min()),
        time_ms=int(row.times_ms[k]),
        before=before,
        after=before * (1 - fall),
        scale=before * float(np.sqrt(gpus.var[mine][whose].mean())),
        step_ms=int(row.step_ms[k]),
        gpus=tuple(whose.tolist()),
    )


def settled(
    peers: Peers, state: PeersState, outcomes: Mapping[int, Confirmed | Rejected]
) -> PeersState:
    """Return the state after verification spoke about the columns' candidates."""
    state = state.copied()
    jobs, gpus, starts = state.jobs, state.gpus, state.starts
    for column, outcome in outcomes.items():
        cells = slice(int(starts[column]), int(starts[column] + jobs.size[column]))
        gpus.sum[cells] = 0
        gpus.run[cells] = 0
        gpus.since_ms[cells] = jobs.last_ms[column]
        if isinstance(outcome, Rejected):
            jobs.again_ms[column] = jobs.last_ms[column] + _AGAIN_MS
            continue
        jobs.onset_ms[column] = outcome.onset_ms
        whose = starts[column] + np.array(outcome.gpus, np.int64)
        gpus.fall[whose] = np.clip(-gpus.slow[whose], peers.slack, 1.0)
    return state


def accepted(state: PeersState, columns: IntArray) -> PeersState:
    """Return the state with what the GPUs of these jobs do now as their usual share."""
    return state.anew(columns)
