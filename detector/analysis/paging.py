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
import numpy.typing as npt

from detector.analysis.bounds import Page
from detector.series import Duration, FloatArray, IntArray, Interval, Series

BoolArray = npt.NDArray[np.bool_]

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
# Fewer samples show no level: since the fall, and before it.
_LEAST_SINCE, _LEAST_BEFORE = 12, 60
# The newest sample may be so old, or so many usual steps: a fall that nobody sees any more
# wakes nobody.
_FRESH_MS, _FRESH_STEPS = 120_000, 3
# A fall of this share of the least one may still be measured as deep enough.
_NEAR = 0.75
# Below this share of the level nothing runs at all.
_STILL = 0.02
# The shortest standstill that may be a restart; what is shorter is a checkpoint.
_RESTART_MS = 120_000
# What comes after a restart must last so much longer: the slowest warm-up seen has a time
# constant of 5 min.
_WARM_MS = 300_000
# Levels are read off running medians of so long, at least so many samples: a recovery shows
# once it has lasted half of it.
_SMOOTH_MS, _LEAST_SMOOTH = 120_000, 5
# Two levels are one when they are this near, as a share of the level before, or within so many
# standard deviations of a sample.
_WIDTH, _WIDTH_DEVIATIONS = 0.05, 1.5
# Earlier falls are like this one within so much: rather too many are than too few.
_ALIKE = 0.08
# What a phase explains of a fall it explains on its very level. Chosen on made-up quiet jobs.
_PHASE = 0.015
# A recovery shows in three samples where the fall is so many standard deviations deep.
_CLEAR_DEVIATIONS = 4.0
# Of a fall's time, phases of it included, most samples stand on its upper level.
_UPPER = 70
# Of the time on its level a job must have closed less than this share of the gap, from the
# first half to the second: what is left of a warm-up of 5 min closes half of it.
_CLIMB = 0.25
# Of `after`, the fallen level itself must have shown for this share.
_LEAST_LEVEL = 1 / 3
# Of the time for which a level must be known, this share must have been spent on it; a third
# of that in its first third.
_HELD_SHARE = 0.3
# So many samples that repeat the one before are a frozen exporter's, unless this share of the
# job's samples does so anyway.
_FROZEN_RUN, _COARSE = 5, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """What is asked about: since when, from where, and when it is asked.

    ``before`` None lets the level before the fall be read off the history.
    """

    onset_ms: int
    at_ms: int
    before: float | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Samples of one low stretch: times, values, their running median, and since when."""

    since_ms: int
    times_ms: IntArray
    values: FloatArray
    smooth: FloatArray

    def after(self, row: int) -> "_Stretch":
        """Return the stretch that begins with the sample behind ``row``."""
        return _Stretch(
            since_ms=int(self.times_ms[row]),
            times_ms=self.times_ms[row + 1 :],
            values=self.values[row + 1 :],
            smooth=self.smooth[row + 1 :],
        )

    def between(self, first: int, last: int) -> "_Stretch":
        """Return the rows from ``first`` to ``last``."""
        return _Stretch(
            since_ms=int(self.times_ms[first - 1]) if first else self.since_ms,
            times_ms=self.times_ms[first : last + 1],
            values=self.values[first : last + 1],
            smooth=self.smooth[first : last + 1],
        )


def ask(fall: Fall, bound: Page, read: Read) -> Passed | Later:
    """Return whether the fall passes the bound now, else why not and when to ask again."""
    at_ms, first_ms = fall.at_ms, fall.onset_ms + min(bound.after, bound.still_after)
    if at_ms < first_ms:
        return Later(reason=f"it has not lasted {bound.after} yet", again_ms=first_ms)
    reach_ms = _REACH_MS + max(bound.after, bound.still_after, bound.longest, bound.known)
    start_ms = max(fall.onset_ms, at_ms - reach_ms)

    @cache
    def earlier() -> _Stretch | None:
        # Hours of history, which most answers do not need.
        known = read(Interval(start_ms=fall.onset_ms - _EARLIER_MS, end_ms=fall.onset_ms))
        if known is None or len(known.values) < _LEAST_BEFORE:
            return None
        return _stretch(known, int(known.times_ms[0]), _step_ms(known))

    since = read(Interval(start_ms=start_ms, end_ms=at_ms))
    step_ms = _step_ms(since)
    since = since if since is None else _live(since, earlier)
    stale_ms = max(_FRESH_MS, _FRESH_STEPS * step_ms)
    if (
        since is None
        or len(since.values) < _LEAST_SINCE
        or at_ms - since.times_ms[-1] > stale_ms
    ):
        return Later(reason="too few of its samples are fresh", again_ms=_again(fall))
    before = _usual(earlier(), step_ms) if fall.before is None else fall.before
    if before is None:
        return _UNKNOWN
    stretch = _stretch(since, start_ms, step_ms)
    newest = _smooth_over(stretch.values, 3)
    still = newest < _STILL * before
    if still[-1]:
        return _standing(stretch, before, fall, bound)
    if newest[-1] > _edge(before, bound):
        now = max(1 - float(newest[-1]) / before, 0.0)
        return Later(
            reason=f"its newest samples are {now:.0%} below the level before: too little",
            again_ms=_again(fall),
        )
    # A restart starts the time anew, and so does a recovery.
    restarted = _restarts(stretch, still) | _lost(stretch, newest, _WIDTH * before)
    rows = np.flatnonzero(restarted | _back(stretch, newest, _edge(before, bound)))
    if len(rows):
        if restarted[rows[-1]]:
            # Its warm-up is low too, and ends by itself.
            bound = msgspec.structs.replace(bound, after=Duration(bound.after + _WARM_MS))
        stretch = stretch.after(int(rows[-1]))
    if len(stretch.values) < _LEAST_SINCE // 2:
        return Later(reason="it is back, or was restarted", again_ms=_again(fall))
    return _judge(stretch, before, fall, bound, earlier)


def _judge(
    stretch: _Stretch,
    before: float,
    fall: Fall,
    bound: Page,
    earlier: Callable[[], _Stretch | None],
) -> Passed | Later:
    """Judge one low stretch up to now: how deep, whether it stays there, for how long."""
    was_low_ms = _lasted_ms(stretch, np.ones(len(stretch.values), np.bool_))
    if was_low_ms < bound.after:
        return Later(
            reason=f"low without a break for {_span(was_low_ms)} of {bound.after}",
            again_ms=_next(fall, stretch, int(bound.after) - was_low_ms),
        )
    level, width, there = _level(stretch, before)
    depth = 1 - level / before
    if depth < bound.least_fall:
        near = depth > _NEAR * bound.least_fall
        return Later(
            reason=f"it has fallen by {depth:.0%}, less than {bound.least_fall:.0%}",
            again_ms=_again(fall) if near else None,
        )
    # On its way back; a phase that takes it deeper just now is none.
    newest = _smooth_over(stretch.values, 3)[-1]
    if newest > level + width or _climbs(stretch.values[there], before):
        return Later(reason="its level still moves", again_ms=_again(fall))
    past = earlier()
    if past is None:
        return _UNKNOWN
    low_ms, why = _needed(past, before, bound)
    level_ms, like = _needed_on_level(past, before, level, width, bound)
    was_level_ms = _lasted_ms(stretch, there)
    was_low_ms -= _explained_ms(stretch, there, past, before, bound)
    said = (
        f"low for {_span(was_low_ms)} of {_span(low_ms)} ({why}), on one level for "
        f"{_span(was_level_ms)} of {_span(level_ms)} ({like})"
    )
    short_ms = max(low_ms - was_low_ms, level_ms - was_level_ms)
    if short_ms > 0:
        return Later(reason=said, again_ms=_next(fall, stretch, short_ms))
    return Passed(reason=f"{depth:.0%} below the level before, {said}")


def _back(stretch: _Stretch, newest: FloatArray, edge: float) -> BoolArray:
    """Return where the job is back: soon, where the fall stands clear of its noise.

    Between an evaluation and the checkpoint after it there may be half a minute.
    """
    noise = 1.48 * float(np.median(abs(stretch.values - stretch.smooth)))
    clear = edge - float(np.percentile(stretch.smooth, _UPPER)) > _CLEAR_DEVIATIONS * noise
    return np.asarray((newest if clear else stretch.smooth) > edge)


def _lost(stretch: _Stretch, newest: FloatArray, width: float) -> BoolArray:
    """Return the samples before a silence after which the level is another one.

    The job may have been restarted meanwhile, and what comes after is its warm-up.
    """
    silent = np.diff(stretch.times_ms, append=stretch.times_ms[-1]) >= _RESTART_MS
    at = np.flatnonzero(silent)
    moved = abs(stretch.smooth[np.minimum(at + _LEAST_SMOOTH, len(newest) - 1)] - newest[at])
    lost = np.zeros_like(silent)
    lost[at] = moved > width
    return lost


def _restarts(stretch: _Stretch, still: BoolArray) -> BoolArray:
    """Return where the job stands still for so long that it may be a restart."""
    longer = np.zeros_like(still)
    for first, last in _runs(still):
        begun_ms = stretch.times_ms[first - 1] if first else stretch.since_ms
        longer[first : last + 1] = stretch.times_ms[last] - begun_ms >= _RESTART_MS
    return longer


def _runs(mask: BoolArray) -> list[tuple[int, int]]:
    """Return the first and the last row of each stretch in which the mask holds."""
    starts = np.flatnonzero(mask & ~np.append(False, mask[:-1]))
    ends = np.flatnonzero(mask & ~np.append(mask[1:], False))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _standing(stretch: _Stretch, before: float, fall: Fall, bound: Page) -> Passed | Later:
    """Judge a job at a standstill by how long it has stood still without a break."""
    running = np.flatnonzero(stretch.smooth >= _STILL * before)
    since_ms = int(stretch.times_ms[running[-1]]) if len(running) else stretch.since_ms
    lasted_ms = fall.at_ms - since_ms
    if lasted_ms < bound.still_after:
        return Later(
            reason=f"a restart stands still for up to {bound.still_after}",
            again_ms=since_ms + bound.still_after,
        )
    return Passed(reason=f"it stands still for {_span(lasted_ms)}, longer than a restart takes")


def _needed(earlier: _Stretch, before: float, bound: Page) -> tuple[int, str]:
    """Return how long the job must have been low, and why so long."""
    if _held(earlier, before, bound):
        return int(bound.after), "longer than phases take"
    longer_ms = max(int(bound.known), int(bound.after))
    return longer_ms, f"the level before had not held for {bound.known}"


def _needed_on_level(
    earlier: _Stretch, before: float, level: float, width: float, bound: Page
) -> tuple[int, str]:
    """Return how long it must have stood on the fallen level, and why so long.

    Phases go on during a fall and take it deeper, but what it has fallen to must have shown.
    """
    least_ms = int(_LEAST_LEVEL * bound.after)
    width = max(width, _ALIKE * before)
    alike_ms = _alike_ms(earlier, before, level, width, bound)
    longest_ms = alike_ms.max(initial=0)
    need_ms = int(min(bound.margin * longest_ms, bound.longest))
    if need_ms <= least_ms:
        return least_ms, "nothing like it went before"
    return need_ms, f"one like it lasted {_span(longest_ms)}"


def _held(earlier: _Stretch, before: float, bound: Page) -> bool:
    """Whether the job stood on the level before for as long as a level must be known.

    It need not have stood there all the time: of an hour with an evaluation and a restart
    little is left.
    """
    times_ms = earlier.times_ms
    start_ms = times_ms[-1] - bound.known
    if times_ms[0] > start_ms + _FRESH_MS:
        return False
    high = earlier.smooth >= _edge(before, bound)
    inside = times_ms > start_ms
    first = inside & (times_ms <= start_ms + bound.known / 3)
    return bool(
        np.mean(high[inside]) >= _HELD_SHARE
        and np.mean(high[first] if first.any() else high[inside]) >= _HELD_SHARE / 3
    )


def _level(stretch: _Stretch, before: float) -> tuple[float, float, BoolArray]:
    """Return the level that the stretch stands on, its width, and which samples are on it."""
    noise = 1.48 * float(np.median(abs(stretch.values - stretch.smooth)))
    width = max(_WIDTH * before, _WIDTH_DEVIATIONS * noise)
    # A long phase may have taken most of the time; where it is over, the job stands higher.
    centre = max(float(np.percentile(stretch.smooth, _UPPER)), float(stretch.smooth[-1]))
    near = abs(stretch.smooth - centre) <= width
    level = float(np.median(stretch.values[near])) if near.any() else centre
    return level, width, np.asarray(abs(stretch.smooth - level) <= width)


def _climbs(values: FloatArray, before: float) -> bool:
    """Whether what is left of a warm-up is still closing the gap to the level before."""
    if len(values) < _LEAST_SINCE:
        return False  # too few to tell, and too short to pass
    early, late = np.array_split(values, 2)
    gap = before - float(np.median(values))
    return bool(np.median(late) - np.median(early) > _CLIMB * gap)


def _explained_ms(
    stretch: _Stretch, there: BoolArray, earlier: _Stretch, before: float, bound: Page
) -> int:
    """Return how much of the time off the fallen level is on levels that phases go to, ms.

    Two phases one after the other look like one fall. A phase that goes on during a lasting
    fall stands deeper than it does in a healthy job, and explains nothing.
    """
    explained = 0
    for first, last in _runs(~there):
        part = stretch.between(first, last)
        lasted_ms = _lasted_ms(part, np.ones(len(part.values), np.bool_))
        level = float(np.median(part.values))
        alike_ms = _alike_ms(earlier, before, level, _PHASE * before, bound)
        explained += min(lasted_ms, int(bound.margin * alike_ms.max(initial=0)))
    return explained


def _alike_ms(
    earlier: _Stretch, before: float, level: float, width: float, bound: Page
) -> IntArray:
    """Return for how long each earlier fall that ended stood on this level, ms."""
    low = earlier.smooth < _edge(before, bound)
    found = []
    for first, last in _runs(low):
        if first == 0 or last == len(low) - 1:
            continue  # it did not begin in what is known, or is the fall itself
        one = earlier.between(first, last)
        found.append(_lasted_ms(one, abs(one.smooth - level) <= width))
    return np.array(found, np.int64)


def _lasted_ms(stretch: _Stretch, there: BoolArray) -> int:
    """Return for how long samples stood there; of a silence little counts.

    A sample counts with the time since the one before, where that stood there too; the first
    with no more than usual, since what went on in a silence before it is not known.
    """
    lasted = np.diff(stretch.times_ms, prepend=stretch.since_ms)
    usual = float(np.median(lasted))
    counts = np.minimum(lasted, max(_FRESH_MS, 2 * usual))
    counts[:1] = np.minimum(counts[:1], 2 * usual)
    return int(counts[there & np.append(True, there[:-1])].sum())


def _usual(earlier: _Stretch | None, step_ms: float) -> float | None:
    """Return the level before the fall: where most samples of the last hour stood."""
    if earlier is None:
        return None
    last = earlier.times_ms > earlier.times_ms[-1] - _BEFORE_MS
    return float(np.percentile(_smooth(earlier.values[last], step_ms), _UPPER))


def _live(series: Series, earlier: Callable[[], _Stretch | None]) -> Series:
    """Return the samples without those of a frozen exporter, which show nothing.

    Unless the job's values repeat themselves anyway, as coarsely rounded ones do.
    """
    values = series.values
    # Zero is what a standstill reads.
    repeats = (np.diff(values, prepend=np.nan) == 0) & (values > 0)
    frozen = np.zeros_like(repeats)
    for first, last in _runs(repeats):
        frozen[first : last + 1] = last - first + 1 >= _FROZEN_RUN
    if not frozen.any():
        return series
    past = earlier()
    if past is not None and np.mean(np.diff(past.values) == 0) > _COARSE:
        return series
    return Series(times_ms=series.times_ms[~frozen], values=values[~frozen])


def _edge(before: float, bound: Page) -> float:
    """Return the level above which the job is back: half of the least fall."""
    return before * (1 - bound.least_fall / 2)


def _stretch(series: Series, since_ms: int, step_ms: float) -> _Stretch:
    """Return a series as one stretch, smoothed once for all that is asked of it."""
    return _Stretch(
        since_ms=since_ms,
        times_ms=series.times_ms,
        values=series.values,
        smooth=_smooth(series.values, step_ms),
    )


def _smooth(values: FloatArray, step_ms: float) -> FloatArray:
    """Return running medians of two minutes, fewer at the ends."""
    width = max(_LEAST_SMOOTH, round(_SMOOTH_MS / step_ms)) if step_ms > 0 else _LEAST_SMOOTH
    return _smooth_over(values, width)


def _smooth_over(values: FloatArray, width: int) -> FloatArray:
    """Return running medians of about ``width`` samples."""
    half = min(width // 2, (len(values) - 1) // 2)
    padded = np.pad(values, half, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    return np.asarray(np.median(windows, axis=1))


def _step_ms(series: Series | None) -> float:
    """Return the usual distance of two samples; 0 when there is none."""
    if series is None or len(series.values) < 2:
        return 0.0
    return float(np.median(np.diff(series.times_ms)))


def _next(fall: Fall, stretch: _Stretch, short_ms: int) -> int:
    """Return when what is missing will have passed, and a sample more will be there."""
    return fall.at_ms + max(short_ms, int(np.median(np.diff(stretch.times_ms))))


def _again(fall: Fall) -> int:
    """Return when something else than time may have changed."""
    return fall.at_ms + max(_AGAIN_MS, int(_AGAIN_SHARE * (fall.at_ms - fall.onset_ms)))


def _span(length_ms: float) -> str:
    return str(Duration(round(length_ms / 10_000) * 10_000))
