"""Works that go on side by side, each at its own pace and in a thread of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobEvent,
)
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is done again and again.

    Attributes
    ----------
    every_s
        Time from one start to the next, s.
    first
        When it starts; None for at once.
    """

    do: Callable[[], None]
    every_s: float
    first: datetime | None = None


def paced(
    works: Mapping[str, Work],
    *,
    skipped: Callable[[str], None],
    failed: Callable[[str, BaseException], None],
) -> BackgroundScheduler:
    """Return what starts the works.

    Parameters
    ----------
    skipped
        Hears the name of a work that was not started, since it was still going on.
    failed
        Hears the name of a work that raised something, and what; it goes on.
    """
    scheduler = BackgroundScheduler(
        timezone=UTC,
        executors={name: ThreadPoolExecutor(1) for name in works},
        # A slow one skips the next, never overlaps it, and is never dropped for lateness.
        job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
    )
    for name, work in works.items():
        scheduler.add_job(
            work.do,
            "interval",
            seconds=work.every_s,
            id=name,
            executor=name,
            next_run_time=work.first or datetime.now(UTC),
        )

    def hear_skipped(event: JobEvent) -> None:
        skipped(event.job_id)

    def hear_failed(event: JobEvent) -> None:
        failed(event.job_id, event.exception)

    scheduler.add_listener(hear_skipped, EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)
    scheduler.add_listener(hear_failed, EVENT_JOB_ERROR)
    return scheduler
