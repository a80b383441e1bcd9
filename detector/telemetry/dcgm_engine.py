"""A host engine of DCGM: watches, and what was sampled since the last time.

Built on ``DcgmHandle``, ``DcgmSystem``, ``DcgmGroup`` and ``DcgmFieldGroup``, not on
``DcgmReader``: that keeps only the last value of an entity since the last call and lets blanks
through, and never recovers from a restarted engine, whose handle it has cached. Here whatever
goes wrong ends the connection, and its process with it, see ``worker.py``. Fields are known by
number only: names changed with 4.6, and the old ones warn.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from detector.metric import COUNTERS
from detector.reading import Dropped, Reading, Scrape
from detector.telemetry.dcgm_bindings import (
    CONTENTION,
    GONE,
    MULTI_PASS,
    NO_COUNTERS,
    NO_LIBRARY,
    NO_PROFILING,
    PAUSED,
    SILENT,
    Bindings,
    code_of,
    explain,
    of_code,
)
from detector.telemetry.dcgm_entities import GPU, INSTANCE, Entity, entities_of
from detector.telemetry.samples import STATIC, TENSOR, Sample, Track, sample, summary
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


@dataclass(slots=True)
class _Watch:
    group: Any
    fields: Any
    collected: Any = None


class Engine:
    """One host engine; a :class:`detector.telemetry.worker.Reader`.

    Parameters
    ----------
    address
        ``host[:port]`` or ``unix://path``; never empty, which would start an engine in this
        process beside the node's own.
    tag
        Unique to this process: engines refuse a name of a group that is taken.

    Raises
    ------
    SourceError
        When no engine answers.
    """

    def __init__(
        self, bindings: Bindings, *, address: str, interval_ms: int, host: str, tag: str
    ) -> None:
        self._dcgm = bindings
        self._address, self._host, self._tag = address, host, tag
        self._interval_ms = interval_ms
        self._numbers = itertools.count(1)
        self._entities: tuple[Entity, ...] = ()
        self._tracks: dict[tuple[int, int], Track] = {}
        self._watches: list[_Watch] = []
        self._profiled: set[tuple[int, int]] = set()  # of which the tensor counter is watched
        self._listed_ms = self._watched_ms = 0
        self._failing = ""
        # Why profiling fails, and GPUs that are lost; none twice.
        self._lacking: dict[Dropped, None] = {}
        path = address.removeprefix("unix://")
        where = {"unixSocketPath": path} if path != address else {"ipAddress": address}
        with self._in_words():
            self._handle = bindings.pydcgm.DcgmHandle(timeoutMs=_CONNECT_MS, **where)
            self._system = self._handle.GetSystem()

    def read(self, now_ms: int) -> Scrape:
        """Return what was sampled since the last call."""
        with self._in_words():
            self._list(now_ms)
            self._collect()
        readings, dropped = self._readings(now_ms)
        return Scrape(
            target=self._address, asked_ms=now_ms, readings=readings,
            dropped=(*self._lacking, *dropped), failing=self._failing,
        )  # fmt: skip

    def close(self) -> None:
        """Give the watches back, and the connection, to an engine that may be gone."""
        self._unwatch()
        with suppress(Exception):
            self._handle.Shutdown()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # of ctypes: a library that it needs is not there
            raise SourceError(f"DCGM: {error}: {of_code(NO_LIBRARY)}") from None
        except Exception as error:
            if code_of(error) is None and type(error).__name__ != "DcgmException":
                raise
            raise SourceError(f"DCGM: {explain(error)}") from None

    def _list(self, now_ms: int) -> None:
        """Find out what there is, and watch it; again when it changed or profiling failed."""
        # A clock that was set back makes both due.
        due = not 0 <= now_ms - self._listed_ms < _LIST_MS or not self._watches
        retry = self._failing and not 0 <= now_ms - self._watched_ms < _RETRY_MS
        if not due and not retry:
            return
        entities, lost = entities_of(self._dcgm, self._handle, self._system)
        self._listed_ms = now_ms
        if entities == self._entities and self._watches and not retry:
            return
        self._unwatch()
        self._entities = entities
        self._tracks = {one.key: self._tracks.get(one.key, Track()) for one in entities}
        for track in self._tracks.values():
            for each in PROFILING:  # where they are not sampled again, old ones would stand
                track.fields.pop(each, None)
        self._watched_ms = now_ms
        self._failing, self._lacking, self._profiled = "", {}, set()
        for which, why in lost.items():
            self._lose(which, why)
        self._watch()

    def _watch(self) -> None:
        """Watch all of it: GPUs and instances apart, since instances lack some fields."""
        # By count and by age: without a count the engine's values froze on some GPUs, and long
        # memories cost it hundreds of megabytes.
        gpus = [one for one in self._entities if one.group == GPU]
        instances = [one for one in self._entities if one.group == INSTANCE]
        self._add(gpus, DEVICE, every_us=_SECOND_US)
        self._add(gpus, STATIC, every_us=_STATIC_US)
        divided = {one.gpu for one in instances}
        kinds: dict[tuple[int, ...], list[Entity]] = {}
        for gpu in gpus:
            fields = self._profiling(gpu)
            if fields is None:
                continue
            if gpu.gpu not in divided:
                kinds.setdefault(fields, []).append(gpu)
                continue
            of_instance = tuple(each for each in OF_INSTANCE if each in fields)
            mine = [one for one in instances if one.gpu == gpu.gpu]
            kinds.setdefault(of_instance, []).extend(mine)
        for fields, members in kinds.items():
            for group in (GPU, INSTANCE):
                self._add_profiling([one for one in members if one.group == group], fields)

    def _profiling(self, gpu: Entity) -> tuple[int, ...] | None:
        """Return which profiling fields a GPU can sample at once; None where asking fails."""
        try:
            told = self._dcgm.agent.dcgmProfGetSupportedMetricGroups(
                self._handle.handle, gpu.number
            )
        except AttributeError:  # bindings that cannot say: -38 does when it is too much
            return PROFILING
        except Exception as error:
            self._degrade(error, (gpu,))
            return None
        together: dict[int, list[set[int]]] = {}
        for group in told.metricGroups[: told.numMetricGroups]:
            fields = set(group.fieldIds[: group.numFieldIds]).intersection(PROFILING)
            together.setdefault(group.majorId, []).append(fields)
        # Groups of one major number share counters: DCGM would take turns between them, and
        # hands out zeros that are none (NVIDIA/DCGM issue 169). From Hopper on each is alone.
        chosen = set[int]()
        for groups in together.values():
            chosen |= max(groups, key=lambda fields: (TENSOR in fields, len(fields)))
        return tuple(each for each in PROFILING if each in chosen)

    def _degrade(self, error: Exception, members: Sequence[Entity]) -> None:
        """Go on without profiling, or without lost GPUs, and say so; else raise the error."""
        code = code_of(error)
        if code in GONE and len(members) == 1:
            self._lose(members[0].called, explain(error))
            return
        word = {CONTENTION: "contention", PAUSED: "paused"}.get(code or 0, "no_profiling")
        if code not in (CONTENTION, PAUSED, MULTI_PASS, *NO_PROFILING):
            raise error
        self._lack(word, explain(error))

    def _lack(self, word: str, why: str) -> None:
        self._failing = self._failing or word
        self._lacking[Dropped(metric="tensor_active", raw="", reason=why)] = None

    def _lose(self, which: str, why: str) -> None:
        self._lacking[Dropped(gpu=which, metric="gpu", raw="", reason=why)] = None

    def _add_profiling(self, members: Sequence[Entity], fields: Sequence[int]) -> None:
        if not members:
            return
        if not fields:
            self._lack("no_profiling", f"{members[0].model}: {of_code(NO_COUNTERS)}")
            return
        every_us = self._interval_ms * 1000
        try:
            self._add(members, fields, every_us=every_us)
        except Exception as error:
            if code_of(error) != MULTI_PASS:
                self._degrade(error, members)
                return
            fewest = [each for each in FEWEST if each in fields]
            try:
                self._add(members, fewest, every_us=every_us)
            except Exception as again:
                self._degrade(again, members)

    def _add(self, members: Sequence[Entity], fields: Iterable[int], *, every_us: int) -> None:
        """Watch fields of all members; of each alone where one of them is lost."""
        known = [each for each in fields if self._is_known(each)]
        if not members or not known:
            return
        dcgm, name = self._dcgm.pydcgm, f"{self._tag}-{next(self._numbers)}"
        watch = _Watch(group=dcgm.DcgmGroup(self._handle, groupName=name), fields=None)
        self._watches.append(watch)
        keep_s = max(60.0, 6e-6 * every_us)
        try:
            for one in members:
                watch.group.AddEntity(one.group, one.number)
            watch.fields = dcgm.DcgmFieldGroup(self._handle, name=name, fieldIds=known)
            watch.group.samples.WatchFields(
                watch.fields, every_us, keep_s, int(1e6 * keep_s / every_us) + 5
            )
        except Exception as error:
            self._watches.remove(watch)
            _discard(watch)
            if code_of(error) not in GONE:
                raise
            if len(members) == 1:
                self._lose(members[0].called, explain(error))
                return
            for one in members:
                self._add([one], known, every_us=every_us)
            return
        if TENSOR in known:
            self._profiled |= {one.key for one in members}

    def _is_known(self, field_id: int) -> bool:
        try:
            return bool(self._dcgm.fields.DcgmFieldGetById(field_id))
        except ValueError:  # a null pointer
            return False

    def _unwatch(self) -> None:
        for watch in self._watches:
            if watch.fields is not None:
                with suppress(Exception):
                    watch.group.samples.UnwatchFields(watch.fields)
            _discard(watch)
        self._watches = []

    def _collect(self) -> None:
        self._system.UpdateAllFields(True)
        for watch in self._watches:
            watch.collected = _newer(watch)
            for group, entities in watch.collected.values.items():
                for number, fields in entities.items():
                    track = self._tracks.get((group, number))
                    if track is None:
                        continue
                    for field_id, series in fields.items():
                        if field_id in COUNTERS:
                            track.add(field_id, _samples(field_id, series.values))

    def _readings(self, now_ms: int) -> tuple[tuple[Reading, ...], tuple[Dropped, ...]]:
        divided = {one.gpu for one in self._entities if one.group == INSTANCE}
        fresh = 0 <= now_ms - self._watched_ms <= 3 * self._interval_ms
        lost = {one.gpu for one in self._lacking}
        readings: list[Reading] = []
        dropped: list[Dropped] = []
        for one in self._entities:
            if one.group == GPU and one.gpu in divided:
                continue
            track, clocks = self._tracks[one.key], self._tracks[GPU, one.gpu]
            if fresh and one.key in self._profiled and track.begins:
                continue  # nothing is wrong: the counter is a difference of two samples
            found = summary(track, clocks, interval_us=self._interval_ms * 1000, fresh=fresh)
            if found is None:
                if not fresh and one.called not in lost:
                    dropped.append(Dropped(gpu=one.called, metric="gpu", raw="", reason=SILENT))
                continue
            dropped += [replace(left, gpu=one.called) for left in found.dropped]
            readings.append(
                Reading(
                    uuid=one.uuid, instance=one.instance, profile=one.profile, host=self._host,
                    index=str(one.gpu), model=one.model, time_ms=found.time_us // 1000,
                    own_clock=True, values=found.values,
                    labels={"minor_number": one.minor} if one.minor else {},
                )
            )  # fmt: skip
        return tuple(readings), tuple(dropped)


def _newer(watch: _Watch) -> Any:
    """Return what came since the last call, by the collection of that call."""
    samples, before = watch.group.samples, watch.collected
    if before is not None:
        before.values.clear()  # it would keep all that it ever got
    try:
        return samples.GetAllSinceLastCall_v2(before, watch.fields)
    except (AttributeError, NameError):
        # Bindings before 3.3 misspell names in there.
        if before is None:
            return samples.GetLatest_v2(watch.fields)
        before.GetAllSinceLastCall(watch.fields)
        return before


def _samples(field_id: int, values: Iterable[Any]) -> Iterator[Sample]:
    for one in values:
        yield sample(field_id, int(one.ts or 0), None if one.isBlank else one.value)


def _discard(watch: _Watch) -> None:
    """Give names back to an engine that may be gone; then they are gone as well."""
    for give_back in (watch.fields, watch.group):
        if give_back is not None:
            with suppress(Exception):
                give_back.Delete()
