"""Who is who on the fleet: GPUs, hosts and the jobs that run on them."""

import msgspec


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a job's roster."""

    uuid: str
    host: str = ""
    index: int | None = None


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """The earlier run that a job was compared with, where it has no level of its own before.

    Attributes
    ----------
    until_ms
        Up to when that run's level was taken.
    differs
        What the runs' descriptions say otherwise: field or label -> there, here.
    """

    id: str
    name: str = ""
    until_ms: int
    differs: dict[str, tuple[str, str]] = {}

    @property
    def title(self) -> str:
        """The name people know the run by, with its id."""
        return _title(self.name, self.id)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Who a job is, as its hash ``ofu:{<job>}:m`` says; everything but the id may be missing.

    ``roster`` has the order of the per-GPU values in the job's entries; ``lineage`` lists the
    ids of earlier runs that this one continues, latest first.
    """

    id: str
    name: str = ""
    owner: str = ""
    team: str = ""
    scheduler: str = ""
    cluster: str = ""
    gpu_model: str = ""
    precision: str = ""
    roster: tuple[Gpu, ...] = ()
    start_ms: int | None = None
    lineage: tuple[str, ...] = ()
    labels: dict[str, str] = {}

    @property
    def title(self) -> str:
        """The name people know the job by, with its id."""
        return _title(self.name, self.id)


def _title(name: str, id: str) -> str:
    return f"{name} ({id})" if name and name != id else id
