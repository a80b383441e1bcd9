"""Whether a job has a baseline yet; else why not, and when it will have one. In words.

A job without a level is not watched for falls, and silence about it would look like health.
"""

from collections.abc import Iterable

import numpy as np

from detector.analysis.baselines import Level
from detector.analysis.baselines.level import RING, LevelState
from detector.analysis.baselines.standing import SUSPECT_RUN
from detector.analysis.watch import Watch
from detector.series import Duration, iso

NO_VALUE = "no finite value yet"


def watch_of_ofu(watches: Iterable[Watch]) -> Watch | None:
    """Return the watch that holds jobs to their own level of OFU; None without such a model."""
    for watch in watches:
        if watch.model.metric == "ofu" and isinstance(watch.model.baseline, Level):
            return watch
    return None


def unready(watch: Watch, job: str) -> str | None:
    """Return why ``job`` has no baseline yet and when it will; None where it has one."""
    baseline, state, column = watch.model.baseline, watch.state, watch.index.get(job)
    if not (isinstance(baseline, Level) and isinstance(state, LevelState)):
        return None
    if column is None or (state.count[column] == 0 and np.isnan(state.level[column])):
        return NO_VALUE
    if np.isnan(state.level[column]):
        return _levelless(baseline, state, column)
    if state.settled[column] or np.isfinite(state.held_level[column]):
        return None
    if state.run_count[column] > SUSPECT_RUN:
        return (
            f"the same value since {iso(int(state.run_ms[column]))}: it has one when that moves"
        )
    since_ms = int(state.settle_ms[column])
    until_ms = since_ms + int(baseline.settle_cap)
    late = until_ms <= state.seen_ms[column]  # a dip keeps it from settling
    until = "until its dip is over" if late else f"until {iso(until_ms)} at the latest"
    return f"warming up since {iso(since_ms)}, {until}"


def _levelless(baseline: Level, state: LevelState, column: int) -> str:
    count, first_ms = int(state.count[column]), int(state.first_ms[column])
    span_ms = int(state.seen_ms[column]) - first_ms
    latest = state.ring[column][np.isfinite(state.ring[column])]
    if count >= baseline.first_samples and (latest <= 0).all():
        shown_ms = int(state.seen_ms[column]) - round((RING - 1) * float(state.step_ms[column]))
        since = iso(first_ms) if count <= RING else f"{iso(shown_ms)} at least"
        return (
            f"all zero since {since}; it has one {baseline.first_samples} samples after a rise"
        )
    if count < baseline.first_samples or span_ms < baseline.first_span:
        missing = max(baseline.first_samples - count, 0) * float(state.step_ms[column])
        ready_ms = max(first_ms + int(baseline.first_span), state.seen_ms[column] + missing)
        when = f", about {iso(round(ready_ms / 1000) * 1000)}" if count > 1 else ""
        needed = f"{baseline.first_samples} samples over {baseline.first_span}"
        return f"needs {needed}, has {count} over {Duration(span_ms)}{when}"
    return f"no level in {count} samples; sought anew at every {baseline.first_samples}th"
