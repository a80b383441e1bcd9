"""Stretches of many jobs' histories, each from its packed chunks and its stream, in one trip.

What the whole group holds is decoded together: NumPy and the text of entries cost by the call,
and most windows are short.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from detector.series import FloatArray, IntArray, Wanted, Window
from detector.store.chunks import CHUNK_MS, chunk_start, field_name, unpack_many
from detector.store.entries import NO_DATA, CodeArray, decode, gpu_codes, gpu_values
from detector.store.keys import Keys
from detector.store.rejects import Rejects
from detector.store.reports import joined
from detector.store.server import Command, Reply, Server
from detector.store.settings import HistorySettings

# Windows of a trip, and chunks of all of them together but for a single window's: some 10 MB
# of replies for jobs of ten GPUs. Chosen: more save no time.
_AT_ONCE, _CHUNKS_AT_ONCE = 100, 4_000


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A window on its way: what is asked of the server, and what came."""

    wanted: Wanted
    starts: list[int]
    entries: Reply = None
    blobs: Reply = None


@dataclass(slots=True, kw_only=True)
class _Rows:
    """Rows of many windows, flat, from whichever source: a chunk, or a window's stream entries.

    Attributes
    ----------
    window, source
        Whose each row is, and which source it is from; of equal times in a window the first
        source's counts. Shape ``(n,)``.
    place
        Which row of its source each one is. Shape ``(n,)``.
    codes
        Source -> codes of its GPUs, where there are any. Shape ``(rows, g)`` each.
    """

    window: IntArray
    source: IntArray
    place: IntArray
    times_ms: IntArray
    fields: dict[str, FloatArray]
    codes: dict[int, CodeArray]


class Windows:
    """Reads stretches of histories on one server; see the module."""

    def __init__(
        self, server: Server, keys: Keys, settings: HistorySettings, rejects: Rejects
    ) -> None:
        self._server, self._keys = server, keys
        self._settings, self._rejects = settings, rejects

    def read(self, wanted: Sequence[Wanted]) -> list[Window]:
        """Return each stretch, without what was announced."""
        found: list[Window] = []
        for group in self._groups(wanted):
            self._fetch(group)
            found += _windows(group, self._rows(group))
        return found

    def _groups(self, wanted: Sequence[Wanted]) -> Iterator[list[_Asked]]:
        group: list[_Asked] = []
        chunks = 0
        for item in wanted:
            asked = _Asked(wanted=item, starts=self._chunk_starts(item))
            full = chunks + len(asked.starts) > _CHUNKS_AT_ONCE or len(group) == _AT_ONCE
            if group and full:
                yield group
                group, chunks = [], 0
            group.append(asked)
            chunks += len(asked.starts)
        if group:
            yield group

    def _chunk_starts(self, wanted: Wanted) -> list[int]:
        first, end_ms = chunk_start(max(wanted.span.start_ms, 0)), wanted.span.end_ms
        if end_ms - first <= 2 * self._settings.keep:
            return list(range(first, end_ms, CHUNK_MS))
        # "Everything" is a span of millions of chunks: ask which there are.
        names = self._server.run("HKEYS", self._keys.chunks(wanted.job))
        known = names if isinstance(names, list) else []
        starts = sorted(int(name) * 1000 for name in known if name.isdigit())
        return [start for start in starts if first <= start < end_ms]

    def _fetch(self, group: Sequence[_Asked]) -> None:
        commands: list[Command] = []
        for asked in group:
            job, span = asked.wanted.job, asked.wanted.span
            first, end = max(span.start_ms, 0), f"({max(span.end_ms, 0)}"
            # The stream first: what is rolled up in between is then met twice, never missed.
            commands.append(["XRANGE", self._keys.samples(job), first, end])
            if asked.starts:
                names = map(field_name, asked.starts)
                commands.append(["HMGET", self._keys.chunks(job), *names])
        replies = iter(self._server.pipeline(commands))
        for asked in group:
            asked.entries = next(replies)
            asked.blobs = next(replies) if asked.starts else None

    def _rows(self, group: Sequence[_Asked]) -> _Rows:
        """Return all that came: first the chunks' rows, then the streams'."""
        blobs: list[bytes] = []
        starts: list[int] = []
        owners: list[int] = []
        for number, asked in enumerate(group):
            for start, blob in zip(
                asked.starts, asked.blobs if isinstance(asked.blobs, list) else (), strict=False
            ):
                if blob is not None:
                    blobs.append(blob)
                    starts.append(start)
                    owners.append(number)
        wide = {at for at, number in enumerate(owners) if group[number].wanted.gpus}
        unpacked = unpack_many(blobs, starts, gpus=wide)
        for at, why in unpacked.broken.items():
            job = group[owners[at]].wanted.job
            self._rejects.add(job, f"{starts[at]}-0", "bad_chunk", why)
        streams = [asked.entries if isinstance(asked.entries, list) else [] for asked in group]
        entries = [entry for some in streams for entry in some]
        decoded = decode([entry[0] for entry in entries], [entry[1] for entry in entries])
        codes, first = dict(unpacked.codes), 0
        for number, some in enumerate(streams):
            if group[number].wanted.gpus:
                found = gpu_codes(decoded.packed[first : first + len(some)])
                if found is not None:
                    codes[len(blobs) + number] = found
            first += len(some)
        counts = [len(some) for some in streams]
        source = np.concatenate(
            [unpacked.blob, np.repeat(np.arange(len(group)) + len(blobs), counts)]
        )
        names = dict.fromkeys([*unpacked.fields, *decoded.fields])
        sizes = len(unpacked.times_ms), len(decoded.times_ms)
        return _Rows(
            window=np.array([*owners, *range(len(group))], np.int64)[source],
            source=source,
            place=_places(source),
            times_ms=np.concatenate([unpacked.times_ms, decoded.times_ms]),
            fields={
                name: np.concatenate(
                    [
                        part[name] if name in part else np.full(size, np.nan)
                        for part, size in zip(
                            (unpacked.fields, decoded.fields), sizes, strict=True
                        )
                    ]
                )
                for name in names
            },
            codes=codes,
        )


def _places(source: IntArray) -> IntArray:
    """Return which row of its source each row is; those of a source stand together."""
    heads = np.flatnonzero(np.diff(source, prepend=-1))
    counts = np.diff(heads, append=len(source))
    return np.arange(len(source)) - np.repeat(heads, counts)


def _windows(group: Sequence[_Asked], rows: _Rows) -> Iterator[Window]:
    """Yield each window's rows in the order of time, each time once."""
    order = np.lexsort((rows.times_ms, rows.window))
    window, times_ms = rows.window[order], rows.times_ms[order]
    spans = [asked.wanted.span for asked in group]
    start_ms = np.array([max(span.start_ms, 0) for span in spans])[window]
    end_ms = np.array([span.end_ms for span in spans])[window]
    use = (times_ms >= start_ms) & (times_ms < end_ms)
    use[1:] &= (np.diff(window) != 0) | (np.diff(times_ms) != 0)
    order = order[use]
    window, times_ms = window[use], times_ms[use]
    fields = {name: values[order] for name, values in rows.fields.items()}
    told = joined(window, times_ms, fields)
    if told is not None:
        kept = ~told.taken
        order, window, times_ms = order[kept], window[kept], times_ms[kept]
        fields = {name: values[kept] for name, values in told.fields.items()}
    ends = np.searchsorted(window, np.arange(len(group)), side="right").tolist()
    sources = _sources(rows)
    for number, asked in enumerate(group):
        part = slice(ends[number - 1] if number else 0, ends[number])
        yield Window(
            times_ms=times_ms[part],
            fields={
                name: values[part]
                for name, values in fields.items()
                # What the other jobs of the group report is none of this one's.
                if name == "ofu" or np.isfinite(values[part]).any()
            },
            gpus=_gpus(rows, order[part], sources.get(number, []))
            if asked.wanted.gpus
            else None,
        )


def _sources(rows: _Rows) -> dict[int, list[int]]:
    """Return the sources of each window that hold GPUs."""
    heads = np.flatnonzero(np.diff(rows.source, prepend=-1))
    found: dict[int, list[int]] = {}
    for source, window in zip(
        rows.source[heads].tolist(), rows.window[heads].tolist(), strict=True
    ):
        if source in rows.codes:
            found.setdefault(window, []).append(source)
    return found


def _gpus(rows: _Rows, mine: IntArray, sources: Sequence[int]) -> FloatArray | None:
    """Return the GPUs' values of these rows, narrower ones padded with no data on the right."""
    if not sources:
        return None
    width = max(rows.codes[source].shape[1] for source in sources)
    codes = np.full((len(mine), width), NO_DATA, np.uint16)
    source, place = rows.source[mine], rows.place[mine]
    for number in sources:
        here = np.flatnonzero(source == number)
        found = rows.codes[number]
        codes[here, : found.shape[1]] = found[place[here]]
    return gpu_values(codes)
