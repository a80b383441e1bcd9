"""Copies series of the time-series module (``TS.*``) into histories, where the server has it.

A series labelled ``ofu_job=<job> metric=ofu`` is a job's OFU; further series of the job with
other catalogue names as ``metric`` join it where their timestamps are equal. What is copied
is read, rolled up and shown as any history, so nothing else needs to know of the module.

Both labels must be there: the module answers a query only if one label is given a value to be
equal to. No server with the module can be shipped (its licence), so this is tested against
the emulation in fakeredis and written by the module's documentation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np
import redis

from detector.metric import METRICS
from detector.store.entries import safe
from detector.store.errors import StoreError, Trouble, translate
from detector.store.history import History, Sample
from detector.store.keys import Keys, is_job
from detector.store.server import Reply, Server, pairs

_SAMPLES_A_SERIES = 360  # and call: an hour at one in 10 s
# A job's metrics are added one after the other; chosen well above a round trip.
_SETTLE_MS = 2_000
# A sample that is later than this is not met any more; a stream would refuse it anyway once
# the job has gone on. Chosen: six scrapes.
_OVERLAP_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """How many entries a call of :meth:`TimeSeries.copy` wrote, and whether to call again."""

    written: int = 0
    more: bool = False


class TimeSeries:
    """Carries new samples of all labelled series into the jobs' histories.

    Raises
    ------
    StoreError
        From :meth:`copy`, when the server cannot be used; the next call begins again there.
    """

    def __init__(self, client: redis.Redis, keys: Keys, history: History) -> None:
        self._server = Server(client)
        self._keys = keys
        self._history = history
        self._next_ms = 0
        self._last: dict[str, int] = {}
        self._available: bool | None = None

    @property
    def available(self) -> bool:
        """Whether the server has the module and lets this user ask it; asked once."""
        if self._available is None:
            try:
                reply = self._server.run("TS.QUERYINDEX", "metric=ofu")
            except StoreError as exc:
                if exc.kind not in {Trouble.TOO_OLD, Trouble.FORBIDDEN}:
                    raise
                self._available = False
            else:
                self._available = not isinstance(reply, redis.RedisError)
        return self._available

    def copy(self, now_ms: int) -> CopyReport:
        """Write samples that are new since the last call; nothing without the module."""
        if not self.available:
            return CopyReport()
        first = now_ms - self._history.settings.first_look
        end = max(now_ms - _SETTLE_MS, 0)
        rows, read_ms = self._read(max(self._next_ms, first, 0), end)
        self._learn_ends(rows.keys())
        samples = [
            Sample(job=job, time_ms=time, ofu=fields.pop("ofu"), fields=fields)
            for job, by_time in rows.items()
            for time, fields in sorted(by_time.items())
            if time > self._last[job] and "ofu" in fields
        ]
        written = self._history.write_many(samples)
        for sample in samples:
            self._last[sample.job] = sample.time_ms
        more = read_ms < end
        self._next_ms = read_ms + 1 if more else read_ms - _OVERLAP_MS
        return CopyReport(written=sum(written), more=more)

    def _read(
        self, start_ms: int, end_ms: int
    ) -> tuple[dict[str, dict[int, dict[str, float]]], int]:
        """Return job -> time -> metrics, and up to which time all series were read."""
        reply = self._server.run(
            *("TS.MRANGE", start_ms, end_ms, "WITHLABELS", "COUNT", _SAMPLES_A_SERIES),
            *("FILTER", f"metric=({','.join(METRICS)})", "ofu_job!="),
        )
        if isinstance(reply, redis.RedisError):
            raise translate(reply, self._server.where)
        rows: dict[str, dict[int, dict[str, float]]] = {}
        read_ms = end_ms
        for key, labels, points in _series(reply):
            if len(points) == _SAMPLES_A_SERIES:
                read_ms = min(read_ms, int(points[-1][0]))
            job, metric = self._named(key, labels)
            if job:
                by_time = rows.setdefault(job, {})
                for time, value in points:
                    if (number := self._usable(job, metric, time, value)) is not None:
                        by_time.setdefault(time, {})[metric] = number
        for by_time in rows.values():
            for time in [time for time in by_time if time > read_ms]:
                del by_time[time]
        return rows, read_ms

    def _named(self, key: bytes, labels: Mapping[bytes, bytes]) -> tuple[str, str]:
        """Return a series' job and metric; job "" when no key can be made of it."""
        job = labels[b"ofu_job"].decode("utf-8", "surrogateescape")
        if not is_job(job):
            self._history.reject("", safe(key), "no_job", safe(labels[b"ofu_job"]))
            return "", ""
        return job, labels[b"metric"].decode()

    def _usable(self, job: str, metric: str, time: int, value: bytes | float) -> float | None:
        number, bounds = float(value), METRICS[metric]
        if bounds.low <= number <= bounds.high:
            return float(np.float32(number))
        if time > self._last.get(job, -1):
            reason = "not_a_number" if isnan(number) else "out_of_range"
            self._history.reject(job, f"{time}-0", reason, f"{metric}={number:g}")
        return None

    def _learn_ends(self, jobs: Iterable[str]) -> None:
        """Ask for the last entry ever of jobs met first: what is before it was copied."""
        fresh = [job for job in jobs if job not in self._last]
        replies = self._server.pipeline(
            ["XINFO", "STREAM", self._keys.samples(job)] for job in fresh
        )
        for job, reply in zip(fresh, replies, strict=True):
            known = {} if isinstance(reply, redis.RedisError) else dict(pairs(reply))
            last = known.get(b"last-generated-id", b"-1-0")
            self._last[job] = int(last.rpartition(b"-")[0])


def _series(reply: Reply) -> list[tuple[bytes, dict[bytes, bytes], list[tuple[int, Reply]]]]:
    """Key, labels and points of each series, which RESP3 sends as a map of lists."""
    if isinstance(reply, dict):
        return [(key, dict(parts[0]), parts[-1]) for key, parts in reply.items()]
    return [(key, dict(labels), points) for key, labels, points in reply]
