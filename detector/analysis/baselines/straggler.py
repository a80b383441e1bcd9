"""Evidence that a GPU falls behind its job, and what is told of it.

A one-sided CUSUM (Page 1954) of log likelihood ratios for a fall of twice the slack, over the
long-run variance, so that autocorrelation is paid for. Who stands out of a shift of more than
a quarter of the GPUs is nobody: the job starts anew.
"""

from dataclasses import replace

import numpy as np

from detector.analysis.baselines.centre import MOST_SHARE, BoolArray, Row
from detector.analysis.baselines.crew import JobColumns, Peers, PeersState
from detector.analysis.baselines.rows import Found
from detector.analysis.change import Candidate, Recovery
from detector.series import FloatArray, IntArray, SmallArray

# Relative noise of a sample at least: OFU comes rounded.
_LEAST_SIGMA = 0.002
# The slow mean is still too fast to hold all autocorrelation.
_MARGIN = 1.2
# A fall must outlast those that ended by themselves by this; the level's habits have the same.
_HABIT_FACTOR = 2
# Samples that go different ways for this long are the new ways.
_TORN_SAMPLES, _TORN_MS = 30, 300_000
# A GPU's evidence is void, and one that has fallen is gone, after this silence. Chosen:
# several times what raising takes.
_SILENCE_MS, _SILENCE_STEPS = 600_000, 10


def weighed(peers: Peers, state: PeersState, row: Row, use: BoolArray) -> PeersState:
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
    void = times_ms - gpus.last_ms > _silence_ms(row)
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


def _silence_ms(row: Row) -> IntArray:
    """After which silence nothing is known of a GPU any more. Shape ``(cells,)``."""
    return np.repeat(np.maximum(_SILENCE_MS, _SILENCE_STEPS * row.step_ms), row.size)


def _inflation(state: PeersState, row: Row, var: SmallArray) -> FloatArray:
    """By how much autocorrelation widens the noise of the jobs' GPUs. Shape ``(jobs,)``."""
    plain = row.total(var) / row.size
    # Variance of an exponential mean of white noise is this part of a sample's.
    white = row.slow / (2 - row.slow)
    return np.maximum(_MARGIN * state.jobs.wide / (white * plain), 1.0)


def _bar(peers: Peers, jobs: JobColumns) -> FloatArray:
    """How much evidence is asked of a GPU: the more there are, the more lie far out."""
    return peers.evidence + np.log(jobs.size)


def _full(peers: Peers, state: PeersState, row: Row) -> BoolArray:
    """Which GPUs' evidence is complete; sums stop there. Shape ``(cells,)``."""
    # A float32 sum stops at a float32 bar; the margin is for neither's rounding.
    return np.asarray(state.gpus.sum >= row.each(0.999 * _bar(peers, state.jobs)))


def ended(peers: Peers, state: PeersState, row: Row, found: Found) -> PeersState:
    """Return the state without falls that are over, and tell of jobs that have none left."""
    jobs, gpus = state.jobs, state.gpus
    times_ms = np.repeat(row.times_ms, row.size)
    back = _full(peers, state, row) & (times_ms - gpus.since_ms >= peers.return_span)
    gone = times_ms - gpus.last_ms > _silence_ms(row)
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
        found.recoveries.append(recovery(int(found.columns[k]), last_ms, int(row.times_ms[k])))
        wait_ms = _HABIT_FACTOR * (last_ms - int(jobs.onset_ms[k]))
        if wait_ms <= peers.patience:
            jobs.habit_ms[k] = max(int(jobs.habit_ms[k]), wait_ms)
        jobs.onset_ms[k] = 0
    return PeersState(jobs=jobs, gpus=gpus)


def recovery(column: int, since_ms: int, time_ms: int) -> Recovery:
    """Return the end of a job's fall: none of its GPUs stands out any more."""
    return Recovery(column=column, since_ms=since_ms, time_ms=time_ms, level=1.0)


def raised(
    peers: Peers, state: PeersState, row: Row, use: BoolArray, found: Found
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
        crowd = row.number(low) > MOST_SHARE * row.number(row.judged)
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
        found.recoveries.append(recovery(int(found.columns[k]), time_ms, time_ms))
    return state.anew(columns)


def _candidate(
    state: PeersState, row: Row, k: int, *, column: int, cells: tuple[BoolArray, BoolArray]
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
