"""The peers baseline: each GPU of a job held to its own past against the job's other GPUs.

The walk over a panel's rows; what one sample says and teaches is in ``centre``, who stands out
in ``straggler``, what is remembered in ``crew``.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from detector.analysis.baselines.centre import gate, learnt, moving, read
from detector.analysis.baselines.crew import LEAST_GPUS, Peers, PeersState
from detector.analysis.baselines.rows import Found, unread
from detector.analysis.baselines.straggler import ended, raised, recovery, weighed
from detector.analysis.change import Confirmed, Rejected
from detector.series import IntArray, Panel, SmallArray

# How long a refused candidate is not raised again. Chosen: several times what raising takes.
_AGAIN_MS = 600_000


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
        found.recoveries.append(recovery(int(k), int(times_ms[k]), int(times_ms[k])))


def _step(
    peers: Peers, state: PeersState, times_ms: IntArray, x: SmallArray, found: Found
) -> PeersState:
    """Return the state after one sample of each job."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        row = read(peers, state, times_ms, x)
        whole, jobs = gate(state, row)
        use, gpus = moving(state.gpus, row, np.repeat(whole, row.size) & row.known)
        state = learnt(peers, PeersState(jobs=jobs, gpus=gpus), row, use)
        state = weighed(peers, state, row, use)
    if (state.gpus.fall > 0).any():
        state = ended(peers, state, row, found)
    return raised(peers, state, row, use, found)


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
