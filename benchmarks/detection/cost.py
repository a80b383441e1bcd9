"""What our detector costs: the three figures of speed, and the memory of a job."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import CADENCE_MS, PER_H, SEEDS, START_MS, make
from benchmarks.detection.ours import content, listen
from detector.analysis.watch import packed
from detector.fleet import Job
from detector.incident.lifecycle import Policy
from detector.series import Batch, Window
from detector.state import FleetState, restore
from detector.store.memory import MemoryHistories, MemoryLedger
from detector.tick import Settings, run

JOBS = 10_000
# Jobs that are made; the others are these again, begun at another time.
_MADE = 200
# Series that are replayed alone: they differ by how much of them is dips.
_ALONE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds of one core, and bytes.

    Attributes
    ----------
    sample_s
        One new sample for each of ``jobs``: a whole pass of the tick.
    day_quarter_s
        Six hours of all of them.
    series_s
        One series of 10,000 points, replayed alone with all that is verified in it: the mean
        of a few. Libraries were loaded before.
    job_bytes
        A job's state of all models.
    """

    jobs: int
    sample_s: float
    day_quarter_s: float
    series_s: float
    job_bytes: float


class _Fleet(MemoryHistories):
    """Histories of many jobs on one grid, handed out by rows."""

    def __init__(self, jobs: int, rows: int) -> None:
        made = [make(CLASSES["quiet"], k, seed=SEEDS["test"]) for k in range(min(jobs, _MADE))]
        self.values = np.full((rows, jobs), np.nan)
        rng = np.random.default_rng(5)
        for column in range(jobs):
            values = made[column % len(made)].window.fields["ofu"]
            first = 0 if column < len(made) else int(rng.integers(len(values) - rows))
            self.values[:, column] = values[first : first + rows]
        self.names = tuple(f"job-{k}" for k in range(jobs))
        self.times_ms = START_MS + CADENCE_MS * np.arange(1, rows + 1, dtype=np.int64)
        self.rows = range(0)
        super().__init__(
            {
                name: Window(times_ms=self.times_ms, fields={"ofu": self.values[:, k]})
                for k, name in enumerate(self.names)
            },
            jobs={name: Job(id=name) for name in self.names},
        )

    def increments(self, cursors: Mapping[str, int], *, now_ms: int) -> Batch:
        """Return the present rows of all jobs, whatever the cursors say."""
        del cursors, now_ms
        rows = slice(self.rows.start, self.rows.stop)
        jobs = len(self.names)
        return Batch(
            jobs=self.names,
            job=np.repeat(np.arange(jobs), len(self.rows)),
            times_ms=np.tile(self.times_ms[rows], jobs),
            fields={"ofu": self.values[rows].T.ravel()},
        )


def measure(*, jobs: int = JOBS, hours: float = 6.0) -> Cost:
    """Return what the detector costs, on one core."""
    rows = round(hours * PER_H)
    fleet = _Fleet(jobs, rows + 1)
    state = restore(content())
    began = time.process_time()
    for first in range(0, rows, 360):
        state = _passed(fleet, state, range(first, min(first + 360, rows)))
    quarter_s = time.process_time() - began
    began = time.process_time()
    state = _passed(fleet, state, range(rows, rows + 1))
    sample_s = time.process_time() - began
    held = sum(len(packed(watch, watch.jobs)) for watch in state.watches.values())
    return Cost(
        jobs=jobs,
        sample_s=sample_s,
        day_quarter_s=quarter_s,
        series_s=_alone(),
        job_bytes=held / jobs,
    )


def _passed(fleet: _Fleet, state: FleetState, rows: range) -> FleetState:
    fleet.rows = rows
    settings = Settings(cluster="benchmark", policy=Policy())
    state, report = run(
        state,
        histories=fleet,
        ledger=MemoryLedger(),
        content=content(),
        settings=settings,
        now_ms=int(fleet.times_ms[-1]),
    )
    if report.poisoned:
        msg = f"the detector broke: {next(iter(report.poisoned.values()))}"
        raise RuntimeError(msg)
    return state


def _alone(points: int = 10_000) -> float:
    kind = replace(CLASSES["quiet"], hours=points * 1.01 / PER_H)
    all_made = [make(kind, k, seed=SEEDS["test"]) for k in range(_ALONE)]
    began = time.process_time()
    for made in all_made:
        listen([made])
    samples = sum(len(made.window.times_ms) for made in all_made)
    return (time.process_time() - began) * points / samples
