"""Stream entries as text and as numbers, and the reasons for which one is set aside.

An entry is ``v <text> [n <text>] [other metrics as text] [g <packed OFU of each GPU>]``. What
is not usable becomes NaN here, with a fault that says why; nothing an entry holds raises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detector.analysis.derived import REPORTED
from detector.metric import FIELDS, METRICS, Metric
from detector.series import FloatArray, IntArray

CodeArray = npt.NDArray[np.uint16]

# g is fixed point: 65534 steps for 0..1 (error 7.6e-6; float16 of the same size has 2.4e-4).
FULL, NO_DATA = 65534, 65535

# 2001-09-09: an id below it counts seconds, or something else that is not milliseconds.
EARLIEST_MS = 10**12

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "no_value": "the entry has no field v; write the job's mean OFU (0..1) as v",
        "not_a_number": "the text is not a finite number; leave the field out when there is no "
        "data",
        "out_of_range": "the value is outside its metric's bounds; ratios are 0..1, never "
        "percent, clocks are MHz",
        "from_the_future": "the time is ahead of this machine's clock; correct the writer's "
        "clock, and its unit (ids are milliseconds). The entry waits in the stream until its "
        "time has come, and Redis refuses earlier ids after it: DEL the stream if that is "
        "far away (older history is kept)",
        "not_milliseconds": "the entry's id is before 2001; ids are milliseconds since 1970, "
        "so write `*` or <epoch ms>-0",
        "went_back": "the time is before one that was already read, so the entry is not used; "
        "write in the order of time, and never recreate a stream with older ids",
        "duplicate": "a second entry in one millisecond is not used; write each scrape once",
        "wrong_length": "g has an odd number of bytes, or not 2 for each GPU of the roster; "
        "correct the roster in the job's :m hash, or the packing",
        "wrong_type": "the key holds another type; delete or rename it, histories are streams",
        "bad_key": "the key's job id is not encoded as ofuwatch does; percent-encode %, {, }, "
        "white space and control characters, in capital hexadecimal",
        "bad_chunk": "a packed chunk of older history cannot be read; it is skipped, delete "
        "the hash's field to be rid of it",
        "bad_description": "a field of the job's :m hash cannot be read and is ignored; "
        "correct it",
        "no_job": "the inbox entry names no usable job; write field job, 1 to 512 bytes",
        "bad_time": "ts is neither epoch seconds, epoch milliseconds nor ISO 8601; correct it "
        "or leave it out",
        "late": "the host reported after its scrape had been merged without it; shorten the "
        "way, or raise `inbox.wait`",
        "clock_off": "the host's clock is off by so much, so its parts are filed by the time "
        "of their arrival; run NTP there",
        "poison": "the job could not be judged: what it holds broke the detector, which is a "
        "mistake of ofuwatch's; report it with the detail. It is left out for ten minutes and "
        "tried again, the other jobs are watched as ever",
        "inbox_full": "the inbox was longer than its bound and lost its oldest entries; see "
        "why the service did not read it",
    }
)


class Fault(NamedTuple):
    """Why something of row ``row`` cannot be used."""

    row: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Entries as columns.

    Attributes
    ----------
    times_ms
        Shape ``(m,)``, from the ids.
    fields
        Catalogue metric name -> values, shape ``(m,)``; ``ofu`` is always there.
    packed
        Each entry's ``g`` as it came; empty bytes where there is none.
    """

    times_ms: IntArray
    fields: dict[str, FloatArray]
    packed: list[bytes]
    faults: list[Fault]


def decode(ids: Sequence[bytes], flats: Sequence[list[bytes]]) -> Decoded:
    """Return entries as columns; ``flats`` are ``[name, text, name, text, ...]`` each."""
    count = len(ids)
    fields = {"ofu": np.full(count, np.nan)}
    packed = [b""] * count
    faults: list[Fault] = []
    for names, rows in _by_shape(flats).items():
        if b"v" not in names:
            silent = [
                row
                for row in rows
                if not _says_why(dict(zip(flats[row][::2], flats[row][1::2], strict=True)))
            ]
            faults += [Fault(row, "no_value", safe(b" ".join(names))) for row in silent]
        # A name that an entry repeats counts with its last text, as in any Redis client.
        for name, place in {name: 2 * at + 1 for at, name in enumerate(names)}.items():
            texts = [flats[row][place] for row in rows]
            if name == b"g":
                for row, text in zip(rows, texts, strict=True):
                    packed[row] = text
            elif (metric := _BY_NAME.get(name)) is not None:
                column = fields.setdefault(metric.name, np.full(count, np.nan))
                column[rows] = _numbers(texts, metric, rows, faults)
    times = np.fromiter(map(entry_ms, ids), np.uint64, count)
    # Ids go up to 2**64; what int64 cannot hold is as far in the future as its maximum.
    return Decoded(
        times_ms=np.minimum(times, np.uint64(2**62)).astype(np.int64),
        fields=fields,
        packed=packed,
        faults=faults,
    )


def gpu_codes(packed: Sequence[bytes]) -> CodeArray | None:
    """Return the codes of each entry's GPUs, shape ``(m, g)``, or None when there are none.

    Shorter entries are padded on the right; an odd number of bytes is no data.
    """
    sizes = {len(text) for text in packed if not len(text) & 1}
    width = max(sizes, default=0) // 2
    if width == 0:
        return None
    if len(sizes) == 1 and len(packed[0]) == 2 * width and not any(len(t) & 1 for t in packed):
        return np.frombuffer(b"".join(packed), "<u2").reshape(-1, width)
    codes = np.full((len(packed), width), NO_DATA, np.uint16)
    for row, text in enumerate(packed):
        if not len(text) & 1:
            codes[row, : len(text) // 2] = np.frombuffer(text, "<u2")
    return codes


def gpu_values(codes: CodeArray) -> FloatArray:
    """Return OFU for codes, same shape; NaN for 65535."""
    values = (codes.astype(np.float64) / FULL).astype(np.float32).astype(np.float64)
    values[codes == NO_DATA] = np.nan
    return values


def pack_gpus(values: FloatArray) -> bytes:
    """Return ``g`` for each GPU's OFU, shape ``(g,)``; what is not in 0..1 is no data."""
    return pack_all([values])[0]


def pack_all(rows: Sequence[FloatArray]) -> list[bytes]:
    """Return ``g`` for the GPUs of each row, as :func:`pack_gpus` does for one."""
    # In one go: a fleet's 10,000 small arrays cost 100 ms one by one, 5 ms together.
    values = np.concatenate([np.empty(0), *rows])
    usable = (values >= 0) & (values <= 1)
    codes = np.where(usable, np.rint(np.where(usable, values, 0) * FULL), NO_DATA)
    packed = codes.astype("<u2").tobytes()
    ends = (2 * np.cumsum([0, *(len(row) for row in rows)])).tolist()
    return [packed[start:end] for start, end in pairwise(ends)]


def encode(ofu: float, fields: Mapping[str, float]) -> list[str | bytes]:
    """Return an entry's names and texts, ``[name, text, ...]``, metrics without data left out.

    Raises
    ------
    ValueError
        When a name of ``fields`` is not in the catalogue.
    """
    flat: list[str | bytes] = ["v", f"{ofu:.7g}"] if isfinite(ofu) else []
    for name, value in fields.items():
        if name not in METRICS:
            msg = f"{name!r} is not in the catalogue of metrics: {', '.join(METRICS)}"
            raise ValueError(msg)
        if isfinite(value) and name != "ofu":
            flat += [METRICS[name].field, f"{value:.7g}"]
    return flat


def entry_ms(id: bytes) -> int:
    """Return the time that an entry's id says, ms."""
    return int(id.partition(b"-")[0])


def safe(value: bytes | str) -> str:
    """Return at most 60 characters of ``value``, safe to print: ASCII, one line."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return ascii(text[:60])[1:-1]


# An entry that has one of them needs no OFU: the job itself reports, or no GPU is usable.
_EXCUSES = {METRICS[name].field.encode() for name in (*REPORTED, "unusable")}


def _says_why(given: Mapping[bytes, bytes]) -> bool:
    """Whether an entry may lack OFU."""
    return not _EXCUSES.isdisjoint(given) or given.get(b"n") == b"0"


_BY_NAME: dict[bytes, Metric] = {name.encode(): metric for name, metric in FIELDS.items()}


def _by_shape(flats: Sequence[list[bytes]]) -> dict[tuple[bytes, ...], list[int]]:
    """Rows by the names of their fields: nearly all entries of a fleet have one shape."""
    shapes: dict[tuple[bytes, ...], list[int]] = {}
    for row, flat in enumerate(flats):
        names = tuple(flat[::2])
        rows = shapes.get(names)
        if rows is None:
            shapes[names] = [row]
        else:
            rows.append(row)
    return shapes


def _numbers(
    texts: Sequence[bytes], metric: Metric, rows: Sequence[int], faults: list[Fault]
) -> FloatArray:
    """Values of one field, rounded to float32; NaN and a fault for what is not usable."""
    values = _rounded(texts)
    usable = (values >= metric.low) & (values <= metric.high)
    if not usable.all():
        for at in np.flatnonzero(~usable).tolist():
            finite = bool(np.isfinite(_float(texts[at])))
            reason = "out_of_range" if finite else "not_a_number"
            faults.append(Fault(rows[at], reason, f"{metric.field}={safe(texts[at])}"))
        values[~usable] = np.nan
    return values


def _rounded(texts: Sequence[bytes]) -> FloatArray:
    try:
        values = np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        values = np.fromiter(map(_float, texts), np.float64, len(texts))
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32).astype(np.float64)


def _float(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
