"""Which GPUs of a job fell: against their own past and against their peers, both at once.

The lowest GPU is no culprit for being lowest: pipeline stages and mixed hosts differ all the
time. So each GPU is first put over its own level before the change, then over the median GPU
at the same moment; what is left moves only when this GPU alone does.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detector.analysis.change import Confirmed
from detector.series import FloatArray, IntArray, Interval, Window

Mask = npt.NDArray[np.bool_]

# A median over fewer GPUs can be the culprit's own value.
_LEAST_GPUS = 4
# A median of fewer samples is no better than its worst one.
_LEAST_SAMPLES = 3
# Chosen: less than this against the peers is not worth anybody's walk to a node, and it is
# above the 2-4 % by which healthy workers of pai_job2 wander against each other.
_LEAST_FALL = 0.05
# Robust z. Among 10,000 GPUs of one job 0.3 exceed 4 by chance, of a normal spread.
_LEAST_Z = 4.0
# By so many samples it is told which GPUs a job had: one scrape may have failed.
_LATEST = 5
# More than this share fell together: something they share, and the job's matter as a whole.
_MOST_SHARE = 0.25
# The median GPU stands still: quotients with it say nothing.
_STANDSTILL = 0.05
# Below this part of its usual OFU a job dips, and its GPUs are not in step at the edges.
_DIPPING = 0.7
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Whose change it is.

    Attributes
    ----------
    gpus
        Places in the roster, worst first; empty when it is the whole job's or nobody's.
    confidence
        0..1: how far the named stand apart from the next. 1 - (fall of the worst GPU that
        is not named) / (fall of the mildest that is); 0 when nobody is named.
    total
        How many GPUs could be judged.
    fallen
        How many fell clearly more than the median GPU, even where they are too many to name.
    fall
        Mean relative change of those against the median GPU; None when none fell.
    """

    gpus: tuple[int, ...]
    confidence: float
    total: int
    fallen: int
    fall: float | None = None


def attribute(change: Confirmed, window: Window) -> Attribution | None:
    """Return the GPUs that fell by themselves, or None when too few report to tell.

    A change that verification found in single GPUs is theirs.

    Notes
    -----
    Fall of GPU g: the median after the onset less the median before it of
    ``x_g / own level before / median GPU at that moment``. Clear is a fall of more than 5 %
    and more than 4 times the scale, which joins the GPU's own wander before the onset and
    the spread of all falls.
    """
    if window.gpus is None:
        return None
    before = inside(window.times_ms, change.before_span, change.excluded)
    after = inside(window.times_ms, change.after_span, change.excluded)
    x = window.gpus
    usable = (_count(x[before]) >= _LEAST_SAMPLES) & (_count(x[after]) >= _LEAST_SAMPLES)
    usable[usable] = _medians(x[before][:, usable], axis=0) > 0
    places = np.flatnonzero(usable)
    if len(places) < _LEAST_GPUS:
        return None
    y = x[:, places] / _medians(x[before][:, places], axis=0)
    past, present = _against_peers(y[before]), _against_peers(y[after])
    if min(_count(past).min(), _count(present).min()) < _LEAST_SAMPLES:
        return None
    fall = _medians(present, axis=0) - _medians(past, axis=0)
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(fall - np.median(fall))))
    scale = np.hypot(_wander(past, length=len(present)), spread)
    clear = (fall < -_LEAST_FALL) & (fall < -_LEAST_Z * scale)
    return _named(fall, np.isin(places, change.gpus) if change.gpus else clear, places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """GPUs against the others of their job as time went by.

    Attributes
    ----------
    gpus
        Those of the GPUs asked about that fell themselves, places in the roster.
    rows
        Which samples of the window were compared: no dips, and most GPUs there.
    values
        Their mean OFU, each over its own level before and over the median of the others at
        that moment. Shape of ``rows``.
    level
        Their mean OFU before.
    others
        Share of the other GPUs that fell at least half as far.
    """

    gpus: tuple[int, ...]
    rows: IntArray
    values: FloatArray
    level: float
    others: float


def compare(
    window: Window, places: tuple[int, ...], *, onset_ms: int, until_ms: int, least: float
) -> Compared | None:
    """Return these GPUs against the others of the job; None when too few tell.

    Parameters
    ----------
    least
        GPUs that fell by less than half of this are left out.
    """
    if window.gpus is None or max(places) >= window.gpus.shape[1]:
        return None
    end = int(np.searchsorted(window.times_ms, until_ms, side="right"))
    x, after = window.gpus[:end], window.times_ms[:end] > onset_ms
    level = _medians(x[~after], axis=0) if not after.all() else np.full(x.shape[1], np.nan)
    usable = (_count(x[after]) >= _LEAST_SAMPLES) & (_count(x[~after]) >= _LEAST_SAMPLES)
    usable &= np.isfinite(level) & (level > 0)
    named = np.zeros(len(usable), bool)
    named[list(places)] = True
    asked, others = np.flatnonzero(usable & named), np.flatnonzero(usable & ~named)
    if not len(asked) or len(asked) + len(others) < _LEAST_GPUS:
        return None
    middle = _medians(x[:, others] / level[others], axis=1)
    there = np.isfinite(x[:, others]).sum(axis=1) >= 0.5 * len(others)
    rows = np.flatnonzero(there & _undipped(middle, after))
    if len(rows) == 0:
        return None
    late = after[rows]

    def fall(which: IntArray) -> FloatArray:
        quotient = x[np.ix_(rows, which)] / level[which] / middle[rows, None]
        was, now = _medians(quotient[~late], axis=0), _medians(quotient[late], axis=0)
        change: FloatArray = now - was
        return change

    if late.all() or not late.any():
        return None
    own = fall(asked)
    fell = own < -least / 2
    if not fell.any():
        return None
    asked = asked[fell]
    values = (x[np.ix_(rows, asked)] / level[asked]).T / middle[rows]
    known = np.isfinite(values).any(axis=0)
    alike = fall(others) < np.median(own[fell]) / 2
    return Compared(
        gpus=tuple(int(place) for place in asked[np.argsort(own[fell], kind="stable")]),
        rows=rows[known],
        values=np.nanmean(values[:, known], axis=0),
        level=float(level[asked].mean()),
        others=float(alike.mean()),
    )


def _undipped(middle: FloatArray, after: Mask) -> Mask:
    """Which samples are no dips of the job, held to the median of their own side."""
    kept = np.isfinite(middle) & (middle > _STANDSTILL)
    for side in (after, ~after):
        chosen = middle[side & kept]
        if len(chosen):
            kept &= ~side | (middle >= _DIPPING * float(np.median(chosen)))
    return kept


def spread_over_gpus(values: FloatArray) -> float | None:
    """Return the robust relative spread of the GPUs' medians; None for too few GPUs.

    Parameters
    ----------
    values
        OFU, shape ``(samples, gpus)``; NaN is no data.
    """
    levels = _medians(values, axis=0) if len(values) else np.empty(0)
    levels = levels[np.isfinite(levels)]
    if len(levels) < _LEAST_GPUS or np.median(levels) <= 0:
        return None
    middle = float(np.median(levels))
    return _MAD_TO_SIGMA * float(np.median(np.abs(levels - middle))) / middle


def inside(times_ms: IntArray, span: Interval, excluded: tuple[Interval, ...]) -> Mask:
    """Return which samples lie in ``span`` and in none of ``excluded``. Shape ``(n,)``.

    A sample's time is the end of what it stands for: one at the span's start belongs to what
    was before it, one at its end to the span.
    """
    chosen = (times_ms > span.start_ms) & (times_ms <= span.end_ms)
    for hole in excluded:
        chosen &= (times_ms <= hole.start_ms) | (times_ms > hole.end_ms)
    return chosen


def _count(values: FloatArray) -> IntArray:
    count: IntArray = np.isfinite(values).sum(axis=0).astype(np.int64)
    return count


def _against_peers(y: FloatArray) -> FloatArray:
    """Each row over its median GPU; rows in which that one stands still are left out."""
    known: FloatArray = y[np.isfinite(y).sum(axis=1) >= _LEAST_GPUS]
    if not len(known):
        return known
    middle = _medians(known, axis=1)
    moving = middle > _STANDSTILL
    quotient: FloatArray = known[moving] / middle[moving, None]
    return quotient


def _wander(past: FloatArray, *, length: int) -> FloatArray:
    """How much each GPU's median over ``length`` samples moves by itself. Shape ``(g,)``.

    The spread of medians of chunks, since samples that lean on each other make
    ``sigma / sqrt(n)`` far too small. At least six chunks, shorter ones if need be: that errs
    on the side of naming nobody.
    """
    size = max(1, min(length, len(past) // 6))
    count = len(past) // size
    chunks = past[: count * size].reshape(count, size, past.shape[1])
    medians = _medians(chunks, axis=1)
    return _MAD_TO_SIGMA * _medians(np.abs(medians - _medians(medians, axis=0)), axis=0)


def _medians(values: FloatArray, *, axis: int) -> FloatArray:
    """Medians of the finite values along an axis, NaN where there are none.

    ``np.nanmedian`` warns of empty slices and loops over slices in Python.
    """
    ordered = np.sort(values, axis=axis)  # NaN last
    known = np.isfinite(ordered).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(known - 1, 0) // 2, axis=axis)
    high = np.take_along_axis(
        ordered, np.minimum(known // 2, values.shape[axis] - 1), axis=axis
    )
    middle: FloatArray = ((low + high) / 2).squeeze(axis)
    return middle


def _named(fall: FloatArray, clear: Mask, places: IntArray) -> Attribution:
    fallen, total = int(clear.sum()), len(places)
    if fallen == 0 or fallen > _MOST_SHARE * total:
        own = float(fall[clear].mean()) if fallen else None
        return Attribution(gpus=(), confidence=0.0, total=total, fallen=fallen, fall=own)
    worst_first = np.flatnonzero(clear)[np.argsort(fall[clear], kind="stable")]
    next_fall = max(0.0, -float(fall[~clear].min()))
    mildest = -float(fall[clear].max())
    apart = 1.0 - next_fall / mildest if mildest > 0 else 0.0
    return Attribution(
        gpus=tuple(int(places[k]) for k in worst_first),
        confidence=round(min(1.0, max(0.0, apart)), 3),
        total=total,
        fallen=fallen,
        fall=float(fall[clear].mean()),
    )


def gone(change: Confirmed, window: Window) -> Attribution | None:
    """Return the GPUs that reported right before the onset and do not since, in their order.

    Those that the job gave back earlier are none of its loss. None where entries do not carry
    GPUs one by one; nobody is named where all are gone.
    """
    if window.gpus is None:
        return None
    before, after = (
        np.flatnonzero(inside(window.times_ms, span, change.excluded))
        for span in (change.before_span, change.after_span)
    )
    if not len(before) or not len(after):
        return None
    was = _mostly_there(window.gpus[before[-_LATEST:]])
    now = _mostly_there(window.gpus[after])
    lost, total = np.flatnonzero(was & ~now), int(was.sum())
    return Attribution(
        gpus=tuple(lost.tolist()) if len(lost) < total else (),
        confidence=1.0 if 0 < len(lost) < total else 0.0,
        total=total,
        fallen=len(lost),
    )


def stayed(before: FloatArray, after: FloatArray) -> float | None:
    """Return the relative change of the mean over GPUs that report on both sides.

    Parameters
    ----------
    before, after
        OFU of the GPUs by sample. Shape ``(n, g)`` each; NaN is no data.

    Returns
    -------
    None where no GPU reports in most samples of both sides.
    """
    if not len(before) or not len(after):
        return None
    both = _mostly_there(before) & _mostly_there(after)
    if not both.any():
        return None
    there, here = (np.nanmedian(side[:, both], axis=0).mean() for side in (before, after))
    return float(here / there - 1) if there > 0 else None


def _mostly_there(values: FloatArray) -> Mask:
    """Which GPUs report in more than half of the samples. Shape ``(g,)``."""
    there: Mask = np.isfinite(values).mean(axis=0) > 0.5
    return there
