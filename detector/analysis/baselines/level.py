"""The level baseline: its settings, and what it remembers of a series.

A job is held to its own usual level, its noise and its habits. A fall is found in two ways. An
*excursion* is a deep fall that lasts longer than what this job is known to do. What it may do
that it has not shown yet depends on its age: at first how long a phase lasts is unknown by
orders of magnitude, and the only yardstick is the time it went without one; later the phases
that recur every hour have been met, and a fall of another kind is news within minutes. A
*drift* is a small lasting shift, accumulated over block means. What happens inside an excursion
teaches the level nothing; how it ended teaches a habit.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from detector.analysis.baselines.columns import Columns
from detector.analysis.baselines.rows import Found
from detector.analysis.change import Candidate, Cause
from detector.series import Duration, FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]

VERSION = 6
"""Grows with every change of the state's meaning; older packed states then start cold."""

# Samples kept per column: a robust level from a minute of 1 s samples.
RING = 64
# Block means kept while the level settles.
MEANS = 8
# Kinds of dips remembered per column: checkpoints, evaluations, restarts and some variants.
HABITS = 8
# Sizes of falls that are looked for side by side.
SHIFTS = 3
# Samples of the shortest block.
LEAST_BLOCK = 2

# Noise below this share of the level is not believed: quantised or very quiet series would
# otherwise alarm on what nobody would call a change.
LEAST_SCALE = 0.002

EXCURSION, DRIFT, FROZEN, EARLY = 1, 2, 3, 4
"""Codes of what a column raised and nobody has settled yet; 0 is nothing."""
_CAUSES: dict[int, Cause] = {
    EXCURSION: "excursion", DRIFT: "drift", FROZEN: "frozen", EARLY: "excursion",
}  # fmt: skip

_LIMITS: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("deep", "share", "settle_share", "still_share", "rise_share", "still", "habit_width",
      "min_effect", "young_effect"), lambda x: 0 < x < 1, "between 0 and 1"),
    (("habit_factor", "habit_margin"), lambda x: x >= 1, "at least 1"),
    (("deep_sigmas", "evidence"), lambda x: x > 0, "above 0"),
    (("frozen_samples",), lambda x: x >= 2, "at least 2"),
    (("first_samples", "min_samples", "block_samples"), lambda x: 1 <= x <= RING,
     f"between 1 and {RING}"),
)  # fmt: skip
"""Settings, what each of them must satisfy, and how that is said."""


class Level(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="level",
):
    """Settings of the level baseline. Every duration has a count of samples beside it.

    Attributes
    ----------
    first_samples, first_span
        How much is seen before there is a level at all. Chosen: the earliest real stall on
        record starts at the 12th sample, two minutes into the job.
    settle_share, settle_cap
        The level has settled once block means agree over this share of the job's age;
        until then it follows slow moves both ways (warm-up). Chosen: decays of 15 min end.
    deep
        Least relative depth of an excursion. Chosen: half of the smallest drop that must be
        found within minutes (25 %); isolated healthy dips are no reason to go lower.
    deep_sigmas
        Least depth in standard deviations of a sample, so that noise starts no excursion.
    min_samples
        Least samples of an excursion. Chosen: real healthy series read low up to 3 in a row.
    share, floor, young_cap, met, cap
        An excursion of an unknown kind must outlast ``share`` of the job's age before it,
        at least ``floor``, at most ``young_cap``; from the age ``met`` on at most ``young_cap
        (met / age)^3``, but at least ``cap``. Origin: evaluations recur about hourly and take
        2 to 10 min, so at two hours a job has had two; nearly all checkpoints take less than
        3 min.
    half_floor
        The floor below half of the level, where unannounced checkpoints lie.
    early
        A fall that has lasted so long may be news where a job announces its phases. Chosen:
        hiccups last up to a minute and come unannounced.
    still, still_share, still_cap
        Below ``still`` of the level nothing runs at all: a restart or a hang. A restart takes
        2 to 20 min, and a checkpoint may come right before it: hence the longer cap.
    climb
        After a standstill or a silence a fall must not have climbed for 0.45 of this, and as
        much more as the share of the level that is missing, and for ``first_samples``. Chosen:
        warm-ups come in stages of up to 6 min; of the slowest one seen, with a time constant
        of 5 min, the last tenth shows in less than 3 min.
    tail
        After a restart, for how long small falls are its warm-up; and for how long any fall is
        that of a run that continues another and has not shown its level yet. Chosen: the
        slowest warm-up seen has a time constant of 5 min, and 5 % are left of it after three
        of them.
    habit_width, habit_factor, habit_cap, habit_margin, patience
        A dip is of a known kind when its level is within ``habit_width`` of it (share of the
        baseline), and must outlast the longest of its kind ``habit_factor`` times, but not
        longer than the greater of ``habit_cap`` and ``habit_margin`` times that, and at most
        ``patience``. Origin: one checkpoint in 50 takes twice as long as usual, and usual ones
        vary by a tenth or two; evaluations vary by up to 15 %, of which half as much again
        covers three deviations. On the very level of the kind, where few falls land by chance,
        the factor holds however long it is. Chosen on the benchmark's held-out jobs, where one
        evaluation in 40 takes 1.5 to 2.5 times as long as usual; no real run was seen to.
    min_effect, young_effect, young
        Least relative size of a drift worth an alarm, and the same in jobs below the age
        ``young``. The sums look for 1.5, 3 and 6 times as much. Chosen: 3 % must be found in
        quiet jobs; healthy series wander by 3 % in their first hour, and the smallest fall that
        mattered to operators was 5 %.
    evidence
        Evidence of a drift in nats. ln of the mean number of healthy blocks between two false
        alarms (Lorden 1971), where the level is known; set on quiet jobs with all that
        disturbs them: 11.5 gave 0.04 false alarms a day, 10 gave 0.09.
    block_samples, block_span, block_cap
        Least size of a block; samples that are far apart fill the cap.
    memory
        How fast the level follows healthy blocks at most (time constant).
    rise_share, rise_floor, rise_cap
        A rise becomes the new level after it was held for this share of the job's age.
        Cap: bursts of 5 min are on record that ended, and ending is no regression.
    return_span
        How long the level must be back before a change is over.
    frozen_samples, frozen_span
        Least run of bit-identical values that says the exporter froze.
    """

    first_samples: int = 10
    first_span: Duration = Duration(60_000)
    settle_share: float = 0.3
    settle_cap: Duration = Duration(1_200_000)
    deep: float = 0.12
    deep_sigmas: float = 3.0
    min_samples: int = 4
    share: float = 0.2
    floor: Duration = Duration(60_000)
    cap: Duration = Duration(180_000)
    young_cap: Duration = Duration(570_000)
    met: Duration = Duration(7_200_000)
    climb: Duration = Duration(360_000)
    half_floor: Duration = Duration(150_000)
    early: Duration = Duration(75_000)
    still: float = 0.02
    still_share: float = 0.3
    still_cap: Duration = Duration(1_440_000)
    tail: Duration = Duration(900_000)
    habit_width: float = 0.06
    habit_factor: float = 2.4
    habit_cap: Duration = Duration(540_000)
    habit_margin: float = 1.5
    patience: Duration = Duration(1_500_000)
    min_effect: float = 0.02
    young_effect: float = 0.05
    young: Duration = Duration(3_600_000)
    evidence: float = 11.5
    block_samples: int = 6
    block_span: Duration = Duration(20_000)
    block_cap: Duration = Duration(60_000)
    memory: Duration = Duration(3_600_000)
    rise_share: float = 0.25
    rise_floor: Duration = Duration(60_000)
    rise_cap: Duration = Duration(900_000)
    return_span: Duration = Duration(30_000)
    frozen_samples: int = 30
    frozen_span: Duration = Duration(300_000)

    def __post_init__(self) -> None:
        """Refuse settings by which nothing could be judged."""
        for names, fits, what in _LIMITS:
            for name in names:
                if not fits(getattr(self, name)):
                    msg = f"{name} must be {what}, not {getattr(self, name):g}"
                    raise ValueError(msg)


@dataclass(slots=True, kw_only=True)
class LevelState(Columns):
    """What the level baseline remembers. All shapes ``(columns,)`` but where said.

    Times are in ms, values in the metric's unit. 0 as a time means "none", NaN as a level
    "not yet" or "none".

    Attributes
    ----------
    count, first_ms, seen_ms, step_ms
        Usable samples so far, time of the first and of the latest, usual distance of two.
    credit_ms, heir_ms
        Age of the earlier runs that this one continues; when it began, while it stands on the
        level of those.
    ring
        The latest samples, sample k at ``k % RING``. Shape ``(columns, RING)``.
    level, scale
        The baseline and the standard deviation of a healthy sample about it.
    settled, settle_ms
        Whether warm-up is over; since when the level has been settling.
    block_sum, block_count, block_ms, blocks
        The block that is filling, and how many were closed.
    block_dev, wide_dev, wide_mean, wide_sum, wide_count
        Standard deviation of a block mean and of a mean over several blocks; the latest of
        the wider means, and the one that is filling.
    means, means_ms
        The latest block means and their starts. Shape ``(columns, MEANS)``.
    evidence, evidence_ms, evidence_peak, peak_ms, fall_sum, fall_count
        The CUSUMs, each for a greater fall: nats, when it left zero, its peak since then, the
        end of the block that made it, sum and number of the block means since then.
        Shape ``(columns, SHIFTS)``.
    rise_ms, rise_count
        Since when, and for how many blocks, the level has been above the baseline.
    risen_level, risen_ms
        Where a rise that is not believed yet has brought the job, and when it was last there.
    dip_level
        What the levels of the excursion are relative to: the baseline, or where a rise that is
        not believed yet has brought the job.
    phase_ms
        Until when the excursion may be a known phase in which the job rose.
    dip_ms, dip_low, dip_count, dip_back, dip_back_ms, dip_still
        The excursion: start, low samples, all samples, samples back inside in a row, end of
        the last sample before those, whether it stood still or was silent.
    spent_ms, main_level, main_ms
        Of the excursion's former parts: level (relative to the baseline) and duration of the
        longest, and how much time of the others no habit explains.
    part_ms, part_level, part_dev, part_count
        The excursion's present part, between two moves of the level: its start, level, mean
        difference of two samples, samples.
    part_off, part_off_ms, part_off_sum
        Samples in a row that no longer belong to the part (negative: below it), the end of the
        last one that did, their sum.
    steady_ms, steady_level, steady_up, steady_up_ms
        Since when the level has not been climbing back, and what shows when it does.
    run_value, run_ms, run_count, run_longest, stuck_longest, frozen, thaw
        Run of identical values; ``frozen`` is 1 after a raised, 2 after a confirmed one, and
        ``stuck_longest`` the longest of those, samples.
    held_level, held_scale, change_ms, change_level, back_count, back_ms
        The baseline from before a confirmed change, the change's onset and level, samples in a
        row that are back.
    quiet_ms, quiet_level
        After a refusal: silent until then, unless the level falls below that.
    ask_ms, mute_ms
        Not before this is asked whether the excursion is news early; the same of any one.
    warm_ms
        After a restart: until then small falls are its warm-up.
    raised, raised_ms, raised_level
        What was raised and is not settled yet, its onset and level.
    habit_level, habit_spread, habit_ms
        Known dips: level relative to the baseline, how far from it they usually lie, longest
        duration.
        Shape ``(columns, HABITS)``.
    """

    count: IntArray
    first_ms: IntArray
    seen_ms: IntArray
    step_ms: FloatArray
    credit_ms: IntArray
    heir_ms: IntArray
    ring: FloatArray
    level: FloatArray
    scale: FloatArray
    settled: BoolArray
    settle_ms: IntArray
    block_sum: FloatArray
    block_count: IntArray
    block_ms: IntArray
    blocks: IntArray
    block_dev: FloatArray
    wide_dev: FloatArray
    wide_mean: FloatArray
    wide_sum: FloatArray
    wide_count: IntArray
    means: FloatArray
    means_ms: IntArray
    evidence: FloatArray
    evidence_ms: IntArray
    evidence_peak: FloatArray
    peak_ms: IntArray
    fall_sum: FloatArray
    fall_count: IntArray
    rise_ms: IntArray
    rise_count: IntArray
    risen_level: FloatArray
    risen_ms: IntArray
    phase_ms: IntArray
    dip_level: FloatArray
    dip_ms: IntArray
    dip_low: IntArray
    dip_count: IntArray
    dip_back: IntArray
    dip_back_ms: IntArray
    dip_still: BoolArray
    spent_ms: FloatArray
    main_level: FloatArray
    main_ms: IntArray
    part_ms: IntArray
    part_level: FloatArray
    part_dev: FloatArray
    part_count: IntArray
    part_off: IntArray
    part_off_ms: IntArray
    part_off_sum: FloatArray
    steady_ms: IntArray
    steady_level: FloatArray
    steady_up: IntArray
    steady_up_ms: IntArray
    run_value: FloatArray
    run_ms: IntArray
    run_count: IntArray
    run_longest: IntArray
    stuck_longest: IntArray
    frozen: IntArray
    thaw: IntArray
    held_level: FloatArray
    held_scale: FloatArray
    change_ms: IntArray
    change_level: FloatArray
    back_count: IntArray
    back_ms: IntArray
    quiet_ms: IntArray
    quiet_level: FloatArray
    ask_ms: IntArray
    mute_ms: IntArray
    warm_ms: IntArray
    raised: IntArray
    raised_ms: IntArray
    raised_level: FloatArray
    habit_level: FloatArray
    habit_spread: FloatArray
    habit_ms: IntArray


_WIDE = {"ring": RING, "means": MEANS, "means_ms": MEANS, "habit_level": HABITS,
         "habit_spread": HABITS, "habit_ms": HABITS,
         **dict.fromkeys(("evidence", "evidence_ms", "evidence_peak", "peak_ms", "fall_sum",
                          "fall_count"), SHIFTS)}  # fmt: skip
_UNKNOWN = {"ring", "level", "scale", "means", "run_value", "held_level", "held_scale",
            "quiet_level", "habit_level", "wide_mean", "risen_level"}  # fmt: skip


def blank(columns: int) -> LevelState:
    """Return the state of series of which nothing was seen yet."""
    made: dict[str, Any] = {}
    for item in fields(LevelState):
        shape = (columns, _WIDE[item.name]) if item.name in _WIDE else (columns,)
        if item.type is FloatArray:
            made[item.name] = np.full(shape, np.nan if item.name in _UNKNOWN else 0.0)
        else:
            made[item.name] = np.zeros(shape, np.bool_ if item.type is BoolArray else np.int64)
    return LevelState(**made)


def recent(state: LevelState, columns: IntArray, most: int) -> FloatArray:
    """Return the latest samples of these columns, newest last, NaN where there are fewer.

    Shape ``(len(columns), most)``.
    """
    place = (state.count[columns, None] - most + np.arange(most)) % RING
    return np.asarray(state.ring[columns[:, None], place])


def block_size(baseline: Level, state: LevelState, at: IntArray | slice) -> FloatArray:
    """Return how many samples fill a block."""
    samples = np.rint(baseline.block_cap / np.maximum(state.step_ms[at], 1.0))
    return np.asarray(np.clip(samples, LEAST_BLOCK, baseline.block_samples))


def raise_candidate(
    state: LevelState,
    k: int,
    found: Found,
    *,
    raised: int,
    onset_ms: int,
    time_ms: int,
    after: float,
    known_ms: int = 0,
) -> None:
    """Raise a fall of column ``k``; until it is settled the column remembers what was raised.

    Parameters
    ----------
    raised
        ``EXCURSION``, ``DRIFT``, ``FROZEN`` or ``EARLY``.
    known_ms
        Of an early one: as in :class:`Candidate`.
    """
    state.raised[k] = raised
    state.raised_ms[k] = onset_ms
    state.raised_level[k] = after
    found.candidates.append(
        Candidate(
            column=int(found.columns[k]),
            cause=_CAUSES[raised],
            direction="down",
            onset_ms=int(onset_ms),
            time_ms=int(time_ms),
            before=float(state.level[k]),
            after=float(after),
            scale=float(state.scale[k]),
            step_ms=int(state.step_ms[k]),
            early=raised == EARLY,
            known_ms=int(known_ms),
        )
    )
