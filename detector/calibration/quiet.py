"""Jobs that are well, as many as one wants: what false alarms are counted on.

A job reports its mean OFU every 10 s, for a day unless said. It has the habits that make
detection hard (warm-up, checkpoints, evaluations, restarts, hiccups, drift) and a meter that
breaks as meters do; the ranges are those of published training runs. The benchmark of detection
makes its jobs of the same parts and then lets something happen to them.

Every job has a generator of its own, seeded by (seed, "quiet", number): the same job comes out
whichever jobs are made beside it.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np

from detector.fleet import Job
from detector.series import ContextEvent, FloatArray, IntArray, Interval, Window
from detector.store.recording import Recording

CADENCE_MS = 10_000
PER_MIN = 60_000 // CADENCE_MS
PER_H = 60 * PER_MIN
PER_DAY = 24 * PER_H
START_MS = 1_760_000_000_000  # any past time will do

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def quiet_job(number: int, *, seed: int, hours: float = 24.0) -> Recording:
    """Return the quiet job of this number, as a recording of its mean OFU."""
    rng = np.random.default_rng([seed, zlib.crc32(b"quiet"), number])
    course, law, wobble = lived(rng, hours=hours)
    values = measured(course, law, wobble, course.phase)
    break_telemetry(course, values, None)
    keep = ~course.gap
    window = Window(times_ms=scrapes(rng, course.n)[keep], fields={"ofu": stored(values[keep])})
    return Recording(job=Job(id=f"quiet-{seed}-{number}"), window=window)


@dataclass(slots=True, kw_only=True)
class Course:
    """A job on the grid of its cadence, while nuisances are laid over it.

    Attributes
    ----------
    level
        Slow course about 1: drift, the time of day, experts that learn, longer sequences.
    phase
        What training is worth in this sample, 0..1, by what goes on beside it.
    warmth
        What of ``phase`` is warming up, 0..1.
    shares
        Phase -> which part of ``phase`` is its doing; the rest is warm-up.
    """

    rng: np.random.Generator
    n: int
    tau: float
    ramp: float
    harder: bool
    level: FloatArray
    phase: FloatArray
    warmth: FloatArray
    shares: dict[str, FloatArray]
    clean: BoolArray
    idle: BoolArray
    gap: BoolArray
    events: list[ContextEvent] = field(default_factory=list)

    @property
    def days(self) -> float:
        """How long the job is, days."""
        return self.n / PER_DAY

    def dip(self, start: float, length: float, level: float, kind: str) -> None:
        """Let ``kind`` slow the job from row ``start`` for ``length`` rows."""
        rows = slice(max(0, round(start)), min(self.n, max(round(start + length), 1)))
        if rows.stop <= rows.start:
            return
        self.phase[rows] *= level
        self.clean[rows.start : rows.stop + 1] = False
        self.shares[kind][rows] *= level
        if kind in ("checkpoint", "evaluation", "restart"):
            # A script says so as the phase begins, and again, with its end, when it is over.
            start_ms, end_ms = end_of(rows.start - 1), end_of(rows.stop - 1)
            self.events += [
                ContextEvent(
                    kind=kind, span=Interval(start_ms=start_ms, end_ms=told_ms), told_ms=told_ms
                )
                for told_ms in (start_ms, end_ms)
            ]

    def warm_up(self, row: int) -> None:
        """Ramp up from ``row`` on with the job's own time constant."""
        ramp = 1 - self.ramp * np.exp(-np.arange(self.n - row) / self.tau)
        self.phase[row:] *= ramp
        self.warmth[row:] *= ramp
        self.clean[row:] &= ramp > 0.5

    def stop(self, row: int) -> int:
        """Stop the job at ``row`` and bring it back; returns the row when it is back."""
        back = min(self.n, row + round(self.rng.uniform(2, 20) * PER_MIN))
        self.dip(row, back - row, 0.0, "restart")
        self.idle[row:back] = True
        self.gap[row:back] = self.rng.random() < 0.5
        self.warm_up(back)
        return back


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Usual level of a job; marginal deviation and lag-1 correlation of the noise about it.

    ``heavy`` is whether the noise's innovations are Student t(4).
    """

    level: float
    sigma: float
    phi: float
    heavy: bool


_PHASES = ("checkpoint", "evaluation", "hiccup", "restart")


def lived(
    rng: np.random.Generator, *, hours: float, harder: bool = False
) -> tuple[Course, Law, FloatArray]:
    """Return the course of a quiet job, its law, and its noise. Shape ``(n,)``.

    ``harder`` makes its habits worse: dips twice as long, five times as many hiccups, three
    times as many restarts.
    """
    course = begin(rng, round(hours * PER_H), harder=harder)
    # Evenly on a logarithmic scale, as befits a scale: most jobs are quieter than 1 point.
    level, sigma = rng.uniform(0.2, 0.6), 0.003 * 10 ** rng.uniform(0, 1)
    phi, heavy = rng.uniform(0.0, 0.8), bool(rng.random() < 0.3)
    law = Law(level=level, sigma=sigma, phi=phi, heavy=heavy)
    wobble = noise(rng, course.n, law)
    drift(course)
    habits(course)
    return course, law, wobble


def measured(course: Course, law: Law, wobble: FloatArray, share: FloatArray) -> FloatArray:
    """Return what a sound meter reads of a job that does ``share`` of its work.

    Whatever slows the work makes its noise smaller in the same measure.
    """
    values = np.clip(law.level * course.level * share + wobble * share, 0, 1)
    values[course.idle] = course.rng.uniform(0, 0.004, int(course.idle.sum()))
    return values


def begin(rng: np.random.Generator, n: int, *, harder: bool = False) -> Course:
    """Return a job that warms up and to which nothing else has happened yet."""
    course = Course(
        rng=rng,
        n=n,
        tau=rng.uniform(1, 5) * PER_MIN,
        ramp=rng.uniform(0.5, 1.0),
        harder=harder,
        level=np.ones(n),
        phase=np.ones(n),
        warmth=np.ones(n),
        shares={kind: np.ones(n) for kind in _PHASES},
        clean=np.ones(n, bool),
        idle=np.zeros(n, bool),
        gap=np.zeros(n, bool),
    )
    course.warm_up(0)
    return course


def noise(rng: np.random.Generator, n: int, law: Law) -> FloatArray:
    """AR(1) of the law's marginal deviation, from its stationary law on."""
    shocks = rng.standard_t(4, n) / np.sqrt(2) if law.heavy else rng.standard_normal(n)
    shocks[1:] *= np.sqrt(1 - law.phi * law.phi)
    recalled, out = 0.0, []
    for shock in shocks.tolist():
        recalled = shock + law.phi * recalled
        out.append(recalled)
    return law.sigma * np.array(out)


def drift(course: Course) -> None:
    """Drift, a random walk, the time of day; some jobs rise, some have longer sequences."""
    rng, n = course.rng, course.n
    days = np.arange(n) / PER_DAY
    course.level += rng.uniform(-0.03, 0.03) * days
    # Random walk of up to 1 % in a day.
    steps = rng.standard_normal(n) * rng.uniform(0, 0.01) / np.sqrt(PER_DAY)
    course.level += np.cumsum(steps)
    if rng.random() < 0.5:
        course.level += rng.uniform(0, 0.02) * np.sin(2 * np.pi * (days + rng.random()))
    if rng.random() < 0.15:  # experts of a mixture balance their load
        hours = rng.uniform(1, 4)
        course.level += rng.uniform(0.03, 0.10) * (1 - np.exp(-days * 24 / hours))
    if rng.random() < 0.10:  # longer sequences, more work a token
        row = int(rng.uniform(0.1, 0.9) * n)
        course.level[row:] *= 1 + rng.uniform(0.05, 0.20)


def habits(course: Course) -> None:
    """All that recurs in a healthy job and looks like a drop until it ends."""
    rng, longer = course.rng, 2.0 if course.harder else 1.0
    beside = rng.random() < 0.2  # written beside the training
    level = rng.uniform(0.80, 0.95) if beside else rng.uniform(0.0, 0.6)
    length = longer * rng.uniform(0.5, 3) * PER_MIN
    for start in _rhythm(rng, course.n, rng.uniform(10, 60) * PER_MIN):
        twice = 2.0 if rng.random() < 0.02 else 1.0
        course.dip(start, length * twice * rng.uniform(0.85, 1.15), level, "checkpoint")
    if rng.random() < 0.6:
        level, length = rng.uniform(0.3, 0.9), longer * rng.uniform(2, 10) * PER_MIN
        for start in _rhythm(rng, course.n, rng.uniform(50, 70) * PER_MIN):
            course.dip(start, length * rng.uniform(0.9, 1.1), level, "evaluation")
    rate = rng.uniform(0, 40) * (5 if course.harder else 1)
    for start in rng.uniform(0, course.n, rng.poisson(rate * course.days)):
        course.dip(start, int(rng.integers(1, 7)), rng.uniform(0.3, 0.9), "hiccup")
    restarts = int(rng.integers(0, 3)) * (3 if course.harder else 1)
    for start in rng.uniform(PER_MIN, course.n, rng.binomial(restarts, min(1, course.days))):
        course.stop(int(start))


def _rhythm(rng: np.random.Generator, n: int, period: float) -> list[float]:
    """Rows on which a recurring phase begins; the rhythm is steady to a twentieth."""
    starts = rng.uniform(0.2, 1) * period + period * np.arange(int(n / period) + 1)
    starts = starts + rng.normal(0, 0.05 * period, len(starts))
    return [float(start) for start in starts if 0 <= start < n]


def break_telemetry(
    course: Course, values: FloatArray, gpus: FloatArray | None
) -> tuple[Interval, ...]:
    """Break the meter as meters break, in place; returns the spans in which it was broken."""
    rng, n = course.rng, course.n
    blind = []
    arrays = [values] if gpus is None else [values, gpus]
    for _ in range(rng.poisson(rng.uniform(0, 2) * course.days)):
        rows = _stretch(rng, n, rng.uniform(0.5, 15) * PER_MIN)
        blind.append(_span(rows))
        if rng.random() < 0.5:
            course.gap[rows] = True
        else:
            for array in arrays:
                array[rows] = np.nan
    if rng.random() < 0.1:  # a frozen exporter repeats itself
        for _ in range(rng.poisson(2 * course.days)):
            rows = _stretch(rng, n, rng.uniform(1, 10) * PER_MIN)
            blind.append(_span(rows))
            course.clean[rows] = False
            for array in arrays:
                array[rows] = array[rows.start - 1]
    chance = rng.random(n)
    values[chance < 0.0005] = rng.integers(0, 2, int((chance < 0.0005).sum()))
    lost = (chance >= 0.0005) & (chance < 0.0025)
    for array in arrays:
        array[lost] = np.nan
    course.gap[(chance >= 0.0025) & (chance < 0.004)] = True
    course.clean[(chance < 0.0025) | np.isnan(values)] = False
    return tuple(blind)


def _stretch(rng: np.random.Generator, n: int, length: float) -> slice:
    """Rows of so many samples, somewhere behind the first."""
    start = int(rng.integers(1, n))
    return slice(start, min(n, start + max(1, round(length))))


def end_of(row: int) -> int:
    """End of the sample in this row, ms, on the grid."""
    return START_MS + CADENCE_MS * (row + 1)


def scrapes(rng: np.random.Generator, n: int) -> IntArray:
    """Scrapes come up to 2 % of the cadence late."""
    grid = START_MS + CADENCE_MS * (1 + np.arange(n, dtype=np.int64))
    return np.asarray(grid + rng.integers(0, CADENCE_MS // 50, n), np.int64)


def _span(rows: slice) -> Interval:
    """The time of these rows."""
    return Interval(start_ms=end_of(rows.start - 1), end_ms=end_of(rows.stop - 1))


def stored(values: FloatArray) -> FloatArray:
    """Values as a history keeps them: five decimals of float32."""
    return np.round(values, 5).astype(np.float32).astype(np.float64)
