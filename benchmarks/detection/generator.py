"""Realistic jobs whose truth is known, made for measuring how well changes are found.

The demo's generator (``detector.demo``) makes few jobs with all their counters; this one makes
thousands of a job's mean alone. It takes the quiet jobs that ``ofuwatch calibrate`` takes, lets
something happen to them, and keeps what an all-knowing detector would know: level, noise law,
and which samples no nuisance touches.

Every job has a generator of its own, seeded by (seed, class, number): the same job comes out
whichever jobs are made beside it.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from benchmarks.detection.classes import ChangeClass
from detector.calibration.quiet import (
    CADENCE_MS,
    PER_H,
    PER_MIN,
    START_MS,
    BoolArray,
    Course,
    break_telemetry,
    end_of,
    lived,
    measured,
    scrapes,
    stored,
)
from detector.series import FloatArray, Interval, Window

__all__ = [
    "CADENCE_MS", "PER_H", "PER_MIN", "SEEDS", "START_MS", "BoolArray", "Made", "Truth", "make",
]  # fmt: skip

# Settings are chosen on the jobs of one seed and reported on the jobs of the other.
SEEDS = {"calibration": 11_000, "test": 22_000}


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
    course, law, wobble = lived(rng, hours=kind.hours, harder=kind.stress)
    change, onset, clock = _change(course, kind)
    values = measured(course, law, wobble, course.phase * change)
    gpus, place = None, None
    if kind.gpus:
        gpus, place = _gpus(rng, values, kind, onset)
        values = gpus.mean(axis=1)
    blind = break_telemetry(course, values, gpus)
    keep = ~course.gap & (np.arange(course.n) % every == 0)
    times_ms = scrapes(rng, course.n)
    fields = {"ofu": values}
    if metrics:
        fields |= _counters(rng, course, change)
    return Made(
        id=f"{kind.name}-{number}",
        kind=kind,
        window=Window(
            times_ms=times_ms[keep],
            fields={name: stored(array[keep]) for name, array in fields.items()},
            gpus=None if gpus is None else stored(gpus[keep]),
            events=tuple(course.events) if announced else (),
        ),
        truth=Truth(
            onset_ms=None if onset is None else end_of(onset - 1),
            clock_ms=None if clock is None else end_of(clock - 1),
            factor=kind.factor,
            level=law.level,
            sigma=law.sigma,
            phi=law.phi**every,
            heavy=law.heavy,
            gpu=place,
            cadence_ms=every * CADENCE_MS,
        ),
        expected=(law.level * course.level)[keep],
        warmth=course.warmth[keep],
        clean=course.clean[keep],
        blind=blind,
    )


def _change(course: Course, kind: ChangeClass) -> tuple[FloatArray, int | None, int | None]:
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


# What a phase does to the other counters while it holds up the training.
# An SM is active while a warp is resident on it, waiting or not (DCGM user guide, profiling
# metrics), so that it is active at least as often as its tensor pipe. In a checkpoint the ranks
# wait in a barrier: a collective of one element takes one thread block (NCCL, NCCL_MAX_CTAS) of
# an H100's 132 SMs.
_BARRIER = 1 / 132
# Bytes of a checkpoint that each GPU copies to its host. 1 MB to 4 GB on 16,000 GPUs (Llama 3,
# arXiv:2407.21783, section 3.3.1); 16 bytes a parameter with Adam (ZeRO, arXiv:1910.02054) are
# 17 GB for 70 billion on 64 GPUs.
_CHECKPOINT_BYTES = (0.5e9, 17e9)
# An evaluation runs forward only, kernel after kernel: the SMs stay busy and memory is read for
# fewer FLOPs; a third of the host traffic is gradients that nobody exchanges. Chosen, there is
# no published measurement.
_EVALUATION = {"sm": 0.95, "dram": 1.15, "pcie": 0.60}


def _counters(
    rng: np.random.Generator, course: Course, change: FloatArray
) -> dict[str, FloatArray]:
    """The other counters: what each phase does to them. A change stalls the GPUs' hosts.

    Whatever starves the GPUs (a hiccup, a warm-up, a stalled host) starves all counters alike.
    """
    shares = course.shares
    starved = change * course.warmth * shares["hiccup"] * shares["restart"]
    training, evaluating = shares["checkpoint"], shares["evaluation"] < 1
    rate = rng.uniform(1e9, 8e9)  # gradients that leave for the network, and batches
    copied = np.exp(rng.uniform(*np.log(_CHECKPOINT_BYTES)))
    paused_s = float((1 - training).sum()) * CADENCE_MS / 1000
    checkpoints = np.count_nonzero(np.diff((training < 1).astype(int)) == 1)
    paused = {
        "sm": _BARRIER,
        "dram": 0.0,
        "pcie": copied * checkpoints / max(paused_s, 1.0) / rate,
    }
    busy = {
        name: starved
        * (training * np.where(evaluating, _EVALUATION[name], 1) + (1 - training) * share)
        for name, share in paused.items()
    }

    def noisy(values: FloatArray, sd: float) -> FloatArray:
        return np.asarray(values * (1 + sd * rng.standard_normal(course.n)), np.float64)

    return {
        "sm": np.clip(noisy(rng.uniform(0.72, 0.92) * busy["sm"], 0.01), 0, 1),
        "dram": np.clip(noisy(rng.uniform(0.2, 0.6) * busy["dram"], 0.02), 0, 1),
        "pcie": noisy(rate * busy["pcie"], 0.05),
        "power": noisy(120 + rng.uniform(350, 560) * busy["sm"], 0.01),
        "clock": noisy(np.where(course.idle, 345.0, rng.uniform(1650, 1950)), 0.003),
    }
