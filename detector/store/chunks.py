"""Five minutes of a job's history packed into one field of its hash ``ofu:{<job>}:h``.

The field's name is the chunk's start in epoch seconds, a multiple of 300. A blob is, little
endian: version (u8), flags (u8; 1 = even spacing), entries n (u32), GPUs g (u16), columns (u8);
the times as u32 ms from the chunk's start (even spacing: the first and the step); for each
column the name's length (u8), the name, a u8 that is 1 for a constant, and one or n float32;
at last n x g u16, the GPUs' codes as in the stream. About 2.3 bytes for each GPU and sample.
"""

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detector.series import FloatArray, IntArray
from detector.store.entries import NO_DATA, CodeArray

CHUNK_MS = 300_000

_HEADER = struct.Struct("<BBIHB")
_PAIR = struct.Struct("<II")
_ONE = struct.Struct("<f")
_VERSION, _EVEN = 1, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A piece of one job's history.

    Attributes
    ----------
    times_ms
        Shape ``(n,)``, strictly increasing.
    fields
        Catalogue metric name -> values, shape ``(n,)``; ``ofu`` is always there.
    codes
        Codes of the GPUs, shape ``(n, g)``, or None.
    """

    times_ms: IntArray
    fields: dict[str, FloatArray]
    codes: CodeArray | None = None

    def rows(self, kept: slice | IntArray) -> "Stretch":
        """Return these rows alone."""
        return Stretch(
            times_ms=self.times_ms[kept],
            fields={name: values[kept] for name, values in self.fields.items()},
            codes=None if self.codes is None else self.codes[kept],
        )

    def between(self, after_ms: int, before_ms: int) -> "Stretch":
        """Return the rows with ``after_ms < time < before_ms``."""
        first = int(np.searchsorted(self.times_ms, after_ms, side="right"))
        last = int(np.searchsorted(self.times_ms, before_ms, side="left"))
        return self.rows(slice(first, last))


EMPTY = Stretch(times_ms=np.empty(0, np.int64), fields={"ofu": np.empty(0)})


def chunk_start(time_ms: int) -> int:
    """Return the start, ms, of the chunk that holds ``time_ms``."""
    return time_ms - time_ms % CHUNK_MS


def field_name(start_ms: int) -> str:
    """Return the hash's field of the chunk that starts at ``start_ms``."""
    return str(start_ms // 1000)


def join(parts: Sequence[Stretch]) -> Stretch:
    """Return the parts as one, in the order of time; of equal times the first part's counts."""
    if not parts:
        return EMPTY
    if len(parts) == 1 and (np.diff(parts[0].times_ms) > 0).all():
        return parts[0]
    times = np.concatenate([part.times_ms for part in parts])
    unique, rows = np.unique(times, return_index=True)  # the index of the first of each
    names = list(dict.fromkeys(name for part in parts for name in part.fields))
    fields = {name: _column(name, parts)[rows] for name in names}
    codes = _side_by_side(parts)
    return Stretch(times_ms=unique, fields=fields, codes=None if codes is None else codes[rows])


def split(stretch: Stretch) -> dict[int, Stretch]:
    """Return the stretch's pieces by the start, ms, of the chunks they belong to."""
    starts = stretch.times_ms - stretch.times_ms % CHUNK_MS
    heads = np.flatnonzero(np.diff(starts, prepend=-1))
    ends = np.append(heads[1:], starts.size)
    return {
        int(starts[head]): stretch.rows(slice(int(head), int(end)))
        for head, end in zip(heads, ends, strict=False)
    }


def pack(stretch: Stretch, start_ms: int) -> bytes:
    """Return the blob of a stretch that lies in the chunk starting at ``start_ms``."""
    offsets = stretch.times_ms - start_ms
    count = int(offsets.size)
    steps = np.diff(offsets)
    even = count > 1 and bool((steps == steps[0]).all())
    width = 0 if stretch.codes is None else int(stretch.codes.shape[1])
    parts = [_HEADER.pack(_VERSION, _EVEN * even, count, width, len(stretch.fields))]
    if even:
        parts.append(_PAIR.pack(int(offsets[0]), int(steps[0])))
    else:
        parts.append(offsets.astype("<u4").tobytes())
    for name, values in stretch.fields.items():
        column = values.astype("<f4")
        constant = count > 0 and bool(
            np.array_equal(column, np.repeat(column[:1], count), equal_nan=True)
        )
        label = name.encode()
        parts += [bytes([len(label)]), label, bytes([constant])]
        parts.append((column[:1] if constant else column).tobytes())
    if stretch.codes is not None:
        parts.append(stretch.codes.astype("<u2").tobytes())
    return b"".join(parts)


def unpack(blob: bytes, start_ms: int, *, gpus: bool = True) -> Stretch:
    """Return what :func:`pack` made a blob of, without the GPUs' codes on demand.

    Raises
    ------
    ValueError
        When the blob is not such a chunk.
    """
    try:
        return _unpack(blob, start_ms, gpus)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as exc:
        msg = f"chunk {field_name(start_ms)} of {len(blob)} bytes cannot be read: {exc}"
        raise ValueError(msg) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """Entries of many chunks, flat.

    Attributes
    ----------
    blob
        Which blob each entry is from. Shape ``(m,)``; entries of a blob stand together.
    broken
        Index of each blob that cannot be read -> why.
    codes
        Index of a blob -> codes of its GPUs, shape ``(n, g)``, where they are asked for.
    """

    blob: IntArray
    times_ms: IntArray
    fields: dict[str, FloatArray]
    broken: dict[int, str]
    codes: dict[int, CodeArray]


def unpack_many(
    blobs: Sequence[bytes], starts_ms: Sequence[int], *, gpus: Collection[int] = ()
) -> Unpacked:
    """Return the entries of many chunks; ``starts_ms`` has each one's start.

    Chunks of one layout are read as one array: one by one, the 600,000 chunks of a fleet's
    cold start take 25 s, together 2 s.

    Parameters
    ----------
    gpus
        The blobs whose GPUs are wanted too.
    """
    alike: dict[tuple[int, bytes], list[int]] = {}
    for at, blob in enumerate(blobs):
        alike.setdefault((len(blob), blob[: _HEADER.size]), []).append(at)
    parts: list[tuple[IntArray, Stretch]] = []
    broken: dict[int, str] = {}
    codes: dict[int, CodeArray] = {}
    for group in alike.values():
        together = _unpack_alike([blobs[at] for at in group], [starts_ms[at] for at in group])
        if together is not None:
            parts.append((np.repeat(group, together.times_ms.size // len(group)), together))
            layout = _layout(blobs[group[0]])
            if layout.width:
                codes |= {at: _codes(blobs[at], layout) for at in group if at in gpus}
            continue
        for at in group:
            try:
                one = unpack(blobs[at], starts_ms[at], gpus=at in gpus)
            except ValueError as exc:
                broken[at] = str(exc)
            else:
                parts.append((np.full(one.times_ms.size, at), one))
                if one.codes is not None:
                    codes[at] = one.codes
    names = dict.fromkeys(["ofu", *(name for _, part in parts for name in part.fields)])
    empty = np.empty(0, np.int64)
    return Unpacked(
        blob=np.concatenate([empty, *(rows for rows, _ in parts)]),
        times_ms=np.concatenate([empty, *(part.times_ms for _, part in parts)]),
        fields={name: _column(name, [part for _, part in parts]) for name in names},
        broken=broken,
        codes=codes,
    )


def _column(name: str, parts: Sequence[Stretch]) -> FloatArray:
    """One field of all parts, NaN where a part lacks it."""
    columns = [
        part.fields[name] if name in part.fields else np.full(part.times_ms.size, np.nan)
        for part in parts
    ]
    return np.concatenate([np.empty(0), *columns])


def _unpack_alike(blobs: Sequence[bytes], starts_ms: Sequence[int]) -> Stretch | None:
    """Entries of chunks that share length and header; None when they differ in layout."""
    try:
        layout = _layout(blobs[0])
    except (struct.error, IndexError, ValueError):
        return None
    size, count = len(blobs[0]), layout.count
    if len(blobs) == 1 or not 0 < count <= CHUNK_MS or layout.end > size:
        return None
    table = np.frombuffer(b"".join(blobs), np.uint8).reshape(len(blobs), size)
    if (table[:, layout.marks] != table[0, layout.marks]).any():
        return None

    def cells(at: int, cell: str, number: int) -> npt.NDArray[Any]:
        return np.ascontiguousarray(table[:, at : at + 4 * number]).view(cell)

    if layout.even:
        first, step = cells(_HEADER.size, "<u4", 2).astype(np.int64).T
        offsets = first[:, None] + step[:, None] * np.arange(count)
    else:
        offsets = cells(_HEADER.size, "<u4", count).astype(np.int64)
    if (offsets[:, -1] >= CHUNK_MS).any() or (np.diff(offsets) <= 0).any():
        return None
    fields = {}
    for name, at, constant in layout.columns:
        values = cells(at, "<f4", 1 if constant else count).astype(np.float64)
        fields[name] = np.broadcast_to(values, offsets.shape).ravel()
    times = (np.array(starts_ms, np.int64)[:, None] + offsets).ravel()
    return Stretch(times_ms=times, fields=fields) if "ofu" in fields else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where in a blob what stands: ``columns`` are (name, offset, constant)."""

    count: int
    width: int
    even: bool
    columns: list[tuple[str, int, bool]]
    marks: list[int]
    codes: int
    end: int


def _layout(blob: bytes) -> _Layout:
    version, flags, count, width, number = _HEADER.unpack_from(blob)
    if version != _VERSION:
        msg = f"version {version} is not known"
        raise ValueError(msg)
    even = bool(flags & _EVEN)
    at = _HEADER.size + (_PAIR.size if even else 4 * count)
    columns = []
    marks: list[int] = []
    for _ in range(number):
        size = blob[at]
        name = blob[at + 1 : at + 1 + size].decode("ascii")
        constant = bool(blob[at + 1 + size])
        marks += range(at, at + size + 2)
        at += size + 2
        columns.append((name, at, constant))
        at += 4 if constant else 4 * count
    return _Layout(
        count=count,
        width=width,
        even=even,
        columns=columns,
        marks=marks,
        codes=at,
        end=at + 2 * width * count,
    )


def _unpack(blob: bytes, start_ms: int, gpus: bool) -> Stretch:
    layout = _layout(blob)
    count = layout.count
    # Each entry of even spacing costs no byte, so a broken count could ask for any memory.
    if count > CHUNK_MS:
        msg = f"{count} entries in {CHUNK_MS} ms"
        raise ValueError(msg)
    if layout.even:
        first, step = _PAIR.unpack_from(blob, _HEADER.size)
        times = start_ms + first + step * np.arange(count, dtype=np.int64)
    else:
        times = start_ms + np.frombuffer(blob, "<u4", count, _HEADER.size).astype(np.int64)
    fields = {}
    for name, at, constant in layout.columns:
        if constant:
            fields[name] = np.full(count, _ONE.unpack_from(blob, at)[0])
        else:
            with np.errstate(invalid="ignore"):  # a broken blob may hold a signalling NaN
                fields[name] = np.frombuffer(blob, "<f4", count, at).astype(np.float64)
    if "ofu" not in fields:
        msg = "it has no column ofu"
        raise ValueError(msg)
    if count and (times[-1] >= start_ms + CHUNK_MS or (np.diff(times) <= 0).any()):
        msg = "its times are not in order, or not in its five minutes"
        raise ValueError(msg)
    codes = _codes(blob, layout) if layout.width and gpus else None
    return Stretch(times_ms=times, fields=fields, codes=codes)


def _codes(blob: bytes, layout: _Layout) -> CodeArray:
    shape = layout.count, layout.width
    return np.frombuffer(blob, "<u2", shape[0] * shape[1], layout.codes).reshape(shape)


def _side_by_side(parts: Sequence[Stretch]) -> CodeArray | None:
    """Codes of all parts, shape ``(n, g)``, narrower ones padded with no data on the right."""
    width = max((0 if part.codes is None else part.codes.shape[1]) for part in parts)
    if width == 0:
        return None
    codes = np.full((sum(part.times_ms.size for part in parts), width), NO_DATA, np.uint16)
    at = 0
    for part in parts:
        if part.codes is not None:
            codes[at : at + part.times_ms.size, : part.codes.shape[1]] = part.codes
        at += part.times_ms.size
    return codes
