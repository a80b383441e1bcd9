"""Block means: how the level is first found, follows, settles, drifts down and rises."""

import numpy as np

from detector.analysis.baselines.excursion import edge, habit_ms, learn, unknown_ms
from detector.analysis.baselines.level import (
    DRIFT,
    MEANS,
    RING,
    BoolArray,
    Level,
    LevelState,
    recent,
)
from detector.analysis.baselines.rows import Found
from detector.analysis.change import Candidate, Shift
from detector.analysis.cusum import fall_evidence
from detector.series import FloatArray, IntArray

# Noise below this share of the level is not believed: quantised or very quiet series would
# otherwise alarm on what nobody would call a change.
_LEAST_SCALE = 0.002
# The same for block means. A third of the least drift of 5 % would be 0.017.
_LEAST_BLOCK_SCALE = 0.005
# Blocks agree, and the level has settled, within this share of the level.
_AGREEMENT = 0.02
# Blocks that a drift or a rise needs at least.
_LEAST_BLOCKS = 3


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


def usual(samples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return level and scale of rows of samples, of which fewer than a third are dips.

    The 70th percentile stands on healthy samples; the level is the median of all that lie
    above 88 % of it, the scale their median absolute deviation.
    """
    high = np.nanpercentile(samples, 70, axis=1)
    healthy = np.where(samples >= 0.88 * high[:, None], samples, np.nan)
    level = np.nanmedian(healthy, axis=1)
    scale = 1.4826 * np.nanmedian(abs(healthy - level[:, None]), axis=1)
    return level, np.maximum(scale, _LEAST_SCALE * level)


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
    width = edge(baseline, state)
    # Upwards a block must be able to rise, but a glitch of one sample must not lift it.
    value = np.clip(values, state.level - width, 2 * state.level)
    off = np.minimum(abs(value - state.level), 4 * state.scale)
    # 1.2533: mean absolute deviation to standard deviation of a normal sample.
    moved = state.scale + 0.02 * (1.2533 * off - state.scale)
    moved = np.maximum(moved, _LEAST_SCALE * state.level)
    state.scale = np.where(healthy & state.settled & (state.evidence <= 0), moved, state.scale)
    opening = healthy & (state.block_count == 0)
    state.block_ms = np.where(opening, state.seen_ms, state.block_ms)
    state.block_sum = np.where(opening, 0.0, state.block_sum) + np.where(healthy, value, 0.0)
    state.block_count = state.block_count + healthy
    full = healthy & (state.block_count >= baseline.block_samples)
    full &= times_ms - state.block_ms >= baseline.block_span
    if full.any():
        _close(baseline, state, np.flatnonzero(full), times_ms, found)


def _close(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, found: Found
) -> None:
    mean = state.block_sum[at] / state.block_count[at]
    state.block_count[at] = 0
    state.means[at] = np.roll(state.means[at], -1, axis=1)
    state.means_ms[at] = np.roll(state.means_ms[at], -1, axis=1)
    state.means[at, -1] = mean
    state.means_ms[at, -1] = state.block_ms[at]
    state.blocks[at] += 1
    settled = state.settled[at]
    if not settled.all():
        _settle(baseline, state, at[~settled], mean[~settled], times_ms)
    if settled.any():
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
    noise = 4 * state.scale[at] / np.sqrt(baseline.block_samples)
    steady = highest - lowest <= np.maximum(_AGREEMENT * state.level[at], noise)
    done = (enough & steady) | (age_ms >= baseline.settle_cap)
    if not done.any():
        return
    some = at[done]
    state.settled[some] = True
    total = np.where(inside, means, 0.0).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
    state.level[some] = np.where(enough & steady, total, state.level[at])[done]
    state.block_var[some] = state.scale[some] ** 2 / baseline.block_samples * 2
    state.blocks[some] = 2
    state.evidence[some] = 0
    state.rise_count[some] = 0


def _judge(
    baseline: Level,
    state: LevelState,
    at: IntArray,
    times_ms: IntArray,
    *,
    mean: FloatArray,
    found: Found,
) -> None:
    level = state.level[at]
    # A variance from few blocks is too small half of the time: widened, as Student's t is.
    scale = np.sqrt(state.block_var[at]) * (1 + 2 / state.blocks[at])
    scale = np.maximum(scale, _LEAST_BLOCK_SCALE * level)
    before = state.evidence[at]
    evidence = fall_evidence(
        level - mean, before, shift=baseline.min_effect * level, scale=scale,
        cap=baseline.evidence / _LEAST_BLOCKS,
    )  # fmt: skip
    evidence = np.minimum(evidence, 1.5 * baseline.evidence)
    starting = (before <= 0) & (evidence > 0)
    ending = (before > 0) & (evidence <= 0) & (state.evidence_peak[at] >= baseline.evidence)
    if ending.any():
        _learn_drift(baseline, state, at[ending], times_ms)
    state.drift_ms[at] = np.where(starting, state.block_ms[at], state.drift_ms[at])
    fresh = starting | (evidence <= 0)
    state.drift_sum[at] = np.where(fresh, 0.0, state.drift_sum[at]) + np.where(
        evidence > 0, mean, 0
    )
    state.drift_count[at] = np.where(fresh, 0, state.drift_count[at]) + (evidence > 0)
    state.evidence_peak[at] = np.where(
        fresh, evidence, np.maximum(state.evidence_peak[at], evidence)
    )
    state.evidence[at] = evidence
    rising = mean > level + np.maximum(0.6 * baseline.min_effect * level, 3 * scale)
    state.rise_ms[at] = np.where(
        state.rise_count[at] == 0, state.block_ms[at], state.rise_ms[at]
    )
    state.rise_count[at] = np.where(rising, state.rise_count[at] + 1, 0)
    calm = ~rising & (evidence < baseline.evidence / 3)
    _follow(baseline, state, at[calm], times_ms, mean=mean[calm], scale=scale[calm])
    _raise_drift(baseline, state, at, times_ms, mean=mean, scale=scale, found=found)
    _take_rise(baseline, state, at[rising], times_ms, found)


def _follow(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, *, mean: FloatArray,
    scale: FloatArray,
) -> None:  # fmt: skip
    """Move level and block variance a little towards a healthy block."""
    span_ms = times_ms[at] - state.block_ms[at]
    gain = np.maximum(1 / (state.blocks[at] + 1), np.minimum(span_ms / baseline.memory, 0.2))
    off = np.clip(mean - state.level[at], -2 * scale, 2 * scale)
    state.block_var[at] += np.maximum(gain, 0.02) * (off**2 * 1.15 - state.block_var[at])
    state.level[at] += gain * off


def _learn_drift(baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray) -> None:
    relative = state.drift_sum[at] / np.maximum(state.drift_count[at], 1) / state.level[at]
    lasted_ms = state.block_ms[at] - state.drift_ms[at]
    learn(baseline, state, at, relative=relative, lasted_ms=lasted_ms, times_ms=times_ms[at])


def _raise_drift(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, *, mean: FloatArray,
    scale: FloatArray, found: Found,
) -> None:  # fmt: skip
    ripe = (state.evidence[at] >= baseline.evidence) & (state.drift_count[at] >= _LEAST_BLOCKS)
    ripe &= state.raised[at] == 0
    if not ripe.any():
        return
    at, mean, scale = at[ripe], mean[ripe], scale[ripe]
    level = state.level[at]
    after = state.drift_sum[at] / state.drift_count[at]
    latest = np.nanmean(state.means[at, -_LEAST_BLOCKS:], axis=1)
    relative = latest / level
    wait = unknown_ms(baseline, state, at, onset_ms=state.drift_ms[at], relative=relative)
    wait = np.maximum(wait, habit_ms(baseline, state, at, relative=relative))
    believed = times_ms[at] - state.drift_ms[at] >= wait
    believed &= latest <= level * (1 - baseline.min_effect)
    # On its way back up: a warm-up's tail, or the end of a phase.
    believed &= mean <= after + np.maximum(scale, _RISING * (level - after))
    believed &= (times_ms[at] >= state.quiet_ms[at]) | (latest < state.quiet_level[at])
    for k, now in zip(at[believed], latest[believed], strict=True):
        state.raised[k] = DRIFT
        state.raised_ms[k] = state.drift_ms[k]
        state.raised_level[k] = now
        found.candidates.append(
            Candidate(
                column=int(found.columns[k]),
                cause="drift",
                direction="down",
                onset_ms=int(state.drift_ms[k]),
                time_ms=int(times_ms[k]),
                before=float(state.level[k]),
                after=float(now),
                scale=float(state.scale[k]),
            )
        )


# A drift is on its way back when the latest block lies above its mean by this share of it.
_RISING = 0.3


def _take_rise(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, found: Found
) -> None:
    """Let the baseline follow a rise that was held for long enough."""
    age_ms = state.rise_ms[at] - state.first_ms[at]
    hold = np.clip(baseline.rise_share * age_ms, baseline.rise_floor, baseline.rise_cap)
    held = (state.rise_count[at] >= _LEAST_BLOCKS) & (times_ms[at] - state.rise_ms[at] >= hold)
    for k in at[held]:
        before = float(state.level[k])
        most = min(
            RING,
            max(2 * baseline.block_samples, int(state.rise_count[k]) * baseline.block_samples),
        )
        level, scale = usual(recent(state, np.array([k]), most))
        state.level[k], state.scale[k] = level[0], scale[0]
        state.block_var[k] = max(state.block_var[k], scale[0] ** 2 / baseline.block_samples * 2)
        state.blocks[k] = 2
        state.rise_count[k] = 0
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
