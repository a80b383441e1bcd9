"""The page bound: whether a fall that was confirmed long ago is worth waking somebody.

Asked again of the job's history, independently of what found the fall: has the job stood on
one level, far below the one it held before, for longer than any phase of it lasts? A restart
starts the time anew, a checkpoint in between interrupts it only. Pure; all times are sample
times, so that the answer does not depend on when it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np

from detector.analysis.baselines import Level, Model
from detector.analysis.bounds import Page
from detector.analysis.lows import (
    UPPER,
    BoolArray,
    Stretch,
    back,
    climbs,
    falls_to,
    frozen,
    lasted_ms,
    lost,
    restarts,
    runs,
    smooth_over,
    stretch_of,
    usual_step_ms,
)
from detector.series import Duration, FloatArray, Interval, Series

# Reads the metric's usable samples in ``(start, end]``; None where there are none.
Read = Callable[[Interval], Series | None]

# How far back earlier falls are looked for. Chosen: as far as a job's stream reaches.
_EARLIER_MS = 6 * 3_600_000
# The level before the fall is that of the last hour, as in verification.
_BEFORE_MS = 3_600_000
# More of a fall than it must have lasted is read by so much: its last break may lie there.
_REACH_MS = 600_000
# Who was not ripe yet is asked again after this long, later after a share of the fall's age.
_AGAIN_MS, _AGAIN_SHARE = 60_000, 0.05
# Fewer samples show no level: since the fall, and before it. Slow series are read back so far.
_LEAST_SINCE, _LEAST_BEFORE = 12, 60
# The newest sample may be so old, or so many usual steps: a fall that nobody sees any more
# wakes nobody.
_FRESH_MS, _FRESH_STEPS = 120_000, 3
# A fall of this share of the least one may still be measured as deep enough.
_NEAR = 0.75
# What comes after a restart must last so much longer: the slowest warm-up seen has a time
# constant of 5 min.
_WARM_MS = 300_000
# Two levels are one within so many standard deviations of a sample, or the model's width.
_WIDTH_DEVIATIONS = 1.5
# Earlier falls are like this one within so much: rather too many are than too few.
_ALIKE = 0.08
# They went to its very level within so much of the level's width. Chosen: a phase comes back to
# its level by a percent or two; four times as wide, six times as many falls wait.
_SAME = 1 / 3
# What a phase explains of a fall it explains on its very level. Chosen on made-up quiet jobs.
_PHASE = 0.015
# Of `after`, the fallen level itself must have shown for this share.
_LEAST_LEVEL = 1 / 3
# Of the time for which a level must be known, this share must have been spent on it; a third
# of that in its first third.
_HELD_SHARE = 0.3
# A job has shown all its phases by so many times `known`: evaluations three hours apart are the
# rarest that recur in published runs.
_GROWN = 2
# Of a job's samples that repeat the one before, this share says that it is coarse, not frozen.
_COARSE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """What is asked about: since when, from where, and when it is asked.

    ``before`` None lets the level before the fall be read off the history.
    """

    onset_ms: int
    at_ms: int
    before: float | None = None

    def again_ms(self) -> int:
        """Return when something else than time may have changed."""
        return self.at_ms + max(_AGAIN_MS, int(_AGAIN_SHARE * (self.at_ms - self.onset_ms)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Somebody is to be called, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Nobody is called now, and why; None is not before the level is measured anew."""

    reason: str
    again_ms: int | None = None


_UNKNOWN = Later(reason="too little is known of the job before the fall")


def ask(fall: Fall, model: Model, bound: Page, read: Read) -> Passed | Later:
    """Return whether the fall passes the bound now, else why not and when to ask again.

    Parameters
    ----------
    model
        Whose metric fell: what is still, and how wide a level is, are its baseline's.
    bound
        The model's ``page``.
    """
    first = first_read(fall, bound)
    if first is None:
        reason = f"it has not lasted {bound.after} yet"
        return Later(reason=reason, again_ms=_ripe_ms(fall, bound))
    own = model.baseline if isinstance(model.baseline, Level) else Level()
    since, start_ms, step_ms = _since(fall, first, read)

    @cache
    def earlier() -> Stretch | None:
        # Hours of history, which most answers do not need.
        back_ms = max(_EARLIER_MS, int(2 * _LEAST_BEFORE * step_ms))
        known = read(Interval(start_ms=fall.onset_ms - back_ms, end_ms=fall.onset_ms))
        if known is None or len(known.values) < _LEAST_BEFORE:
            return None
        return stretch_of(known, int(known.times_ms[0]), usual_step_ms(known))

    since = since if since is None else _live(since, earlier)
    unseen = _unseen(since, fall, step_ms)
    if since is None or unseen is not None:
        return unseen or _UNKNOWN
    before = _usual(earlier()) if fall.before is None else fall.before
    if before is None:
        return _UNKNOWN
    stretch = stretch_of(since, start_ms, step_ms)
    newest = smooth_over(stretch.values, 3)
    still = newest < own.still * before
    if still[-1]:
        return _standing(stretch, own.still * before, fall, bound)
    if newest[-1] > _edge(before, bound):
        return Later(
            reason=f"its newest samples are {_below(newest[-1], before)} the level before, "
            f"less than half of {bound.least_fall:.0%}",
            again_ms=fall.again_ms(),
        )
    width = own.habit_width * before
    restarted = restarts(stretch, still) | lost(stretch, newest, width)
    stretch, bound = _unbroken(stretch, newest, restarted, before, bound)
    if len(stretch.values) < _LEAST_SINCE // 2:
        ago = _span(fall.at_ms - stretch.since_ms)
        return Later(reason=f"it was back, or restarted, {ago} ago", again_ms=fall.again_ms())
    return _judge(stretch, before, fall, bound, width=width, earlier=earlier)


def _unbroken(
    stretch: Stretch, newest: FloatArray, restarted: BoolArray, before: float, bound: Page
) -> tuple[Stretch, Page]:
    """Return what came after the last break, and the bound that it is held to.

    A restart starts the time anew, and so does a recovery.
    """
    rows = np.flatnonzero(restarted | back(stretch, newest, _edge(before, bound)))
    if not len(rows):
        return stretch, bound
    if restarted[rows[-1]]:
        # Its warm-up is low too, and ends by itself.
        bound = msgspec.structs.replace(bound, after=Duration(bound.after + _WARM_MS))
    return stretch.after(int(rows[-1])), bound


def first_read(fall: Fall, bound: Page) -> Interval | None:
    """Return the span that :func:`ask` reads first; None as long as it need not read any."""
    if fall.at_ms < _ripe_ms(fall, bound):
        return None
    reach_ms = _REACH_MS + max(bound.after, bound.still_after, bound.longest, bound.known)
    return Interval(start_ms=max(fall.onset_ms, fall.at_ms - reach_ms), end_ms=fall.at_ms)


def _ripe_ms(fall: Fall, bound: Page) -> int:
    return fall.onset_ms + min(bound.after, bound.still_after)


def _since(fall: Fall, first: Interval, read: Read) -> tuple[Series | None, int, float]:
    """Return the fall's samples that are read, from when on, and their usual distance, ms."""
    start_ms, since = first.start_ms, read(first)
    few = since is None or len(since.values) < 2 * _LEAST_SINCE
    if few and start_ms > fall.onset_ms:
        # A slow series, or one with a long silence: as many samples as it takes.
        step_ms = usual_step_ms(since) or first.length_ms
        start_ms = max(fall.onset_ms, int(fall.at_ms - 2 * _LEAST_SINCE * step_ms))
        since = read(Interval(start_ms=start_ms, end_ms=fall.at_ms))
    return since, start_ms, usual_step_ms(since)


def _unseen(since: Series | None, fall: Fall, step_ms: float) -> Later | None:
    """Return why too little is seen of the fall to say anything, if so."""
    count = 0 if since is None else len(since.values)
    again_ms = max(fall.again_ms(), int(fall.at_ms + step_ms))
    if count < _LEAST_SINCE:
        why = f"{count} samples since the fall are usable; {_LEAST_SINCE} are needed"
        return Later(reason=why, again_ms=again_ms)
    assert since is not None  # it has samples
    old_ms = fall.at_ms - int(since.times_ms[-1])
    if old_ms > max(_FRESH_MS, _FRESH_STEPS * step_ms):
        return Later(reason=f"its newest sample is {_span(old_ms)} old", again_ms=again_ms)
    return None


def _judge(
    stretch: Stretch,
    before: float,
    fall: Fall,
    bound: Page,
    *,
    width: float,
    earlier: Callable[[], Stretch | None],
) -> Passed | Later:
    """Judge one low stretch up to now: how deep, whether it stays there, for how long."""
    was_low_ms = lasted_ms(stretch, np.ones(len(stretch.values), np.bool_))
    if was_low_ms < bound.after:
        return Later(
            reason=f"low without a break for {_span(was_low_ms)} of {bound.after}",
            again_ms=_next(fall, stretch, int(bound.after) - was_low_ms),
        )
    level, width, there = _level(stretch, width)
    depth = 1 - level / before
    if depth < bound.least_fall:
        near = depth > _NEAR * bound.least_fall
        return Later(
            reason=f"it has fallen by {depth:.0%}, less than {bound.least_fall:.0%}",
            again_ms=fall.again_ms() if near else None,
        )
    # On its way back; a phase that takes it deeper just now is none.
    newest = smooth_over(stretch.values, 3)[-1]
    if newest > level + width or _moves(stretch.values[there], before):
        return Later(reason="its level still moves", again_ms=fall.again_ms())
    past = earlier()
    if past is None:
        return _UNKNOWN
    shown = _shown(past)
    if level > (1 - bound.least_fall) * shown:
        # What found the fall took a burst or a glitch for the level.
        return Later(
            reason=f"it is {_below(level, shown)} where its history shows it before, less than "
            f"{bound.least_fall:.0%}",
            again_ms=fall.again_ms(),
        )
    low_ms, why = _needed(past, before, bound)
    level_ms, like = _needed_on_level(past, before, level, width, bound)
    was_level_ms = lasted_ms(stretch, there)
    was_low_ms -= _explained_ms(stretch, there, past, before, bound)
    said = (
        f"low for {_span(was_low_ms)} of {_span(low_ms)} ({why}), on one level for "
        f"{_span(was_level_ms)} of {_span(level_ms)} ({like})"
    )
    short_ms = max(low_ms - was_low_ms, level_ms - was_level_ms)
    if short_ms > 0:
        return Later(reason=said, again_ms=_next(fall, stretch, short_ms))
    return Passed(reason=f"{depth:.0%} below the level before, {said}")


def _standing(stretch: Stretch, still: float, fall: Fall, bound: Page) -> Passed | Later:
    """Judge a job at a standstill by how long it has stood still without a break."""
    running = np.flatnonzero(stretch.smooth >= still)
    since_ms = int(stretch.times_ms[running[-1]]) if len(running) else stretch.since_ms
    lasted_ms = fall.at_ms - since_ms
    if lasted_ms < bound.still_after:
        return Later(
            reason=f"a restart stands still for up to {bound.still_after}",
            again_ms=since_ms + bound.still_after,
        )
    return Passed(reason=f"it stands still for {_span(lasted_ms)}, longer than a restart takes")


def _needed(earlier: Stretch, before: float, bound: Page) -> tuple[int, str]:
    """Return how long the job must have been low, and why so long."""
    if _held(earlier, before, bound):
        if earlier.times_ms[-1] - earlier.times_ms[0] >= _GROWN * bound.known:
            return int(bound.after), "longer than phases take"
        seldom_ms = max(int(bound.longest), int(bound.after))
        return seldom_ms, "the job is too young to have shown all its phases"
    longer_ms = max(int(bound.known), int(bound.after))
    return longer_ms, f"the level before had not held for {bound.known}"


def _needed_on_level(
    earlier: Stretch, before: float, level: float, width: float, bound: Page
) -> tuple[int, str]:
    """Return how long it must have stood on the fallen level, and why so long.

    Phases go on during a fall and take it deeper, but what it has fallen to must have shown.
    """
    least_ms = int(_LEAST_LEVEL * bound.after)
    edge = _edge(before, bound)
    alike_ms = int(falls_to(earlier, edge, level, max(width, _ALIKE * before)).max(initial=0))
    same_ms = int(falls_to(earlier, edge, level, _SAME * width).max(initial=0))
    need_ms, longest_ms, like = max(
        (int(bound.margin * alike_ms), alike_ms, "one like it"),
        (int(bound.overtime * same_ms), same_ms, "one to this very level"),
    )
    need_ms = min(need_ms, int(bound.longest))
    if need_ms <= least_ms:
        return least_ms, "nothing like it went before"
    return need_ms, f"{like} lasted {_span(longest_ms)}"


def _held(earlier: Stretch, before: float, bound: Page) -> bool:
    """Whether the job stood on the level before for as long as a level must be known.

    It need not have stood there all the time: of an hour with an evaluation and a restart
    little is left.
    """
    times_ms = earlier.times_ms
    start_ms = times_ms[-1] - bound.known
    if times_ms[0] > start_ms + max(_FRESH_MS, earlier.step_ms):
        return False
    high = earlier.smooth >= _edge(before, bound)
    inside = times_ms > start_ms
    first = inside & (times_ms <= start_ms + bound.known / 3)
    return bool(
        np.mean(high[inside]) >= _HELD_SHARE
        and np.mean(high[first] if first.any() else high[inside]) >= _HELD_SHARE / 3
    )


def _level(stretch: Stretch, width: float) -> tuple[float, float, BoolArray]:
    """Return the level that the stretch stands on, its width, and which samples are on it."""
    width = max(width, _WIDTH_DEVIATIONS * stretch.noise)
    # A long phase may have taken most of the time; where it is over, the job stands higher.
    centre = max(float(np.percentile(stretch.smooth, UPPER)), float(stretch.smooth[-1]))
    near = abs(stretch.smooth - centre) <= width
    level = float(np.median(stretch.values[near])) if near.any() else centre
    return level, width, np.asarray(abs(stretch.smooth - level) <= width)


def _explained_ms(
    stretch: Stretch, there: BoolArray, earlier: Stretch, before: float, bound: Page
) -> int:
    """Return how much of the time off the fallen level is on levels that phases go to, ms.

    Two phases one after the other look like one fall. A phase that goes on during a lasting
    fall stands deeper than it does in a healthy job, and explains nothing.
    """
    explained = 0
    for first, last in runs(~there):
        part = stretch.between(first, last)
        part_ms = lasted_ms(part, np.ones(len(part.values), np.bool_))
        level = float(np.median(part.values))
        alike_ms = falls_to(earlier, _edge(before, bound), level, _PHASE * before)
        explained += min(part_ms, int(bound.margin * alike_ms.max(initial=0)))
    return explained


def _usual(earlier: Stretch | None) -> float | None:
    """Return the level before the fall: where most samples of the last hour stood."""
    return None if earlier is None else _shown(earlier)


def _shown(earlier: Stretch) -> float:
    """Return where most samples of the last hour stood; of a slow series, the last dozen."""
    back_ms = max(_BEFORE_MS, _LEAST_SINCE * earlier.step_ms)
    last = earlier.times_ms > earlier.times_ms[-1] - back_ms
    return float(np.percentile(earlier.smooth[last], UPPER))


def _live(series: Series, earlier: Callable[[], Stretch | None]) -> Series:
    """Return the samples without those of a frozen exporter, which show nothing.

    Unless the job's values repeat themselves anyway, as coarsely rounded ones do.
    """
    gone = frozen(series.values)
    if not gone.any():
        return series
    past = earlier()
    if past is not None and np.mean(np.diff(past.values) == 0) > _COARSE:
        return series
    return Series(times_ms=series.times_ms[~gone], values=series.values[~gone])


def _edge(before: float, bound: Page) -> float:
    """Return the level above which the job is back: half of the least fall."""
    return before * (1 - bound.least_fall / 2)


def _next(fall: Fall, stretch: Stretch, short_ms: int) -> int:
    """Return when what is missing will have passed, and a sample more will be there."""
    return fall.at_ms + max(short_ms, stretch.step_ms)


def _moves(values: FloatArray, before: float) -> bool:
    """Whether enough is seen of the level to say that it climbs; too little cannot pass."""
    return len(values) >= _LEAST_SINCE and climbs(values, before)


def _below(level: float, before: float) -> str:
    return f"{max(1 - level / before, 0.0):.0%} below"


def _span(length_ms: float) -> str:
    return str(Duration(round(length_ms / 10_000) * 10_000))
