"""What happens in healthy jobs and looks like a regression: the reason detection is hard.

Rates and sizes follow what published recordings of training jobs show: checkpoints every 10
to 60 minutes that last 30 to 180 s, evaluations of minutes about once an hour, restarts up to
twice a day, ramps of minutes, hiccups of the data loader, slow drift.
"""

import numpy as np

from detector.demo.workload import IDLE_MHZ, Workload

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


def disturb(rng: np.random.Generator, workload: Workload, *, restarts: bool) -> None:
    """Give the job all the nuisances that chance gives it."""
    drift(rng, workload)
    if rng.random() < 1 / 3:  # the others began long before the window does
        warm_up(rng, workload, row=0)
    checkpoints(rng, workload)
    if rng.random() < 0.6:
        evaluations(rng, workload)
    hiccups(rng, workload)
    days = (workload.times_ms[-1] - workload.times_ms[0]) / _DAY_MS
    if restarts:
        for _ in range(rng.poisson(min(2.0, rng.exponential(0.7)) * days)):
            restart(rng, workload)


def drift(rng: np.random.Generator, workload: Workload) -> None:
    """Move the level by up to 3 % a day, and round the clock by up to 1 % (cooling)."""
    days = (workload.times_ms - workload.times_ms[0]) / _DAY_MS
    trend = 1 + rng.uniform(-0.03, 0.03) * days
    daily = 1 + rng.uniform(0, 0.01) * np.sin(2 * np.pi * (days + rng.random()))
    workload.tensor *= (trend * daily)[:, None]
    workload.speed *= trend * daily


def warm_up(rng: np.random.Generator, workload: Workload, *, row: int) -> None:
    """Ramp up from ``row`` on with a time constant of 1 to 5 minutes."""
    tau_ms = rng.uniform(1, 5) * _MINUTE_MS
    since = workload.times_ms[row:] - workload.times_ms[row]
    ramp = 1 - 0.8 * np.exp(-since / tau_ms)
    workload.tensor[row:] *= ramp[:, None]
    workload.speed[row:] *= ramp


def checkpoints(rng: np.random.Generator, workload: Workload) -> None:
    """Write checkpoints; one job in five does it beside the training, one in three says so."""
    period_ms = rng.uniform(10, 60) * _MINUTE_MS
    length_ms = rng.uniform(30, 180) * 1000
    level = rng.uniform(0.85, 0.95) if rng.random() < 0.2 else rng.uniform(0.0, 0.4)
    announced = rng.random() < 1 / 3
    at = workload.times_ms[0] + rng.uniform(0.2, 1) * period_ms
    while at < workload.times_ms[-1]:
        longer = 2.0 if rng.random() < 0.02 else 1.0
        rows = _rows(workload, at, length_ms * longer * rng.uniform(0.9, 1.1))
        workload.slow(rows, level, sm=0.1 + 0.9 * level)
        workload.went_through("checkpoint", rows, announced=announced)
        at += period_ms


def evaluations(rng: np.random.Generator, workload: Workload) -> None:
    """Evaluate about once an hour, for 2 to 10 minutes; every second job says so."""
    period_ms = rng.uniform(45, 75) * _MINUTE_MS
    length_ms = rng.uniform(2, 10) * _MINUTE_MS
    level = rng.uniform(0.3, 0.9)
    announced = rng.random() < 0.5
    at = workload.times_ms[0] + rng.uniform(0.3, 1) * period_ms
    while at < workload.times_ms[-1]:
        rows = _rows(workload, at, length_ms * rng.uniform(0.95, 1.05))
        workload.slow(rows, level, sm=0.9)
        workload.went_through("evaluation", rows, announced=announced)
        at += period_ms


def hiccups(rng: np.random.Generator, workload: Workload) -> None:
    """Starve the GPUs for one to three samples, up to four times an hour."""
    hours = (workload.times_ms[-1] - workload.times_ms[0]) / _HOUR_MS
    for _ in range(rng.poisson(rng.uniform(0, 4) * hours)):
        start = int(rng.integers(workload.rows))
        rows = slice(start, start + int(rng.integers(1, 4)))
        level = rng.uniform(0.5, 0.95)
        workload.slow(rows, level, sm=level)


def restart(rng: np.random.Generator, workload: Workload) -> None:
    """Stop for 2 to 20 minutes, seen as zeros or as a gap, and ramp up again."""
    at = rng.uniform(workload.times_ms[0], workload.times_ms[-1])
    rows = _rows(workload, at, rng.uniform(2, 20) * _MINUTE_MS)
    idle(workload, rows)
    if rng.random() < 0.5:
        workload.reporting[rows] = False
    workload.went_through("restart", rows, announced=bool(rng.random() < 0.5))
    if rows.stop < workload.rows:
        warm_up(rng, workload, row=rows.stop)


def idle(workload: Workload, rows: slice) -> None:
    """Do nothing at all in ``rows``."""
    workload.slow(rows, 0.0, sm=0.0)
    workload.clock_mhz[rows] = IDLE_MHZ


def _rows(workload: Workload, start_ms: float, length_ms: float) -> slice:
    """Rows from ``start_ms`` for ``length_ms``, at least one."""
    start, stop = np.searchsorted(workload.times_ms, [start_ms, start_ms + length_ms])
    start = min(int(start), workload.rows - 1)
    return slice(start, max(int(stop), start + 1))
