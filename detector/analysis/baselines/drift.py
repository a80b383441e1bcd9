"""Small lasting falls: a bank of cumulative sums over block means."""

import numpy as np

from detector.analysis.baselines.excursion import (
    habit_ms,
    learn,
    risen_level,
    unknown_ms,
)
from detector.analysis.baselines.level import (
    DRIFT,
    BoolArray,
    Level,
    LevelState,
    block_size,
    raise_candidate,
)
from detector.analysis.baselines.rows import Found
from detector.analysis.cusum import fall_evidence
from detector.series import Duration, FloatArray, IntArray

# The falls that the sums look for, in least effects: 3, 6 and 12 %. A sum serves falls of half
# to twice its own size within an eighth of the optimum, and greater ones wait for habits.
_SOUGHT = np.array([1.5, 3.0, 6.0])
# In steps of this share of a block's noise at least: a fall of 0.6 of it takes an hour of
# one-minute blocks, and less than that is less than how well the level itself is known.
_LEAST_SHIFT = 0.4
# Blocks that a fall needs at least: no single one decides. More in jobs old enough to have
# shown longer phases: of one of 4 min five blocks of a minute are not all low.
_LEAST_BLOCKS, _MOST_BLOCKS = 3, 5
# ... and as long as those five, however short the blocks: checkpoints of 3 min know no cadence.
_HOLD = Duration(300_000)
# A sum is bounded, so that it also forgets soon when the fall is over.
_BOUND = 1.5
# The level follows until the evidence is this share of what an alarm takes.
_CALM = 1 / 3
# A fall that ended by itself was a phase if there was this share of an alarm's evidence for it.
_PHASE = 0.5
# A drift is on its way back when its latest blocks lie above its mean by this share of it.
_RISING, _RECENT = 0.3, 2


def calm(baseline: Level, state: LevelState) -> BoolArray:
    """Return where nothing speaks for a fall."""
    return np.asarray(state.evidence.max(axis=1) < _CALM * baseline.evidence)


def weigh(
    baseline: Level, state: LevelState, at: IntArray, *, mean: FloatArray, scale: FloatArray
) -> None:
    """Take a closed block of each column into its sums."""
    level, before = state.level[at, None], state.evidence[at]
    evidence = fall_evidence(
        level - mean[:, None],
        before,
        shift=np.maximum(baseline.min_effect * level, _LEAST_SHIFT * scale[:, None]) * _SOUGHT,
        scale=scale[:, None],
        cap=baseline.evidence / _needed(baseline, state, at)[:, None],
    )
    evidence = np.minimum(evidence, _BOUND * baseline.evidence)
    ended = (
        (before > 0) & (evidence <= 0) & (state.evidence_peak[at] >= _PHASE * baseline.evidence)
    )
    if ended.any():
        _learn(baseline, state, at, ended)
    # Each sum keeps what it saw since it left zero: there the fall began, if it is one.
    fresh, on = before <= 0, evidence > 0
    peak = np.where(fresh, 0.0, state.evidence_peak[at])
    rising = on & (evidence >= peak)
    began = np.where(fresh, state.block_ms[at, None], state.evidence_ms[at])
    state.evidence[at], state.evidence_ms[at] = evidence, began
    state.evidence_peak[at] = np.maximum(peak, evidence)
    state.peak_ms[at] = np.where(rising, state.seen_ms[at, None], state.peak_ms[at])
    state.fall_sum[at] = np.where(fresh, 0.0, state.fall_sum[at]) + on * mean[:, None]
    state.fall_count[at] = np.where(fresh, 0, state.fall_count[at]) + on


def _block_ms(baseline: Level, state: LevelState, at: IntArray) -> FloatArray:
    """Return how long a block is that nothing interrupts."""
    size = block_size(baseline, state, at)
    return np.maximum(size * state.step_ms[at], float(baseline.block_span))


def _needed(baseline: Level, state: LevelState, at: IntArray) -> FloatArray:
    """Return how many blocks a fall needs to be news."""
    age_ms = state.block_ms[at] - state.first_ms[at] + state.credit_ms[at]
    # Late scrapes make a block longer by less than a tenth, and no fall shorter by a block.
    block_ms = _block_ms(baseline, state, at) / 1.1
    share = baseline.share * age_ms / block_ms
    most = np.maximum(float(_HOLD) / block_ms, _MOST_BLOCKS)
    return np.asarray(np.floor(np.clip(share, _LEAST_BLOCKS, most)))


def _learn(baseline: Level, state: LevelState, at: IntArray, ended: BoolArray) -> None:
    """Remember falls that are over as habits: they lasted until their sum was greatest."""
    for k in np.flatnonzero(ended.any(axis=0)):
        some = at[ended[:, k]]
        fallen = state.fall_sum[some, k] / np.maximum(state.fall_count[some, k], 1)
        lasted_ms = state.peak_ms[some, k] - state.evidence_ms[some, k]
        relative = fallen / np.fmax(state.level[some], risen_level(baseline, state, some))
        deep = relative <= 1 - baseline.young_effect
        learn(baseline, state, some[deep], relative=relative[deep], lasted_ms=lasted_ms[deep])


def raise_lasting(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, *, scale: FloatArray,
    found: Found,
) -> None:  # fmt: skip
    """Raise a candidate where the evidence suffices and no habit explains the fall."""
    ripe = (state.evidence[at].max(axis=1) >= baseline.evidence) & (state.raised[at] == 0)
    if not ripe.any():
        return
    at, scale = at[ripe], scale[ripe]
    # Of equal ones the sum for the greatest fall: it left zero last.
    which = _SOUGHT.size - 1 - state.evidence[at, ::-1].argmax(axis=1)
    level, since_ms = state.level[at], state.evidence_ms[at, which]
    count = state.fall_count[at, which]
    after = state.fall_sum[at, which] / np.maximum(count, 1)
    wait = unknown_ms(baseline, state, at, onset_ms=since_ms, relative=after / level)
    wait = np.maximum(wait, habit_ms(baseline, state, at, relative=after / level, of=level))
    young = since_ms - state.first_ms[at] < baseline.young
    effect = np.where(young, baseline.young_effect, baseline.min_effect)
    believed = count >= _needed(baseline, state, at)
    # Other phases in the middle of it are none of its time.
    believed &= count * _block_ms(baseline, state, at) >= wait
    believed &= after <= level * (1 - effect)
    # On its way back up: a warm-up's tail, or the end of a phase.
    recent = state.means[at, -_RECENT:].mean(axis=1)
    believed &= recent <= after + np.maximum(scale / _RECENT, _RISING * (level - after))
    believed &= (times_ms[at] >= state.quiet_ms[at]) | (after < state.quiet_level[at])
    chosen = zip(at[believed], after[believed], since_ms[believed], strict=True)
    for k, now, onset_ms in chosen:
        raise_candidate(
            state, k, found, raised=DRIFT, onset_ms=onset_ms, time_ms=times_ms[k], after=now
        )
