"""Realistic jobs whose truth is known, made for measuring how well changes are found.

The demo's generator (``detector.demo``) makes few jobs with all their counters; this one makes
thousands of a job's mean alone, with the habits that make detection hard, and keeps what an
all-knowing detector would know: level, noise law, and which samples no nuisance touches.
Ranges are those of published training runs and of docs/detection.md.

Every job has a generator of its own, seeded by (seed, class, number): the same job comes out
whichever jobs are made beside it.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np
from scipy.signal import lfilter

from benchmarks.detection.classes import ChangeClass
from detector.series import ContextEvent, FloatArray, IntArray, Interval, Window

CADENCE_MS = 10_000
PER_MIN = 60_000 // CADENCE_MS
PER_H = 60 * PER_MIN
PER_DAY = 24 * PER_H
START_MS = 1_760_000_000_000  # any past time will do

# Settings are chosen on the jobs of one seed and reported on the jobs of the other.
SEEDS = {"calibration": 11_000, "test": 22_000}

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was done to a job, and what an all-knowing detector would know of it.

    Attributes
    ----------
    onset_ms
        End of the last sample before the change; None in a quiet job.
    clock_ms
        From when on a detector can be asked for it: the onset, or for a change that comes with
        a restart, when the job is back.
    level, sigma, phi, heavy
        Usual level; marginal deviation and lag-1 correlation of the noise about it; whether its
        innovations are Student t(4).
    gpu
        Which GPU is the straggler.
    cadence_ms
        Distance of two samples.
    """

    onset_ms: int | None
    clock_ms: int | None
    factor: float
    level: float
    sigma: float
    phi: float
    heavy: bool
    gpu: int | None = None
    cadence_ms: int = CADENCE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A job as its history would hold it.

    Attributes
    ----------
    expected
        The level had nothing been done to the job and nothing disturbed it. Shape ``(n,)``.
    warmth
        What share of it a job that warms up has reached, 0..1. Shape ``(n,)``.
    clean
        Samples that no other nuisance touches, and in which at least half is reached.
    blind
        Spans in which the telemetry was broken: an alert that says so there is right.
    """

    id: str
    kind: ChangeClass
    window: Window
    truth: Truth
    expected: FloatArray
    warmth: FloatArray
    clean: BoolArray
    blind: tuple[Interval, ...]


@dataclass(slots=True, kw_only=True)
class _Course:
    """A job on the grid of its cadence, while nuisances are laid over it.

    Attributes
    ----------
    level
        Slow course about 1: drift, the time of day, experts that learn, longer sequences.
    phase
        What training is worth in this sample, 0..1, by what goes on beside it.
    warmth
        What of ``phase`` is warming up, 0..1.
    cause
        Which phase a sample is in, as an index into ``_PHASES``.
    """

    rng: np.random.Generator
    n: int
    tau: float
    ramp: float
    harder: bool
    level: FloatArray
    phase: FloatArray
    warmth: FloatArray
    cause: IntArray
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
        self.cause[rows] = _PHASES.index(kind)
        if kind in ("checkpoint", "evaluation", "restart"):
            self.events.append(
                ContextEvent(
                    kind=kind,
                    span=Interval(start_ms=_time(rows.start - 1), end_ms=_time(rows.stop - 1)),
                )
            )

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


_PHASES = ("training", "checkpoint", "evaluation", "hiccup", "restart")


def make(
    kind: ChangeClass,
    number: int,
    *,
    seed: int,
    announced: bool = False,
    metrics: bool = False,
    cadence_s: float = CADENCE_MS / 1000,
) -> Made:
    """Return the class's job of this number.

    Parameters
    ----------
    announced
        Whether the job announces its checkpoints, evaluations and restarts.
    metrics
        Whether the history holds SM activity, power, memory and PCIe traffic and clock too.
    cadence_s
        Distance of two samples: of the same job's samples every so manieth is kept.

    Raises
    ------
    ValueError
        When the cadence is no multiple of 10 s.
    """
    every, rest = divmod(round(cadence_s * 1000), CADENCE_MS)
    if rest or not every:
        msg = f"these jobs have a sample every 10 s: {cadence_s:g} s is no multiple of it"
        raise ValueError(msg)
    rng = np.random.default_rng([seed, zlib.crc32(kind.name.encode()), number])
    course = _start(rng, round(kind.hours * PER_H), harder=kind.stress)
    # Evenly on a logarithmic scale, as befits a scale: most jobs are quieter than 1 point.
    level, sigma = rng.uniform(0.2, 0.6), 0.003 * 10 ** rng.uniform(0, 1)
    phi, heavy = rng.uniform(0.0, 0.8), bool(rng.random() < 0.3)
    noise = _noise(rng, course.n, sigma=sigma, phi=phi, heavy=heavy)
    _slow_course(course)
    _habits(course)
    change, onset, clock = _change(course, kind)
    # Whatever slows the work makes its noise smaller in the same measure.
    share = course.phase * change
    values = np.clip(level * course.level * share + noise * share, 0, 1)
    values[course.idle] = rng.uniform(0, 0.004, int(course.idle.sum()))
    gpus, place = None, None
    if kind.gpus:
        gpus, place = _gpus(rng, values, kind, onset)
        values = gpus.mean(axis=1)
    blind = _telemetry(course, values, gpus)
    keep = ~course.gap & (np.arange(course.n) % every == 0)
    times_ms = _times(rng, course.n)
    fields = {"ofu": values}
    if metrics:
        fields |= _counters(rng, values / level, course, change)
    return Made(
        id=f"{kind.name}-{number}",
        kind=kind,
        window=Window(
            times_ms=times_ms[keep],
            fields={name: _stored(array[keep]) for name, array in fields.items()},
            gpus=None if gpus is None else _stored(gpus[keep]),
            events=tuple(course.events) if announced else (),
        ),
        truth=Truth(
            onset_ms=None if onset is None else _time(onset - 1),
            clock_ms=None if clock is None else _time(clock - 1),
            factor=kind.factor,
            level=level,
            sigma=sigma,
            phi=phi**every,
            heavy=heavy,
            gpu=place,
            cadence_ms=every * CADENCE_MS,
        ),
        expected=(level * course.level)[keep],
        warmth=course.warmth[keep],
        clean=course.clean[keep],
        blind=blind,
    )


def _start(rng: np.random.Generator, n: int, *, harder: bool) -> _Course:
    course = _Course(
        rng=rng,
        n=n,
        tau=rng.uniform(1, 5) * PER_MIN,
        ramp=rng.uniform(0.5, 1.0),
        harder=harder,
        level=np.ones(n),
        phase=np.ones(n),
        warmth=np.ones(n),
        cause=np.zeros(n, np.int64),
        clean=np.ones(n, bool),
        idle=np.zeros(n, bool),
        gap=np.zeros(n, bool),
    )
    course.warm_up(0)
    return course


def _noise(
    rng: np.random.Generator, n: int, *, sigma: float, phi: float, heavy: bool
) -> FloatArray:
    """AR(1) of marginal deviation ``sigma``, from its stationary law on."""
    shocks = rng.standard_t(4, n) / np.sqrt(2) if heavy else rng.standard_normal(n)
    shocks[1:] *= np.sqrt(1 - phi * phi)
    return np.asarray(sigma * lfilter([1.0], [1.0, -phi], shocks), np.float64)


def _slow_course(course: _Course) -> None:
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


def _habits(course: _Course) -> None:
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


def _change(course: _Course, kind: ChangeClass) -> tuple[FloatArray, int | None, int | None]:
    """Return the factor of the change by row, its first row, and the row its clock starts."""
    change = np.ones(course.n)
    if kind.kind == "quiet":
        return change, None, None
    onset = clock = int(course.rng.uniform(*kind.onset_h) * PER_H)
    if kind.kind == "straggler":
        return change, onset, clock
    if kind.at_restart:
        clock = course.stop(onset)
    end = course.n
    if kind.lasts_min is not None:
        end = min(end, onset + round(kind.lasts_min * PER_MIN))
    ramp = np.ones(end - clock)
    if kind.ramp_min:
        ramp = np.minimum(1.0, (np.arange(end - clock) + 1) / (kind.ramp_min * PER_MIN))
    change[clock:end] = 1 + (kind.factor - 1) * ramp
    return change, onset, clock


def _gpus(
    rng: np.random.Generator, mean: FloatArray, kind: ChangeClass, onset: int | None
) -> tuple[FloatArray, int | None]:
    """Values of each GPU about the job's mean: no two alike, each with noise of its own."""
    shape = (len(mean), kind.gpus)
    own = 1 + rng.uniform(0.005, 0.03) * rng.standard_normal(kind.gpus)
    phi = rng.uniform(0, 0.6)
    shocks = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(1 - phi * phi))
    jitter = lfilter([1.0], [1.0, -phi], shocks, axis=0) * rng.uniform(0.01, 0.04)
    gpus = np.asarray(mean[:, None] * own * (1 + jitter), np.float64)
    place = None
    if onset is not None and kind.kind == "straggler":
        place = int(rng.integers(kind.gpus))
        gpus[onset:, place] *= kind.factor
    return np.clip(gpus, 0, 1), place


def _telemetry(
    course: _Course, values: FloatArray, gpus: FloatArray | None
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
    start = int(rng.integers(1, n))
    return slice(start, min(n, start + max(1, round(length))))


def _counters(
    rng: np.random.Generator, work: FloatArray, course: _Course, change: FloatArray
) -> dict[str, FloatArray]:
    """The other counters: what each phase does to them. A change stalls the GPUs' hosts.

    Checkpoints copy to the host (PCIe up, SMs and memory idle); evaluations keep the SMs busy
    and read more memory; a hiccup or a stall starves all alike.
    """
    idle = course.idle
    #          training, checkpoint, evaluation, hiccup, restart
    sm = np.array([1.0, 0.15, 0.95, 1.0, 0.0])[course.cause]
    dram = np.array([1.0, 0.20, 1.15, 1.0, 0.0])[course.cause]
    pcie = np.array([1.0, 4.00, 0.60, 1.0, 0.0])[course.cause]
    starved = np.where(course.cause == _PHASES.index("hiccup"), work, change)

    def noisy(values: FloatArray, sd: float) -> FloatArray:
        return np.asarray(values * (1 + sd * rng.standard_normal(course.n)), np.float64)

    busy = noisy(rng.uniform(0.72, 0.92) * sm * starved, 0.01)
    return {
        "sm": np.clip(busy, 0, 1),
        "dram": np.clip(noisy(rng.uniform(0.2, 0.6) * dram * starved, 0.02), 0, 1),
        "pcie": noisy(rng.uniform(1e9, 8e9) * pcie * starved, 0.05),
        "power": noisy(120 + rng.uniform(350, 560) * sm * starved, 0.01),
        "clock": noisy(np.where(idle, 345.0, rng.uniform(1650, 1950)), 0.003),
    }


def _time(row: int) -> int:
    """End of the sample in this row, ms, on the grid."""
    return START_MS + CADENCE_MS * (row + 1)


def _times(rng: np.random.Generator, n: int) -> IntArray:
    """Scrapes come up to 2 % of the cadence late."""
    grid = START_MS + CADENCE_MS * (1 + np.arange(n, dtype=np.int64))
    return np.asarray(grid + rng.integers(0, CADENCE_MS // 50, n), np.int64)


def _span(rows: slice) -> Interval:
    return Interval(start_ms=_time(rows.start - 1), end_ms=_time(rows.stop - 1))


def _stored(values: FloatArray) -> FloatArray:
    """Values as a history keeps them: five decimals of float32."""
    return np.round(values, 5).astype(np.float32).astype(np.float64)
