"""What healthy jobs do that looks like a fall: dips with a rhythm, stops, slow changes.

Every job draws which habits it has and how each goes, then keeps to them.
"""

import numpy as np

from benchmarks.detection.heldout.course import DAY_S, H_S, MIN_S, Course, log_uniform
from detector.series import FloatArray

# Shares of jobs, and ranges, are chosen: from published training runs where those tell.
_SYNCHRONOUS = 0.65
# A checkpoint or an evaluation that takes longer than the job is used to.
_OVERTIME = 0.025


def live(course: Course) -> None:
    """Let the job have its habits."""
    start(course)
    slow_course(course)
    if not course.burden:
        return
    rng = course.rng
    if rng.random() < 0.85:
        checkpoints(course)
    if rng.random() < 0.55:
        for _ in range(int(rng.choice([1, 2, 3], p=[0.6, 0.25, 0.15]))):
            evaluations(course)
    if rng.random() < 0.08:
        every_23_minutes(course)
    if rng.random() < 0.35:
        stalls(course)
    singles(course)
    per_day = rng.gamma(1.2, 0.7) * course.burden * (3 if course.stress else 1)
    for at_s in course.poisson(per_day):
        restart(course, float(at_s), log_uniform(rng, 90, 1500))


def start(course: Course) -> None:
    """Let the job warm up from its first sample on."""
    warm_up(course, 0.0)


def slow_course(course: Course) -> None:
    """Let the level change as healthy levels do: nothing here is a regression."""
    rng, ends_s = course.rng, course.ends_s
    days = ends_s / DAY_S
    shape = course.shape
    if rng.random() < 0.5:
        shape *= 1 + rng.uniform(-0.02, 0.02) * days
    if rng.random() < 0.4:
        swing, phase = rng.uniform(0.004, 0.02), rng.uniform(0, 2 * np.pi, 2)
        shape *= 1 + swing * np.sin(2 * np.pi * days + phase[0])
        shape *= 1 + swing / 4 * np.sin(4 * np.pi * days + phase[1])
    if rng.random() < 0.12:  # a longer sequence, or another stage of a curriculum
        for _ in range(int(rng.integers(1, 3))):
            shape *= np.where(
                ends_s > rng.uniform(0, course.length_s), rng.uniform(1.03, 1.2), 1
            )
    if rng.random() < 0.12:  # experts that share the load better and better
        reach, time_s = rng.uniform(0.02, 0.06), rng.uniform(1, 6) * H_S
        shape *= 1 + reach * (1 - np.exp(-ends_s / time_s))
        shape *= 1 + 0.006 * np.sin(2 * np.pi * ends_s / (rng.uniform(1.5, 5) * H_S))


def times(course: Course, period_s: float) -> FloatArray:
    """Return when something happens: with a rhythm and some jitter, or irregularly."""
    rng = course.rng
    count = int(course.length_s / period_s * 2) + 5
    if rng.random() < 0.65:
        jitter = rng.uniform(0.002, 0.05) * period_s
        at = period_s * np.arange(1, count + 1) + rng.normal(0, jitter, count)
    else:
        shape = rng.uniform(1.5, 4)
        at = np.cumsum(rng.gamma(shape, period_s / shape, count))
    return at[(at > 0) & (at < course.length_s)]


def checkpoints(course: Course) -> None:
    """Write checkpoints: the job stands still meanwhile, or is slower for a while."""
    rng = course.rng
    period_s = log_uniform(rng, 9 * MIN_S, 80 * MIN_S) / np.sqrt(course.burden)
    synchronous = rng.random() < _SYNCHRONOUS
    usual_s = log_uniform(rng, 20, 240) if synchronous else log_uniform(rng, 30, 300)
    usual_s = min(usual_s * (2 if course.stress else 1), period_s / 3)
    to = rng.uniform(0, 0.06) if synchronous else rng.uniform(0.7, 0.9)
    spread = rng.uniform(0.05, 0.3)
    for at_s in times(course, period_s):
        length_s = usual_s * float(np.exp(rng.normal(0, spread)))
        if rng.random() < _OVERTIME:
            length_s *= rng.uniform(1.5, 3)
        course.dip(float(at_s), length_s, min(1.0, to * rng.uniform(0.95, 1.05)))
        course.announced.append(("checkpoint", float(at_s), float(at_s) + length_s))


def evaluations(course: Course) -> None:
    """Evaluate on a schedule of its own: one size, at one level or at two after each other."""
    rng = course.rng
    period_s = log_uniform(rng, 20 * MIN_S, 3 * H_S)
    usual_s = log_uniform(rng, 50, 12 * MIN_S) * (2 if course.stress else 1)
    usual_s = min(usual_s, period_s / 3)
    to, spread = rng.uniform(0.25, 0.95), rng.uniform(0.01, 0.15)
    then = to * rng.uniform(0.6, 0.95) if rng.random() < 0.2 else None
    for at_s in times(course, period_s):
        length_s = usual_s * float(np.exp(rng.normal(0, spread)))
        if rng.random() < _OVERTIME:
            length_s *= rng.uniform(1.5, 2.5)
        course.dip(float(at_s), length_s, to)
        if then is not None:
            course.dip(float(at_s) + length_s * 0.6, length_s * 0.4, then)
        course.announced.append(("evaluation", float(at_s), float(at_s) + length_s))


def every_23_minutes(course: Course) -> None:
    """Dip on a clock that is not the job's: a scrub, a backup, somebody else's cron."""
    rng = course.rng
    length_s, to = rng.uniform(30, 100), rng.uniform(0.6, 0.85)
    for at_s in np.arange(rng.uniform(0, 23 * MIN_S), course.length_s, 23 * MIN_S):
        course.dip(float(at_s + rng.normal(0, 5)), length_s * rng.uniform(0.8, 1.2), to)


def stalls(course: Course) -> None:
    """Wait for data now and then, several times within some minutes."""
    rng = course.rng
    per_day = log_uniform(rng, 0.7, 6) * course.burden * (5 if course.stress else 1)
    for at_s in course.poisson(per_day):
        until_s = float(at_s) + log_uniform(rng, 60, 12 * MIN_S)
        next_s = float(at_s)
        while next_s < until_s:
            course.dip(next_s, rng.uniform(4, 25), rng.uniform(0.1, 0.8))
            next_s += 30 + rng.exponential(80)


def singles(course: Course) -> None:
    """Stumble for single steps."""
    rng = course.rng
    per_day = rng.gamma(0.8, 10) * course.burden * (5 if course.stress else 1)
    for at_s in course.poisson(per_day):
        course.dip(float(at_s), rng.uniform(3, 15), rng.uniform(0.3, 0.9))


def restart(course: Course, at_s: float, length_s: float) -> float:
    """Stop the job and let it warm up again; return when it is back.

    Its history says nothing meanwhile, or zeros, or entries without a value.
    """
    rng = course.rng
    rows = course.rows(at_s, at_s + length_s)
    course.stopped[rows] = True
    said = rng.choice(3, p=[0.4, 0.5, 0.1])
    if said == 0:
        course.missing[rows] = True
        course.blind.append((at_s, at_s + length_s))
    elif said == 2:
        course.unread[rows] = True
        course.blind.append((at_s, at_s + length_s))
    course.announced.append(("restart", at_s, at_s + length_s))
    back_s: float = rows.stop * course.cadence_s
    warm_up(course, back_s)
    return back_s


def warm_up(course: Course, from_s: float) -> None:
    """Warm up linearly, exponentially or in two steps."""
    rng = course.rng
    rows = slice(course.rows(from_s, from_s).start, course.n)
    # Middle of each sample's interval.
    since_s = course.ends_s[rows] - course.cadence_s / 2 - from_s
    way = rng.choice(3, p=[0.35, 0.4, 0.25])
    if way == 0:
        warmth = rng.uniform(0.05, 0.4) + since_s / rng.uniform(40, 500)
    elif way == 1:
        missing = rng.uniform(0.3, 0.95)
        warmth = 1 - missing * np.exp(-since_s / rng.uniform(20, 240))
    else:
        first = rng.uniform(0.3, 0.75)
        warmth = np.where(since_s < rng.uniform(60, 360), first, 1.0)
    # A stop in the middle of a warm-up begins another; what is colder shows.
    course.warmth[rows] = np.minimum(course.warmth[rows], np.clip(warmth, 0, 1))
