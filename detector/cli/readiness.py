"""What the service knows of jobs' baselines, for verbs that show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from detector.analysis.change import Candidate, Rejected
    from detector.analysis.lineage import Origin
    from detector.config import ContentSettings
    from detector.series import Batch
    from detector.store.history import History
    from detector.store.ledger import Ledger

# How much of a history is read for a job of which nothing was saved yet. Chosen: longer than
# any warm-up, and a screenful of such jobs is read in a second.
_LOOK_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Where a job stands.

    Attributes
    ----------
    level
        What is expected of its OFU; None without a baseline.
    unready
        Why it has none yet, and when it will have one; None where it has one.
    origin
        What came of the earlier runs that its description names; None where it names none.
    """

    level: float | None
    unready: str | None
    origin: "Origin | None"


def readiness(
    jobs: Sequence[str],
    content: "ContentSettings",
    history: "History",
    ledger: "Ledger",
    *,
    now_ms: int,
) -> dict[str, Readiness]:
    """Return where the jobs stand: as last saved, and what they reported since folded in.

    The service saves a job every few minutes only, and those are the minutes in which a job
    gets its baseline. Empty where the models cannot be read, or none is for OFU: what else
    there is to show does not depend on them, and ``check`` says what is wrong.
    """
    from detector.analysis.baselines import band_of
    from detector.analysis.readiness import unready, watch_of_ofu
    from detector.analysis.watch import observe
    from detector.content import ContentErrors, load
    from detector.incident.ledger import shard_of
    from detector.state import restore

    try:
        models = load(content.models, content.rules)
    except ContentErrors:
        return {}
    state = restore(models, ledger.load(sorted({shard_of(job) for job in jobs})))
    watch = watch_of_ofu(state.watches.values())
    if watch is None:
        return {}
    young = [job for job in jobs if unready(watch, job) is not None]
    batch = _news(young, history, state.cursors, now_ms=now_ms)
    watch = observe(watch, batch, batch.fields["ofu"], confirm=_unasked).watch
    levels = band_of(watch.model.baseline, watch.state)[0]
    origins = {job: item.origin for job, item in state.kept.items()}
    found = {}
    for job in jobs:
        column = watch.index.get(job)
        level = np.nan if column is None else float(levels[column])
        found[job] = Readiness(
            level=None if np.isnan(level) else level,
            unready=unready(watch, job),
            origin=origins.get(job),
        )
    return found


def _news(
    jobs: Sequence[str], history: "History", cursors: Mapping[str, int], *, now_ms: int
) -> "Batch":
    """Return what the jobs reported after their cursors."""
    from detector.series import Batch

    windows = [
        history.window(job, start_ms=cursors.get(job, now_ms - _LOOK_MS) + 1, end_ms=now_ms)
        for job in jobs
    ]
    lengths = [len(window.times_ms) for window in windows]
    times = [window.times_ms for window in windows]
    values = [window.fields["ofu"] for window in windows]
    return Batch(
        jobs=tuple(jobs),
        job=np.repeat(np.arange(len(jobs)), lengths),
        times_ms=np.concatenate(times) if times else np.empty(0, np.int64),
        fields={"ofu": np.concatenate(values) if values else np.empty(0)},
    )


def _unasked(job: str, candidate: "Candidate") -> "Rejected":
    """Refuse what stands out: whoever only looks finds nothing."""
    from detector.analysis.change import Rejected

    del job, candidate
    return Rejected(reason="only looked at")
