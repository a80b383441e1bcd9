"""Whole jobs: course, noise, change, single GPUs and the telemetry that tells of them."""

import zlib
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from benchmarks.detection.classes import ChangeClass
from benchmarks.detection.generator import START_MS, BoolArray, Made, Truth
from benchmarks.detection.heldout import habits
from benchmarks.detection.heldout.course import H_S, MIN_S, Course, log_uniform
from benchmarks.detection.heldout.noise import noise, summary
from benchmarks.detection.heldout.telemetry import disturb
from detector.series import ContextEvent, FloatArray, IntArray, Interval, Window

# Shares of jobs without any nuisance, with few, with the usual ones, and with many.
_BURDENS, _SHARES = (0.0, 0.4, 1.0, 2.2), (0.15, 0.3, 0.4, 0.15)
# The highest level of a job: what is above 1 would be cut off.
_HIGHEST = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What is done to a job: share of the level it leaves by sample, and when it begins."""

    left: FloatArray
    onset_row: int | None = None
    clock_row: int | None = None


def make(
    kind: ChangeClass,
    number: int,
    *,
    seed: int,
    announced: bool = False,
    metrics: bool = False,
    cadence_s: float = 10.0,
) -> Made:
    """Return the class's job of this number; it is the same whichever others are made.

    Parameters
    ----------
    announced
        Whether the job announces its checkpoints, evaluations and restarts.
    cadence_s
        Distance of two samples.

    Raises
    ------
    ValueError
        When ``metrics`` are wanted: these jobs have their OFU alone.
    """
    if metrics:
        msg = "held-out jobs have no metrics besides OFU; leave out --metrics"
        raise ValueError(msg)
    rng = np.random.default_rng([seed, 0x4E1D, zlib.crc32(kind.name.encode()), number])
    n = round(kind.hours * H_S / cadence_s)
    course = Course(
        rng=rng,
        n=n,
        cadence_s=cadence_s,
        burden=float(rng.choice(_BURDENS, p=_SHARES)),
        stress=kind.stress,
    )
    if kind.stress and not course.burden:
        course.burden = 1.0
    base = log_uniform(rng, 0.08, 0.75)
    habits.live(course)
    change = _change(course, kind)
    base = min(base, _HIGHEST / float((course.shape * change.left).max()))
    drawn, heavy = noise(rng, n, cadence_s)
    sigma, phi = summary(drawn, cadence_s)
    around = course.warmth * course.dips * np.where(course.stopped, 0.0, 1.0)
    values = base * course.shape * change.left * around * (1 + drawn)
    gpus, place = _gpus(rng, values, kind, change.onset_row) if kind.gpus else (None, None)
    if gpus is not None:
        values = gpus.mean(axis=1)
    touched = (course.dips < 0.999) | course.stopped | (course.warmth < 0.5)
    window, untold = _told(course, values, gpus, announced=announced)
    kept = ~course.missing
    return Made(
        id=f"heldout-{kind.name}-{number}",
        kind=kind,
        window=window,
        truth=Truth(
            onset_ms=_before(course, change.onset_row),
            clock_ms=_before(course, change.clock_row),
            factor=kind.factor,
            level=base,
            sigma=sigma * base,
            phi=phi,
            heavy=heavy,
            gpu=place,
            cadence_ms=round(cadence_s * 1000),
        ),
        expected=(base * course.shape)[kept],
        warmth=course.warmth[kept],
        clean=~(touched | untold)[kept],
        blind=tuple(_interval(start, end) for start, end in course.blind),
    )


def _change(course: Course, kind: ChangeClass) -> _Change:
    """Return what the class does to the job, at a time of its own."""
    left = np.ones(course.n)
    if kind.kind == "quiet":
        return _Change(left=left)
    rng = course.rng
    onset_s = rng.uniform(*kind.onset_h) * H_S
    onset = back = course.rows(onset_s, onset_s).start
    if kind.at_restart:
        back_s = habits.restart(course, onset * course.cadence_s, log_uniform(rng, 120, 1200))
        back = course.rows(back_s, back_s).start
    if kind.kind != "straggler":
        since_s = course.ends_s[onset:] - onset * course.cadence_s
        ramp_s = max(kind.ramp_min * MIN_S, course.cadence_s)
        left[onset:] = 1 - (1 - kind.factor) * np.minimum(since_s / ramp_s, 1)
        if kind.lasts_min is not None:
            left[onset:][since_s > kind.lasts_min * MIN_S] = 1
    return _Change(left=left, onset_row=onset, clock_row=back)


def _gpus(
    rng: np.random.Generator, values: FloatArray, kind: ChangeClass, onset: int | None
) -> tuple[FloatArray, int | None]:
    """Return the values of each GPU, shape ``(n, gpus)``, and which is the straggler."""
    shape = (len(values), kind.gpus)
    memory, sigma = rng.uniform(0, 0.7), log_uniform(rng, 0.004, 0.02)
    own = lfilter([1.0], [1.0, -memory], rng.standard_normal(shape), axis=0)
    own *= sigma * np.sqrt(1 - memory * memory)
    own += 1 + rng.normal(0, rng.uniform(0.005, 0.04), kind.gpus)
    own *= values[:, None]
    place = None
    if kind.kind == "straggler":
        place = int(rng.integers(kind.gpus))
        own[onset:, place] *= kind.factor
    return np.clip(own, 0, 1), place


def _told(
    course: Course, values: FloatArray, gpus: FloatArray | None, *, announced: bool
) -> tuple[Window, BoolArray]:
    """Return the history, and which samples of the grid do not tell what the job did."""
    untold = disturb(course, values, gpus)
    kept = ~course.missing
    events = [
        ContextEvent(kind=what, span=_interval(start, end))
        for what, start, end in sorted(course.announced, key=lambda item: item[1])
    ]
    window = Window(
        times_ms=_times(course)[kept],
        fields={"ofu": _stored(values[kept])},
        gpus=None if gpus is None else _stored(gpus[kept]),
        events=tuple(events) if announced else (),
    )
    return window, untold


def _times(course: Course) -> IntArray:
    """Return the samples' time stamps: half of the exporters are not quite on time."""
    late = course.rng.uniform(0, 0.03) if course.rng.random() < 0.5 else 0.0
    off = course.rng.uniform(-late, late, course.n) * course.cadence_s
    times_ms: IntArray = START_MS + np.rint((course.ends_s + off) * 1000).astype(np.int64)
    return times_ms


def _before(course: Course, row: int | None) -> int | None:
    """Return the end of the sample before this one, ms."""
    return None if row is None else START_MS + round(row * course.cadence_s * 1000)


def _interval(start_s: float, end_s: float) -> Interval:
    return Interval(
        start_ms=START_MS + round(start_s * 1000), end_ms=START_MS + round(end_s * 1000)
    )


def _stored(values: FloatArray) -> FloatArray:
    """Return values as a history keeps them."""
    return np.clip(values, 0, 1).astype(np.float32).astype(np.float64)
