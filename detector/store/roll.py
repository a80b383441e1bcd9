"""Moves what is older than the streams keep into packed chunks, and lets old keys expire.

For the process that reads: what it has not read yet stays in the streams. Each job's step is
one transaction, so an entry is always in exactly one of the two places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from detector.store.chunks import (
    CHUNK_MS,
    Stretch,
    chunk_start,
    field_name,
    join,
    pack,
    split,
    unpack,
)
from detector.store.discovery import Discovery
from detector.store.entries import EARLIEST_MS, decode, entry_ms, gpu_codes
from detector.store.keys import Keys
from detector.store.rejects import Rejects
from detector.store.reports import joined
from detector.store.server import Command, Reply, Server, pairs
from detector.store.settings import HistorySettings

_JOBS_A_STEP = 256  # one transaction: 3 ms of the server's time
_MOST_JOBS = 4 * _JOBS_A_STEP  # in one call: the pace of 30,000 jobs at a call in 10 s
_BUDGET = 40_000  # entries of one step, about 40 MB of replies
_DAY_MS = 86_400_000

# Chunks that grew too old since a job's last visit: one, and some for late visits.
_PASSED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Old:
    """What one job's step moves: entries before ``edge_ms``, by the start of their chunk."""

    job: str
    edge_ms: int
    newest_ms: int
    chunks: dict[int, Stretch]
    unfinished: bool


class Roll:
    """Rolls up jobs' streams in steps that a tick can afford."""

    def __init__(
        self,
        server: Server,
        keys: Keys,
        settings: HistorySettings,
        discovery: Discovery,
        rejects: Rejects,
    ) -> None:
        self._server = server
        self._keys = keys
        self._settings = settings
        self._discovery = discovery
        self._rejects = rejects
        self._next = 0
        self._swept: set[str] = set()
        self._last_ms: int | None = None

    def all(self, jobs: Iterable[str], delivered: dict[str, int], *, now_ms: int) -> None:
        """Roll up these jobs until nothing old is left in their streams."""
        waiting = list(jobs)
        now_ms = self._believed(delivered, now_ms)
        while waiting:
            step, waiting = waiting[:_JOBS_A_STEP], waiting[_JOBS_A_STEP:]
            waiting += self._step(step, delivered, now_ms=now_ms)

    def some(self, delivered: dict[str, int], *, now_ms: int) -> int:
        """Roll up the next few jobs, at a pace that meets each once in a chunk's length.

        Returns how many jobs were visited.
        """
        jobs = list(self._discovery.keys_of)
        passed = 0 if self._last_ms is None else now_ms - self._last_ms
        self._last_ms = now_ms
        now_ms = self._believed(delivered, now_ms)
        share = len(jobs) * min(max(passed, 0), CHUNK_MS) // CHUNK_MS + 1
        count = min(share, _MOST_JOBS, len(jobs))
        start = self._next % max(len(jobs), 1)
        chosen = (jobs[start:] + jobs[:start])[:count]
        self._next = start + count
        for at in range(0, count, _JOBS_A_STEP):
            self._step(chosen[at : at + _JOBS_A_STEP], delivered, now_ms=now_ms)
        return count

    def _believed(self, delivered: dict[str, int], now_ms: int) -> int:
        """Return a time to delete by: at most a little after the newest entry of all jobs.

        A clock that jumps a week ahead would otherwise delete a week of everything.
        """
        newest = max(delivered.values(), default=now_ms)
        return min(now_ms, newest + self._settings.stream + 2 * CHUNK_MS)

    def _step(
        self, jobs: Sequence[str], delivered: dict[str, int], *, now_ms: int
    ) -> list[str]:
        """Roll up each job once, and return those that have more to roll."""
        old = self._read(jobs, delivered, now_ms=now_ms)
        touched = [item for item in old if item.chunks]
        replies = self._server.pipeline(
            ["HMGET", self._keys.chunks(item.job), *map(field_name, item.chunks)]
            for item in touched
        )
        before = {item.job: blobs for item, blobs in zip(touched, replies, strict=True)}
        commands: list[Command] = []
        for item in old:
            commands += self._moves(item, before.get(item.job, []))
            commands += self._expiries(item, now_ms=now_ms)
        commands += self._surplus([item.job for item in old], now_ms=now_ms)
        if commands:
            self._server.atomic(commands)
        return [item.job for item in old if item.unfinished]

    def _read(
        self, jobs: Sequence[str], delivered: dict[str, int], *, now_ms: int
    ) -> list[_Old]:
        limit = max(60, _BUDGET // max(len(jobs), 1))
        rolled_ms = chunk_start(now_ms - self._settings.stream)
        edges = {job: min(rolled_ms, delivered.get(job, rolled_ms) + 1) for job in jobs}
        commands: list[Command] = []
        for job, edge in edges.items():
            key = self._keys.samples(job)
            commands.append(["XINFO", "STREAM", key])
            commands.append(["XRANGE", key, "-", f"({edge}", "COUNT", limit])
            commands.append(["HLEN", self._keys.chunks(job)])
        replies = self._server.pipeline(commands)
        found = zip(replies[::3], replies[1::3], replies[2::3], strict=True)
        forgotten_ms = max(now_ms - self._settings.keep, EARLIEST_MS)
        old = []
        for (job, edge), (info, entries, stored) in zip(edges.items(), found, strict=True):
            if isinstance(stored, Exception):
                # Nothing is trimmed that cannot be kept.
                self._rejects.add(job, self._keys.chunks(job), "wrong_type")
            elif isinstance(entries, list) and not isinstance(info, Exception):
                full = len(entries) == limit
                old.append(
                    _old(
                        job,
                        edge,
                        forgotten_ms=forgotten_ms,
                        info=info,
                        entries=entries,
                        full=full,
                    )
                )
        return old

    def _moves(self, item: _Old, before: Sequence[bytes | None]) -> list[Command]:
        """Commands that write an item's chunks, merged with those stored, and trim."""
        key = self._keys.chunks(item.job)
        flat: list[str | bytes] = []
        for (start, fresh), blob in zip(item.chunks.items(), before, strict=True):
            parts = [fresh]
            if blob is not None:
                try:
                    parts.insert(0, unpack(blob, start))
                except ValueError as exc:
                    self._rejects.add(item.job, f"{start}-0", "bad_chunk", str(exc))
            flat += [field_name(start), pack(join(parts), start)]
        moves: list[Command] = [["HSET", key, *flat]] if flat else []
        moves.append(["XTRIM", self._keys.samples(item.job), "MINID", item.edge_ms])
        return moves

    def _expiries(self, item: _Old, *, now_ms: int) -> list[Command]:
        """Commands that let all keys of a job go when ``keep`` and a day have passed."""
        # By the job's own time, not by the server's: a replay of old days keeps its history.
        seen = item.newest_ms if EARLIEST_MS <= item.newest_ms <= now_ms else now_ms
        seconds = max((seen + self._settings.keep + _DAY_MS - now_ms) // 1000, 1)
        names = self._keys
        keys = (names.samples, names.about, names.events, names.chunks, names.rejects)
        return [["EXPIRE", name(item.job), seconds] for name in keys]

    def _surplus(self, jobs: Sequence[str], *, now_ms: int) -> list[Command]:
        """Commands that delete the jobs' chunks that are older than ``keep``."""
        last = chunk_start(now_ms - self._settings.keep) - CHUNK_MS
        recent = [field_name(last - back * CHUNK_MS) for back in range(_PASSED)]
        fresh = [job for job in jobs if job not in self._swept]
        self._swept.update(fresh)
        replies = self._server.pipeline(["HKEYS", self._keys.chunks(job)] for job in fresh)
        names: dict[str, list[str]] = {job: recent for job in jobs}
        for job, reply in zip(fresh, replies, strict=True):
            names[job] = [
                name.decode() for name in reply if name.isdigit() and int(name) * 1000 <= last
            ]
        return [["HDEL", self._keys.chunks(job), *old] for job, old in names.items() if old]


def _old(
    job: str, edge: int, *, forgotten_ms: int, info: Reply, entries: Reply, full: bool
) -> _Old:
    decoded = decode([entry[0] for entry in entries], [entry[1] for entry in entries])
    times = decoded.times_ms
    if full:
        # Whole chunks where it can be; one chunk of very many entries goes in parts.
        whole = chunk_start(int(times[-1]))
        edge = whole if whole > times[0] else int(times[-1]) + 1
    everything = Stretch(times_ms=times, fields=decoded.fields, codes=gpu_codes(decoded.packed))
    moved = _without_joined(everything.between(forgotten_ms - 1, edge))
    return _Old(
        job=job,
        edge_ms=edge,
        newest_ms=entry_ms(dict(pairs(info))[b"last-generated-id"]),
        chunks=split(join([moved])),
        unfinished=full,
    )


def _without_joined(stretch: Stretch) -> Stretch:
    """Return a stretch whose scrapes hold what was reported: no row, and no GPUs, for that."""
    told = joined(np.zeros(stretch.times_ms.size, np.int64), stretch.times_ms, stretch.fields)
    if told is None:
        return stretch
    return replace(stretch, fields=told.fields).rows(np.flatnonzero(~told.taken))
