"""What was set aside: counted by job and reason in Redis, the last of each kept to be shown."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from detector.series import Reject
from detector.store.keys import Keys
from detector.store.server import Server, pairs

# Told one by one in each look; more are only counted. Chosen: a screenful for each of many
# jobs, while a fleet of broken writers cannot fill the memory.
DETAILED = 1000
# Marks in one hash, of at most so many characters. Chosen: a job has a handful; a keyspace full
# of strange keys is counted again at a restart rather than remembered for ever.
_MARKS = 1000
_LONGEST_MARK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """How often a reason was met in a job's entries, and the last: "<entry id> <detail>"."""

    count: int
    last: str


class Rejects:
    """Collects what is set aside until the service takes it, and keeps the counts in Redis.

    Parameters
    ----------
    expire_s
        How long a job's counts are kept after the last one.
    """

    def __init__(self, server: Server, keys: Keys, *, expire_s: int) -> None:
        self._server = server
        self._keys = keys
        self._expire_s = expire_s
        self._waiting: list[Reject] = []
        self._untold: Counter[tuple[str, str]] = Counter()

    def add(self, job: str, entry: str, reason: str, detail: str = "") -> None:
        """Note one; after the thousandth since the last :meth:`take` only its number counts."""
        if len(self._waiting) < DETAILED:
            self._waiting.append(Reject(job=job, entry=entry, reason=reason, detail=detail))
        else:
            self._untold[job, reason] += 1

    def take(self) -> tuple[Reject, ...]:
        """Return those noted since the last call."""
        taken = tuple(self._waiting)
        self._waiting.clear()
        return taken

    def set_aside(self, rejects: Iterable[Reject]) -> None:
        """Add ``rejects`` to their jobs' counts, with those that were too many to be told.

        Entries that were counted before (a tick that is repeated after a restart) are not
        counted again: their ids are not above the last one of their reason. What has no id (a
        key, a hash) is marked as counted.
        """
        grouped: dict[tuple[str, str], list[Reject]] = {}
        for reject in rejects:
            grouped.setdefault((reject.job, reject.reason), []).append(reject)
        if not grouped and not self._untold:
            return
        marks = [
            list(dict.fromkeys(filter(None, map(_mark, group)))) for group in grouped.values()
        ]
        replies = self._server.pipeline(
            command
            for (job, reason), own in zip(grouped, marks, strict=True)
            for command in (
                ["HMGET", self._keys.rejects(job), f"last:{reason}", *own],
                ["HLEN", self._keys.rejects(job)],
            )
        )
        commands: list[list[str | int]] = []
        known = zip(replies[::2], replies[1::2], strict=True)
        for ((job, reason), group), own, (found, size) in zip(
            grouped.items(), marks, known, strict=True
        ):
            last, *told = found if isinstance(found, list) else [None] * (1 + len(own))
            new = {mark for mark, there in zip(own, told, strict=True) if there is None}
            fresh = _fresh(group, last, new)
            if fresh:
                key, latest = self._keys.rejects(job), fresh[-1]
                if new and isinstance(size, int) and size < _MARKS:
                    commands.append(
                        ["HSET", key, *(part for mark in new for part in (mark, ""))]
                    )
                commands.append(["HINCRBY", key, reason, len(fresh)])
                text = f"{latest.entry} {latest.detail}".strip()
                commands.append(["HSET", key, f"last:{reason}", text])
                commands.append(["EXPIRE", key, self._expire_s])
        for (job, reason), count in self._untold.items():
            commands.append(["HINCRBY", self._keys.rejects(job), reason, count])
            commands.append(["EXPIRE", self._keys.rejects(job), self._expire_s])
        self._untold.clear()
        self._server.pipeline(commands)

    def rejected(self, job: str) -> Mapping[str, Rejected]:
        """Return the counts of a job by reason; job "" is the inbox."""
        reply = self._server.run("HGETALL", self._keys.rejects(job))
        if isinstance(reply, Exception):
            return {}
        found = {
            name.decode("utf-8", "replace"): text.decode("utf-8", "replace")
            for name, text in pairs(reply)
        }
        return {
            reason: Rejected(count=int(count), last=found.get(f"last:{reason}", ""))
            for reason, count in found.items()
            if count.isdecimal() and not reason.startswith("last:")
        }


def _order(entry: str) -> tuple[int, int] | None:
    """Order of stream ids; None for what is no id of a job's own stream."""
    milliseconds, _, sequence = entry.partition("-")
    if milliseconds.isdecimal() and sequence.isdecimal():
        return int(milliseconds), int(sequence)
    return None


def _mark(reject: Reject) -> str:
    """The field that marks what has no stream id as counted; "" for an entry."""
    if _order(reject.entry) is not None:
        return ""
    return f"seen:{reject.reason}:{reject.entry} {reject.detail}"[:_LONGEST_MARK]


def _fresh(group: Iterable[Reject], last: object, new: Collection[str]) -> list[Reject]:
    """Those that were not counted before: above the last one, or with a new mark, each once."""
    before = None
    if isinstance(last, bytes):
        before = _order(last.split(b" ")[0].decode("utf-8", "replace"))
    fresh, waiting = [], set(new)
    for item in group:
        mark = _mark(item)
        if mark in waiting or (not mark and _is_after(_order(item.entry), before)):
            fresh.append(item)
            waiting.discard(mark)
    return fresh


def _is_after(entry: tuple[int, int] | None, before: tuple[int, int] | None) -> bool:
    return entry is None or before is None or entry > before
