"""False alarms of quiet jobs along a bound's knob, and the most sensitive setting that keeps.

Each setting replays the same jobs through the same tick. A false alarm is what would be told of
a job's fall after its first hour, or for the page bound, wake somebody; what follows within
half an hour belongs to it. A setting keeps a target when the upper end of the 95 % interval of
its rate does: a rate that the jobs are too few to show is not claimed.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Literal

import msgspec
import numpy as np

from detector.analysis.baselines import LEAST_GPUS, Model
from detector.analysis.bounds import Page
from detector.analysis.derived import derived
from detector.analysis.judge import Content
from detector.calibration.quiet import PER_H, quiet_job
from detector.calibration.rate import LEARNING_MS, Rate, opening
from detector.incident.incident import Incident
from detector.incident.lifecycle import Policy
from detector.replay import replay
from detector.series import Duration, IntArray
from detector.store.recording import Recording

Bound = Literal["notify", "page"]

_DAY_MS = 86_400_000
# Hours of a made-up job.
_HOURS = 24
# What made-up jobs report.
MADE_UP = "ofu"
# A gap in which nobody watches. Chosen: failed scrapes are over sooner.
_BLIND_MS = 900_000
# Jobs judged side by side: a pass over a panel costs nearly the same for one as for hundreds.
_SIDE_BY_SIDE = 240

# Settings from the most sensitive to the most careful. `caution` in steps of a tenth and a bit,
# each worth about a factor of two in false alarms of small falls.
CAUTIONS = (0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0)
AFTERS = tuple(Duration(ms) for ms in (
    480_000, 570_000, 630_000, 720_000, 780_000, 840_000, 960_000, 1_200_000, 1_800_000,
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One false alarm, or what was taken for one."""

    job: str
    time_ms: int
    onset_ms: int
    change: float
    metric: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One setting, and what it says of the quiet jobs."""

    setting: float | Duration
    rate: Rate
    alarms: tuple[Alarm, ...]

    def keeps(self, target: float) -> bool:
        """Whether the rate is shown to be at most ``target``."""
        return self.rate.interval[1] <= target


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """Jobs in which nothing happened to a metric: recordings, and made-up ones of a seed.

    Made-up jobs report OFU alone.
    """

    recordings: Mapping[str, Recording]
    metric: str = MADE_UP
    made: int = 0
    seed: int = 0

    @property
    def job_days(self) -> float:
        """How long their metric was watched, their first hours not counted, days."""
        made = self.made if self.metric == MADE_UP else 0
        recorded_ms = sum(watched_ms(one, self.metric) for one in self.recordings.values())
        return (made * (_HOURS * 3_600_000 - LEARNING_MS) + recorded_ms) / _DAY_MS

    @property
    def samples(self) -> int:
        """About how many samples one setting judges."""
        recorded = sum(len(one.window.times_ms) for one in self.recordings.values())
        return recorded + self.made * _HOURS * PER_H


def watched_ms(recording: Recording, metric: str) -> int:
    """Return for how long a recording's metric was watched after its first hour, ms.

    A job without values, or of which all stand at zero, has no level to fall from.
    """
    at_ms = _at_work_ms(recording, metric)
    if len(at_ms) < 2:
        return 0
    steps = np.diff(at_ms)
    seen = steps <= max(_BLIND_MS, 3 * float(np.median(steps)))
    return int(steps[seen & (at_ms[1:] > at_ms[0] + LEARNING_MS)].sum())


def _at_work_ms(recording: Recording, metric: str) -> IntArray:
    """Return the times at which the metric says that the job works."""
    window = recording.window
    if metric == "gpu_ofu":
        gpus = window.gpus
        if gpus is None or gpus.shape[1] < LEAST_GPUS:  # no peers to compare
            return window.times_ms[:0]
        return window.times_ms[(gpus > 0).any(axis=1)]
    held = {**window.fields, **derived(window.fields)}
    return window.times_ms[held[metric] > 0] if metric in held else window.times_ms[:0]


def made_days(job_days: float) -> int:
    """Return how many made-up jobs it takes to watch at least so many days."""
    return -(-int(job_days * _DAY_MS) // (_HOURS * 3_600_000 - LEARNING_MS))


def settings(bound: Bound) -> Sequence[float | Duration]:
    """Return the knob's settings, the most sensitive first."""
    return CAUTIONS if bound == "notify" else AFTERS


def turned(model: Model, bound: Bound, setting: float | Duration) -> Model:
    """Return the model with its knob at this setting."""
    if bound == "notify":
        return msgspec.structs.replace(
            model, notify=msgspec.structs.replace(model.notify, caution=float(setting))
        )
    page = model.page or Page()
    return msgspec.structs.replace(
        model, page=msgspec.structs.replace(page, after=Duration(setting))
    )


def search(
    content: Content,
    model: str,
    bound: Bound,
    quiet: Quiet,
    *,
    target: float,
    workers: int | None = None,
    on_tried: Callable[[Tried], None] = lambda _: None,
    on_samples: Callable[[int], None] = lambda _: None,
) -> tuple[Tried, ...]:
    """Return what was tried, in the knob's order; the first that keeps the target is the one.

    By bisection: false alarms grow rarer along the knob.
    """
    ladder = settings(bound)
    tried: dict[int, Tried] = {}
    low, high = 0, len(ladder)
    workers = workers or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        while low < high:
            middle = (low + high) // 2
            here = Trial(content=content, model=model, bound=bound, setting=ladder[middle])
            tried[middle] = _try(pool, here, quiet, workers=workers, on_samples=on_samples)
            on_tried(tried[middle])
            low, high = (low, middle) if tried[middle].keeps(target) else (middle + 1, high)
    return tuple(tried[k] for k in sorted(tried))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting of one model's bound, to be tried."""

    content: Content
    model: str
    bound: Bound
    setting: float | Duration

    def alarms(self, recordings: Mapping[str, Recording]) -> list[Alarm]:
        """Return the false alarms in these recordings.

        Raises
        ------
        RuntimeError
            When a job could not be judged.
        """
        models = tuple(
            turned(one, self.bound, self.setting) if one.name == self.model else one
            for one in self.content.models
        )
        metric = next(one.metric for one in models if one.name == self.model)
        judged = replay(
            recordings, replace(self.content, models=models), cluster="calibrate",
            policy=Policy(),
        )  # fmt: skip
        for job, why in judged.poisoned.items():
            msg = f"job {job!r} could not be judged: {why}"
            raise RuntimeError(msg)
        found: list[Alarm] = []
        for job, recording in recordings.items():
            mine = [one for one in judged.incidents if one.job.id == job]
            found += _alarms(mine, recording, metric, self.bound)
        return found


def _alarms(
    incidents: Sequence[Incident], recording: Recording, metric: str, bound: Bound
) -> list[Alarm]:
    """Return the alarms of one job, those that belong to an earlier one left out."""
    at_work_ms = _at_work_ms(recording, metric)
    if not len(at_work_ms):
        return []
    told = [
        (item.detected_ms if bound == "notify" else item.paged_ms, item)
        for item in incidents
        if item.direction == "down"
        and item.severity != "info"
        and item.metric == metric
        # Of the meter, not of the job: right, where a recording's meter broke.
        and item.kind != "telemetry_fault"
    ]
    heard = sorted(
        ((at, item) for at, item in told if at is not None), key=lambda pair: pair[0]
    )
    chosen = opening([at for at, _ in heard], start_ms=int(at_work_ms[0]))
    return [
        Alarm(
            job=item.job.id, time_ms=at, onset_ms=item.onset_ms,
            change=item.relative_change, metric=item.metric, kind=item.kind,
        )
        for at, item in (heard[place] for place in chosen)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one core judges side by side."""

    recordings: Mapping[str, Recording]
    numbers: range
    seed: int


def _parts(quiet: Quiet, *, workers: int) -> Iterator[_Part]:
    """Yield the jobs in parts; recordings of one part are of like length."""
    named = sorted(
        quiet.recordings, key=lambda job: -len(quiet.recordings[job].window.times_ms)
    )
    for first in range(0, len(named), _SIDE_BY_SIDE):
        part = {job: quiet.recordings[job] for job in named[first : first + _SIDE_BY_SIDE]}
        yield _Part(recordings=part, numbers=range(0), seed=quiet.seed)
    # So that all cores have work to the end, however few the jobs.
    share = max(1, min(_SIDE_BY_SIDE, -(-quiet.made // (2 * workers))))
    for first in range(0, quiet.made, share):
        numbers = range(first, min(first + share, quiet.made))
        yield _Part(recordings={}, numbers=numbers, seed=quiet.seed)


def _listen(trial: Trial, part: _Part) -> tuple[list[Alarm], int]:
    """Return the false alarms of a part, and how many samples it had."""
    made = [quiet_job(number, seed=part.seed, hours=_HOURS) for number in part.numbers]
    recordings = {**part.recordings, **{one.job.id: one for one in made}}
    samples = sum(len(one.window.times_ms) for one in recordings.values())
    return trial.alarms(recordings), samples


def _try(
    pool: ProcessPoolExecutor,
    trial: Trial,
    quiet: Quiet,
    *,
    workers: int,
    on_samples: Callable[[int], None],
) -> Tried:
    waiting = [pool.submit(_listen, trial, part) for part in _parts(quiet, workers=workers)]
    alarms: list[Alarm] = []
    for done in as_completed(waiting):
        found, samples = done.result()
        alarms += found
        on_samples(samples)
    return Tried(
        setting=trial.setting,
        rate=Rate(events=len(alarms), exposure=quiet.job_days),
        alarms=tuple(sorted(alarms, key=lambda one: (one.job, one.time_ms))),
    )
