"""What a scheduler says of who runs where, and the port through which it is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from detector.fleet import Job, Placement


class SchedulerError(Exception):
    """A scheduler did not say who runs where: what was wrong, where, what to do; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a training: a job as its scheduler has it.

    Attributes
    ----------
    job
        Who it is; ``start_ms`` is when it began, the lineage is not told yet.
    end_ms
        None while it runs.
    key
        What all runs of one training have in common, such as user, name and directory; empty
        where nothing tells it.
    serial
        Which try of this id it is: another one is a restart under the same id.
    why
        What a new serial is called, for people: ``requeued``, ``recreated``.
    """

    job: Job
    end_ms: int | None = None
    key: tuple[str, ...] = ()
    serial: str = ""
    why: str = "restarted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """A scheduler's answer: who runs where.

    Attributes
    ----------
    aliases
        Other names that labels may give a job -> its id: a component of a heterogeneous job, an
        array's task, a pod; "" for what is nobody's yet, such as a pod that has not begun.
    """

    placements: tuple[Placement, ...] = ()
    runs: tuple[Run, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


class Scheduler(Protocol):
    """Somebody who knows which job has which GPUs."""

    @property
    def name(self) -> str:
        """``slurm``, ``kubernetes`` or ``hpc``, for messages."""
        ...

    @property
    def every_ms(self) -> int:
        """How often it is asked."""
        ...

    @property
    def keep_ms(self) -> int:
        """How long its last answer counts when it gives no new one."""
        ...

    def look(self, now_ms: int) -> Census:
        """Return who runs where now, and who ended lately as far as it is known.

        Raises
        ------
        SchedulerError
            When it does not say.
        """
        ...

    def past(self, now_ms: int) -> tuple[Run, ...]:
        """Return the runs that ended in the last days, as far as they can be had.

        Raises
        ------
        SchedulerError
            When it does not say; what runs now is known all the same.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
