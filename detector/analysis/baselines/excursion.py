"""Deep falls: when one starts, how it goes on, when it has lasted too long to be a habit."""

import numpy as np

from detector.analysis.baselines.level import (
    EXCURSION,
    HABITS,
    RING,
    BoolArray,
    Level,
    LevelState,
    raise_candidate,
    recent,
)
from detector.analysis.baselines.rows import Found, anywhere, places
from detector.analysis.quantile import median
from detector.series import FloatArray, IntArray

# A level climbs when two samples in a row lie above it by this share of the way back to the
# baseline, or the last third of a time above the first one: a warm-up with a time constant of
# 5 min, the slowest one seen, closes as much in 67 s, a lasting fall does not.
_CLOSED = 0.2
# ... and by so many mean deviations of the part's own samples (two in a row: 1 in 200).
_RISING_DEVIATIONS = 2.5
# A part ends where two samples in a row lie beyond so many standard deviations of a sample.
_APART = 3.0
# An excursion stands clear of the noise from so many standard deviations of a sample on.
CLEAR = 4.0
# For this share of the longest stage a warm-up must have stopped where little is missing.
_LAST_STAGE = 0.45
# Before the first low sample of an excursion at most so many usual steps count as part of it.
# A real switch of precision reports its first sample after 5 steps of silence.
_LEAD_STEPS = 6
# A restart takes at least so long; less is a checkpoint, or a switch of precision at a slow
# cadence.
RESTART_MS = 120_000.0
# So many usual steps without a sample are a silence, in which the job may have been restarted.
_SILENT_STEPS = 2.5
# An excursion whose level is less than this times the least depth may be noise about the edge.
_SHALLOW = 1.5
# Standard deviations of a sample by which the mean of a part may be off. Three standard errors
# of 3 min of 10 s samples are 0.7, and what slows the work makes its noise smaller.
_BLUR = 0.5
# A kind reaches as far as so many times the mean distance at which its phases lay from its
# centre: 2.4 standard deviations. But not less than this share of the usual reach.
_SPREAD, _NARROW = 3.0, 0.4
# A known phase in which a job may have risen is waited for up to so many times its longest: two
# rare things at a time, and evaluations vary by a tenth.
_OVERRUN = 1.2
# ... where it was at least this share of the excursion: a checkpoint at the beginning of a fall
# is less.
_MOST = 0.75
# All pairs of two kinds.
_FIRST, _SECOND = np.triu_indices(HABITS, 1)
# Samples in a row that are back inside before an excursion is over: one may be a glitch.
_BACK = 2


def edge(baseline: Level, state: LevelState) -> FloatArray:
    """Return how far below the level an excursion starts. NaN before there is a level."""
    return np.maximum(baseline.deep * state.level, baseline.deep_sigmas * state.scale)


def idle(state: LevelState) -> bool:
    """Whether a single column is in no excursion."""
    return bool(state.dip_ms[0] == 0)


def extend(
    baseline: Level, state: LevelState, times_ms: IntArray, values: FloatArray
) -> BoolArray:
    """Take one sample a column into its excursion; return where a deep one is going on."""
    width = edge(baseline, state)
    low = values < state.level - width
    inside = values >= state.level - width / 2
    starting = places(low & (state.dip_ms == 0))
    if len(starting):
        _start(baseline, state, starting, times_ms, values)
    going = state.dip_ms > 0
    at = places(going)
    if not len(at):
        return going
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
    # Around the edge noise alone starts and ends excursions: block means must see those too.
    shallow = (values >= state.level - width) & ~state.dip_still
    shallow &= state.part_level >= (1 - _SHALLOW * baseline.deep) * state.level
    return going & ~shallow


def _start(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, values: FloatArray
) -> None:
    lead_ms = np.minimum(times_ms[at] - state.seen_ms[at], _LEAD_STEPS * state.step_ms[at])
    start_ms = times_ms[at] - lead_ms.astype(np.int64)
    state.dip_ms[at] = start_ms
    state.dip_level[at] = _stood(baseline, state, at)
    for name in ("dip_low", "dip_count", "dip_back", "spent_ms", "main_ms", "part_count",
                 "part_off", "steady_up", "ask_ms", "phase_ms"):  # fmt: skip
        getattr(state, name)[at] = 0
    silent = _silent(baseline, state, at, times_ms)
    state.dip_still[at] = silent
    state.part_ms[at] = start_ms
    # Nobody saw whether it climbed while nothing was heard.
    state.steady_ms[at] = np.where(silent, times_ms[at], start_ms)
    state.part_level[at] = state.steady_level[at] = values[at]
    state.part_dev[at] = state.scale[at]


def _stood(baseline: Level, state: LevelState, at: IntArray) -> FloatArray:
    """Return from where excursions of these columns, which begin now, fall.

    That is the baseline, or where a rise that is not believed yet has brought the job: the last
    two blocks or, where dips spoil them or there are none yet, three samples.
    """
    stood = np.fmax(state.level[at], state.means[at, -_BACK:].min(axis=1))
    high = np.median(recent(state, at, 4)[:, :-1], axis=1)
    return np.where(high > stood + edge(baseline, state)[at], high, stood)


def _silent(baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray) -> BoolArray:
    """Return where nothing was heard for so long that the job may have been restarted."""
    silent_ms = times_ms[at] - state.seen_ms[at]
    step_ms = state.step_ms[at]
    usual_ms = np.maximum(_SILENT_STEPS * step_ms, float(baseline.floor))
    usual_ms = np.maximum(usual_ms, np.minimum(_LEAD_STEPS * step_ms, RESTART_MS))
    return np.asarray(silent_ms > usual_ms)


def _continue(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, values: FloatArray
) -> None:
    silent = _silent(baseline, state, at, times_ms) & (state.dip_count[at] > 0)
    if anywhere(silent):
        _hear_again(baseline, state, at[silent], times_ms, values)
    value = values[at]
    state.dip_count[at] += 1
    _watch_climb(state, at, value)
    _watch_part(baseline, state, at, value)
    # What comes after a standstill is timed from its end.
    still = value < baseline.still * state.level[at]
    state.dip_still[at] |= still
    state.steady_ms[at] = np.where(still, times_ms[at], state.steady_ms[at])


def _hear_again(
    baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray, values: FloatArray
) -> None:
    """Go on after a silence: with the same excursion where it lies on the same level.

    Elsewhere the job may have been restarted meanwhile, and what comes is another excursion.
    The silence itself counts as no time on the level: scrapes that fail every few minutes must
    not hide a fall, nor make it longer than it was seen to be.
    """
    moved = abs(values[at] - state.part_level[at]) > baseline.habit_width * state.level[at]
    anew, same = at[moved], at[~moved]
    if len(anew):
        _learn_parts(baseline, state, anew, state.seen_ms[anew])
        _start(baseline, state, anew, times_ms, values)
    lost_ms = times_ms[same] - state.seen_ms[same]
    state.part_ms[same] += lost_ms
    state.steady_ms[same] += lost_ms
    state.dip_still[same] = True


def _watch_climb(state: LevelState, at: IntArray, value: FloatArray) -> None:
    """Start the steady time anew where two samples in a row say that the level climbs back."""
    steady = state.steady_level[at]
    above = np.maximum(3 * state.scale[at], _CLOSED * (state.level[at] - steady))
    above = np.maximum(above, _RISING_DEVIATIONS * state.part_dev[at])
    up = value > steady + above
    first = up & (state.steady_up[at] == 0)
    state.steady_up_ms[at] = np.where(first, state.seen_ms[at], state.steady_up_ms[at])
    state.steady_up[at] = np.where(up, state.steady_up[at] + 1, 0)
    climbed = state.steady_up[at] >= _BACK
    # Quick downwards, slow upwards: a slide down is followed, a slow climb shows.
    gain = np.maximum(1 / state.dip_count[at], np.where(value < steady, 0.1, 0.02))
    steady = np.where(up, steady, steady + gain * (value - steady))
    state.steady_level[at] = np.where(climbed, value, steady)
    state.steady_ms[at] = np.where(climbed, state.steady_up_ms[at], state.steady_ms[at])
    state.steady_up[at] = np.where(climbed, 0, state.steady_up[at])


def _watch_part(baseline: Level, state: LevelState, at: IntArray, value: FloatArray) -> None:
    """Cut the excursion where the level moves: two samples in a row off the same side."""
    part, deviation = state.part_level[at], state.part_dev[at]
    beyond = np.maximum(baseline.habit_width * state.level[at], _RISING_DEVIATIONS * deviation)
    # Neighbours that are alike hide the noise from the difference of two samples.
    beyond = np.maximum(beyond, _APART * state.scale[at] * part / state.level[at])
    moved = value - part
    side = np.where(abs(moved) > beyond, np.sign(moved), 0).astype(np.int64)
    before = state.part_off[at]
    same = (side != 0) & (np.sign(before) == side)
    off = np.where(same, before + side, side)
    state.part_off_ms[at] = np.where(same, state.part_off_ms[at], state.seen_ms[at])
    state.part_off_sum[at] = np.where(same, state.part_off_sum[at], 0.0) + value
    count = np.where(side != 0, state.part_count[at], state.part_count[at] + 1)
    # The gain's floor lets a part follow a slow slide; a mean over all of it would not.
    gain = np.where(side != 0, 0.0, np.maximum(1 / np.maximum(count, 1), 0.05))
    # From one sample to the next, so that a ramp's slope is not taken for noise.
    previous = state.ring[at, (state.count[at] - 2) % RING]
    jump = np.minimum(abs(value - previous), 4 * deviation)
    state.part_level[at] = part + gain * moved
    state.part_dev[at] = deviation + 0.1 * (jump - deviation)
    state.part_count[at] = count
    state.part_off[at] = off
    cut = at[abs(off) >= _BACK]
    if len(cut):
        # A sample or two on the way to where it stays are no part of their own.
        long = state.part_count[cut] > _BACK
        state.part_off_ms[cut] = np.where(long, state.part_off_ms[cut], state.part_ms[cut])
        _close_part(baseline, state, cut[long])
        _open_part(baseline, state, cut)


def _close_part(baseline: Level, state: LevelState, at: IntArray) -> None:
    """Keep the part if it is the longest so far; of the others only their time is kept."""
    relative = state.part_level[at] / state.dip_level[at]
    lasted_ms = state.part_off_ms[at] - state.part_ms[at]
    longest = lasted_ms >= state.main_ms[at]
    other = np.where(longest, state.main_level[at], relative)
    other_ms = np.where(longest, state.main_ms[at], lasted_ms)
    state.main_level[at] = np.where(longest, relative, state.main_level[at])
    state.main_ms[at] = np.where(longest, lasted_ms, state.main_ms[at])
    state.spent_ms[at] += unexplained_ms(
        baseline, state, at, relative=other, lasted_ms=other_ms, over=True
    )
    known = other_ms > 0
    learn(baseline, state, at[known], relative=other[known], lasted_ms=other_ms[known])


def _open_part(baseline: Level, state: LevelState, at: IntArray) -> None:
    """Begin a part where the last samples lie; back at the longest one's level, go on with it.

    A checkpoint in the middle of an evaluation, or of a lasting fall, interrupts it only.
    """
    mean = state.part_off_sum[at] / _BACK
    again = abs(mean / state.dip_level[at] - state.main_level[at]) <= baseline.habit_width
    climbed = ~again & (mean > state.part_level[at])
    state.steady_ms[at] = np.where(
        climbed, np.maximum(state.steady_ms[at], state.part_off_ms[at]), state.steady_ms[at]
    )
    # What climbs after a standstill is its warm-up.
    warm = at[climbed & state.dip_still[at]]
    state.spent_ms[warm] = state.main_ms[warm] = 0
    _may_have_risen(baseline, state, at[climbed & ~state.dip_still[at]])
    state.part_level[at] = np.where(again, state.main_level[at] * state.dip_level[at], mean)
    state.part_ms[at] = state.part_off_ms[at] - np.where(again, state.main_ms[at], 0)
    state.main_ms[at] = np.where(again, 0, state.main_ms[at])
    state.part_dev[at] = state.scale[at]
    state.part_count[at] = _BACK
    state.part_off[at] = 0


def _may_have_risen(baseline: Level, state: LevelState, at: IntArray) -> None:
    """Give a phase that was most of the excursion its time where the level climbs in it.

    It may be the job that has become faster while the phase goes on.
    """
    lasted_ms = state.part_off_ms[at] - state.part_ms[at]
    at = at[lasted_ms >= _MOST * (state.part_off_ms[at] - state.dip_ms[at])]
    if not len(at):
        return
    relative = state.part_level[at] / state.dip_level[at]
    known = habit_ms(baseline, state, at, relative=relative, of=state.dip_level[at],
                     factor=_OVERRUN)  # fmt: skip
    state.phase_ms[at] = state.part_ms[at] + known.astype(np.int64)


def _end(baseline: Level, state: LevelState, at: IntArray, times_ms: IntArray) -> None:
    """Learn how it went, and forget it."""
    _learn_parts(baseline, state, at, state.dip_back_ms[at])
    state.dip_ms[at] = 0
    # The last of a warm-up is a small fall that ends by itself; a deep one is still news.
    warm = at[state.dip_still[at]]
    state.warm_ms[warm] = times_ms[warm] + baseline.tail
    state.quiet_ms[warm] = times_ms[warm] + baseline.tail
    state.quiet_level[warm] = (1 - baseline.deep) * state.level[warm]


def _learn_parts(baseline: Level, state: LevelState, at: IntArray, end_ms: IntArray) -> None:
    """Learn the longest and the last part of excursions that ended then."""
    known = at[state.main_ms[at] > 0]
    learn(baseline, state, known, relative=state.main_level[known],
          lasted_ms=state.main_ms[known])  # fmt: skip
    learn(baseline, state, at, relative=state.part_level[at] / state.dip_level[at],
          lasted_ms=end_ms - state.part_ms[at])  # fmt: skip


def learn(
    baseline: Level,
    state: LevelState,
    at: IntArray,
    *,
    relative: FloatArray,
    lasted_ms: IntArray,
) -> None:
    """Remember dips that ended: the longest of each kind, the shortest kind making room."""
    # Shorter ones need no memory: every excursion is given the floor.
    long = baseline.habit_factor * lasted_ms > baseline.floor
    if not long.any():
        return
    at, relative, lasted_ms = at[long], relative[long], lasted_ms[long]
    distance = abs(state.habit_level[at] - relative[:, None])
    distance = np.where(np.isfinite(distance), distance, np.inf)
    nearest = distance.argmin(axis=1)
    known = distance[np.arange(len(at)), nearest] <= baseline.habit_width
    slot = np.where(known, nearest, state.habit_ms[at].argmin(axis=1))
    before = np.where(known, state.habit_level[at, slot], relative)
    # Slowly: the kind is the centre of what was seen, not the latest one.
    state.habit_level[at, slot] = before + 0.3 * (relative - before)
    spread = np.where(known, state.habit_spread[at, slot], baseline.habit_width / _SPREAD)
    state.habit_spread[at, slot] = spread + 0.3 * (abs(relative - before) - spread)
    longest = np.where(known, state.habit_ms[at, slot], 0)
    state.habit_ms[at, slot] = np.maximum(longest, np.minimum(lasted_ms, baseline.patience))


def unknown_ms(
    baseline: Level,
    state: LevelState,
    at: IntArray,
    *,
    onset_ms: IntArray,
    relative: FloatArray,
) -> FloatArray:
    """Return how long a fall to ``relative`` must last when no habit explains it."""
    age_ms = (onset_ms - state.first_ms[at] + state.credit_ms[at]).astype(np.float64)
    floor = np.where(relative < 0.5, float(baseline.half_floor), float(baseline.floor))
    seen = np.maximum(age_ms / float(baseline.met), 1.0)
    cap = np.maximum(float(baseline.young_cap) / seen**3, float(baseline.cap))
    wait = np.minimum(np.maximum(baseline.share * age_ms, floor), np.maximum(floor, cap))
    still = relative < baseline.still
    if not anywhere(still):
        return np.asarray(wait)
    standing = np.maximum(baseline.still_share * age_ms, float(baseline.half_floor))
    return np.where(still, np.minimum(standing, float(baseline.still_cap)), wait)


def risen_level(baseline: Level, state: LevelState, at: IntArray) -> FloatArray:
    """Return where a rise has lately brought the job that is not believed yet, else NaN."""
    fresh = state.seen_ms[at] - state.risen_ms[at] <= baseline.patience
    return np.where(fresh, state.risen_level[at], np.nan)


def habit_ms(
    baseline: Level, state: LevelState, at: IntArray, *, relative: FloatArray, of: FloatArray,
    factor: float | None = None,
) -> FloatArray:  # fmt: skip
    """Return how long a fall to ``relative`` of the level ``of`` must last to be no habit.

    That is ``factor`` times the longest of its kind, ``habit_factor`` where none is given.
    """
    factor = factor or baseline.habit_factor
    # Both levels are means of many samples, blurred by less than the noise of one.
    blur = _BLUR * relative * state.scale[at] / state.level[at]
    width = baseline.habit_width + blur
    kinds, lasting_ms = state.habit_level[at], state.habit_ms[at]
    # What stops the job halts it at the same level before a lasting fall and in it.
    held = relative * of / state.held_level[at]
    # So does what interrupts a rise, believed or not.
    risen = relative * of / risen_level(baseline, state, at)
    # Where few samples said that the job had risen, it may have been a burst.
    usual = relative * of / state.level[at]
    usual = np.where(of > state.level[at] + edge(baseline, state)[at], usual, np.nan)
    off = abs(kinds - relative[:, None])
    for share in (held, risen, usual):
        off = np.fmin(off, abs(kinds - share[:, None]))
    longest = np.where(off <= width[:, None], lasting_ms, 0).max(axis=1)
    # Two at a time slow the job by the product of both, for as long as the shorter one lasts.
    deep = np.where(kinds < 1 - baseline.deep, kinds, np.nan)
    both = deep[:, _FIRST] * deep[:, _SECOND]
    shorter_ms = np.minimum(lasting_ms[:, _FIRST], lasting_ms[:, _SECOND])
    alike = abs(both - relative[:, None]) <= width[:, None]
    longest = np.maximum(longest, np.where(alike, shorter_ms, 0).max(axis=1))
    most = np.maximum(float(baseline.habit_cap), baseline.habit_margin * longest)
    wait = np.minimum(factor * longest, most)
    # On the very level of a long phase it is that phase, and may last twice as long too.
    spread = np.minimum(_SPREAD * state.habit_spread[at], baseline.habit_width)
    same = off <= np.maximum(spread, _NARROW * baseline.habit_width) + blur[:, None]
    wait = np.maximum(wait, factor * np.where(same, lasting_ms, 0).max(axis=1))
    return np.asarray(np.minimum(wait, float(baseline.patience)))


def unexplained_ms(
    baseline: Level, state: LevelState, at: IntArray, *, relative: FloatArray,
    lasted_ms: IntArray, over: bool,
) -> FloatArray:  # fmt: skip
    """Return how much of a part's time its kind does not explain.

    An excursion of any course is news once this sums up to what an unknown one is given.
    Nothing is left of a part that is ``over`` and was as short as its kind may be: a chain of
    phases that are known is as known as each of them.
    """
    onset_ms = state.dip_ms[at]
    unknown = unknown_ms(baseline, state, at, onset_ms=onset_ms, relative=np.ones(len(at)))
    habit = habit_ms(baseline, state, at, relative=relative, of=state.dip_level[at])
    wait = unknown_ms(baseline, state, at, onset_ms=onset_ms, relative=relative)
    left = np.maximum(lasted_ms - (np.maximum(wait, habit) - unknown), 0.0)
    return np.where(over & (lasted_ms <= habit), 0.0, np.minimum(left, lasted_ms))


def _unexplained(
    baseline: Level, state: LevelState, at: IntArray, now_ms: IntArray, *,
    relative: FloatArray, wait: FloatArray,
) -> BoolArray:  # fmt: skip
    """Return which excursions have lasted longer than habits explain, or than any may."""
    present = unexplained_ms(
        baseline, state, at, relative=relative, lasted_ms=now_ms - state.part_ms[at], over=False
    )
    spent, main_ms = state.spent_ms[at], state.main_ms[at]
    if anywhere(main_ms > 0):
        spent = spent + unexplained_ms(
            baseline, state, at, relative=state.main_level[at], lasted_ms=main_ms, over=True
        )
    believed = (present > 0) & (present + spent >= wait)
    believed |= ~state.dip_still[at] & (now_ms - state.dip_ms[at] >= baseline.patience)
    return believed


def _climbing(state: LevelState, at: IntArray, now_ms: IntArray) -> BoolArray:
    """Return where the level has closed much of its gap since two samples last showed it climb.

    From the first third of that time to the last: what single samples hide in the noise.
    """
    climbing = np.zeros(len(at), bool)
    for place, k in enumerate(at):
        most = int((now_ms[place] - state.steady_ms[k]) // max(state.step_ms[k], 1.0))
        seen = recent(state, np.array([k]), min(max(most, 3), RING))[0]
        third = len(seen) // 3
        older, newer = _middle(seen[:third]), _middle(seen[-third:])
        climbing[place] = newer - older > _CLOSED * (state.level[k] - older)
    return climbing


def _middle(samples: FloatArray) -> float:
    known = samples[np.isfinite(samples)]
    return median(known) if len(known) else np.nan


def raise_long(
    baseline: Level, state: LevelState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    """Raise a candidate where an excursion has outlasted every explanation."""
    ripe = (state.dip_ms > 0) & (state.dip_low >= baseline.min_samples)
    ripe &= (times_ms - state.dip_ms >= baseline.floor) & (state.part_count >= 3)
    ripe &= (state.dip_back == 0) & (state.raised == 0)
    at = places(ripe)
    if not len(at):
        return
    level, part, now = state.level[at], state.part_level[at], times_ms[at]
    # A standstill shows in two samples; its part's level may still be on its way down.
    lowest = np.minimum(values[at], state.ring[at, (state.count[at] - 2) % RING])
    relative = np.where(lowest < baseline.still * level, 0.0, part / state.dip_level[at])
    wait = unknown_ms(baseline, state, at, onset_ms=state.dip_ms[at], relative=np.ones(len(at)))
    # Among the noise a fall must last longer to be seen as one.
    fall, scale, still = level - part, state.scale[at], state.dip_still[at]
    longer = np.where(fall < CLEAR * scale, float(baseline.cap), 0.0)
    wait = wait + longer
    # After a standstill comes a ramp, or stages: it must have stopped for longer than a share
    # of the wait, the more so the more is missing, and for as many samples as a first level.
    climb = float(baseline.climb) * (_LAST_STAGE + fall / level)
    climb = np.maximum(climb, baseline.first_samples * state.step_ms[at])
    steady = np.where(still, climb + longer, 0.5 * wait)
    due = (now - state.steady_ms[at] >= steady) | (relative <= 0)
    # A run that begins below the earlier one's level warms up first, and that is known.
    due &= (state.heir_ms[at] == 0) | (now - state.heir_ms[at] >= baseline.tail)
    due &= part <= level - 0.75 * edge(baseline, state)[at]
    due &= (now >= state.quiet_ms[at]) | (part < state.quiet_level[at])
    due &= (now >= state.phase_ms[at]) | (relative <= 0)
    # Habits take long to look up, and can't explain less than nothing.
    due &= now - state.dip_ms[at] >= np.minimum(wait, float(baseline.patience))
    if not anywhere(due):
        return
    at, relative, wait = at[due], relative[due], wait[due]
    news = _unexplained(baseline, state, at, now[due], relative=relative, wait=wait)
    news &= ~state.dip_still[at] | (relative <= 0) | ~_climbing(state, at, now[due])
    for k in at[news]:
        raise_candidate(
            state, k, found, raised=EXCURSION, onset_ms=state.dip_ms[k], time_ms=times_ms[k],
            after=state.part_level[k],
        )  # fmt: skip
