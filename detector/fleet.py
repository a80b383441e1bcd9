"""Who is who on the fleet: GPUs, hosts and the jobs that run on them."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

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


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """One job's hold on GPUs of a host, from ``start_ms`` until before ``end_ms``.

    Which GPUs is told in the surest way that a scheduler knows: by ``uuid``; else by ``index``,
    the number that the host's own source of counters gives it; else by ``minor``, the number of
    its device file, which is neither that number nor the driver's; else only by how many of the
    host's ``gpus`` there are, 0 for all.

    Attributes
    ----------
    instance
        GPU instance id under MIG; "" for a whole GPU.
    end_ms
        None while it lasts.
    """

    job: str
    host: str = ""
    uuid: str = ""
    index: str = ""
    minor: int | None = None
    gpus: int = 0
    instance: str = ""
    start_ms: int
    end_ms: int | None = None

    def touches(self, start_ms: int, end_ms: int) -> bool:
        """Whether the hold meets ``[start_ms, end_ms)``, or the instant that both are."""
        begun = self.start_ms < end_ms or self.start_ms == start_ms == end_ms
        return begun and (self.end_ms is None or self.end_ms > start_ms)


class Seat(Protocol):
    """Where a reading was made; :class:`detector.reading.Reading` is one."""

    @property
    def uuid(self) -> str:
        """UUID of the GPU."""
        ...

    @property
    def instance(self) -> str:
        """GPU instance id; "" for a whole GPU."""
        ...

    @property
    def host(self) -> str:
        """The host, by any of its names."""
        ...

    @property
    def index(self) -> str:
        """The number that its host's source gives the GPU."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Who held a GPU for a time.

    Attributes
    ----------
    jobs
        Who held it all the time, in order; several share it.
    handover
        Who held it for a part only, and who held it beside them: then it is nobody's.
    """

    jobs: tuple[str, ...] = ()
    handover: tuple[str, ...] = ()


_NOBODY = Held()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is known of hosts' GPUs, by which placements without UUIDs are read.

    Attributes
    ----------
    counts
        Host (as :func:`host_key` gives it) -> how many GPUs are seen on it.
    minors
        UUID -> number of its device file, where a source says it.
    cut
        UUIDs of GPUs that are read instance by instance: the whole is the sum of them, and
        nobody's beside them.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    minors: Mapping[str, int] = field(default_factory=dict)
    cut: Collection[str] = frozenset()


_NOTHING = Fleet()


class Placements:
    """Who runs where, over time.

    Parameters
    ----------
    placements
        In any order; those of one GPU may overlap, where jobs share it.
    """

    def __init__(self, placements: Iterable[Placement] = ()) -> None:
        self.all = tuple(dict.fromkeys(placements))
        self._by_uuid: defaultdict[str, list[Placement]] = defaultdict(list)
        self._by_host: defaultdict[str, list[Placement]] = defaultdict(list)
        for one in self.all:
            if one.uuid:
                self._by_uuid[one.uuid].append(one)
            else:
                self._by_host[host_key(one.host)].append(one)

    def at(self, seat: Seat, *, start_ms: int, end_ms: int, fleet: Fleet = _NOTHING) -> Held:
        """Return who held a GPU in ``[start_ms, end_ms)``; at an instant where both are one.

        A GPU of which a hold begins or ends in between is nobody's: its counters are a mean
        over two tenants, or over a tenant and nobody.
        """
        if not self.all:
            return _NOBODY
        met = [one for one in self._near(seat, fleet) if one.touches(start_ms, end_ms)]
        met = [one for one in met if not _doubtful(one, met)]
        jobs = tuple(sorted({one.job for one in met}))
        own = ([one for one in met if one.job == job] for job in jobs)
        if all(_fill(holds, start_ms, end_ms) for holds in own):
            return Held(jobs=jobs)
        return Held(handover=jobs)

    def turns(self, seat: Seat, *, fleet: Fleet = _NOTHING) -> tuple[int, ...]:
        """Return the times at which somebody's hold of a GPU began or ended, ascending."""
        near = self._near(seat, fleet)
        ends = {one.end_ms for one in near if one.end_ms is not None}
        return tuple(sorted({one.start_ms for one in near} | ends))

    def _near(self, seat: Seat, fleet: Fleet) -> list[Placement]:
        """Return the placements that mean a GPU, at whatever time."""
        host = host_key(seat.host)
        near = [
            *self._by_uuid.get(seat.uuid, ()),
            *(one for one in self._by_host.get(host, ()) if _means(one, seat, host, fleet)),
        ]
        return [one for one in near if one.instance in ("", seat.instance)]


@lru_cache(maxsize=16_384)  # asked for each GPU of each round; chosen: hosts of a large fleet
def host_key(host: str) -> str:
    """Return what a host is known by: ``N017.example.org:9400`` is ``n017``."""
    name = host.strip().lower()
    if name.count(":") == 1:
        name = name.partition(":")[0]
    first = name.partition(".")[0]
    return name if first.isdigit() or ":" in name else first


def _fill(holds: Iterable[Placement], start_ms: int, end_ms: int) -> bool:
    """Whether one job's holds together last for all of ``[start_ms, end_ms)``.

    One that begins where another ends (the job was requeued) does not go on with it.
    """
    until: float = -math.inf
    for one in sorted(holds, key=lambda one: one.start_ms):
        if one.start_ms <= start_ms or one.start_ms < until:
            until = max(until, math.inf if one.end_ms is None else one.end_ms)
    return until >= end_ms


def _means(placement: Placement, seat: Seat, host: str, fleet: Fleet) -> bool:
    """Whether a placement that names no UUID is on this GPU of its host."""
    if placement.index:
        return placement.index == seat.index
    if placement.minor is not None:
        return fleet.minors.get(seat.uuid) == placement.minor
    # Some of a host's GPUs, and nobody says which: none is counted rather than a wrong one.
    seen = fleet.counts.get(host)
    return not placement.gpus or (seen is not None and placement.gpus >= seen)


def _doubtful(placement: Placement, others: Iterable[Placement]) -> bool:
    """Whether it names no GPU and another job holds GPUs of the host beside it."""
    if placement.uuid or placement.index or placement.minor is not None:
        return False
    end_ms = placement.start_ms + 1 if placement.end_ms is None else placement.end_ms
    return any(
        one.job != placement.job
        and (
            one.touches(placement.start_ms, end_ms)
            or placement.touches(one.start_ms, one.start_ms + 1)
        )
        for one in others
    )
