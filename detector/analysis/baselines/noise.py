"""How much block means scatter about the level, neighbours' likeness paid for.

Deviations are tracked as medians: a step up where one exceeds the present estimate, a step down
where it does not. No single block, and no minority of them, moves the estimate far: warm-ups,
shallow evaluations and the first minutes of a fall do not pass for noise.
"""

import numpy as np

from detector.analysis.baselines.level import Level, LevelState
from detector.series import FloatArray, IntArray

# Median absolute deviation of a standard normal.
_MEDIAN = 0.6745
# Blocks of the wider mean: the reference estimates its long-run variance from 5 minutes.
_WIDE = 5
# Steps shrink as 1.2 / n, the best for a median of normal deviations, down to those that
# remember an hour of one-minute blocks.
_STEP, _LEAST_STEP = 1.2, 1 / 60
# A block counts in its wider mean with at most so many deviations.
_MOST = 4.0


def guess(baseline: Level, state: LevelState, at: IntArray) -> None:
    """Start from the samples' noise, before there are blocks to learn from."""
    # Twice: neighbouring samples are alike, so their means vary more than independent ones'.
    state.block_dev[at] = state.scale[at] * np.sqrt(2 / baseline.block_samples)
    state.wide_dev[at] = state.block_dev[at] / np.sqrt(_WIDE)
    state.wide_sum[at] = state.wide_count[at] = 0
    state.blocks[at] = 2


def long_run(state: LevelState, at: IntArray) -> FloatArray:
    """Return the standard deviation of a block mean, its likeness to its neighbours included.

    Of independent blocks the wider mean deviates less by the root of its width. What it
    deviates more is the long-run variance of a CUSUM: ignoring it raises 36 to 87 times as
    many false alarms (AR(1) of 0.5 to 0.8 between samples).
    """
    deviation = np.maximum(state.block_dev[at], np.sqrt(_WIDE) * state.wide_dev[at])
    # Few blocks show too small a deviation half of the time: widened, as Student's t is.
    return np.asarray(deviation * (1 + 2 / state.blocks[at]))


def learn_noise(state: LevelState, at: IntArray, *, off: FloatArray) -> None:
    """Take healthy blocks' deviations from the level."""
    blocks = state.blocks[at]
    step = np.maximum(_STEP / blocks, _LEAST_STEP)
    deviation = _tracked(state.block_dev[at], off, step)
    most = _MOST * np.maximum(deviation, np.sqrt(_WIDE) * state.wide_dev[at])
    total = state.wide_sum[at] + np.clip(off, -most, most)
    count = state.wide_count[at] + 1
    full = count >= _WIDE
    wide = _tracked(state.wide_dev[at], total / _WIDE, np.maximum(_STEP / (2 + blocks / _WIDE), 2 * _LEAST_STEP))
    state.block_dev[at] = deviation
    state.wide_dev[at] = np.where(full, wide, state.wide_dev[at])
    state.wide_sum[at] = np.where(full, 0.0, total)
    state.wide_count[at] = np.where(full, 0, count)


def _tracked(deviation: FloatArray, off: FloatArray, step: FloatArray) -> FloatArray:
    side = np.where(abs(off) > _MEDIAN * deviation, 1.0, -1.0)
    return np.asarray(deviation * np.exp(step * side))
