"""What a raised alarm makes of a column: held to its old level, quiet, or at a new baseline."""

from collections.abc import Mapping

import numpy as np

from detector.analysis.baselines import noise
from detector.analysis.baselines.excursion import edge, learn
from detector.analysis.baselines.level import (
    DRIFT,
    EARLY,
    EXCURSION,
    FROZEN,
    LEAST_SCALE,
    RING,
    BoolArray,
    Level,
    LevelState,
    raise_candidate,
    recent,
)
from detector.analysis.baselines.rows import Found, anywhere, places
from detector.analysis.change import Confirmed, Recovery, Rejected
from detector.series import FloatArray, IntArray

# Samples that must be back before a change is over: few where it stands out of the noise.
_BACK_CLEAR, _BACK_NOISY = 3, 8
# Blocks after which a level is known to a quarter of a block's noise.
_BACK_BLOCKS = 15
# From so many standard deviations on, a change stands out of the noise.
_CLEAR = 6.0
# Samples that must differ before a frozen series moves again.
_THAWED = 3
# A run of identical values must be so many times as long as any before it: series with few
# digits repeat themselves.
_RUN_FACTOR = 4
# And so many times as long as any that was raised: a job that stands still bit for bit now and
# then is told once, not at each phase. Chosen: phases of one kind vary by less than threefold.
_STUCK_FACTOR = 3
# A refused drift is asked about again after this part of the time that it has lasted.
_PATIENCE = 4
# Samples whose median is the level that people accept, where no change is on.
_ACCEPTED = 16
# Identical values in a row from which on a run teaches nothing.
SUSPECT_RUN = 5
# Samples over which the noise is measured. Chosen: half an hour of 10 s samples.
SCALE_SAMPLES = 180
# More standard deviations than this from the level count as so many.
FAR = 4.0


def settled(
    baseline: Level, state: LevelState, outcomes: Mapping[int, Confirmed | Rejected]
) -> None:
    """Act on what verification said, in place."""
    for column, outcome in outcomes.items():
        raised = int(state.raised[column])
        state.raised[column] = 0
        if raised == FROZEN:
            state.frozen[column] = 2 if isinstance(outcome, Confirmed) else 1
        elif raised == EARLY and isinstance(outcome, Rejected):
            _ask_again(state, column, outcome)
        elif raised in (EXCURSION, DRIFT, EARLY):
            if isinstance(outcome, Confirmed):
                _hold(state, column, outcome)
            elif outcome.rebase:
                _rebase(state, column, _ACCEPTED)
            else:
                _quieten(baseline, state, column, raised)


def _hold(state: LevelState, column: int, outcome: Confirmed) -> None:
    """Keep the old baseline for the recovery, and hold the column to the new level."""
    if np.isnan(state.held_level[column]):
        state.held_level[column] = state.level[column]
        state.held_scale[column] = state.scale[column]
        state.change_ms[column] = state.raised_ms[column]
        state.change_level[column] = outcome.after.value
    _restart(state, column, max(outcome.after.value, 0.0))


def _ask_again(state: LevelState, column: int, outcome: Rejected) -> None:
    """Ask when it was said to help; where nothing helps, at twice the age.

    So a job without announcements costs a question each time its age has doubled.
    """
    state.ask_ms[column] = outcome.again_ms
    if not outcome.again_ms:
        seen_ms = state.seen_ms[column]
        state.mute_ms[column] = seen_ms + (seen_ms - state.first_ms[column])


def _quieten(baseline: Level, state: LevelState, column: int, raised: int) -> None:
    """Say nothing more until this has lasted twice as long or grown by half."""
    lasted_ms = int(state.seen_ms[column] - state.raised_ms[column])
    # What is small is refused for want of evidence, and that grows with every block.
    more_ms = lasted_ms // _PATIENCE if raised == DRIFT else lasted_ms
    state.quiet_ms[column] = state.seen_ms[column] + max(more_ms, int(baseline.floor))
    fall = state.level[column] - state.raised_level[column]
    state.quiet_level[column] = state.raised_level[column] - 0.5 * fall


def accepted(baseline: Level, state: LevelState, columns: IntArray) -> None:
    """Make the present level the baseline, in place.

    Of a change that is on it is the level since its onset, at once, where that is two blocks
    or more old: people have said that it stays, so nothing is left to wait for.
    """
    for column in columns.tolist():
        since = 0
        if np.isfinite(state.held_level[column]):
            lasted_ms = float(state.seen_ms[column] - state.change_ms[column])
            since = min(round(lasted_ms / max(float(state.step_ms[column]), 1.0)), RING)
        at_once = since >= 2 * baseline.block_samples
        if _rebase(state, column, since if at_once else _ACCEPTED) and at_once:
            state.settled[column] = True
            noise.guess(baseline, state, np.array([column]))


def _rebase(state: LevelState, column: int, samples: int) -> bool:
    """Begin anew at the median of so many latest samples; False where there is no level."""
    latest = recent(state, np.array([column]), samples)
    known = latest[np.isfinite(latest)]
    state.held_level[column] = np.nan
    state.frozen[column] = min(int(state.frozen[column]), 1)
    if not (np.isfinite(state.level[column]) and len(known)):
        return False
    _restart(state, column, float(np.median(known)))
    return True


def _restart(state: LevelState, column: int, level: float) -> None:
    """Begin anew at a level: it settles, and neither dips nor drifts are under way."""
    state.level[column] = level
    state.settled[column] = False
    state.settle_ms[column] = state.seen_ms[column]
    for name in ("block_count", "blocks", "evidence", "evidence_peak",
                 "rise_count", "risen_ms", "dip_ms",
                 "back_count", "quiet_ms", "raised", "heir_ms"):  # fmt: skip
        getattr(state, name)[column] = 0


def end_changes(
    baseline: Level, state: LevelState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    """Report where the level from before a confirmed change is back, and hold to it again."""
    at = places(np.isfinite(state.held_level))
    if not len(at):
        return
    held = state.held_level[at]
    # Where the level has climbed since, it has not become harder to be back.
    gap = held - np.minimum(state.level[at], state.change_level[at])
    noise = np.maximum(state.scale[at], state.held_scale[at])
    short = np.maximum(0.5 * baseline.deep * held, 2 * state.held_scale[at])
    back = values[at] >= held - np.minimum(0.5 * gap, short)
    first = back & (state.back_count[at] == 0)
    state.back_ms[at] = np.where(first, state.seen_ms[at], state.back_ms[at])
    state.back_count[at] = np.where(back, state.back_count[at] + 1, 0)
    needed = np.where(gap >= _CLEAR * noise, _BACK_CLEAR, _BACK_NOISY)
    over = state.back_count[at] >= needed
    over &= times_ms[at] - state.back_ms[at] >= baseline.return_span
    # A level that crept back shows in no run of samples, but in itself once it is well known.
    crept = state.settled[at] & (state.blocks[at] >= _BACK_BLOCKS)
    crept &= state.level[at] >= held - 0.5 * gap
    alone = at[crept & (state.back_count[at] == 0)]
    state.back_ms[alone] = state.seen_ms[alone]
    for k in at[over | crept]:
        _recover(baseline, state, int(k), int(times_ms[k]), found)


def _recover(
    baseline: Level, state: LevelState, column: int, time_ms: int, found: Found
) -> None:
    """Put the old baseline in force again; a change that was short is a habit from now on."""
    since_ms, level = int(state.back_ms[column]), float(state.held_level[column])
    scale = float(state.held_scale[column])
    lasted_ms = since_ms - int(state.change_ms[column])
    _restart(state, column, level)
    state.scale[column] = scale
    state.settled[column] = True
    noise.guess(baseline, state, np.array([column]))
    state.held_level[column] = np.nan
    if lasted_ms <= baseline.patience:
        learn(
            baseline,
            state,
            np.array([column]),
            relative=np.array([state.change_level[column] / level]),
            lasted_ms=np.array([lasted_ms]),
        )
    found.recoveries.append(
        Recovery(
            column=int(found.columns[column]), since_ms=since_ms, time_ms=time_ms, level=level
        )
    )


def idle(state: LevelState) -> bool:
    """Whether nothing that was raised is left to watch in a single column."""
    return bool(np.isnan(state.held_level[0]) and state.frozen[0] == 0 and state.raised[0] == 0)


def watch_runs(
    baseline: Level, state: LevelState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    """Count runs of identical values; raise one that no live exporter makes."""
    same = values == state.run_value
    ended = ~same & (state.frozen == 0) & (state.run_count > 0)
    state.run_longest = np.maximum(state.run_longest, np.where(ended, state.run_count, 0))
    stuck = np.where(~same & (state.frozen > 0), state.run_count, 0)
    state.stuck_longest = np.maximum(state.stuck_longest, stuck)
    state.run_ms = np.where(same, state.run_ms, times_ms)
    state.run_count = np.where(same, state.run_count + 1, 1)
    state.run_value = values.copy()
    _thaw(state, times_ms, values, same=same, found=found)
    long = (state.run_count >= baseline.frozen_samples) & (state.frozen == 0)
    if not anywhere(long):
        return
    long &= (times_ms - state.run_ms >= baseline.frozen_span) & (state.raised == 0)
    long &= (state.run_longest > 0) & (state.run_count >= _RUN_FACTOR * state.run_longest)
    long &= state.run_count > _STUCK_FACTOR * state.stuck_longest
    # A series that never moved before is constant, not frozen.
    long &= state.count - state.run_count >= baseline.frozen_samples
    long &= values > baseline.still * state.level
    for k in places(long):
        raise_candidate(
            state, k, found, raised=FROZEN, onset_ms=state.run_ms[k], time_ms=times_ms[k],
            after=values[k],
        )  # fmt: skip


def _thaw(
    state: LevelState, times_ms: IntArray, values: FloatArray, *, same: BoolArray, found: Found
) -> None:
    """Count the samples of frozen columns that differ; enough of them, and one moves again."""
    frozen = state.frozen > 0
    if not anywhere(frozen):
        return
    state.thaw = np.where(frozen & ~same, state.thaw + 1, state.thaw)
    for k in places(frozen & (state.thaw >= _THAWED)):
        if state.frozen[k] == 2:
            found.recoveries.append(
                Recovery(
                    column=int(found.columns[k]),
                    since_ms=int(state.run_ms[k]),
                    time_ms=int(times_ms[k]),
                    level=float(values[k]),
                )
            )
        state.frozen[k] = 0
        state.thaw[k] = 0


def follow_scale(
    baseline: Level, state: LevelState, values: FloatArray, *, healthy: BoolArray
) -> None:
    """Move the noise of a sample a little towards what two healthy ones differ by.

    From a block's length ago: neighbours are too alike, and the distance from the level would
    take a level that lags behind for noise.
    """
    if not anywhere(healthy):
        return
    former = state.ring[
        np.arange(len(values)), (state.count - 1 - baseline.block_samples) % RING
    ]
    use = healthy & (former >= state.level - edge(baseline, state))
    off = np.minimum(abs(values - former), FAR * state.scale)
    gain = 1 / np.minimum(np.maximum(state.count, RING), SCALE_SAMPLES)
    # 0.886: standard deviation over the mean difference of two, for a normal.
    scale = np.maximum(
        state.scale + gain * (0.886 * off - state.scale), LEAST_SCALE * state.level
    )
    state.scale[:] = np.where(use, scale, state.scale)


def suspect_runs(state: LevelState) -> BoolArray:
    """Return where the series repeats itself more than it used to."""
    return np.asarray(state.run_count > np.maximum(SUSPECT_RUN, 2 * state.run_longest))
