"""Recordings: CSV and Parquet files of samples, read whole and held to their format.

Columns ``timestamp,job,value`` and, where wanted, ``metric`` and ``gpu``, in any order. A
timestamp is epoch seconds or ISO 8601 (UTC where it names no zone) and marks the end of the
interval that its value stands for; a value is in the metric's unit, ``NaN`` or nothing where
there is none. Values of single GPUs give the job's as their mean.

Arrow reads and converts millions of rows; where it refuses, or a value is wrong, the file is
read once more by the csv module, which knows on which line a record begins.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detector.fleet import Job
from detector.metric import METRICS
from detector.series import FloatArray, IntArray, Window
from detector.store.gather import Labels, Rows, gathered
from detector.store.table import (
    KNOWN,
    RecordingError,
    check_columns,
    column_name,
    diagnosed,
    named,
    no_rows,
    one_line,
    place,
    read_header,
    shown,
)

__all__ = ["Recording", "RecordingError", "files", "read"]

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES = (".csv", ".parquet", ".pq")
# What is written where there is no value, besides nothing: by pandas, C, JSON, Python and R.
_BLANK = ("", "nan", "-nan", "null", "none", "na", "n/a", "<na>")
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity)$"
# 1990-01-01 .. 2100-01-01. Outside, the number is no epoch second: most likely another unit,
# or a count of samples.
_EARLIEST_MS, _LATEST_MS = 631_152_000_000.0, 4_102_444_800_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One job's whole history, and who it is as far as a recording tells."""

    job: Job
    window: Window


def read(
    paths: Iterable[Path], *, on_file: Callable[[Path], None] = lambda _: None
) -> dict[str, Recording]:
    """Return every job of the files and folders named, with its whole history, by its id.

    The order of ``paths`` does not matter.

    Parameters
    ----------
    on_file
        Called with each file before it is read, for a progress bar.

    Raises
    ------
    RecordingError
        When a path does not exist or holds no recording, or a file breaks the format.
    """
    rows = []
    for path in files(paths):
        on_file(path)
        try:
            rows.append(_rows(path))
        except OSError as error:
            msg = f"{named(path)}: cannot be read: {error.strerror or one_line(error)}"
            raise RecordingError(msg) from error
    try:
        jobs = gathered(rows)
    except ValueError as error:
        raise RecordingError(str(error)) from error
    return {name: Recording(job=job, window=window) for name, (job, window) in jobs.items()}


def files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the recordings that ``paths`` name, sorted; a folder means all of them below it.

    Hidden files and folders (``.cache``, ``._copy.csv``) are left out unless named themselves.

    Raises
    ------
    RecordingError
        When one does not exist, is no recording, or a folder has none.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = [item for item in path.rglob("*") if _is_recording(item, below=path)]
            if not inside:
                msg = f"{named(path)}: no .csv or .parquet file in this folder"
                raise RecordingError(msg)
        elif not path.exists():
            msg = f"{named(path)}: no such file"
            raise RecordingError(msg)
        elif path.suffix.lower() not in _SUFFIXES:
            msg = f"{named(path)}: a recording is a .csv or .parquet file, or a folder of them"
            raise RecordingError(msg)
        else:
            inside = [path]
        for item in inside:
            found.setdefault(item.resolve(), item)
    if not found:
        msg = "no recording named: give files or folders"
        raise RecordingError(msg)
    return tuple(found[key] for key in sorted(found))


def _is_recording(path: Path, *, below: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(below).parts)
    return path.suffix.lower() in _SUFFIXES and not hidden and path.is_file()


def _rows(path: Path) -> Rows:
    table = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    if not table.num_rows:
        raise no_rows(path)
    metric = _labels(path, table, "metric", empty="ofu") if _has(table, "metric") else None
    values = _values(path, table)
    _check_bounds(path, values, metric)
    return Rows(
        times_ms=_times(path, table),
        values=values.astype(np.float32).astype(np.float64),
        job=_labels(path, table, "job"),
        metric=metric,
        gpu=_labels(path, table, "gpu", empty="") if _has(table, "gpu") else None,
    )


def _has(table: "pa.Table", name: str) -> bool:
    return name in table.column_names


def _parquet(path: Path) -> "pa.Table":
    """Read the known columns of a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            held = {name: column_name(name) for name in file.schema_arrow.names}
            check_columns(path, [column_name(name) for name in file.schema_arrow.names], "")
            known = {name: clean for name, clean in held.items() if clean in KNOWN}
            table = file.read(columns=list(known))
            return table.rename_columns([known[name] for name in table.column_names])
    except (pa.ArrowException, ValueError) as error:
        if isinstance(error, RecordingError):
            raise
        msg = f"{named(path)}: cannot be read as Parquet: {one_line(error)}"
        raise RecordingError(msg) from error


def _csv(path: Path) -> "pa.Table":
    """Read the known columns of a CSV file: names as dictionaries, the rest as text."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    header, lines = read_header(path)
    # Extra columns may have any name, or none; Arrow wants each but once.
    names = [name if name in KNOWN else f" {k}" for k, name in enumerate(header)]
    text, named = pa.string(), pa.dictionary(pa.int32(), pa.string())
    types = {name: text if name in ("timestamp", "value") else named for name in KNOWN}
    try:
        return arrow.read_csv(
            path,
            read_options=arrow.ReadOptions(column_names=names, skip_rows=lines),
            parse_options=arrow.ParseOptions(
                newlines_in_values=True,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            convert_options=arrow.ConvertOptions(
                column_types=types,
                include_columns=[name for name in names if name in KNOWN],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as error:
        raise diagnosed(path, columns=len(names), error=error) from error


def _times(path: Path, table: "pa.Table") -> IntArray:
    """Return the timestamps in ms."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table["timestamp"].combine_chunks()
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        whole = pc.cast(column, pa.timestamp("ms"), safe=False).cast(pa.int64())
        times_ms = _array(whole.cast(pa.float64(), safe=False))
    else:
        times_ms = _numbers(path, column, "timestamp") * 1000
    _refuse_blank(path, column, "timestamp")
    wrong = np.flatnonzero(np.isnan(times_ms))
    if len(wrong):
        times_ms = times_ms.copy()
        texts = column.take(pa.array(wrong)).to_pylist()
        times_ms[wrong] = [
            _iso_ms(path, k, text) for k, text in zip(wrong.tolist(), texts, strict=True)
        ]
    bad = np.flatnonzero(~((times_ms >= _EARLIEST_MS) & (times_ms <= _LATEST_MS)))
    if len(bad):
        k = int(bad[0])
        msg = (
            f"{place(path, k)}: timestamp {shown(str(column[k].as_py()))} is not between "
            f"1990 and 2100; {_unit_hint(float(times_ms[k]) / 1000)}"
        )
        raise RecordingError(msg)
    whole_ms: IntArray = np.rint(times_ms).astype(np.int64)
    return whole_ms


def _unit_hint(seconds: float) -> str:
    """Say what a number that is no epoch second may be."""
    for unit, per_second in (("milli", 1e3), ("micro", 1e6), ("nano", 1e9)):
        if _EARLIEST_MS <= seconds / per_second * 1000 <= _LATEST_MS:
            return f"it looks like {unit}seconds: divide by {per_second:.0e}".replace(
                "e+0", "e"
            )
    if 0 <= seconds * 1000 < _EARLIEST_MS:
        return (
            "it looks like a count of samples or of seconds: write epoch seconds, "
            "the start of the job plus the seconds since"
        )
    return "write epoch seconds or ISO 8601"


def _iso_ms(path: Path, row: int, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    except (ValueError, OverflowError):
        msg = (
            f"{place(path, row)}: timestamp {shown(text)} is neither epoch seconds nor "
            "ISO 8601, for example 1759905628.389 or 2025-10-08T06:40:28.389Z"
        )
        raise RecordingError(msg) from None


def _values(path: Path, table: "pa.Table") -> FloatArray:
    """Return the values; NaN where a cell is empty or says NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table["value"].combine_chunks()
    values = _numbers(path, column, "value")
    if _is_text(column.type):
        clean = pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(column, "")))
        blank = _array(pc.is_in(clean, pa.array(_BLANK, clean.type)))
        wrong = np.flatnonzero(np.isnan(values) & ~blank)
        if len(wrong):
            k = int(wrong[0])
            msg = (
                f"{place(path, k)}: value {shown(column[k].as_py())} is not a number; "
                "write a number, NaN or nothing"
            )
            raise RecordingError(msg)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        msg = f"{place(path, int(infinite[0]))}: value is infinite; write NaN for no data"
        raise RecordingError(msg)
    return values


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    )


def _numbers(path: Path, column: "pa.Array", name: str) -> FloatArray:
    """Return a column as float64, NaN where a cell is no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    if _is_text(kind):
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
        try:
            return _array(pc.cast(text, pa.float64()))
        except pa.ArrowInvalid:  # a cell that is no number: leave those out, which takes longer
            number = pc.match_substring_regex(text, _NUMBER)
        clean = pc.if_else(pc.fill_null(number, False), text, pa.scalar(None, text.type))
        return _array(pc.cast(clean, pa.float64()))
    if not (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
    ):
        raise _mistyped(path, name, kind, wanted="numbers belong")
    return _array(pc.cast(column, pa.float64(), safe=False))


def _labels(path: Path, table: "pa.Table", name: str, *, empty: str | None = None) -> Labels:
    """Return a column of names; an empty cell is ``empty``, or an error when that is None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table[name].combine_chunks()
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise _mistyped(path, name, kind, wanted="text belongs")
    if pa.types.is_null(kind):
        column = column.cast(pa.string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if empty is None:
        _refuse_blank(path, column, name)
    # Names that differ in surrounding space alone, and nulls, become one.
    raw = [str(item).strip() for item in column.dictionary.cast(pa.string()).to_pylist()]
    names = tuple(dict.fromkeys([*(item or empty or "" for item in raw), empty or ""]))
    place = {item: k for k, item in enumerate(names)}
    lookup = np.array([place[item or empty or ""] for item in raw] + [place[empty or ""]])
    codes = _array(pc.fill_null(column.indices, len(raw))).astype(np.int64)
    return Labels(codes=lookup[codes], names=names)


def _refuse_blank(path: Path, column: "pa.Array", name: str) -> None:
    """Refuse a column in which a cell is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    blank = column.is_null()
    if pa.types.is_dictionary(column.type):
        texts = pc.utf8_trim_whitespace(column.dictionary.cast(pa.string()))
        empties = pc.indices_nonzero(pc.equal(texts, ""))
        blank = pc.or_(
            blank,
            pc.fill_null(pc.is_in(column.indices, empties.cast(column.indices.type)), False),
        )
    elif _is_text(column.type):
        texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
        blank = pc.or_(blank, pc.fill_null(pc.equal(texts, ""), True))
    rows = np.flatnonzero(_array(blank))
    if len(rows):
        msg = f"{place(path, int(rows[0]))}: the cell {name!r} is empty"
        raise RecordingError(msg)


def _mistyped(path: Path, name: str, kind: "pa.DataType", *, wanted: str) -> RecordingError:
    return RecordingError(
        f"{named(path)}: the column {name!r} holds {shown(str(kind))} where {wanted}"
    )


def _array(column: "pa.Array") -> np.ndarray:
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    return array


def _check_bounds(path: Path, values: FloatArray, metric: Labels | None) -> None:
    """Refuse metrics that are not in the catalogue and values that the metric cannot have."""
    for code, name in enumerate(("ofu",) if metric is None else metric.names):
        mine = np.ones(len(values), bool) if metric is None else metric.codes == code
        if not mine.any():
            continue
        entry = METRICS.get(name)
        if entry is None or not entry.field:
            known = [known.name for known in METRICS.values() if known.field]
            near = get_close_matches(name.lower(), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            first = place(path, int(np.flatnonzero(mine)[0]))
            msg = f"{first}: unknown metric {shown(name)}; {hint}"
            raise RecordingError(msg)
        wrong = np.flatnonzero(mine & ((values < entry.low) | (values > entry.high)))
        if len(wrong):
            value = values[wrong[0]]
            percent = entry.unit == "ratio" and 1 < value <= 100
            msg = (
                f"{place(path, int(wrong[0]))}: {name} {value:g} is outside "
                f"{entry.low:g}..{entry.high:g} ({entry.unit}); "
                + ("percent? divide by 100" if percent else "write NaN for no data")
            )
            raise RecordingError(msg)
