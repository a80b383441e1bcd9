"""Regressions with their physics: what each does to tensor activity, clock, SMs and speed.

A fault changes a :class:`Workload` in the rows it is given and returns what it did. The
signatures are those that tell causes apart in real fleets: who slows, whether the clock
follows, whether the SMs spin or rest, and whether work per second falls with OFU at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from detector.demo.nuisances import idle
from detector.demo.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a fault did.

    Attributes
    ----------
    kind
        The incident kind that the evidence supports; empty when no alert is right.
    factor
        The job's OFU over what it would have been; for a reported MFU, that over the true one.
    gpus
        Whose fault it is, as places in the roster; empty when it is the whole job's.
    """

    kind: str
    factor: float
    gpus: tuple[int, ...] = ()


Fault = Callable[[np.random.Generator, Workload, slice], Effect]

# GPUs of one host: what fails together when a fan or a node does.
GPUS_PER_HOST = 8


def debug_flag(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """A debug flag serialises communication: every GPU waits on the host, 2.5 times slower."""
    factor = 1 / rng.uniform(2.4, 2.6)
    workload.slow(rows, factor, sm=factor * 1.1)
    return Effect(kind="debug_flag_stall", factor=factor)


def precision_fallback(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """A fallback from FP8 to BF16: tokens fall while OFU does not.

    The tensor pipes are as busy as before, or busier, and each cycle does half the work.
    """
    busier = rng.uniform(1.05, 1.15)
    workload.tensor[rows] *= busier
    workload.speed[rows] *= rng.uniform(0.55, 0.65)
    return Effect(kind="precision_shift", factor=busier)


def precision_gain(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """A switch to a lower precision: OFU falls by a quarter and the job is faster. No alert."""
    factor = rng.uniform(0.7, 0.8)
    workload.tensor[rows] *= factor
    workload.speed[rows] *= rng.uniform(1.3, 1.4)
    return Effect(kind="", factor=factor)


def thermal_throttle(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """One host runs hot: its clock falls, and in a synchronous job everybody waits for it.

    The hot GPUs do the same cycles in more time, so their tensor activity stays; the others'
    falls, while their SMs spin in the collective.
    """
    hosts = max(1, workload.gpus // GPUS_PER_HOST)
    first = int(rng.integers(hosts)) * GPUS_PER_HOST
    hot = np.arange(first, min(first + GPUS_PER_HOST, workload.gpus))
    others = np.setdiff1d(np.arange(workload.gpus), hot)
    factor = rng.uniform(0.58, 0.68)
    workload.clock_mhz[rows, hot] *= factor
    workload.tensor[rows, others] *= factor
    workload.sm[rows, others] = 0.97
    workload.speed[rows] *= factor
    return Effect(kind="throttle", factor=factor, gpus=tuple(hot.tolist()))


def straggler(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """One GPU of an asynchronous job slows and the others go on: the mean barely moves."""
    slow = int(rng.integers(workload.gpus))
    factor = rng.uniform(0.45, 0.6)
    workload.tensor[rows, slow] *= factor
    workload.sm[rows, slow] *= factor
    mean = 1 - (1 - factor) / workload.gpus
    workload.speed[rows] *= mean
    return Effect(kind="straggler", factor=mean, gpus=(slow,))


def synchronous_straggler(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """One GPU of a synchronous job slows: OFU falls on all alike, for they wait for it.

    The others' SMs spin while they wait; the slow one alone has none to spare. OFU cannot name
    it, which is why the job as a whole is what an alert can speak of.
    """
    slow = int(rng.integers(workload.gpus))
    factor = rng.uniform(0.65, 0.8)
    waiting = np.setdiff1d(np.arange(workload.gpus), [slow])
    workload.slow(rows, factor, sm=1.0)
    workload.sm[rows, waiting] = 0.97
    return Effect(kind="unexplained", factor=factor, gpus=(slow,))


def hang(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """Nothing moves any more; in every second job the SMs spin in a collective."""
    workload.slow(rows, 0.0, sm=0.0)
    if rng.random() < 0.5:
        workload.sm[rows] = 1.0
        workload.clock_mhz[rows] = workload.model.max_mhz
    return Effect(kind="hang", factor=0.0)


def capacity_loss(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """A host drops out of an elastic job: the rest work on as before, and there are fewer."""
    hosts = max(1, workload.gpus // GPUS_PER_HOST)
    first = int(rng.integers(hosts)) * GPUS_PER_HOST
    # A job of one host loses half of it: with all of it gone there would be no job.
    lost = min(GPUS_PER_HOST, max(1, workload.gpus // 2))
    gone = np.arange(first, min(first + lost, workload.gpus))
    workload.reporting[rows, gone] = False
    workload.speed[rows] *= 1 - gone.size / workload.gpus
    return Effect(kind="capacity_loss", factor=1.0, gpus=tuple(gone.tolist()))


def frozen_exporter(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """The exporter repeats its last value bit by bit, whatever the job does."""
    del rng
    workload.frozen = rows
    return Effect(kind="telemetry_fault", factor=1.0)


def misreported_mfu(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """The framework counts FLOPs that nobody computes: from the first sample to the last."""
    del rows
    workload.miscount = rng.uniform(2.0, 3.0)
    return Effect(kind="mfu_ofu_divergence", factor=workload.miscount)


def transient_drop(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """The storage is slow for a while, the GPUs starve, and all is well again."""
    factor = rng.uniform(0.5, 0.7)
    workload.slow(rows, factor, sm=factor)
    return Effect(kind="debug_flag_stall", factor=factor)


def crash(rng: np.random.Generator, workload: Workload, rows: slice) -> Effect:
    """The job is killed and comes back by itself, announced: what a restart looks like."""
    del rng
    idle(workload, rows)
    workload.went_through("restart", rows, announced=True)
    return Effect(kind="", factor=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault as the fleet injects it.

    Attributes
    ----------
    gpus
        The size of job it needs to show itself.
    minutes
        How long it lasts; None is to the end of the series.
    tokens, mfu
        Whether the job must report throughput, or MFU, for the fault to be told.
    """

    fault: Fault
    gpus: int
    minutes: float | None = None
    tokens: bool = False
    mfu: bool = False


INJECTIONS: Mapping[str, Injection] = MappingProxyType({
    "debug_flag": Injection(fault=debug_flag, gpus=64),
    "thermal_throttle": Injection(fault=thermal_throttle, gpus=8, minutes=40),
    "hang": Injection(fault=hang, gpus=32, minutes=30),
    "precision_fallback": Injection(fault=precision_fallback, gpus=64, tokens=True),
    "precision_gain": Injection(fault=precision_gain, gpus=64, tokens=True),
    "straggler": Injection(fault=straggler, gpus=16),
    "synchronous_straggler": Injection(fault=synchronous_straggler, gpus=16),
    "capacity_loss": Injection(fault=capacity_loss, gpus=32, minutes=40),
    "frozen_exporter": Injection(fault=frozen_exporter, gpus=8),
    "misreported_mfu": Injection(fault=misreported_mfu, gpus=288, mfu=True),
    "transient_drop": Injection(fault=transient_drop, gpus=16, minutes=15),
    "crash": Injection(fault=crash, gpus=16, minutes=8),
})  # fmt: skip
