"""How the low stretches of a job are read off its history: breaks, climbs, and how long.

What the page bound asks of a fall, and of the falls before it that ended. Pure; all times are
sample times.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detector.analysis.baselines.excursion import RESTART_MS
from detector.series import FloatArray, IntArray, Series

BoolArray = npt.NDArray[np.bool_]

# Of a silence so much counts as time on the level, or two usual steps.
_SILENT_MS = 120_000
# Levels are read off running medians of so long, at least so many samples: a recovery shows
# once it has lasted half of it.
_SMOOTH_MS, _LEAST_SMOOTH = 120_000, 5
# Of the time on its level a job must have closed less than this share of the gap, from the
# first half to the second: what is left of a warm-up of 5 min closes half of it.
_CLIMB = 0.25
# Of a fall's time, phases of it included, most samples stand on its upper level.
UPPER = 70
# A recovery shows in three samples where the fall is so many standard deviations deep.
_CLEAR_DEVIATIONS = 4.0
# So many samples that repeat the one before are a frozen exporter's.
_FROZEN_RUN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Samples of one stretch: times, values, their running median, and since when."""

    since_ms: int
    times_ms: IntArray
    values: FloatArray
    smooth: FloatArray

    def after(self, row: int) -> "Stretch":
        """Return the stretch that begins with the sample behind ``row``."""
        return Stretch(
            since_ms=int(self.times_ms[row]),
            times_ms=self.times_ms[row + 1 :],
            values=self.values[row + 1 :],
            smooth=self.smooth[row + 1 :],
        )

    def between(self, first: int, last: int) -> "Stretch":
        """Return the rows from ``first`` to ``last``."""
        return Stretch(
            since_ms=int(self.times_ms[first - 1]) if first else self.since_ms,
            times_ms=self.times_ms[first : last + 1],
            values=self.values[first : last + 1],
            smooth=self.smooth[first : last + 1],
        )

    @property
    def noise(self) -> float:
        """Standard deviation of a sample about the running median."""
        return 1.48 * float(np.median(abs(self.values - self.smooth)))

    @property
    def step_ms(self) -> int:
        """The usual distance of two samples."""
        return int(np.median(np.diff(self.times_ms)))


def stretch_of(series: Series, since_ms: int, step_ms: float) -> Stretch:
    """Return a series as one stretch, smoothed once for all that is asked of it."""
    width = max(_LEAST_SMOOTH, round(_SMOOTH_MS / step_ms)) if step_ms > 0 else _LEAST_SMOOTH
    return Stretch(
        since_ms=since_ms,
        times_ms=series.times_ms,
        values=series.values,
        smooth=smooth_over(series.values, width),
    )


def smooth_over(values: FloatArray, width: int) -> FloatArray:
    """Return running medians of about ``width`` samples, fewer at the ends."""
    half = min(width // 2, (len(values) - 1) // 2)
    padded = np.pad(values, half, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    return np.asarray(np.median(windows, axis=1))


def usual_step_ms(series: Series | None) -> float:
    """Return the usual distance of two samples; 0 when there is none."""
    if series is None or len(series.values) < 2:
        return 0.0
    return float(np.median(np.diff(series.times_ms)))


def runs(mask: BoolArray) -> list[tuple[int, int]]:
    """Return the first and the last row of each stretch in which the mask holds."""
    starts = np.flatnonzero(mask & ~np.append(False, mask[:-1]))
    ends = np.flatnonzero(mask & ~np.append(mask[1:], False))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def lasted_ms(stretch: Stretch, there: BoolArray) -> int:
    """Return for how long samples stood there; of a silence little counts.

    A sample counts with the time since the one before, where that stood there too; the first
    with no more than usual, since what went on in a silence before it is not known.
    """
    lasted = np.diff(stretch.times_ms, prepend=stretch.since_ms)
    usual = float(np.median(lasted))
    counts = np.minimum(lasted, max(_SILENT_MS, 2 * usual))
    counts[:1] = np.minimum(counts[:1], 2 * usual)
    return int(counts[there & np.append(True, there[:-1])].sum())


def falls_to(earlier: Stretch, edge: float, level: float, width: float) -> IntArray:
    """Return for how long each earlier fall below ``edge`` that ended stood at ``level``, ms.

    The samples that count are those within ``width`` of it.
    """
    low = earlier.smooth < edge
    found = []
    for first, last in runs(low):
        if first == 0 or last == len(low) - 1:
            continue  # it did not begin in what is known, or is the fall itself
        one = earlier.between(first, last)
        found.append(lasted_ms(one, abs(one.smooth - level) <= width))
    return np.array(found, np.int64)


def restarts(stretch: Stretch, still: BoolArray) -> BoolArray:
    """Return where the job stands still for so long that it may be a restart."""
    longer = np.zeros_like(still)
    for first, last in runs(still):
        begun_ms = stretch.times_ms[first - 1] if first else stretch.since_ms
        longer[first : last + 1] = stretch.times_ms[last] - begun_ms >= RESTART_MS
    return longer


def lost(stretch: Stretch, newest: FloatArray, width: float) -> BoolArray:
    """Return the samples before a silence after which the level is another one.

    The job may have been restarted meanwhile, and what comes after is its warm-up.
    """
    least_ms = max(RESTART_MS, 2 * stretch.step_ms)
    silent = np.diff(stretch.times_ms, append=stretch.times_ms[-1]) >= least_ms
    at = np.flatnonzero(silent)
    moved = abs(stretch.smooth[np.minimum(at + _LEAST_SMOOTH, len(newest) - 1)] - newest[at])
    gone = np.zeros_like(silent)
    gone[at] = moved > width
    return gone


def back(stretch: Stretch, newest: FloatArray, edge: float) -> BoolArray:
    """Return where the job is back: soon, where the fall stands clear of its noise.

    Between an evaluation and the checkpoint after it there may be half a minute.
    """
    above = edge - float(np.percentile(stretch.smooth, UPPER))
    clear = above > _CLEAR_DEVIATIONS * stretch.noise
    return np.asarray((newest if clear else stretch.smooth) > edge)


def climbs(values: FloatArray, before: float) -> bool:
    """Whether what is left of a warm-up is still closing the gap to the level before."""
    early, late = np.array_split(values, 2)
    gap = before - float(np.median(values))
    return bool(np.median(late) - np.median(early) > _CLIMB * gap)


def frozen(values: FloatArray) -> BoolArray:
    """Return which samples are a frozen exporter's; zero is what a standstill reads."""
    repeats = np.asarray((np.diff(values, prepend=np.nan) == 0) & (values > 0))
    out = np.zeros_like(repeats)
    for first, last in runs(repeats):
        out[first : last + 1] = last - first + 1 >= _FROZEN_RUN
    return out
