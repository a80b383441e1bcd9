"""Deep falls: when one starts, how it goes on, when it has lasted too long to be a habit."""

import numpy as np

from detector.analysis.baselines.level import EXCURSION, BoolArray, Level, LevelState
from detector.analysis.baselines.rows import Found
from detector.analysis.change import Candidate
from detector.series import FloatArray, IntArray

# A part of an excursion ends when two samples in a row lie above it by this share of the way
# back to the baseline: a ramp closes 12 % of the gap in 3 min, a lasting fall does not.
_RISING_SHARE = 0.1
# ... and by so many mean deviations of the part's own samples (two in a row: 1 in 200).
_RISING_DEVIATIONS = 2.5
# Before the first low sample of an excursion at most so many usual steps count as part of it.
# A real switch of precision reports its first sample after 5 steps of silence.
_LEAD_STEPS = 6
# Samples in a row that are back inside before an excursion is over: one may be a glitch.
_BACK = 2


def edge(baseline: Level, state: LevelState) -> FloatArray:
    """Return how far below the level an excursion starts. NaN before there is a level."""
    return np.maximum(baseline.deep * state.level, baseline.deep_sigmas * state.scale)


def extend(
    baseline: Level, state: LevelState, times_ms: IntArray, values: FloatArray
) -> BoolArray:
    """Take one sample a column into its excursion; return where one is going on."""
    width = edge(baseline, state)
    low = values < state.level - width
    inside = values >= state.level - width / 2
    starting = low & (state.dip_ms == 0)
    if starting.any():
        _start(state, np.flatnonzero(starting), times_ms, values)
    going = state.dip_ms > 0
    if not going.any():
        return going
    at = np.flatnonzero(going)
    state.dip_low[at] += low[at]
    back = inside[at]
    first_back = back & (state.dip_back[at] == 0)
    state.dip_back_ms[at] = np.where(first_back, state.seen_ms[at], state.dip_back_ms[at])
    state.dip_back[at] = np.where(back, state.dip_back[at] + 1, 0)
    over = at[state.dip_back[at] >= _BACK]
    if len(over):
        _end(baseline, state, over, times_ms)
    still = at[~back]
    if len(still):
        _continue(baseline, state, still, times_ms, values)
    return going


def _start(state: LevelState, at: IntArray, times_ms: IntArray, values: FloatArray) -> None:
    lead_ms = np.minimum(times_ms[at] - state.seen_ms[at], _LEAD_STEPS * state.step_ms[at])
    start_ms = times_ms[at] - lead_ms.astype(np.int64)
    state.dip_ms[at] = start_ms
    for name in ("dip_low", "dip_count", "dip_sum", "dip_back", "part_count", "part_up"):
        getattr(state, name)[at] = 0
    state.dip_still[at] = False
    state.part_ms[at] = start_ms
    state.part_level[at] = values[at]
    state.part_dev[at] = state.scale[at]


def _continue(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, values: FloatArray
) -> None:
    value, level = values[at], state.level[at]
    state.dip_count[at] += 1
    state.dip_sum[at] += value
    part, deviation = state.part_level[at], state.part_dev[at]
    above = np.maximum(3 * state.scale[at], _RISING_SHARE * (level - part))
    above = np.maximum(above, _RISING_DEVIATIONS * deviation)
    up = value > part + above
    first = up & (state.part_up[at] == 0)
    state.part_up_ms[at] = np.where(first, state.seen_ms[at], state.part_up_ms[at])
    state.part_up_sum[at] = np.where(first, 0.0, state.part_up_sum[at]) + value
    state.part_up[at] = np.where(up, state.part_up[at] + 1, 0)
    anew = state.part_up[at] >= _BACK
    count = np.where(up, state.part_count[at], state.part_count[at] + 1)
    # The gain's floor lets a part follow a slide downwards; a mean over all of it would not.
    gain = np.where(up, 0.0, np.maximum(1 / np.maximum(count, 1), 0.1))
    moved = value - part
    part = np.where(anew, state.part_up_sum[at] / _BACK, part + gain * moved)
    deviation = np.where(
        up, deviation, deviation + 0.1 * (np.minimum(abs(moved), above) - deviation)
    )
    state.part_level[at] = part
    state.part_dev[at] = np.where(anew, state.scale[at], deviation)
    state.part_count[at] = np.where(anew, _BACK, count)
    state.part_ms[at] = np.where(anew, state.part_up_ms[at], state.part_ms[at])
    state.part_up[at] = np.where(anew, 0, state.part_up[at])
    state.dip_still[at] |= (part < baseline.still * level) & (count > 1)


def _end(baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray) -> None:
    """Learn what kind of dip it was, and forget it."""
    lasted_ms = state.dip_back_ms[at] - state.dip_ms[at]
    relative = state.dip_sum[at] / np.maximum(state.dip_count[at], 1) / state.level[at]
    learn(baseline, state, at, relative=relative, lasted_ms=lasted_ms, times_ms=times_ms[at])
    state.dip_ms[at] = 0


def learn(
    baseline: Level,
    state: LevelState,
    at: IntArray,
    *,
    relative: FloatArray,
    lasted_ms: IntArray,
    times_ms: IntArray,
) -> None:
    """Remember dips that ended: the longest of each kind, the oldest kind making room."""
    distance = abs(state.habit_level[at] - relative[:, None])
    distance = np.where(np.isfinite(distance), distance, np.inf)
    nearest = distance.argmin(axis=1)
    known = distance[np.arange(len(at)), nearest] <= baseline.habit_width
    slot = np.where(known, nearest, state.habit_seen_ms[at].argmin(axis=1))
    before = np.where(known, state.habit_level[at, slot], relative)
    # Slowly: the kind is the centre of what was seen, not the latest one.
    state.habit_level[at, slot] = before + 0.3 * (relative - before)
    longest = np.where(known, state.habit_ms[at, slot], 0)
    state.habit_ms[at, slot] = np.maximum(longest, np.minimum(lasted_ms, baseline.patience))
    state.habit_seen_ms[at, slot] = times_ms


def wait_ms(
    baseline: Level,
    state: LevelState,
    at: IntArray,
    *,
    onset_ms: IntArray,
    relative: FloatArray,
) -> FloatArray:
    """Return how long a fall to ``relative`` of the level must last to be no habit."""
    age_ms = (onset_ms - state.first_ms[at]).astype(np.float64)
    floor = np.where(relative < 0.5, float(baseline.half_floor), float(baseline.floor))
    wait = np.clip(baseline.share * age_ms, floor, np.maximum(floor, baseline.cap))
    standing = np.clip(
        baseline.still_share * age_ms, float(baseline.half_floor), float(baseline.still_cap)
    )
    wait = np.where(relative < baseline.still, standing, wait)
    alike = abs(state.habit_level[at] - relative[:, None]) <= baseline.habit_width
    longest = np.where(alike, state.habit_ms[at], 0).max(axis=1)
    known = np.minimum(baseline.habit_factor * longest, float(baseline.patience))
    return np.asarray(np.maximum(wait, known))


def raise_long(
    baseline: Level, state: LevelState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    """Raise a candidate where an excursion has outlasted every explanation."""
    ripe = (state.dip_ms > 0) & (state.dip_low >= baseline.min_samples)
    ripe &= (times_ms - state.dip_ms >= baseline.floor) & (state.part_count >= 3)
    ripe &= (state.dip_back == 0) & (state.raised == 0)
    if not ripe.any():
        return
    at = np.flatnonzero(ripe)
    level, part = state.level[at], state.part_level[at]
    wait = wait_ms(baseline, state, at, onset_ms=state.dip_ms[at], relative=part / level)
    # After a standstill comes a ramp: its parts must hold for the whole wait, not half of it.
    steady = wait * np.where(state.dip_still[at], 1.0, 0.5)
    now = times_ms[at]
    believed = (now - state.dip_ms[at] >= wait) & (now - state.part_ms[at] >= steady)
    believed &= part <= level - 0.75 * edge(baseline, state)[at]
    believed &= (now >= state.quiet_ms[at]) | (part < state.quiet_level[at])
    for k in at[believed]:
        state.raised[k] = EXCURSION
        state.raised_ms[k] = state.dip_ms[k]
        state.raised_level[k] = state.part_level[k]
        found.candidates.append(
            Candidate(
                column=int(found.columns[k]),
                cause="excursion",
                direction="down",
                onset_ms=int(state.dip_ms[k]),
                time_ms=int(times_ms[k]),
                before=float(state.level[k]),
                after=float(state.part_level[k]),
                scale=float(state.scale[k]),
            )
        )
