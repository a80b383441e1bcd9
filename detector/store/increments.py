"""What all jobs' histories got since a cursor: the read that every tick makes.

The fast path is one XREAD over 1,000 streams. A job that lags behind what the streams keep
(a cold start, a long stop) is read from its packed chunks first and from its stream then.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import redis

from detector.series import Batch, IntArray, SmallArray
from detector.store.batch import BoolArray, Part, assembled, only
from detector.store.chunks import CHUNK_MS, chunk_start, field_name, unpack_many
from detector.store.discovery import Discovery
from detector.store.entries import EARLIEST_MS, Decoded, decode, entry_ms, gpu_values
from detector.store.errors import translate
from detector.store.rejects import DETAILED, Rejects
from detector.store.reports import JOIN_MS, Joined, joined
from detector.store.server import Reply, Server
from detector.store.settings import HistorySettings

_KEYS_A_READ = 1000  # measured: larger commands gain nothing more
_ENTRIES_A_READ = 50_000  # at most, when all are behind: about 40 MB of replies

# Entries of one call, all jobs together: about 40 MB of columns at the most. Chosen, so that a
# cold start of 10,000 jobs stays within the service's memory; it then takes more calls.
_BUDGET = 400_000
# Values of single GPUs of one call, about: 32 MB. Chosen: five times what one entry of each of
# the largest fleet's 100,000 GPUs gives at the fewest entries a job.
_GPU_BUDGET = 8_000_000
_FEWEST = 16  # entries a job and call, however many jobs there are

_LAST_SEQUENCE = 2**64 - 1
_ENTRIES_A_CHUNK = 30  # at one entry in 10 s, to guess how many chunks fill a slice


@dataclass(slots=True)
class _Place:
    """Where the reader is in a job that lags.

    ``cursor`` is what the caller comes back with when it has taken what it was given; with
    any other cursor it starts anew from there. Chunks are read up to ``end_ms``, which is
    None when it has to be looked up.
    """

    cursor: int | None
    read_ms: int
    end_ms: int | None = None
    in_stream: bool = False


# A job to be read: its number in this call, its id, and after which time.
_Want = tuple[int, str, int]


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
    growing
        Those of them whose roster grows at its end: an older ``g`` is shorter.
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
        self.growing: set[str] = set()

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
        parts: list[Part] = []
        for group in _groups(chunked, _KEYS_A_READ):
            more, without = self._from_chunks(group, limit=limit, now_ms=now_ms)
            parts += more
            streams += without
        groups = list(_groups(streams, min(_KEYS_A_READ, 1 + _ENTRIES_A_READ // limit)))
        gpus = 0
        for at, group in enumerate(groups):
            if gpus > _GPU_BUDGET:
                self._behind.update(job for later in groups[at:] for _, job, _ in later)
                break
            size = sum(self.roster_sizes.get(job, 0) for _, job, _ in group)
            most = max(_FEWEST, min(limit, _GPU_BUDGET // max(size, 1)))
            parts += self._from_streams(group, jobs, limit=most, now_ms=now_ms)
            gpus += sum(0 if part.gpus is None else len(part.gpus) for part in parts[-1:])
        return assembled(jobs, parts, rejects=self._rejects.take(), more=bool(self._behind))

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
    ) -> tuple[list[Part], list[_Want]]:
        """Return entries from before the jobs' streams begin, and jobs that have none."""
        self._find_ends(
            [want for want in group if self._places[want[1]].end_ms is None], now_ms
        )
        group = [want for want in group if want[1] in self._discovery.keys_of]
        ready = [want for want in group if want[2] + 1 >= (self._places[want[1]].end_ms or 0)]
        for _, job, _ in ready:
            self._places[job].in_stream = True
        asked = [want for want in group if not self._places[want[1]].in_stream]
        count = 1 + limit // _ENTRIES_A_CHUNK
        starts = [
            range(chunk_start(after + 1), self._places[job].end_ms or 0, CHUNK_MS)[:count]
            for _, job, after in asked
        ]
        replies = self._server.pipeline(
            ["HMGET", self._chunks_key(job), *map(field_name, some)]
            for (_, job, _), some in zip(asked, starts, strict=True)
        )
        part = self._unpacked(asked, starts, replies)
        return [self._step(part, asked, starts, limit=limit)], ready

    def _find_ends(self, group: list[_Want], now_ms: int) -> None:
        """Learn up to where each job has to be read from its chunks: where its stream begins.

        The stream is asked first: what is rolled up in between is met in the chunks then.
        """
        begins = {want[1]: entry_ms(found[0][0]) for want, found in self._xread(group, limit=1)}
        group = [want for want in group if want[1] in self._discovery.keys_of]
        sizes = self._server.pipeline(["HLEN", self._chunks_key(job)] for _, job, _ in group)
        for (_, job, _), size in zip(group, sizes, strict=True):
            any_chunks = isinstance(size, int) and size > 0
            end = min(begins.get(job, now_ms), self._rolled_ms(now_ms))
            self._places[job].end_ms = end if any_chunks else 0

    def _unpacked(self, asked: list[_Want], starts: list[range], replies: list[Reply]) -> Part:
        """Return all entries of the chunks that came, in the order of jobs and times."""
        blobs: list[bytes] = []
        owners: list[int] = []
        begins: list[int] = []
        for owner, (some, found) in enumerate(zip(starts, replies, strict=True)):
            for start, blob in zip(
                some, found if isinstance(found, list) else (), strict=False
            ):
                if blob is not None:
                    blobs.append(blob)
                    owners.append(owner)
                    begins.append(start)
        unpacked = unpack_many(blobs, begins)
        for at, why in unpacked.broken.items():
            job = asked[owners[at]][1]
            self._rejects.add(job, f"{begins[at]}-0", "bad_chunk", why)
        number = np.array(owners, np.int64)[unpacked.blob]
        order = np.lexsort((unpacked.times_ms, number))
        fields = {name: values[order] for name, values in unpacked.fields.items()}
        return Part(number[order], unpacked.times_ms[order], fields)

    def _step(self, part: Part, asked: list[_Want], starts: list[range], *, limit: int) -> Part:
        """Hand out at most ``limit`` entries of each job; the next call goes on there."""
        after = np.array([want[2] for want in asked], np.int64)
        end = np.array([self._places[job].end_ms for _, job, _ in asked], np.int64)
        part = only(
            part, (part.times_ms > after[part.number]) & (part.times_ms < end[part.number])
        )
        sizes = np.bincount(part.number, minlength=len(asked))
        firsts = np.cumsum(sizes) - sizes
        part = only(part, np.arange(part.number.size) - firsts[part.number] < limit)
        last = dict(zip(part.number.tolist(), part.times_ms.tolist(), strict=True))
        for at, (_, job, read_ms) in enumerate(asked):
            place = self._places[job]
            reached = min(starts[at][-1] + CHUNK_MS, int(end[at])) - 1
            place.read_ms = last[at] if sizes[at] > limit else max(read_ms, reached)
            if at in last:
                place.cursor = self.delivered[job] = last[at]
            if place.read_ms + 1 >= end[at]:
                place.end_ms = None  # asked once more: it may have been rolled up meanwhile
            self._behind.add(job)
        numbers = np.array([want[0] for want in asked], np.int64)
        return part._replace(number=numbers[part.number])

    def _chunks_key(self, job: str) -> bytes:
        return self._discovery.keys_of[job][:-1] + b"h"

    def _from_streams(
        self, group: list[_Want], jobs: list[str], *, limit: int, now_ms: int
    ) -> list[Part]:
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
        fewest = np.repeat([0 if want[1] in self.growing else 1 for want, _ in replies], counts)
        told = joined(number, decoded.times_ms, decoded.fields)
        kept = self._usable(decoded.times_ms, names, told, now_ms=now_ms)
        wrong = self._tell_faults(decoded, names, kept, (fewest * rosters, rosters))
        fields = decoded.fields
        if told is not None:
            fields = told.fields
            kept &= ~told.taken
        part = Part(number, decoded.times_ms, fields, *_gpus(decoded.packed, wrong))
        if not kept.all():
            part = only(part, kept)
        number, times = part.number, part.times_ms
        last = np.flatnonzero(np.diff(number, append=-1))
        ends = zip(number[last].tolist(), times[last].tolist(), strict=True)
        read_to = {jobs[at]: time for at, time in ends}
        full = {want[1] for want, found in replies if len(found) == limit}
        self._advance(group, read_to, full)
        return [part]

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

    def _usable(
        self, times_ms: IntArray, names: _Names, told: Joined | None, *, now_ms: int
    ) -> BoolArray:
        """Which rows have been read: not ahead of the clock, one for each millisecond.

        A report whose scrape may still come is read again with it.
        """
        ahead = times_ms > now_ms + self._settings.future
        twice = np.zeros(times_ms.size, bool)
        same_job = names.number[1:] == names.number[:-1]
        twice[1:] = (times_ms[1:] == times_ms[:-1]) & same_job & ~ahead[1:]
        waits = np.zeros(times_ms.size, bool)
        if told is not None:
            twice &= ~told.taken
            waits = told.alone & (times_ms > now_ms - JOIN_MS)
        for row in np.flatnonzero(twice).tolist():
            self._rejects.add(*names.of(row), "duplicate")
        for row in np.flatnonzero(ahead).tolist():
            # It is met at each read until its time has come, and counted at the first.
            job, entry = names.of(row)
            time = int(times_ms[row])
            if time > self._told_ahead.get(job, 0):
                self._told_ahead[job] = time
                self._rejects.add(job, entry, "from_the_future")
        return ~(ahead | twice | waits)

    def _tell_faults(
        self,
        decoded: Decoded,
        names: _Names,
        kept: BoolArray,
        rosters: tuple[IntArray, IntArray],
    ) -> BoolArray:
        """Set aside what is unusable in the rows that are handed out.

        Returns which rows' GPUs are of the wrong number: neither the fewest nor the most that
        their job has had, nor any between. Shape ``(m,)``.
        """
        for row, reason, detail in decoded.faults:
            if kept[row]:
                self._rejects.add(*names.of(row), reason, detail)
        sizes = np.fromiter(map(len, decoded.packed), np.int64, kept.size)
        wrong = (sizes & 1).astype(bool)
        fewest, most = rosters
        wrong |= (sizes > 0) & (most > 0) & ((sizes < 2 * fewest) | (sizes > 2 * most))
        for row in np.flatnonzero(wrong & kept).tolist():
            self._rejects.add(*names.of(row), "wrong_length", f"g has {sizes[row]} bytes")
        return wrong

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
            if isinstance(tail, list) and tail and entry_ms(tail[0][0]) < mark:
                self._tell_old(job, key, mark)

    def _tell_old(self, job: str, key: bytes, mark: int) -> None:
        told = self._told_back.get(job)
        first = b"-" if told is None else b"(" + told
        reply = self._server.run("XRANGE", key, first, f"({mark}", "COUNT", DETAILED)
        for entry, _ in reply if isinstance(reply, list) else ():
            old = entry_ms(entry) < EARLIEST_MS
            reason = "not_milliseconds" if old else "went_back"
            self._rejects.add(job, entry.decode(), reason)
            self._told_back[job] = entry


def _gpus(packed: list[bytes], wrong: BoolArray) -> tuple[SmallArray | None, IntArray | None]:
    """Return the entries' GPUs, flat, and how many are each one's; None without any."""
    if wrong.any():
        packed = [b"" if bad else text for text, bad in zip(packed, wrong, strict=True)]
    joined = b"".join(packed)
    if not joined:
        return None, None
    counts = np.fromiter(map(len, packed), np.int64, len(packed)) // 2
    codes = np.frombuffer(joined, "<u2")
    return gpu_values(codes).astype(np.float32), counts


def _groups(wants: list[_Want], size: int) -> Iterator[list[_Want]]:
    for at in range(0, len(wants), size):
        yield wants[at : at + size]
