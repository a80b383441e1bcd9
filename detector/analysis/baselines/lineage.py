"""What a run leaves to the next one: its habits, its age, its level and its noise.

A run that continues another begins where that one stood, as after a restart in mid-job: it
may warm up first, what it does at length is known, and a level that it does not come back to
is news. It stands on the earlier level until it has shown that its own agrees with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from detector.analysis.baselines import noise
from detector.analysis.baselines.level import Level, LevelState, blank
from detector.series import IntArray

# An inherited level counts as known from so many blocks at most: the run's own is followed
# soon.
_KNOWN = 10
# Blocks of a minute over which a run's own level is compared with the earlier one.
_COMPARED = 3


class Taught(msgspec.Struct, frozen=True, kw_only=True):
    """What one series of a run has taught: small, and kept when the run is long over.

    Attributes
    ----------
    level, scale, block_dev, wide_dev
        As in :class:`LevelState`; NaN is not known. After a fall that was confirmed: those
        from before it.
    habits
        Known dips: level relative to the baseline, longest duration, ms.
    age_ms
        For how long the job was watched, its earlier runs included.
    step_ms
        Usual distance of two samples, ms.
    until_ms, ended_ms
        Up to when the run's history shows the level, and its latest sample.
    own
        Whether the run stood on a level of its own; else it was still an earlier one's.
    """

    level: float
    scale: float
    block_dev: float
    wide_dev: float
    blocks: int
    habits: tuple[tuple[float, int], ...]
    age_ms: int
    step_ms: float
    run_longest: int
    until_ms: int
    ended_ms: int
    own: bool


def taught(state: LevelState, column: int) -> Taught | None:
    """Return what a column has taught; None when it never had a settled level."""
    held = bool(np.isfinite(state.held_level[column]))
    if not held and not (state.settled[column] and state.level[column] > 0):
        return None
    scale = float((state.held_scale if held else state.scale)[column])
    ended_ms = until_ms = int(state.seen_ms[column])
    if held:
        until_ms = int(state.change_ms[column])
    elif state.dip_ms[column] > 0:
        until_ms = int(state.dip_ms[column])
    known = np.flatnonzero(np.isfinite(state.habit_level[column]))
    return Taught(
        level=float((state.held_level if held else state.level)[column]),
        scale=scale,
        # After a fall that was confirmed the blocks' noise is that of another level.
        block_dev=np.nan if held else float(state.block_dev[column]),
        wide_dev=np.nan if held else float(state.wide_dev[column]),
        blocks=int(state.blocks[column]),
        habits=tuple(
            (float(state.habit_level[column, k]), int(state.habit_ms[column, k])) for k in known
        ),
        age_ms=ended_ms - int(state.first_ms[column]) + int(state.credit_ms[column]),
        step_ms=float(state.step_ms[column]),
        run_longest=int(state.run_longest[column]),
        until_ms=until_ms,
        ended_ms=ended_ms,
        own=int(state.heir_ms[column]) == 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heir:
    """How one series of a new run begins.

    Attributes
    ----------
    level
        Whether the earlier level is what is expected of this run; else only habits and age
        are taken over.
    began_ms
        When the run began.
    """

    before: Taught
    level: bool
    began_ms: int


def begun(heirs: Sequence[Heir]) -> LevelState:
    """Return the columns with which runs begin that were taught by earlier ones."""
    state = blank(len(heirs))
    for column, heir in enumerate(heirs):
        before = heir.before
        state.credit_ms[column] = before.age_ms
        state.run_longest[column] = before.run_longest
        for k, (relative, lasted_ms) in enumerate(before.habits):
            state.habit_level[column, k], state.habit_ms[column, k] = relative, lasted_ms
        if not heir.level:
            continue
        state.level[column] = state.ring[column] = before.level
        state.scale[column] = before.scale
        state.block_dev[column], state.wide_dev[column] = before.block_dev, before.wide_dev
        state.blocks[column] = min(before.blocks, _KNOWN)
        state.settled[column] = True
        state.heir_ms[column] = heir.began_ms
    return state


def begin(baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray) -> None:
    """Let runs begin on an earlier level, with their first sample: as after a silence."""
    now_ms = times_ms[at]
    noise.guess(baseline, state, at[np.isnan(state.block_dev[at])])
    state.heir_ms[at] = now_ms
    # Longer than any distance of two samples: what dips now may be a warm-up.
    state.seen_ms[at] = now_ms - int(baseline.floor) - 1
    state.warm_ms[at] = state.quiet_ms[at] = now_ms + int(baseline.tail)
    state.quiet_level[at] = (1 - baseline.deep) * state.level[at]


def adopt(baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray) -> None:
    """Let runs stand on their own level from now on where it agrees with the earlier one.

    Within half of the smallest fall that matters in a young job it agrees at once; within all
    of it once a warm-up would be over, since a level between the two is no news and the
    run's own is what later falls are measured from.
    """
    at = at[state.heir_ms[at] > 0]
    late = times_ms[at] - state.heir_ms[at] >= baseline.settle_cap
    mean = state.means[at, -_COMPARED:].mean(axis=1)
    allowed = np.where(late, baseline.young_effect, baseline.young_effect / 2)
    # NaN, where a run has fewer blocks of its own, agrees with nothing.
    agrees = abs(mean / state.level[at] - 1) <= allowed
    own = at[agrees]
    state.level[own] = mean[agrees]
    state.heir_ms[own] = 0
    state.evidence[own] = 0
