"""Which jobs a run makes, and how they are shared out over the cores."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from benchmarks.detection import generator, heldout
from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import CADENCE_MS, Made
from benchmarks.detection.ours import listen
from benchmarks.detection.score import Heard

# Who makes the jobs: the generator that settings are chosen on, and another author's.
GENERATORS = ("own", "heldout")

# A pass over a panel costs about the same for one column as for a hundred, so jobs are judged
# side by side; more than this gains nothing and costs memory.
_MOST_JOBS = 480
# Values of single GPUs held at a time: 160 MB.
_MOST_VALUES = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which jobs: a class's first so many, of one seed.

    Attributes
    ----------
    jobs
        Class -> how many jobs.
    announced, metrics
        See :func:`benchmarks.detection.generator.make`.
    generator
        One of :data:`GENERATORS`.
    cadence_s
        Distance of two samples.
    """

    jobs: dict[str, int]
    seed: int
    announced: bool = False
    metrics: bool = False
    generator: str = "own"
    cadence_s: float = CADENCE_MS / 1000

    def only(self, classes: Sequence[str]) -> "Plan":
        """Return the plan of these classes alone."""
        return replace(self, jobs={name: self.jobs[name] for name in classes})


def sizes(*, quiet: int, change: int, pages: int | None = None) -> dict[str, int]:
    """Return how many jobs of each class; jobs of many GPUs are dear and fewer.

    Parameters
    ----------
    pages
        How many quiet jobs, where the rarest false alarms are to be counted.
    """
    few = {"quiet64": quiet // 8, "straggler512": change // 4, "straggler4096": change // 12}
    plan = {}
    for name, kind in CLASSES.items():
        usual = quiet if kind.kind == "quiet" else change
        plan[name] = max(1, few.get(name, usual))
    plan["quiet"] = pages or quiet
    # As rare are the false alarms about single GPUs.
    plan["quiet64"] = pages // 10 if pages else plan["quiet64"]
    plan["stress_quiet"] = max(1, quiet // 4)
    return plan


def made(plan: Plan, part: Sequence[tuple[str, int]]) -> list[Made]:
    """Return the jobs that a part names by class and number."""
    make = heldout.make if plan.generator == "heldout" else generator.make
    return [
        make(
            CLASSES[name], number,
            seed=plan.seed, announced=plan.announced, metrics=plan.metrics,
            cadence_s=plan.cadence_s,
        )
        for name, number in part
    ]  # fmt: skip


def parts(plan: Plan) -> Iterator[list[tuple[str, int]]]:
    """Yield the jobs in parts for one core each, the longest and largest first."""
    named = sorted(plan.jobs, key=lambda name: (-CLASSES[name].gpus, -CLASSES[name].hours))
    part: list[tuple[str, int]] = []
    values, hours = 0, 0.0
    for name in named:
        kind = CLASSES[name]
        rows = round(kind.hours * 3_600 / plan.cadence_s)
        for number in range(plan.jobs[name]):
            full = len(part) >= _MOST_JOBS or values + rows * kind.gpus > _MOST_VALUES
            if part and (full or hours != kind.hours):
                yield part
                part, values = [], 0
            hours = kind.hours
            part.append((name, number))
            values += rows * kind.gpus
    if part:
        yield part


def heard(
    plan: Plan, *, workers: int, on_jobs: Callable[[int], None] = lambda _: None
) -> dict[str, list[Heard]]:
    """Return what our detector says of every job of the plan, by class.

    Parameters
    ----------
    on_jobs
        Called with the number of jobs that were finished.
    """
    found: dict[str, list[Heard]] = {name: [] for name in plan.jobs}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(_listen, plan, part) for part in parts(plan)]
        for done in as_completed(waiting):
            for item in done.result():
                found[item.kind].append(item)
            on_jobs(len(done.result()))
    return found


def _listen(plan: Plan, part: Sequence[tuple[str, int]]) -> list[Heard]:
    return listen(made(plan, part))
