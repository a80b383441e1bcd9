"""Settings chosen on calibration jobs, figures measured on others: for peers and the optimum.

A setting is a configuration and a threshold. Of those with at most the bound's rate of false
alarms on quiet calibration jobs, the one is taken that finds most of four classes of drops,
and among equals the fastest. Peers that cost much get fewer jobs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol, TypeVar

import numpy as np

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import SEEDS, Made, make
from benchmarks.detection.score import BOUND, Heard, false_alarms, found_after
from detector.calibration.rate import Rate

# The classes on which the best setting within the bound is chosen: large and small drops.
CHOICE = ("drop2.5x", "drop1.33x", "drop10", "drop5")
_PART = 6

Config = tuple[float, ...]


class Rival(Protocol):
    """What can be calibrated: a peer, or the optimum for one size of change."""

    @property
    def configs(self) -> tuple[Config, ...]:
        """All configurations to try."""
        ...

    @property
    def thresholds(self) -> tuple[float, ...]:
        """All thresholds to try with each of them."""
        ...

    def heard(self, made: Made, config: Config, thresholds: Sequence[float]) -> list[Heard]:
        """Return the alarms on a job, by threshold."""
        ...


R = TypeVar("R", bound=Rival)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """How many jobs: quiet ones and of each class to choose on, and to measure on."""

    quiet: int
    change: int
    test_quiet: int
    test_change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What was chosen, and its false alarms on the calibration jobs.

    Attributes
    ----------
    within
        Whether it keeps the bound there; otherwise it is the quietest there is.
    """

    config: Config
    threshold: float
    rate: Rate
    within: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A configuration on calibration jobs, by threshold: quiet jobs, and delays by class."""

    config: Config
    thresholds: tuple[float, ...]
    quiet: list[Rate]
    delays: list[dict[str, list[int | None]]]


def chosen(tried: Iterable[Tried], *, bound: float = BOUND) -> Setting:
    """Return the best setting within the bound, or the quietest when none is within."""
    best: tuple[tuple[float, ...], Setting] | None = None
    for item in tried:
        for threshold, rate, delays in zip(
            item.thresholds, item.quiet, item.delays, strict=True
        ):
            within = rate.value <= bound
            setting = Setting(config=item.config, threshold=threshold, rate=rate, within=within)
            every = [d for values in delays.values() for d in values]
            found = [d for d in every if d is not None]
            share = len(found) / len(every) if every else 0.0
            delay = float(np.mean(found)) if found else np.inf
            key = (1.0, share, -delay) if within else (0.0, -rate.value, share)
            if best is None or key > best[0]:
                best = key, setting
    assert best is not None  # a rival has settings
    return best[1]


def calibrated(
    rivals: Mapping[str, tuple[R, Jobs, tuple[str, ...]]],
    *,
    workers: int,
    on_part: Callable[[int, int], None] = lambda _, __: None,
) -> dict[str, tuple[Setting, dict[str, list[Heard]]]]:
    """Return each rival's setting, and what it says of the test jobs of its classes.

    Parameters
    ----------
    rivals
        Name -> rival, its numbers of jobs, the classes that it is measured on.
    on_part
        Called with the parts done and the parts known so far.
    """
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {}
        for name, (rival, jobs, classes) in rivals.items():
            # The optimum is for one size: it is chosen by quiet jobs and its own class.
            choice = CHOICE if len(classes) > 2 else tuple(c for c in classes if c != "quiet")
            for kind in ("quiet", *choice):
                count = jobs.quiet if kind == "quiet" else jobs.change
                for first in range(0, count, _PART):
                    numbers = range(first, min(first + _PART, count))
                    waiting[pool.submit(_try, rival, kind, numbers)] = name
        done, parts = 0, len(waiting)
        results: dict[str, dict[Config, list[list[Heard]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for future in as_completed(waiting):
            for config, jobs_heard in future.result().items():
                results[waiting[future]][config] += jobs_heard
            done += 1
            on_part(done, parts)
        settings = {
            name: chosen(
                _tried(config, rivals[name][0].thresholds, found)
                for config, found in results[name].items()
            )
            for name in rivals
        }
        tests = {}
        for name, (rival, jobs, classes) in rivals.items():
            for kind in classes:
                count = jobs.test_change
                if CLASSES[kind].kind == "quiet":
                    # Under stress alarms are so many that a quarter of the days tells.
                    count = (
                        -(-jobs.test_quiet // 4) if CLASSES[kind].stress else jobs.test_quiet
                    )
                for first in range(0, count, _PART):
                    numbers = range(first, min(first + _PART, count))
                    test = pool.submit(_measure, rival, settings[name], kind, numbers)
                    tests[test] = name
        parts += len(tests)
        heard: dict[str, dict[str, list[Heard]]] = {
            name: {kind: [] for kind in classes} for name, (_, _, classes) in rivals.items()
        }
        for test in as_completed(tests):
            for item in test.result():
                heard[tests[test]][item.kind].append(item)
            done += 1
            on_part(done, parts)
    return {name: (settings[name], heard[name]) for name in rivals}


def _try(rival: Rival, kind: str, numbers: range) -> dict[Config, list[list[Heard]]]:
    """What each configuration says of calibration jobs: one list a job, by threshold."""
    jobs = [make(CLASSES[kind], k, seed=SEEDS["calibration"]) for k in numbers]
    return {
        config: [rival.heard(made, config, rival.thresholds) for made in jobs]
        for config in rival.configs
    }


def _measure(rival: Rival, setting: Setting, kind: str, numbers: range) -> list[Heard]:
    return [
        rival.heard(
            make(CLASSES[kind], k, seed=SEEDS["test"]), setting.config, [setting.threshold]
        )[0]
        for k in numbers
    ]


def _tried(
    config: Config, thresholds: tuple[float, ...], jobs: Sequence[Sequence[Heard]]
) -> Tried:
    rates, delays = [], []
    for k in range(len(thresholds)):
        items = [by_threshold[k] for by_threshold in jobs]
        rates.append(false_alarms([i for i in items if CLASSES[i.kind].kind == "quiet"]))
        found: dict[str, list[int | None]] = defaultdict(list)
        for item in items:
            if CLASSES[item.kind].kind != "quiet":
                found[item.kind].append(found_after(item))
        delays.append(dict(found))
    return Tried(config=config, thresholds=thresholds, quiet=rates, delays=delays)
