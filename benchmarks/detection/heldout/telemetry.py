"""What becomes of a job's values on the way to its history."""

import numpy as np

from benchmarks.detection.generator import BoolArray
from benchmarks.detection.heldout.course import DAY_S, MIN_S, Course, log_uniform
from detector.series import FloatArray

# Steps of meters that round.
_STEPS = (0.001, 0.0025, 0.005, 0.01)


def disturb(course: Course, values: FloatArray, gpus: FloatArray | None) -> BoolArray:
    """Spoil a job's values in place; return which of them do not tell what the job did.

    Parameters
    ----------
    values
        OFU of the job, shape ``(n,)``.
    gpus
        OFU of its GPUs, shape ``(n, gpus)``; spoiled alike.
    """
    untold = np.zeros(course.n, bool)
    if course.burden:
        _lose(course)
        for read in (values, gpus):
            if read is not None:
                read[course.unread] = np.nan
        untold |= course.unread
        untold |= _repeated(course, values, gpus)
        untold |= _glitched(course, values, gpus)
    if gpus is None and course.rng.random() < 0.15:
        level = float(np.nanmedian(values))
        fine = [step for step in _STEPS if step <= 0.02 * level]
        if fine:
            step = float(course.rng.choice(fine))
            values[:] = np.round(values / step) * step
    return untold


def _lose(course: Course) -> None:
    """Miss entries: single ones, ones without a value, and all for some minutes."""
    rng = course.rng
    if rng.random() < 0.4:
        course.missing |= rng.random(course.n) < log_uniform(rng, 0.0005, 0.02)
    if rng.random() < 0.3:
        course.unread |= rng.random(course.n) < log_uniform(rng, 0.0005, 0.01)
    for at_s in course.poisson(0.7 * course.burden):
        until_s = float(at_s) + log_uniform(rng, MIN_S, 15 * MIN_S)
        course.missing[course.rows(float(at_s), until_s)] = True
        course.blind.append((float(at_s), until_s))


def _repeated(course: Course, values: FloatArray, gpus: FloatArray | None) -> BoolArray:
    """Tell old values again: single ones, and for some minutes by an exporter that hangs."""
    rng, n = course.rng, course.n
    source = np.arange(n)
    if rng.random() < 0.2:
        again = np.flatnonzero(rng.random(n) < log_uniform(rng, 0.001, 0.02))
        source[again] = np.maximum(again - 1, 0)
    for at_s in course.poisson(0.25 * course.burden):
        length_s = log_uniform(rng, 3 * MIN_S, 40 * MIN_S)
        rows = course.rows(float(at_s), float(at_s) + length_s)
        source[rows] = source[rows.start] if rows.start < n else n - 1
        course.blind.append((float(at_s), float(at_s) + length_s))
    for read in (values, gpus):
        if read is not None:
            read[:] = read[source]
    told_anew: BoolArray = source != np.arange(n)
    return told_anew


def _glitched(course: Course, values: FloatArray, gpus: FloatArray | None) -> BoolArray:
    """Read 0 or 1 for single samples."""
    rng = course.rng
    per_day = rng.gamma(0.8, 3) * course.burden
    rows = rng.integers(0, course.n, rng.poisson(per_day * course.length_s / DAY_S))
    to = rng.choice([0.0, 1.0], len(rows), p=[0.7, 0.3])
    glitched = np.zeros(course.n, bool)
    glitched[rows] = True
    values[rows] = to
    if gpus is not None:
        gpus[rows] = to[:, None]
    return glitched
