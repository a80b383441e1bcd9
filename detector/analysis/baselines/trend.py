"""Block means: how the level is first found, follows, settles, drifts down and rises."""

import numpy as np

from detector.analysis.baselines.excursion import edge, habit_ms, learn, unknown_ms
from detector.analysis.baselines.level import (
    DRIFT,
    LEAST_SCALE,
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

# Noise of block means below this share of the level is not believed. A third of the least
# drift of 5 % would be 0.017.
_LEAST_BLOCK_SCALE = 0.005
# Blocks agree, and the level has settled, within this share of the level.
_AGREEMENT = 0.02
# A second sum looks for falls this many times the least effect: where the noise is as large as
# the fall, the sum for the least one takes three times as long.
_SHARP = 4
# A drift is on its way back when the latest block lies above its mean by this share of it.
_RISING = 0.3
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
    # Twice: neighbouring samples are alike, so their means vary more than independent ones'.
    state.block_var[at] = 2 * state.scale[at] ** 2 / baseline.block_samples
    state.block_cov[at] = 0
    state.blocks[at] = 2
    state.evidence[at] = state.sharp[at] = 0
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
    width = edge(baseline, state)
    # Upwards a block must be able to rise, but a glitch of one sample must not lift it.
    value = np.clip(values, state.level - width, 2 * state.level)
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
    level = state.level[at]
    scale = np.maximum(_long_run_scale(state, at), _LEAST_BLOCK_SCALE * level)
    before = state.evidence[at]
    evidence = _accumulated(baseline, level, mean, before, scale=scale, times=1)
    sharp = _accumulated(baseline, level, mean, state.sharp[at], scale=scale, times=_SHARP)
    leaving = (state.sharp[at] <= 0) & (sharp > 0)
    state.sharp_ms[at] = np.where(leaving, state.block_ms[at], state.sharp_ms[at])
    state.sharp[at] = sharp
    starting = (before <= 0) & (evidence > 0)
    ending = (before > 0) & (evidence <= 0) & (state.evidence_peak[at] >= baseline.evidence)
    if ending.any():
        _learn_drift(baseline, state, at[ending])
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
    calm = ~rising & (np.maximum(evidence, sharp) < baseline.evidence / 3)
    _follow(baseline, state, at[calm], times_ms, mean=mean[calm], scale=scale[calm])
    _raise_drift(baseline, state, at, times_ms, mean=mean, scale=scale, found=found)
    _take_rise(baseline, state, at[rising], times_ms, found)


def _accumulated(
    baseline: Level, level: FloatArray, mean: FloatArray, evidence: FloatArray, *,
    scale: FloatArray, times: int,
) -> FloatArray:  # fmt: skip
    """Return the evidence for a fall by ``times`` the least effect, this block included."""
    evidence = fall_evidence(
        level - mean,
        evidence,
        shift=times * baseline.min_effect * level,
        scale=scale,
        cap=baseline.evidence / _LEAST_BLOCKS,
    )
    # Bounded, so that it also forgets soon when the fall is over.
    return np.minimum(evidence, 1.5 * baseline.evidence)


def _long_run_scale(state: LevelState, at: IntArray) -> FloatArray:
    """Return the standard deviation of a block mean with that of its neighbours added.

    For AR(1) noise the long-run variance is (1 + r) / (1 - r) times the variance; a CUSUM that
    ignores it raises 36 to 87 times as many false alarms (r = 0.5 to 0.8 of samples).
    """
    r = state.block_cov[at] / np.maximum(state.block_var[at], 1e-300)
    # A correlation from few blocks is mostly chance: shrunk towards none.
    r = np.clip(r * state.blocks[at] / (state.blocks[at] + 8), 0.0, 0.5)
    # A variance from few blocks is too small half of the time: widened, as Student's t is.
    wider = (1 + 2 / state.blocks[at]) * np.sqrt((1 + r) / (1 - r))
    return np.asarray(np.sqrt(state.block_var[at]) * wider)


def _follow(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, *, mean: FloatArray,
    scale: FloatArray,
) -> None:  # fmt: skip
    """Move level and block variance a little towards a healthy block."""
    span_ms = times_ms[at] - state.block_ms[at]
    gain = np.maximum(1 / (state.blocks[at] + 1), np.minimum(span_ms / baseline.memory, 0.2))
    off = np.clip(mean - state.level[at], -2 * scale, 2 * scale)
    former = np.clip(state.means[at, -2] - state.level[at], -2 * scale, 2 * scale)
    former = np.where(np.isfinite(former), former, 0.0)
    slow = np.maximum(gain, 0.02)
    # 1.15: what clipping at two standard deviations takes from the variance of a normal.
    state.block_var[at] += slow * (1.15 * off**2 - state.block_var[at])
    state.block_cov[at] += slow * (1.15 * off * former - state.block_cov[at])
    state.level[at] += gain * off


def _learn_drift(baseline: Level, state: LevelState, at: IntArray) -> None:
    relative = state.drift_sum[at] / np.maximum(state.drift_count[at], 1) / state.level[at]
    lasted_ms = state.block_ms[at] - state.drift_ms[at]
    learn(baseline, state, at, relative=relative, lasted_ms=lasted_ms)


def _raise_drift(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, *, mean: FloatArray,
    scale: FloatArray, found: Found,
) -> None:  # fmt: skip
    small = state.evidence[at] >= baseline.evidence
    ripe = (small | (state.sharp[at] >= baseline.evidence)) & (state.raised[at] == 0)
    ripe &= state.drift_count[at] >= _LEAST_BLOCKS
    if not ripe.any():
        return
    at, mean, scale = at[ripe], mean[ripe], scale[ripe]
    level = state.level[at]
    since_ms = np.where(small[ripe], state.drift_ms[at], state.sharp_ms[at])
    after = state.drift_sum[at] / state.drift_count[at]
    latest = np.nanmean(state.means[at, -_LEAST_BLOCKS:], axis=1)
    relative = latest / level
    wait = unknown_ms(baseline, state, at, onset_ms=since_ms, relative=relative)
    wait = np.maximum(wait, habit_ms(baseline, state, at, relative=relative))
    believed = times_ms[at] - since_ms >= wait
    believed &= latest <= level * (1 - baseline.min_effect)
    # On its way back up: a warm-up's tail, or the end of a phase.
    believed &= mean <= after + np.maximum(scale, _RISING * (level - after))
    believed &= (times_ms[at] >= state.quiet_ms[at]) | (latest < state.quiet_level[at])
    chosen = zip(at[believed], latest[believed], since_ms[believed], strict=True)
    for k, now, onset_ms in chosen:
        state.raised[k] = DRIFT
        state.raised_ms[k] = onset_ms
        state.raised_level[k] = now
        found.candidates.append(
            Candidate(
                column=int(found.columns[k]),
                cause="drift",
                direction="down",
                onset_ms=int(onset_ms),
                time_ms=int(times_ms[k]),
                before=float(state.level[k]),
                after=float(now),
                scale=float(state.scale[k]),
                step_ms=int(state.step_ms[k]),
            )
        )


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
        state.evidence[k] = state.sharp[k] = 0
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
