"""Five minutes of a job's history packed into one field of its hash ``ofu:{<job>}:h``.

The field's name is the chunk's start in epoch seconds, a multiple of 300. A blob is, little
endian: version (u8), flags (u8; 1 = even spacing), entries n (u32), GPUs g (u16), columns (u8);
the times as u32 ms from the chunk's start (even spacing: the first and the step); for each
column the name's length (u8), the name, a u8 that is 1 for a constant, and one or n float32;
at last n x g u16, the GPUs' codes as in the stream. About 2.3 bytes for each GPU and sample.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    fields = {}
    for name in names:
        columns = [part.fields.get(name) for part in parts]
        filled = [
            np.full(part.times_ms.size, np.nan) if column is None else column
            for part, column in zip(parts, columns, strict=True)
        ]
        fields[name] = np.concatenate(filled)[rows]
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


def _unpack(blob: bytes, start_ms: int, gpus: bool) -> Stretch:
    version, flags, count, width, columns = _HEADER.unpack_from(blob)
    if version != _VERSION:
        msg = f"version {version} is not known"
        raise ValueError(msg)
    # Each entry of even spacing costs no byte, so a broken count could ask for any memory.
    if count > CHUNK_MS:
        msg = f"{count} entries in {CHUNK_MS} ms"
        raise ValueError(msg)
    at = _HEADER.size
    if flags & _EVEN:
        first, step = _PAIR.unpack_from(blob, at)
        times = start_ms + first + step * np.arange(count, dtype=np.int64)
        at += _PAIR.size
    else:
        times = start_ms + np.frombuffer(blob, "<u4", count, at).astype(np.int64)
        at += 4 * count
    fields = {}
    for _ in range(columns):
        size = blob[at]
        name = blob[at + 1 : at + 1 + size].decode("ascii")
        constant = blob[at + 1 + size]
        at += size + 2
        if constant:
            fields[name] = np.full(count, _ONE.unpack_from(blob, at)[0])
            at += 4
        else:
            fields[name] = np.frombuffer(blob, "<f4", count, at).astype(np.float64)
            at += 4 * count
    if "ofu" not in fields:
        msg = "it has no column ofu"
        raise ValueError(msg)
    if count and (times[-1] >= start_ms + CHUNK_MS or (np.diff(times) <= 0).any()):
        msg = "its times are not in order, or not in its five minutes"
        raise ValueError(msg)
    codes = None
    if width and gpus:
        codes = np.frombuffer(blob, "<u2", count * width, at).reshape(count, width)
    return Stretch(times_ms=times, fields=fields, codes=codes)


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
