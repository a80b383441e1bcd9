"""A host engine of DCGM: watches, and what was sampled since the last time.

Built on ``DcgmHandle``, ``DcgmSystem``, ``DcgmGroup`` and ``DcgmFieldGroup``, not on
``DcgmReader``: that keeps only the last value of an entity since the last call and lets blanks
through, and never recovers from a restarted engine, whose handle it has cached. Here everything
is built anew on a lost connection. Fields are known by number only: names changed with 4.6, and
the old ones warn.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from detector.metric import COUNTERS
from detector.reading import Dropped, Reading, Scrape
from detector.telemetry.dcgm_bindings import (
    CONTENTION,
    DETACHED,
    GPU_LOST,
    LOST,
    MULTI_PASS,
    NO_PROFILING,
    Bindings,
    code_of,
    explain,
)
from detector.telemetry.dcgm_entities import GPU, INSTANCE, Entity, entities_of
from detector.telemetry.samples import STATIC, Sample, Track, sample, summary
from detector.telemetry.source import SourceError

# Profiling fields, and those of them that a MIG instance has: traffic and cycles are the GPU's,
# and asking an instance for them fills the engine's log and returns nonsense.
PROFILING = (1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014,
             1015, 1084, 1086)  # fmt: skip
OF_INSTANCE = tuple(each for each in PROFILING if each < 1009 or 1013 <= each <= 1015)
# What OFU needs, with the two that explain most, where a GPU cannot sample all together.
FEWEST = (1002, 1004, 1005)
# Once a second: what is only a glance.
DEVICE = (100, 1603, 112, 140, 150, 155, 156, 1611, 203, 230, 240, 241, 1420, 1422, 1423, 1424)

_SECOND_US = 1_000_000
_STATIC_US = 60 * _SECOND_US
# How long the connection may take, ms. Chosen: far below any deadline.
_CONNECT_MS = 3_000
# GPUs and instances are listed so often: a new instance shows 1 to 2 s late, and is no hurry.
_LIST_MS = 60_000
# Profiling that failed is tried again so often: a profiler ends, a module is loaded.
_RETRY_MS = 60_000
_LONGEST_BACKOFF_MS = 60_000


@dataclass(slots=True)
class _Watch:
    group: Any
    fields: Any
    collected: Any = None


@dataclass(slots=True)
class _Connection:
    """What vanishes with the connection."""

    handle: Any
    system: Any
    entities: tuple[Entity, ...] = ()
    watches: list[_Watch] = field(default_factory=list)
    tracks: dict[tuple[int, int], Track] = field(default_factory=dict)
    listed_ms: int = 0
    watched_ms: int = 0
    failing: str = ""
    lost: dict[str, str] = field(default_factory=dict)


class Engine:
    """One host engine; a :class:`detector.telemetry.worker.Reader`.

    Parameters
    ----------
    address
        ``host[:port]`` or ``unix://path``; never empty, which would start an engine in this
        process beside the node's own.
    tag
        Unique to this process: engines refuse a name of a group that is taken.
    """

    def __init__(
        self, bindings: Bindings, *, address: str, interval_ms: int, host: str, tag: str
    ) -> None:
        self._dcgm = bindings
        self._address, self._host, self._tag = address, host, tag
        self._interval_ms = interval_ms
        self._numbers = itertools.count(1)
        self._now: _Connection | None = None
        self._retry_ms = 0
        self._backoff_ms = 0
        self._refused = ""

    def read(self, now_ms: int) -> Scrape:
        """Return what was sampled since the last call."""
        if self._now is None and now_ms < self._retry_ms:
            return self._failed(now_ms, self._refused)
        try:
            connection = self._now or self._connect()
            self._now = connection
            self._list(connection, now_ms)
            self._collect(connection)
            readings, dropped = self._readings(connection, now_ms)
        except SourceError as error:
            return self._failed(now_ms, str(error))
        except Exception as error:
            code = code_of(error)
            if code is None and not isinstance(error, self._dcgm.pydcgm.DcgmException):
                raise
            return self._broken(now_ms, error)
        self._backoff_ms = 0
        return Scrape(
            target=self._address, asked_ms=now_ms, readings=readings, dropped=dropped,
            failing=connection.failing,
        )  # fmt: skip

    def close(self) -> None:
        """Give the watches back, and the connection."""
        connection, self._now = self._now, None
        if connection is None:
            return
        self._unwatch(connection)
        _quietly(connection.handle.Shutdown)

    def _failed(self, now_ms: int, why: str) -> Scrape:
        return Scrape(target=self._address, asked_ms=now_ms, error=why)

    def _broken(self, now_ms: int, error: Exception) -> Scrape:
        """Let go of a connection that does not work; wait longer each time it does not."""
        code = code_of(error)
        if self._now is not None and code in (GPU_LOST, DETACHED):
            self._now.listed_ms = 0  # the engine is well: look again which GPUs there are
            return self._failed(now_ms, explain(error))
        if self._now is not None:
            connection, self._now = self._now, None
            if code not in LOST:
                self._unwatch(connection)
            _quietly(connection.handle.Shutdown)
        self._refused = f"DCGM at {self._address}: {explain(error)}"
        self._retry_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(max(1_000, 2 * self._backoff_ms), _LONGEST_BACKOFF_MS)
        return self._failed(now_ms, self._refused)

    def _connect(self) -> _Connection:
        path = self._address.removeprefix("unix://")
        where = (
            {"unixSocketPath": path} if path != self._address else {"ipAddress": self._address}
        )
        handle = self._dcgm.pydcgm.DcgmHandle(timeoutMs=_CONNECT_MS, **where)
        return _Connection(handle=handle, system=handle.GetSystem())

    def _list(self, connection: _Connection, now_ms: int) -> None:
        """Find out what there is, and watch it; again when it changed or profiling failed."""
        due = now_ms - connection.listed_ms >= _LIST_MS or not connection.watches
        retry = connection.failing and now_ms - connection.watched_ms >= _RETRY_MS
        if not due and not retry:
            return
        entities = entities_of(
            self._dcgm, connection.handle, connection.system, address=self._address
        )
        connection.listed_ms = now_ms
        if entities == connection.entities and connection.watches and not retry:
            return
        self._unwatch(connection)
        connection.entities = entities
        connection.tracks = {
            one.key: connection.tracks.get(one.key, Track()) for one in entities
        }
        for track in connection.tracks.values():
            for each in PROFILING:  # where they are not sampled again, old ones would stand
                track.fields.pop(each, None)
        connection.watched_ms = now_ms
        connection.lost = {}
        self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        """Watch all of it: GPUs and instances apart, since instances lack some fields."""
        # By count and by age: without a count the engine's values froze on some GPUs, and long
        # memories cost it hundreds of megabytes.
        gpus = [one for one in connection.entities if one.group == GPU]
        instances = [one for one in connection.entities if one.group == INSTANCE]
        self._add(connection, gpus, DEVICE, every_us=_SECOND_US)
        self._add(connection, gpus, STATIC, every_us=_STATIC_US)
        connection.failing = ""
        divided = {one.gpu for one in instances}
        kinds: dict[tuple[int, ...], list[Entity]] = {}
        for gpu in gpus:
            if gpu.gpu not in divided:
                kinds.setdefault(self._profiling(connection, gpu), []).append(gpu)
        for fields, members in kinds.items():
            self._add_profiling(connection, members, fields)
        self._add_profiling(connection, instances, OF_INSTANCE)

    def _profiling(self, connection: _Connection, gpu: Entity) -> tuple[int, ...]:
        """Return which profiling fields a GPU has: models on one node differ."""
        try:
            told = self._dcgm.agent.dcgmProfGetSupportedMetricGroups(
                connection.handle.handle, gpu.number
            )
        except Exception as error:
            self._degrade(connection, error)
            return ()
        offered = {
            fields
            for group in told.metricGroups[: told.numMetricGroups]
            for fields in group.fieldIds[: group.numFieldIds]
        }
        return tuple(each for each in PROFILING if each in offered)

    def _degrade(self, connection: _Connection, error: Exception) -> None:
        """Go on without profiling where that is what fails, and say so; else raise it."""
        code = code_of(error)
        if code == CONTENTION:
            connection.failing = "contention"
        elif code in NO_PROFILING or code == MULTI_PASS:
            connection.failing = connection.failing or "no_profiling"
        else:
            raise error

    def _add_profiling(
        self, connection: _Connection, members: Sequence[Entity], fields: Sequence[int]
    ) -> None:
        if not members:
            return
        if not fields:
            connection.failing = connection.failing or "no_profiling"
            return
        every_us = self._interval_ms * 1000
        try:
            self._add(connection, members, fields, every_us=every_us)
        except Exception as error:
            if code_of(error) != MULTI_PASS:
                self._degrade(connection, error)
                return
            fewest = [each for each in FEWEST if each in fields]
            try:
                self._add(connection, members, fewest, every_us=every_us)
            except Exception as again:
                self._degrade(connection, again)

    def _add(
        self,
        connection: _Connection,
        members: Sequence[Entity],
        fields: Iterable[int],
        *,
        every_us: int,
    ) -> None:
        known = [each for each in fields if self._dcgm.fields.DcgmFieldGetById(each)]
        if not members or not known:
            return
        dcgm, name = self._dcgm.pydcgm, f"{self._tag}-{next(self._numbers)}"
        watch = _Watch(group=dcgm.DcgmGroup(connection.handle, groupName=name), fields=None)
        connection.watches.append(watch)
        for one in members:
            watch.group.AddEntity(one.group, one.number)
        watch.fields = dcgm.DcgmFieldGroup(connection.handle, name=name, fieldIds=known)
        keep_s = max(60.0, 6e-6 * every_us)
        try:
            watch.group.samples.WatchFields(
                watch.fields, every_us, keep_s, int(1e6 * keep_s / every_us) + 5
            )
        except Exception as error:
            connection.watches.remove(watch)
            if code_of(error) not in LOST:
                _discard(watch)
            if code_of(error) != GPU_LOST:
                raise
            self._without_lost(connection, members, known, every_us=every_us, error=error)

    def _without_lost(
        self,
        connection: _Connection,
        members: Sequence[Entity],
        fields: Sequence[int],
        *,
        every_us: int,
        error: Exception,
    ) -> None:
        """Watch each alone, so that the lost one costs no other."""
        if len(members) == 1:
            connection.lost[members[0].uuid] = explain(error)
            return
        for one in members:
            self._add(connection, [one], fields, every_us=every_us)

    def _unwatch(self, connection: _Connection) -> None:
        for watch in connection.watches:
            if watch.fields is not None:
                _quietly(watch.group.samples.UnwatchFields, watch.fields)
            _discard(watch)
        connection.watches = []

    def _collect(self, connection: _Connection) -> None:
        connection.system.UpdateAllFields(True)
        for watch in connection.watches:
            if watch.collected is not None:
                watch.collected.EmptyValues()
            watch.collected = watch.group.samples.GetAllSinceLastCall_v2(
                watch.collected, watch.fields
            )
            for group, entities in watch.collected.values.items():
                for number, fields in entities.items():
                    track = connection.tracks.get((group, number))
                    if track is None:
                        continue
                    for field_id, series in fields.items():
                        if field_id in COUNTERS:
                            track.add(field_id, _samples(field_id, series.values))

    def _readings(
        self, connection: _Connection, now_ms: int
    ) -> tuple[tuple[Reading, ...], tuple[Dropped, ...]]:
        divided = {one.gpu for one in connection.entities if one.group == INSTANCE}
        fresh = now_ms - connection.watched_ms <= 3 * self._interval_ms
        readings: list[Reading] = []
        dropped = [
            Dropped(metric="gpu", raw="", reason=f"{uuid}: {why}")
            for uuid, why in connection.lost.items()
        ]
        for one in connection.entities:
            if one.group == GPU and one.gpu in divided:
                continue
            track, clocks = connection.tracks[one.key], connection.tracks[GPU, one.gpu]
            found = summary(track, clocks, interval_us=self._interval_ms * 1000, fresh=fresh)
            if found is None:
                continue
            dropped += found.dropped
            readings.append(
                Reading(
                    uuid=one.uuid, instance=one.instance, profile=one.profile, host=self._host,
                    index=str(one.gpu), model=one.model, time_ms=found.time_us // 1000,
                    own_clock=True, values=found.values,
                    labels={"minor_number": one.minor} if one.minor else {},
                )
            )  # fmt: skip
        return tuple(readings), tuple(dropped)


def _samples(field_id: int, values: Iterable[Any]) -> Iterator[Sample]:
    for one in values:
        yield sample(field_id, int(one.ts or 0), None if one.isBlank else one.value)


def _discard(watch: _Watch) -> None:
    if watch.fields is not None:
        _quietly(watch.fields.Delete)
    _quietly(watch.group.Delete)


def _quietly(give_back: Any, *arguments: Any) -> None:
    """Give something back to an engine that may be gone; then it is gone as well."""
    try:
        give_back(*arguments)
    except Exception as error:
        if code_of(error) is None and type(error).__name__ != "DcgmException":
            raise
