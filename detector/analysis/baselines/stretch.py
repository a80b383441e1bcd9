"""Uneventful samples of a single series, many at a time.

Nearly all samples are healthy ones: they move the noise, the run lengths and the block that is
filling, and nothing else happens. NumPy spends a hundred calls on such a row, which is nothing
for thousands of columns and nearly everything for one. Here one column's samples are folded in
plain floats until one is anything but healthy, and that one is left to the whole step. Each
line does what the line named beside it does for a row, bit for bit; a law of the tests compares
them.
"""

from math import isfinite

import numpy as np

from detector.analysis.baselines import excursion, standing, trend
from detector.analysis.baselines.level import LEAST_BLOCK, LEAST_SCALE, RING, Level, LevelState
from detector.analysis.baselines.rows import Ahead, Found

_ALONE = np.array([0])


def stretch(baseline: Level, state: LevelState, ahead: Ahead, found: Found) -> None:
    """Fold samples of a single column as long as they are healthy and nothing is under way."""
    while ahead and _quiet(state):
        full = _fill_block(baseline, state, ahead)
        if not full:
            return
        time_ms = ahead.times_ms[ahead.next - 1]
        with np.errstate(invalid="ignore"):
            trend.close_block(baseline, state, _ALONE, np.array([time_ms]), found)
        state.seen_ms[0] = time_ms
        if found.candidates:
            return


def _quiet(state: LevelState) -> bool:
    """Whether nothing is under way but the level, its noise and its blocks."""
    known = isfinite(state.level[0]) and state.count[0] >= 3
    return bool(known) and excursion.idle(state) and standing.idle(state)


def _fill_block(baseline: Level, state: LevelState, ahead: Ahead) -> bool:
    """Fold samples until the block is full, and say whether it is; its last is not seen yet."""
    times_ms, values, at = ahead.times_ms, ahead.values, ahead.next
    level, scale = state.level.item(), state.scale.item()
    step_ms, seen_ms = state.step_ms.item(), state.seen_ms.item()
    run_value, run_ms = state.run_value.item(), state.run_ms.item()
    run, longest = state.run_count.item(), state.run_longest.item()
    block, block_ms = state.block_count.item(), state.block_ms.item()
    total, ring, number = state.block_sum.item(), state.ring[0], state.count.item()
    deep, least = baseline.deep * level, LEAST_SCALE * level
    sigmas, samples, span_ms = baseline.deep_sigmas, baseline.block_samples, baseline.block_span
    cap_ms = baseline.block_cap
    end, full = len(values), False
    while at < end and not full:
        value, time_ms = values[at], times_ms[at]
        floor = level - max(deep, sigmas * scale)
        if value < floor:
            break
        # standing.watch_runs
        if value == run_value:
            if longest and run + 1 >= baseline.frozen_samples:
                break
            run += 1
        else:
            longest, run, run_value, run_ms = max(longest, run), 1, value, time_ms
        # level_fold._clock
        step_ms += 0.1 * (min(float(time_ms - seen_ms), 2 * step_ms) - step_ms)
        ring[number % RING] = value
        number += 1
        if run <= standing.SUSPECT_RUN or run <= 2 * longest:
            former = ring.item((number - 1 - samples) % RING)
            if former >= floor:  # standing.follow_scale
                off = 0.886 * min(abs(value - former), standing.FAR * scale)
                gain = 1 / min(max(number, RING), standing.SCALE_SAMPLES)
                scale = max(scale + gain * (off - scale), least)
            # trend.fill_blocks
            if not block:
                block_ms, total = seen_ms, 0.0
            total += min(max(value, level - max(deep, sigmas * scale)), 2 * level)
            block += 1
            size = min(max(round(cap_ms / max(step_ms, 1.0)), LEAST_BLOCK), samples)
            full = block >= size and time_ms - block_ms >= span_ms
        if not full:
            seen_ms = time_ms
        at += 1
    if at > ahead.next:
        state.scale[0], state.step_ms[0], state.seen_ms[0] = scale, step_ms, seen_ms
        state.run_value[0], state.run_ms[0] = run_value, run_ms
        state.run_count[0], state.run_longest[0] = run, longest
        state.block_count[0], state.block_ms[0], state.block_sum[0] = block, block_ms, total
        state.count[0] = number
        ahead.next = at
    return full
