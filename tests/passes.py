"""Passes over recordings on stores in memory, for the laws of the pass."""

from collections.abc import Iterable
from typing import Protocol

from detector.analysis.judge import Content
from detector.fleet import Job
from detector.incident.ledger import SHARDS
from detector.series import Window
from detector.state import FleetState, restore
from detector.store.memory import MemoryHistories, MemoryLedger
from detector.tick import Report, Settings, run


class Recorded(Protocol):
    """A job and its history, measured or made."""

    @property
    def job(self) -> Job: ...

    @property
    def window(self) -> Window: ...


def histories(items: Iterable[Recorded], *, slice_entries: int = 360) -> MemoryHistories:
    """Return a store of these jobs' histories."""
    jobs = {item.job.id: item for item in items}
    return MemoryHistories(
        {name: item.window for name, item in jobs.items()},
        jobs={name: item.job for name, item in jobs.items()},
        slice_entries=slice_entries,
    )


def play(
    source: MemoryHistories,
    ledger: MemoryLedger,
    content: Content,
    *,
    until_ms: int,
    settings: Settings,
    state: FleetState | None = None,
) -> tuple[FleetState, list[Report]]:
    """Run passes until nothing is left to read, from what was saved unless said."""
    if state is None:
        state = restore(content, ledger.load(range(SHARDS)))
    reports, more = [], True
    while more:
        state, report = run(
            state,
            histories=source,
            ledger=ledger,
            content=content,
            settings=settings,
            now_ms=until_ms,
            checkpoint=range(SHARDS),
        )
        reports.append(report)
        more = report.more
    return state, reports
