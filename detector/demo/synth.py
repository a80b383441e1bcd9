"""A made-up fleet whose truth is known: jobs with all their nuisances, and a few faults.

Pure: the generator and the times are arguments, so the same seed gives the same fleet. Used by
the demo, the benchmarks and the tests. A stand-in for real histories, never a proof: detection
quality is measured on recordings too.
"""

from dataclasses import dataclass

import numpy as np

from detector.demo.faults import GPUS_PER_HOST, INJECTIONS, Effect, Injection
from detector.demo.nuisances import disturb
from detector.demo.workload import GPU_MODELS, GpuModel, Workload, healthy, observe
from detector.fleet import Gpu, Job
from detector.series import ContextEvent, IntArray, Window

# Job sizes and their shares: heavy-tailed with a mean of about 10 GPUs, as on a shared cluster
# where most jobs are small and a few hold most of the GPUs.
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARES = (0.308, 0.15, 0.15, 0.25, 0.07, 0.04, 0.016, 0.008, 0.005, 0.003)

_NAMES = (
    "llama3-70b",
    "moe-288e",
    "vit-huge",
    "whisper-xl",
    "diffusion-3b",
    "gpt-13b",
    "t5-xxl",
)
_PEOPLE = (
    ("ada", "pretraining"),
    ("grace", "alignment"),
    ("alan", "speech"),
    ("mary", "vision"),
)

# Nobody's baseline is asked for before this share of the series has passed, and a fault leaves
# at least a fifth of it to be seen in.
ONSET = (0.55, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was injected into a job.

    Attributes
    ----------
    cause
        A name of ``faults.INJECTIONS``.
    kind
        The incident kind that the evidence supports; empty when no alert is right.
    onset_ms, end_ms
        First sample with the fault, and first one without it again; None is to the end.
    factor
        See :class:`~detector.demo.faults.Effect`.
    gpus
        Whose fault it is, as places in the roster; empty when it is the whole job's.
    """

    cause: str
    kind: str
    onset_ms: int
    end_ms: int | None
    factor: float
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticJob:
    """One job: who it is, what its history holds, and what was done to it (None: nothing).

    ``phases`` are its checkpoints, evaluations and restarts, those that nobody announced too.
    """

    job: Job
    window: Window
    truth: Truth | None = None
    phases: tuple[ContextEvent, ...] = ()


def fleet(
    rng: np.random.Generator,
    *,
    jobs: int = 200,
    start_ms: int,
    length_ms: int,
    cadence_ms: int = 10_000,
    onset: tuple[float, float] = ONSET,
) -> tuple[SyntheticJob, ...]:
    """A fleet in which every fault of ``INJECTIONS`` happens once and all else is healthy.

    With fewer jobs than faults the first faults are injected. Three jobs in a hundred end
    before the series do; a fifth begin after them.
    """
    faults = list(INJECTIONS)[:jobs]
    causes = (*faults, *[None] * (jobs - len(faults)))
    first_id = int(rng.integers(40_000, 90_000))
    made = []
    for number, cause in enumerate(causes):
        first, last = start_ms, start_ms + length_ms
        if cause is None and rng.random() < 0.2:
            first += int(rng.uniform(0, 0.4) * length_ms)
        if cause is None and rng.random() < 0.03:
            last -= int(rng.uniform(0.1, 0.4) * length_ms)
        made.append(
            scenario(
                rng,
                cause=cause,
                id=str(first_id + number),
                start_ms=first,
                length_ms=last - first,
                cadence_ms=cadence_ms,
                onset=onset,
            )
        )
    return tuple(made)


def scenario(
    rng: np.random.Generator,
    *,
    cause: str | None = None,
    id: str = "synthetic",
    start_ms: int,
    length_ms: int,
    cadence_ms: int = 10_000,
    gpus: int | None = None,
    calm: bool = False,
    onset: tuple[float, float] = ONSET,
) -> SyntheticJob:
    """One job, with ``cause`` injected somewhere between two shares of its length.

    Parameters
    ----------
    cause
        A name of ``faults.INJECTIONS``; None for a healthy job.
    gpus
        None takes what the fault needs, or a size by chance.
    calm
        Leave out every nuisance but the noise: for tests of one thing at a time.

    Raises
    ------
    ValueError
        When ``cause`` is no known fault, or ``length_ms`` holds fewer than 20 samples.
    """
    if cause is not None and cause not in INJECTIONS:
        msg = f"{cause!r} is no fault; there are {', '.join(INJECTIONS)}"
        raise ValueError(msg)
    injection = INJECTIONS[cause] if cause is not None else None
    if gpus is None:
        gpus = injection.gpus if injection else int(rng.choice(SIZES, p=SHARES))
    model = GPU_MODELS[int(rng.integers(len(GPU_MODELS)))]
    times_ms = _times(rng, start_ms=start_ms, length_ms=length_ms, cadence_ms=cadence_ms)
    workload = healthy(rng, times_ms=times_ms, gpus=gpus, model=model)
    _report(rng, workload, injection)
    if not calm:
        # A job with a fault has no restart of its own: its truth stays one thing.
        disturb(rng, workload, restarts=cause is None)
    truth = _inject(rng, workload, cause, injection, onset) if cause and injection else None
    return SyntheticJob(
        job=_job(rng, id=id, gpus=gpus, model=model, start_ms=int(times_ms[0])),
        window=observe(rng, workload, glitches=not calm),
        truth=truth,
        phases=tuple(workload.phases),
    )


def _times(
    rng: np.random.Generator, *, start_ms: int, length_ms: int, cadence_ms: int
) -> IntArray:
    """Scrape times: a phase of the job's own, and a jitter of up to 2 % of the cadence."""
    n = length_ms // cadence_ms
    if n < 20:
        msg = f"{length_ms} ms hold {n} samples of {cadence_ms} ms; 20 are needed"
        raise ValueError(msg)
    grid = start_ms + int(rng.integers(cadence_ms)) + cadence_ms * np.arange(n)
    return np.asarray(grid + rng.integers(0, max(1, cadence_ms // 50), n), dtype=np.int64)


def _report(rng: np.random.Generator, workload: Workload, injection: Injection | None) -> None:
    """Let half of the jobs report tokens/s and two fifths MFU, and all those that must."""
    if rng.random() < 0.5 or (injection and injection.tokens):
        workload.tokens_per_second = workload.gpus * rng.uniform(400, 12_000)
    if rng.random() < 0.4 or (injection and injection.mfu):
        workload.miscount = rng.uniform(0.95, 1.05)  # two ways of counting never agree fully


def _inject(
    rng: np.random.Generator,
    workload: Workload,
    cause: str,
    injection: Injection,
    onset: tuple[float, float],
) -> Truth:
    """Apply the fault and say what was done."""
    start = int(workload.rows * rng.uniform(*onset))
    stop = workload.rows
    if injection.minutes is not None:
        end_ms = workload.times_ms[start] + injection.minutes * 60_000
        # A short series keeps a tenth of itself for the recovery.
        stop = min(int(np.searchsorted(workload.times_ms, end_ms)), int(workload.rows * 0.9))
    rows = slice(start, max(stop, start + 1))
    effect: Effect = injection.fault(rng, workload, rows)
    whole = cause == "misreported_mfu"  # a way of counting has no onset
    return Truth(
        cause=cause,
        kind=effect.kind,
        onset_ms=int(workload.times_ms[0 if whole else rows.start]),
        end_ms=int(workload.times_ms[rows.stop]) if rows.stop < workload.rows else None,
        factor=effect.factor,
        gpus=effect.gpus,
    )


def _job(
    rng: np.random.Generator, *, id: str, gpus: int, model: GpuModel, start_ms: int
) -> Job:
    owner, team = _PEOPLE[int(rng.integers(len(_PEOPLE)))]
    first_host = int(rng.integers(1, 4000))
    roster = tuple(
        Gpu(
            uuid=f"GPU-{int(rng.integers(2**32)):08x}-{place:04x}",
            host=f"node-{first_host + place // GPUS_PER_HOST:04d}",
            index=place % GPUS_PER_HOST,
        )
        for place in range(gpus)
    )
    return Job(
        id=id,
        name=_NAMES[int(rng.integers(len(_NAMES)))],
        owner=owner,
        team=team,
        scheduler="slurm",
        cluster="synthetic",
        gpu_model=model.name,
        precision="bf16",
        roster=roster,
        start_ms=start_ms,
    )
