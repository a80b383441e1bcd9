"""The jobs' histories in Redis: written, read since a cursor, read as a window, rolled up.

Anybody may write a history (``XADD ofu:{<job>}:s * v 0.41``); nothing that is written there
stops a read. What cannot be used is set aside with a reason of ``REASONS`` and counted. One
process reads and rolls up; any number write.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import redis

from detector.fleet import Gpu, Job
from detector.series import (
    Batch,
    ContextEvent,
    FloatArray,
    Interval,
    Reject,
    Wanted,
    Window,
)
from detector.store.about import (
    is_seen,
    read_event,
    read_job,
    touching,
    write_event,
    write_job,
)
from detector.store.discovery import Discovery
from detector.store.entries import (
    REASONS,
    entry_ms,
    safe,
)
from detector.store.errors import translate
from detector.store.increments import Increments
from detector.store.keys import Keys
from detector.store.rejects import Rejected, Rejects
from detector.store.roll import Roll
from detector.store.samples import Sample, Writer
from detector.store.script import outcomes, script
from detector.store.server import Command, Reply, Server, pairs
from detector.store.settings import HistorySettings
from detector.store.windows import Windows

__all__ = ["REASONS", "History", "HistorySettings", "Rejected", "Sample"]

_LONGEST_EVENTS = 1_000  # of a job: a checkpoint every ten minutes for a week

# Jobs whose events are read in one trip: a few hundred bytes of each.
_EVENTS_A_PIPELINE = 500
_DAY_MS = 86_400_000


class History:
    """All jobs' histories on one server.

    Parameters
    ----------
    client
        With ``decode_responses`` off; Redis 6.2 or later, or Valkey.

    Raises
    ------
    StoreError
        From every method, when the server cannot be used.
    """

    def __init__(self, client: redis.Redis, keys: Keys, settings: HistorySettings) -> None:
        self._server = Server(client)
        self._client = client
        self._enrol = script(client, "enrol")
        self._keys = keys
        self.settings = settings
        self._expire_s = (settings.keep + _DAY_MS) // 1000
        self._rejects = Rejects(self._server, keys, expire_s=self._expire_s)
        self._discovery = Discovery(self._server, keys, self._rejects, every=settings.discover)
        self._increments = Increments(self._server, settings, self._discovery, self._rejects)
        self._windows = Windows(self._server, keys, settings, self._rejects)
        self._writer = Writer(self._server, keys, settings, self._discovery, self._rejects)
        self._roll = Roll(self._server, keys, settings, self._discovery, self._rejects)

    def increments(self, cursors: Mapping[str, int], *, now_ms: int) -> Batch:
        """Return the entries of all known jobs after each job's cursor.

        ``cursors`` has the time of the last entry that was taken of each job, ms; a job that
        is not in it is read from ``first_look`` before now. An entry without a usable ``v``
        stands in the batch with OFU NaN, so that a cursor can move past it.
        """
        return self._increments.read(cursors, now_ms=now_ms)

    def discover(self, now_ms: int) -> None:
        """Look for jobs that are new, as :meth:`increments` does by itself."""
        self._discovery.look(now_ms)

    def jobs(self) -> tuple[str, ...]:
        """Return the jobs known by now, see :meth:`increments`."""
        return tuple(self._discovery.keys_of)

    def last_seen(self, job: str) -> int | None:
        """Return the time of the newest entry known of a job, ms."""
        found = self._discovery.newest.get(job, -1)
        newest = self._increments.delivered.get(job, found)
        return None if newest < 0 else newest

    def write(
        self,
        job: str,
        *,
        time_ms: int,
        ofu: float,
        fields: Mapping[str, float] | None = None,
        gpus: FloatArray | None = None,
    ) -> bool:
        """Write one entry; see :meth:`write_many`."""
        sample = Sample(job=job, time_ms=time_ms, ofu=ofu, fields=fields or {}, gpus=gpus)
        return self.write_many([sample])[0]

    def write_many(self, samples: Sequence[Sample]) -> list[bool]:
        """Write entries and return for each whether it is in the history.

        Writing one again is harmless and true. False: the stream has a later entry, the key
        holds another type, or the sample itself is impossible (OFU not in 0..1, a time before
        2001, a job's id that no key can have). These are set aside with their reason, since
        one poor sample must not cost the others theirs.

        Raises
        ------
        ValueError
            When a metric is not in the catalogue. Nothing has been written then.
        """
        return self._writer.write(samples)

    def windows(self, wanted: Sequence[Wanted]) -> list[Window]:
        """Return stretches of jobs' histories, from chunks and streams, in as few trips."""
        return self._windows.read(wanted)

    def announced(
        self, jobs: Sequence[str]
    ) -> list[Callable[[Interval], tuple[ContextEvent, ...]]]:
        """Return for each job what was announced about it that touches a span."""
        found: list[Callable[[Interval], tuple[ContextEvent, ...]]] = []
        for first in range(0, len(jobs), _EVENTS_A_PIPELINE):
            some = jobs[first : first + _EVENTS_A_PIPELINE]
            replies = self._server.pipeline(self._events_read(job) for job in some)
            found += [partial(touching, _events(reply)) for reply in replies]
        return found

    def window(self, job: str, *, start_ms: int, end_ms: int) -> Window:
        """Return a job's history in ``[start_ms, end_ms)`` with all that is known of it."""
        span = Interval(start_ms=start_ms, end_ms=end_ms)
        (window,) = self.windows([Wanted(job=job, span=span, gpus=True)])
        (told,) = self.announced([job])
        return replace(window, events=told(span))

    def describe(self, job: str) -> Job:
        """Return who a job is; of a job that nobody described, its id alone."""
        return self.describe_many([job])[job]

    def describe_many(self, jobs: Iterable[str]) -> dict[str, Job]:
        """Return who the jobs are, by id."""
        wanted = list(jobs)
        replies = self._server.pipeline(["HGETALL", self._keys.about(job)] for job in wanted)
        described = {}
        for job, reply in zip(wanted, replies, strict=True):
            if isinstance(reply, Exception):
                self._rejects.add(job, self._keys.about(job), "wrong_type")
            described[job] = self._described(job, reply)
        return described

    def introduce(self, jobs: Iterable[Job]) -> None:
        """Write who jobs are, before their first sample; what somebody else wrote is kept.

        Raises
        ------
        StoreError
            When the server cannot be used.
        """
        commands: list[Command] = []
        for job in jobs:
            key = self._keys.about(job.id)
            fields = write_job(job)
            commands += [["HSETNX", key, name, text] for name, text in fields.items()]
            commands += [["EXPIRE", key, self._expire_s]] if fields else []
        self._server.pipeline(commands)

    def undescribed(self, job: str) -> tuple[str, ...]:
        """Return what of a job's description cannot be used, "<field>: <why>" each."""
        (reply,) = self._server.pipeline([["HGETALL", self._keys.about(job)]])
        if isinstance(reply, Exception):
            return (f"{self._keys.about(job)}: no hash",)
        found: list[str] = []

        def note(name: str, why: str) -> None:
            found.append(safe(f"{name}: {why}"))

        read_job(job, _texts([text for pair in pairs(reply) for text in pair]), note)
        return tuple(found)

    def strangers(self) -> tuple[str, ...]:
        """Return the keys that look like histories and name no job, as of the last scan."""
        return self._discovery.strangers()

    def announce(self, job: str, event: ContextEvent) -> None:
        """Add an event to a job's context; announcing it again shows nothing new."""
        key = self._keys.events(job)
        fields = write_event(event)
        replies = self._server.pipeline(
            [
                ["XADD", key, "MAXLEN", "~", _LONGEST_EVENTS, "*", *fields],
                ["EXPIRE", key, self._expire_s],
            ]
        )
        if isinstance(replies[0], redis.RedisError):
            raise translate(replies[0], self._server.where)

    def enrol(self, job: str, gpus: Iterable[Gpu]) -> Job:
        """Give GPUs places at the end of a job's roster; return who the job is by now.

        It is one step, and a GPU that has a place keeps it. A hash of another type stays as it
        is, and the job without a roster.
        """
        flat = [
            part
            for gpu in gpus
            for part in (gpu.host, gpu.uuid, "" if gpu.index is None else gpu.index)
        ]
        pipeline = self._client.pipeline(transaction=False)
        keys, args = [self._keys.about(job)], [self._expire_s, *flat]
        self._enrol(keys=keys, args=args, client=pipeline)
        outcomes(pipeline)
        return self.describe(job)

    def roll(self, jobs: Iterable[str], *, now_ms: int) -> None:
        """Move what is older than ``stream`` into chunks, and drop what is past ``keep``."""
        self._roll.all(jobs, self._increments.delivered, now_ms=now_ms)

    def roll_some(self, now_ms: int) -> int:
        """Roll up a few jobs, all within five minutes of calls; return how many."""
        return self._roll.some(self._increments.delivered, now_ms=now_ms)

    def set_aside(self, rejects: Iterable[Reject]) -> None:
        """Count ``rejects``, as a batch returned them, in their jobs' ``:r`` hashes."""
        self._rejects.set_aside(rejects)

    def reject(self, job: str, entry: str, reason: str, detail: str = "") -> None:
        """Note one for the next batch; job "" is the inbox."""
        self._rejects.add(job, entry, reason, detail)

    def rejected(self, job: str) -> Mapping[str, Rejected]:
        """Return what was set aside of a job so far, by reason."""
        return self._rejects.rejected(job)

    def _events_read(self, job: str) -> Command:
        return ["XREVRANGE", self._keys.events(job), "+", "-", "COUNT", _LONGEST_EVENTS]

    def _described(self, job: str, reply: Reply) -> Job:
        known = () if isinstance(reply, Exception) else pairs(reply)
        flat = [text for pair in known for text in pair]

        def note(name: str, why: str) -> None:
            self._rejects.add(job, ":m", "bad_description", safe(f"{name}: {why}"))

        fields = _texts(flat)
        described = read_job(job, fields, note)
        self._increments.roster_sizes[job] = len(described.roster)
        if is_seen(fields):
            self._increments.growing.add(job)
        return described


def _events(reply: Reply) -> list[ContextEvent]:
    """Read the events of a reply; a key of another type has none."""
    entries = reply if isinstance(reply, list) else ()
    return [read_event(entry_ms(entry), _texts(flat)) for entry, flat in entries]


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    texts = [text.decode("utf-8", "replace") for text in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))
