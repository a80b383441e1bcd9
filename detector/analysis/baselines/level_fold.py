"""One sample a column of the level baseline, each part after what it depends on."""

import numpy as np

from detector.analysis.baselines import excursion, lineage, standing, trend
from detector.analysis.baselines.early import raise_early
from detector.analysis.baselines.level import RING, Level, LevelState
from detector.analysis.baselines.rows import Found, anywhere
from detector.series import FloatArray, IntArray


def step(
    baseline: Level, state: LevelState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    """Fold one finite sample into each column, in place."""
    with np.errstate(invalid="ignore"):
        _clock(baseline, state, times_ms)
        known = np.isfinite(state.level)
        standing.watch_runs(baseline, state, times_ms, values, found)
        state.ring[np.arange(len(values)), state.count % RING] = values
        state.count += 1
        if anywhere(known):
            standing.end_changes(baseline, state, times_ms, values, found)
            dipping = excursion.extend(baseline, state, times_ms, values)
            excursion.raise_long(baseline, state, times_ms, values, found)
            raise_early(baseline, state, times_ms, values, found)
            healthy = known & ~dipping & ~standing.suspect_runs(state)
            standing.follow_scale(baseline, state, values, healthy=healthy)
            trend.fill_blocks(baseline, state, times_ms, values, healthy=healthy, found=found)
        if anywhere(~known):
            trend.first_level(baseline, state, times_ms)
        state.seen_ms[:] = times_ms


def _clock(baseline: Level, state: LevelState, times_ms: IntArray) -> None:
    """Keep the usual distance of two samples; a gap counts as no more than double."""
    early = state.count < 3
    new = anywhere(early)
    first = state.count == 0
    if new:
        state.first_ms[:] = np.where(first, times_ms, state.first_ms)
        state.seen_ms[:] = np.where(first, times_ms, state.seen_ms)
    gap_ms = (times_ms - state.seen_ms).astype(np.float64)
    usual = state.step_ms + 0.1 * (np.minimum(gap_ms, 2 * state.step_ms) - state.step_ms)
    state.step_ms[:] = np.where(early, gap_ms, usual) if new else usual
    if new:
        heirs = np.flatnonzero(first & (state.heir_ms > 0))
        lineage.begin(baseline, state, heirs, times_ms)
