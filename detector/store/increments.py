"""What all jobs' histories got since a cursor: the read that every tick makes.

The fast path is one XREAD over 1,000 streams. A job that lags behind what the streams keep
(a cold start, a long stop) is read from its packed chunks first and from its stream then.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import redis

from detector.series import Batch, FloatArray, IntArray, Reject
from detector.store.chunks import CHUNK_MS, Stretch, chunk_start, field_name, join, unpack
from detector.store.discovery import Discovery
from detector.store.entries import EARLIEST_MS, Decoded, decode
from detector.store.errors import translate
from detector.store.rejects import DETAILED, Rejects
from detector.store.server import Reply, Server
from detector.store.settings import HistorySettings

BoolArray = npt.NDArray[np.bool_]

_KEYS_A_READ = 1000  # measured: larger commands gain nothing more
_ENTRIES_A_READ = 50_000  # at most, when all are behind: about 40 MB of replies

# Entries of one call, all jobs together: about 40 MB of columns at the most. Chosen, so that a
# cold start of 10,000 jobs stays within the service's memory; it then takes more calls.
_BUDGET = 400_000
_FEWEST = 16  # entries a job and call, however many jobs there are

_LAST_SEQUENCE = 2**64 - 1
_ENTRIES_A_CHUNK = 30  # at one entry in 10 s, to guess how many chunks fill a slice


@dataclass(slots=True)
class _Place:
    """Where the reader is in a job that lags.

    ``cursor`` is what the caller comes back with when it has taken what it was given; with
    any other cursor it starts anew from there.
    """

    cursor: int | None
    read_ms: int
    in_stream: bool = False


# A job to be read: its number in this call, its id, and after which time.
_Want = tuple[int, str, int]


class _Part(NamedTuple):
    """Entries of some jobs: shape ``(m,)`` each; ``number`` is the job's in this call."""

    number: IntArray
    times_ms: IntArray
    fields: dict[str, FloatArray]


class _Names(NamedTuple):
    """What a row is called when it is set aside."""

    jobs: list[str]
    number: IntArray
    ids: list[bytes]

    def of(self, row: int) -> tuple[str, str]:
        """Return the row's job and the entry's id."""
        return self.jobs[self.number[row]], self.ids[row].decode()


class Increments:
    """Reads new entries of all jobs; remembers only what spares it reading in vain.

    Attributes
    ----------
    delivered
        Job -> time of the last entry that was handed out, ms. Only those are rolled up.
    roster_sizes
        Job -> how many GPUs its ``g`` must have, for jobs whose roster is known.
    """

    def __init__(
        self,
        server: Server,
        settings: HistorySettings,
        discovery: Discovery,
        rejects: Rejects,
    ) -> None:
        self._server = server
        self._settings = settings
        self._discovery = discovery
        self._rejects = rejects
        self._places: dict[str, _Place] = {}
        self._behind: set[str] = set()
        self._told_ahead: dict[str, int] = {}
        self._told_back: dict[str, bytes] = {}
        self.delivered: dict[str, int] = {}
        self.roster_sizes: dict[str, int] = {}

    def read(self, cursors: Mapping[str, int], *, now_ms: int) -> Batch:
        """Return entries of all known jobs after each job's cursor, see ``History``."""
        scanned = self._discovery.look(now_ms)
        if scanned:
            self._forget_gone()
            self._tell_unreadable(cursors, now_ms=now_ms)
        jobs = list(self._discovery.keys_of)
        streams, chunked = self._wanted(cursors, now_ms=now_ms, everybody=scanned)
        wanted = len(streams) + len(chunked)
        limit = max(_FEWEST, min(self._settings.slice, _BUDGET // max(wanted, 1)))
        parts: list[_Part] = []
        for group in _groups(chunked, _KEYS_A_READ):
            more, without = self._from_chunks(group, limit=limit, now_ms=now_ms)
            parts += more
            streams += without
        for group in _groups(streams, min(_KEYS_A_READ, 1 + _ENTRIES_A_READ // limit)):
            parts += self._from_streams(group, jobs, limit=limit, now_ms=now_ms)
        return _assembled(jobs, parts, rejects=self._rejects.take(), more=bool(self._behind))

    def _wanted(
        self, cursors: Mapping[str, int], *, now_ms: int, everybody: bool
    ) -> tuple[list[_Want], list[_Want]]:
        """Jobs to read from their streams, and those to read from their chunks."""
        idle_ms = now_ms - self._settings.stream
        first_ms = now_ms - self._settings.first_look - 1
        rolled_ms = self._rolled_ms(now_ms)
        streams: list[_Want] = []
        chunked: list[_Want] = []
        newest, places, behind = self._discovery.newest, self._places, self._behind
        for number, job in enumerate(self._discovery.keys_of):
            # A job that has been silent for long is asked for at each scan only.
            if not everybody and 0 <= newest[job] < idle_ms and job not in behind:
                continue
            cursor = cursors.get(job)
            after = first_ms if cursor is None else cursor
            if after >= rolled_ms:
                streams.append((number, job, after))
                continue
            place = places.get(job)
            if place is None or place.cursor != cursor:
                after = max(after, now_ms - self._settings.keep)
                place = places[job] = _Place(cursor, after)
            (streams if place.in_stream else chunked).append((number, job, place.read_ms))
        return streams, chunked

    def _rolled_ms(self, now_ms: int) -> int:
        """Return the time from which on nothing can be in a chunk."""
        # Two chunks of margin: whoever rolled may have had another clock.
        return chunk_start(now_ms - self._settings.stream) + 2 * CHUNK_MS

    def _from_chunks(
        self, group: list[_Want], *, limit: int, now_ms: int
    ) -> tuple[list[_Part], list[_Want]]:
        """Return entries from before the jobs' streams begin, and jobs that have none."""
        begins = self._stream_begins(group)
        group = [want for want in group if want[1] in self._discovery.keys_of]
        sizes = self._server.pipeline(["HLEN", self._chunks_key(job)] for _, job, _ in group)
        asked: list[tuple[_Want, int, list[int]]] = []
        without: list[_Want] = []
        count = 1 + limit // _ENTRIES_A_CHUNK
        for want, size in zip(group, sizes, strict=True):
            _, job, after = want
            end = min(begins.get(job, now_ms), self._rolled_ms(now_ms))
            starts = list(range(chunk_start(after + 1), end, CHUNK_MS))
            if starts and isinstance(size, int) and size:
                asked.append((want, end, starts[:count]))
            else:
                self._places[job].in_stream = True
                without.append(want)
        replies = self._server.pipeline(
            ["HMGET", self._chunks_key(job), *map(field_name, starts)]
            for (_, job, _), _, starts in asked
        )
        parts = []
        for (want, end, starts), blobs in zip(asked, replies, strict=True):
            rows = self._unpacked(want[1], starts, blobs).between(want[2], end)
            parts.append(self._step(want, rows, limit=limit, starts=starts, end=end))
        return parts, without

    def _step(
        self, want: _Want, rows: Stretch, *, limit: int, starts: list[int], end: int
    ) -> _Part:
        """Hand out at most ``limit`` rows of a job's chunks; the next call goes on there."""
        number, job, after = want
        place = self._places[job]
        reached = min(starts[-1] + CHUNK_MS, end)
        place.in_stream = reached == end and rows.times_ms.size <= limit
        place.read_ms = max(after, reached - 1)
        if rows.times_ms.size > limit:
            rows = rows.rows(slice(0, limit))
            place.read_ms = int(rows.times_ms[-1])
        if rows.times_ms.size:
            place.cursor = self.delivered[job] = int(rows.times_ms[-1])
        self._behind.add(job)
        return _Part(np.full(rows.times_ms.size, number), rows.times_ms, rows.fields)

    def _unpacked(self, job: str, starts: list[int], blobs: Reply) -> Stretch:
        parts = []
        for start, blob in zip(starts, blobs, strict=True):
            if blob is not None:
                try:
                    parts.append(unpack(blob, start, gpus=False))
                except ValueError as exc:
                    self._rejects.add(job, f"{start}-0", "bad_chunk", str(exc))
        return join(parts)

    def _chunks_key(self, job: str) -> bytes:
        return self._discovery.keys_of[job][:-1] + b"h"

    def _stream_begins(self, group: list[_Want]) -> dict[str, int]:
        """Return the time of each job's first entry in its stream after what was read, ms."""
        entries = self._xread(group, limit=1)
        return {job: int(found[0][0].partition(b"-")[0]) for (_, job, _), found in entries}

    def _from_streams(
        self, group: list[_Want], jobs: list[str], *, limit: int, now_ms: int
    ) -> list[_Part]:
        """Return new entries of up to 1,000 jobs' streams."""
        replies = self._xread(group, limit=limit)
        if not replies:
            self._behind.difference_update(job for _, job, _ in group)
            return []
        entries = [entry for _, found in replies for entry in found]
        ids = [entry[0] for entry in entries]
        decoded = decode(ids, [entry[1] for entry in entries])
        counts = [len(found) for _, found in replies]
        number = np.repeat([want[0] for want, _ in replies], counts)
        rosters = np.repeat([self.roster_sizes.get(want[1], 0) for want, _ in replies], counts)
        names = _Names(jobs, number, ids)
        kept = self._usable(decoded.times_ms, names, now_ms=now_ms)
        self._tell_faults(decoded, names, kept, rosters)
        if not kept.all():
            number = number[kept]
            decoded.fields.update({n: v[kept] for n, v in decoded.fields.items()})
        times = decoded.times_ms[kept]
        last = np.flatnonzero(np.diff(number, append=-1))
        ends = zip(number[last].tolist(), times[last].tolist(), strict=True)
        read_to = {jobs[at]: time for at, time in ends}
        full = {want[1] for want, found in replies if len(found) == limit}
        self._advance(group, read_to, full)
        return [_Part(number, times, decoded.fields)]

    def _advance(self, group: list[_Want], read_to: dict[str, int], full: set[str]) -> None:
        """Note how far each job was read, and which have more than one slice."""
        self.delivered.update(read_to)
        self._discovery.newest.update(read_to)
        if self._places:
            for _, job, _ in group:
                place = self._places.get(job)
                if place is not None and job in read_to:
                    place.cursor = place.read_ms = read_to[job]
        if self._behind:
            self._behind.difference_update(job for _, job, _ in group)
        # Entries from the future fill a slice too, but there is nothing to come back for.
        self._behind.update(full & read_to.keys())

    def _xread(self, group: list[_Want], *, limit: int) -> list[tuple[_Want, Reply]]:
        """Return up to ``limit`` entries of each stream that has any after what was read."""
        keys_of = self._discovery.keys_of
        while group:
            by_key = {keys_of[want[1]]: want for want in group}
            after = [f"{want[2]}-{_LAST_SEQUENCE}" for want in group]
            reply = self._server.run("XREAD", "COUNT", limit, "STREAMS", *by_key, *after)
            if not isinstance(reply, redis.RedisError):
                found = reply.items() if isinstance(reply, dict) else reply or ()
                return [(by_key[key], entries) for key, entries in found]
            # One key of another type fails the read of all: take those out and read again.
            kinds = self._server.pipeline(["TYPE", key] for key in by_key)
            strange = {
                want[1]: kind
                for want, kind in zip(group, kinds, strict=True)
                if kind not in {b"stream", b"none"}
            }
            if not strange:
                raise translate(reply, self._server.where)
            for job, kind in strange.items():
                self._discovery.refuse(job, kind)
                self._behind.discard(job)
            group = [want for want in group if want[1] not in strange]
        return []

    def _usable(self, times_ms: IntArray, names: _Names, *, now_ms: int) -> BoolArray:
        """Which rows may be handed out: not ahead of the clock, one for each millisecond."""
        ahead = times_ms > now_ms + self._settings.future
        twice = np.zeros(times_ms.size, bool)
        same_job = names.number[1:] == names.number[:-1]
        twice[1:] = (times_ms[1:] == times_ms[:-1]) & same_job & ~ahead[1:]
        for row in np.flatnonzero(twice).tolist():
            self._rejects.add(*names.of(row), "duplicate")
        for row in np.flatnonzero(ahead).tolist():
            # It is met at each read until its time has come, and counted at the first.
            job, entry = names.of(row)
            time = int(times_ms[row])
            if time > self._told_ahead.get(job, 0):
                self._told_ahead[job] = time
                self._rejects.add(job, entry, "from_the_future")
        return ~(ahead | twice)

    def _tell_faults(
        self, decoded: Decoded, names: _Names, kept: BoolArray, rosters: IntArray
    ) -> None:
        """Set aside what is unusable in the rows that are handed out."""
        for row, reason, detail in decoded.faults:
            if kept[row]:
                self._rejects.add(*names.of(row), reason, detail)
        sizes = np.fromiter(map(len, decoded.packed), np.int64, kept.size)
        wrong = (sizes & 1).astype(bool)
        wrong |= (sizes > 0) & (rosters > 0) & (sizes != 2 * rosters)
        for row in np.flatnonzero(wrong & kept).tolist():
            self._rejects.add(*names.of(row), "wrong_length", f"g has {sizes[row]} bytes")

    def _forget_gone(self) -> None:
        known = self._discovery.keys_of.keys()
        self._behind &= known
        for memory in (self._places, self._told_ahead, self._told_back, self.delivered):
            for job in memory.keys() - known:
                del memory[job]

    def _tell_unreadable(self, cursors: Mapping[str, int], *, now_ms: int) -> None:
        """Set aside entries that no read meets, since their ids are below what was read.

        A stream that was deleted and made again with older ids, or one whose ids are no
        milliseconds, would otherwise be silent for no visible reason.
        """
        newest = self._discovery.newest
        marks: dict[str, int] = {}
        for job in self._discovery.keys_of:
            mark = max(cursors.get(job, 0), self.delivered.get(job, 0), EARLIEST_MS)
            silent = now_ms - self._settings.stream <= mark <= now_ms - self._settings.discover
            if silent or 0 <= newest[job] < mark:
                marks[job] = mark
        keys = [self._discovery.keys_of[job] for job in marks]
        tails = self._server.pipeline(["XREVRANGE", key, "+", "-", "COUNT", 1] for key in keys)
        for (job, mark), key, tail in zip(marks.items(), keys, tails, strict=True):
            if isinstance(tail, list) and tail and _ms(tail[0][0]) < mark:
                self._tell_old(job, key, mark)

    def _tell_old(self, job: str, key: bytes, mark: int) -> None:
        told = self._told_back.get(job)
        first = b"-" if told is None else b"(" + told
        reply = self._server.run("XRANGE", key, first, f"({mark}", "COUNT", DETAILED)
        for entry, _ in reply if isinstance(reply, list) else ():
            old = _ms(entry) < EARLIEST_MS
            reason = "not_milliseconds" if old else "went_back"
            self._rejects.add(job, entry.decode(), reason)
            self._told_back[job] = entry


def _ms(entry: bytes) -> int:
    return int(entry.partition(b"-")[0])


def _groups(wants: list[_Want], size: int) -> Iterator[list[_Want]]:
    for at in range(0, len(wants), size):
        yield wants[at : at + size]


def _assembled(
    jobs: list[str], parts: list[_Part], *, rejects: tuple[Reject, ...], more: bool
) -> Batch:
    """Return the parts as one batch, each job's entries together."""
    number = np.concatenate([np.empty(0, np.int64), *(part.number for part in parts)])
    times = np.concatenate([np.empty(0, np.int64), *(part.times_ms for part in parts)])
    names = dict.fromkeys(["ofu", *(name for part in parts for name in part.fields)])
    fields = {}
    for name in names:
        column = np.full(number.size, np.nan)
        at = 0
        for part in parts:
            if name in part.fields:
                column[at : at + part.number.size] = part.fields[name]
            at += part.number.size
        fields[name] = column
    if (np.diff(number) < 0).any():
        order = np.argsort(number, kind="stable")
        number, times = number[order], times[order]
        fields = {name: column[order] for name, column in fields.items()}
    heads = np.diff(number, prepend=-1) != 0
    return Batch(
        jobs=tuple(jobs[at] for at in number[heads].tolist()),
        job=np.cumsum(heads) - 1,
        times_ms=times,
        fields=fields,
        rejects=rejects,
        more=more,
    )
