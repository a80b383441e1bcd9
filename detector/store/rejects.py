"""What was set aside: counted by job and reason in Redis, the last of each kept to be shown."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from detector.series import Reject
from detector.store.keys import Keys
from detector.store.server import Server, pairs

# Told one by one in each look; more are only counted. Chosen: a screenful for each of many
# jobs, while a fleet of broken writers cannot fill the memory.
DETAILED = 1000


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
        counted again: their ids are not above the last one of their reason.
        """
        grouped: dict[tuple[str, str], list[Reject]] = {}
        for reject in rejects:
            grouped.setdefault((reject.job, reject.reason), []).append(reject)
        if not grouped and not self._untold:
            return
        known = self._server.pipeline(
            ["HGET", self._keys.rejects(job), f"last:{reason}"] for job, reason in grouped
        )
        commands: list[list[str | int]] = []
        for ((job, reason), group), last in zip(grouped.items(), known, strict=True):
            before = (
                _order(last.split(b" ")[0].decode("utf-8", "replace"))
                if isinstance(last, bytes)
                else None
            )
            fresh = [item for item in group if _is_after(_order(item.entry), before)]
            if fresh:
                key, latest = self._keys.rejects(job), fresh[-1]
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


def _is_after(entry: tuple[int, int] | None, before: tuple[int, int] | None) -> bool:
    return entry is None or before is None or entry > before
