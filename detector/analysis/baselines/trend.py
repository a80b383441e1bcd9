"""Block means: how the level is first found, settles, follows and rises."""

import numpy as np

from detector.analysis.baselines import drift, lineage, noise
from detector.analysis.baselines.excursion import edge
from detector.analysis.baselines.level import (
    LEAST_SCALE,
    MEANS,
    RING,
    BoolArray,
    Level,
    LevelState,
    block_size,
    recent,
)
from detector.analysis.baselines.rows import Found, anywhere, places
from detector.analysis.change import Shift
from detector.series import FloatArray, IntArray

# Noise of block means below this share of the level is not believed. A third of the least
# drift of 5 % would be 0.017.
_LEAST_BLOCK_SCALE = 0.005
# Blocks agree, and the level has settled, within this share of the level.
_AGREEMENT = 0.02
# A rise is more than this share of the level: healthy series wander by as much.
_RISE = 0.03
# A warm-up closes more than this share of its gap within three blocks (3 min): the slowest
# one seen, with a time constant of 5 min, closes 45 %.
_CLOSING = 0.12
# After a rise the new level counts as known from so many blocks at most: it is followed soon.
_RENEWED = 10
# Blocks that a rise needs at least, and from which on it is known where it leads.
_LEAST_BLOCKS, _SURE = 3, 2


def first_level(baseline: Level, state: LevelState, times_ms: IntArray) -> None:
    """Give columns a level that have seen enough to have one."""
    new = np.isnan(state.level) & (state.count >= baseline.first_samples)
    # A level is sought at every so many samples: a standstill has none however often one asks.
    new &= state.count % baseline.first_samples == 0
    new &= times_ms - state.first_ms >= baseline.first_span
    if not new.any():
        return
    at = np.flatnonzero(new)
    seen = recent(state, at, RING)
    level, scale = usual(seen)
    state.level[at] = np.where(level > 0, level, np.nan)
    state.scale[at] = scale
    state.settle_ms[at] = state.first_ms[at]
    state.block_count[at] = 0
    _settle_at_once(baseline, state, at, times_ms)


def _settle_at_once(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray
) -> None:
    """Let a first level count as settled where what led to it was as long and as level."""
    span_ms = baseline.settle_share * (times_ms[at] - state.first_ms[at])
    span_ms = np.maximum(2 * baseline.block_span, span_ms)
    for k, span in zip(at, span_ms, strict=True):
        needed = int(np.ceil(span / max(state.step_ms[k], 1.0)))
        half = max(baseline.block_samples, -(-needed // 2))
        if 2 * half > min(RING, int(state.count[k])) or np.isnan(state.level[k]):
            continue
        older, newer = recent(state, np.array([k]), 2 * half)[0].reshape(2, half)
        apart = abs(float(np.median(newer) - np.median(older)))
        noise = 4 * state.scale[k] / np.sqrt(half)
        if apart <= max(_AGREEMENT * state.level[k], noise):
            state.level[k] = np.median(np.concatenate([older, newer]))
            _settled(baseline, state, np.array([k]))


def _settled(baseline: Level, state: LevelState, at: IntArray) -> None:
    """End the warm-up: from now on blocks are judged, with their noise guessed from samples."""
    state.settled[at] = True
    noise.guess(baseline, state, at)
    state.evidence[at] = 0
    state.rise_count[at] = 0


def usual(samples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return level and scale of rows of samples, of which fewer than a third are dips.

    The 70th percentile stands on healthy samples; the level is the median of all that lie
    above 88 % of it, the scale their median or mean absolute deviation.
    """
    high = np.nanpercentile(samples, 70, axis=1)
    healthy = np.where(samples >= 0.88 * high[:, None], samples, np.nan)
    level = np.nanmedian(healthy, axis=1)
    off = abs(healthy - level[:, None])
    # The mean beside the median: a saw-tooth has a median deviation near 0.
    scale = np.maximum(1.4826 * np.nanmedian(off, axis=1), 1.2533 * np.nanmean(off, axis=1))
    return level, np.maximum(scale, LEAST_SCALE * level)


def fill_blocks(
    baseline: Level,
    state: LevelState,
    times_ms: IntArray,
    values: FloatArray,
    *,
    healthy: BoolArray,
    found: Found,
) -> None:
    """Take healthy samples into blocks, and act on the blocks that are full."""
    if not anywhere(healthy):
        return
    width = edge(baseline, state)
    # Upwards a block must be able to rise, but a glitch of one sample must not lift it.
    value = np.minimum(np.maximum(values, state.level - width), 2 * state.level)
    opening = healthy & (state.block_count == 0)
    state.block_ms = np.where(opening, state.seen_ms, state.block_ms)
    state.block_sum = np.where(opening, 0.0, state.block_sum) + np.where(healthy, value, 0.0)
    state.block_count = state.block_count + healthy
    full = healthy & (state.block_count >= block_size(baseline, state, slice(None)))
    full &= times_ms - state.block_ms >= baseline.block_span
    if anywhere(full):
        close_block(baseline, state, places(full), times_ms, found)


def close_block(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, found: Found
) -> None:
    """Act on the blocks of these columns, which are full."""
    mean = state.block_sum[at] / state.block_count[at]
    state.block_count[at] = 0
    state.means[at, :-1] = state.means[at, 1:]
    state.means_ms[at, :-1] = state.means_ms[at, 1:]
    state.means[at, -1] = mean
    state.means_ms[at, -1] = state.block_ms[at]
    state.blocks[at] += 1
    settled = state.settled[at]
    if anywhere(~settled):
        _settle(baseline, state, at[~settled], mean[~settled], times_ms)
    if anywhere(settled):
        _judge(baseline, state, at[settled], times_ms, mean=mean[settled], found=found)


def _settle(
    baseline: Level, state: LevelState, at: IntArray, mean: FloatArray, times_ms: IntArray
) -> None:
    """Follow the block means both ways until they agree for long enough."""
    state.level[at] += 0.5 * (mean - state.level[at])
    age_ms = times_ms[at] - state.settle_ms[at]
    span_ms = np.maximum(2 * baseline.block_span, baseline.settle_share * age_ms)
    within = (state.means_ms[at] > 0) & (state.means_ms[at] >= state.settle_ms[at, None])
    means = np.where(within, state.means[at], np.nan)
    # The blocks that reach back just over the span.
    started = times_ms[at, None] - np.where(within, state.means_ms[at], times_ms[at, None])
    needed = np.argmax(np.where(started >= span_ms[:, None], np.arange(MEANS), -1), axis=1)
    enough = (started >= span_ms[:, None]).any(axis=1) & (within.sum(axis=1) >= 2)
    needed = np.minimum(needed, MEANS - 2)
    inside = within & (np.arange(MEANS) >= needed[:, None])
    lowest = np.where(inside, means, np.inf).min(axis=1)
    highest = np.where(inside, means, -np.inf).max(axis=1)
    noise = 4 * state.scale[at] / np.sqrt(block_size(baseline, state, at))
    steady = highest - lowest <= np.maximum(_AGREEMENT * state.level[at], noise)
    done = (enough & steady) | (age_ms >= baseline.settle_cap)
    if not done.any():
        return
    some = at[done]
    total = np.where(inside, means, 0.0).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
    state.level[some] = np.where(enough & steady, total, state.level[at])[done]
    _settled(baseline, state, some)


def _judge(
    baseline: Level,
    state: LevelState,
    at: IntArray,
    times_ms: IntArray,
    *,
    mean: FloatArray,
    found: Found,
) -> None:
    scale = np.maximum(noise.long_run(state, at), _LEAST_BLOCK_SCALE * state.level[at])
    warm = _warming(baseline, state, at, times_ms, scale=scale)
    if warm.any():
        at, mean, scale = at[~warm], mean[~warm], scale[~warm]
    if state.heir_ms[at].any():
        lineage.adopt(baseline, state, at, times_ms)
    drift.weigh(baseline, state, at, mean=mean, scale=scale)
    former = state.rise_count[at]
    rising = mean > state.level[at] + np.maximum(_RISE * state.level[at], 3 * scale)
    state.rise_ms[at] = np.where(
        state.rise_count[at] == 0, state.block_ms[at], state.rise_ms[at]
    )
    state.rise_count[at] = np.where(rising, state.rise_count[at] + 1, 0)
    _note_rise(state, at[rising], times_ms, mean=mean[rising])
    # Two blocks back where it was: what may follow is no fall from the rise.
    over = ~rising & (former == 0) & (state.evidence[at].max(axis=1) <= 0)
    state.risen_ms[at[over]] = 0
    calm = ~rising & drift.calm(baseline, state)[at]
    _follow(baseline, state, at[calm], times_ms, mean=mean[calm], scale=scale[calm])
    drift.raise_lasting(baseline, state, at, times_ms, scale=scale, found=found)
    _take_rise(baseline, state, at[rising], times_ms, found)


def _warming(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, *, scale: FloatArray
) -> BoolArray:
    """Return where a restart's warm-up still closes the gap to the level; ends the others."""
    warm = state.warm_ms[at] > times_ms[at]
    if not warm.any():
        return warm
    begun_ms = state.warm_ms[at] - int(baseline.tail)
    older, newer = (state.means[at, -6:-3].mean(axis=1), state.means[at, -3:].mean(axis=1))
    seen = state.means_ms[at, -6] >= begun_ms
    stalled = seen & (newer - older < _CLOSING * (state.level[at] - older))
    # One block may hold a glitch.
    back = state.means[at, -2:].min(axis=1) >= state.level[at] - scale
    ended = warm & (stalled | back)
    for end_ms in (state.warm_ms, state.quiet_ms):
        end_ms[at] = np.where(ended, 0, end_ms[at])
    return np.asarray(warm & ~ended)


def _follow(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, *, mean: FloatArray,
    scale: FloatArray,
) -> None:  # fmt: skip
    """Move the level a little towards a healthy block."""
    noise.learn_noise(state, at, mean=mean)
    span_ms = times_ms[at] - state.block_ms[at]
    gain = np.maximum(2 / (state.blocks[at] + 2), np.minimum(span_ms / baseline.memory, 0.2))
    off = np.clip(mean - state.level[at], -2 * scale, 2 * scale)
    state.level[at] += gain * off


def _note_rise(
    state: LevelState, at: IntArray, times_ms: IntArray, *, mean: FloatArray
) -> None:
    """Keep where the job stands; the first block of a rise is a mixture, or holds a glitch."""
    sure = state.rise_count[at] >= _SURE
    at, mean = at[sure], mean[sure]
    gain = 1 / np.minimum(state.rise_count[at] - _SURE + 1, MEANS)
    before = np.where(gain < 1, state.risen_level[at], mean)
    state.risen_level[at] = before + gain * (mean - before)
    state.risen_ms[at] = times_ms[at]


def _take_rise(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, found: Found
) -> None:
    """Let the baseline follow a rise that was held for long enough."""
    if not len(at):
        return
    age_ms = state.rise_ms[at] - state.first_ms[at] + state.credit_ms[at]
    hold = np.clip(baseline.rise_share * age_ms, baseline.rise_floor, baseline.rise_cap)
    held = (state.rise_count[at] >= _LEAST_BLOCKS) & (times_ms[at] - state.rise_ms[at] >= hold)
    for k in at[held]:
        before = float(state.level[k])
        size = int(block_size(baseline, state, np.array([k]))[0])
        most = min(RING, max(2 * baseline.block_samples, int(state.rise_count[k]) * size))
        level, _ = usual(recent(state, np.array([k]), most))
        # After a restart it may not be there yet. Blocks are bounded, so samples say it.
        latest = np.median(recent(state, np.array([k]), size))
        if latest < (1 - baseline.deep) * level[0]:
            continue
        # What makes the work quicker makes its noise greater in the same measure.
        noise.rescale(state, int(k), float(level[0]) / before)
        state.level[k] = level[0]
        state.blocks[k] = min(int(state.blocks[k]), _RENEWED)
        state.rise_count[k] = state.risen_ms[k] = state.heir_ms[k] = 0
        state.evidence[k] = 0
        if np.isnan(state.held_level[k]):
            found.shifts.append(
                Shift(
                    column=int(found.columns[k]),
                    onset_ms=int(state.rise_ms[k]),
                    time_ms=int(times_ms[k]),
                    before=before,
                    after=float(level[0]),
                )
            )
