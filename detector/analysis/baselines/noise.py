"""How much block means scatter, neighbours' likeness paid for.

What counts is by how much a block differs from the one before, not from the level: a level that
lags behind is no noise. These differences are tracked as medians, with a step up where one
exceeds the present estimate and a step down where it does not: no single block and no minority
of them moves the estimate far, and the first minutes of a fall do not pass for noise.
"""

import numpy as np

from detector.analysis.baselines.level import Level, LevelState, block_size
from detector.series import FloatArray, IntArray

# Median absolute deviation of a standard normal.
_MEDIAN = 0.6745
# Blocks of the wider mean: the reference estimates its long-run variance from 5 minutes.
_WIDE = 5
# Steps shrink as 1.2 / n, the best for a median of normal deviations, down to those that
# remember an hour of one-minute blocks.
_STEP, _LEAST_STEP = 1.2, 1 / 60


def guess(baseline: Level, state: LevelState, at: IntArray) -> None:
    """Start from the samples' noise, before there are blocks to learn from."""
    # Twice: neighbouring samples are alike, so their means vary more than independent ones'.
    state.block_dev[at] = state.scale[at] * np.sqrt(2 / block_size(baseline, state, at))
    state.wide_dev[at] = state.block_dev[at] / np.sqrt(_WIDE)
    state.wide_sum[at] = state.wide_count[at] = 0
    state.wide_mean[at] = np.nan
    state.blocks[at] = 2


def rescale(state: LevelState, column: int, by: float) -> None:
    """Go on at another level of the same job."""
    for name in ("scale", "block_dev", "wide_dev"):
        getattr(state, name)[column] *= by
    state.wide_sum[column] = state.wide_count[column] = 0
    state.wide_mean[column] = np.nan


def long_run(state: LevelState, at: IntArray) -> FloatArray:
    """Return the standard deviation of a block mean, its likeness to its neighbours included.

    Of independent blocks the wider mean deviates less by the root of its width. What it
    deviates more is the long-run variance of a CUSUM: ignoring it raises 36 to 87 times as
    many false alarms (AR(1) of 0.5 to 0.8 between samples).
    """
    deviation = np.maximum(state.block_dev[at], np.sqrt(_WIDE) * state.wide_dev[at])
    # Few blocks show too small a deviation half of the time: widened, as Student's t is.
    return np.asarray(deviation * (1 + 2 / state.blocks[at]))


def learn_noise(state: LevelState, at: IntArray, *, mean: FloatArray) -> None:
    """Take healthy blocks' means."""
    blocks = state.blocks[at]
    step = np.maximum(_STEP / blocks, _LEAST_STEP)
    state.block_dev[at] = _tracked(state.block_dev[at], mean - state.means[at, -2], step)
    total, count = state.wide_sum[at] + mean, state.wide_count[at] + 1
    full = count >= _WIDE
    # Of wider means there are fewer, hence the larger steps.
    step = np.maximum(_STEP / (2 + blocks / _WIDE), 2 * _LEAST_STEP)
    wide = _tracked(state.wide_dev[at], total / count - state.wide_mean[at], step)
    state.wide_dev[at] = np.where(full, wide, state.wide_dev[at])
    state.wide_mean[at] = np.where(full, total / count, state.wide_mean[at])
    state.wide_sum[at] = np.where(full, 0.0, total)
    state.wide_count[at] = np.where(full, 0, count)


def _tracked(deviation: FloatArray, difference: FloatArray, step: FloatArray) -> FloatArray:
    """Return the deviation after a difference of two that each deviate so; NaN says nothing."""
    side = np.sign(abs(difference) - np.sqrt(2) * _MEDIAN * deviation)
    return np.asarray(np.where(np.isfinite(side), deviation * np.exp(step * side), deviation))
