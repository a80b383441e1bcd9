"""Recordings: CSV and Parquet files of samples, read whole and held to their format.

Columns ``timestamp,job,value`` and, where wanted, ``metric`` and ``gpu``. A timestamp is epoch
seconds or ISO 8601 (UTC where it names no zone) and marks the end of the interval that its
value stands for; a value is in the metric's unit, ``NaN`` or nothing where there is none.
Values of single GPUs give the job's OFU as their mean.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detector.fleet import Gpu, Job
from detector.metric import METRICS
from detector.series import FloatArray, IntArray, Window

if TYPE_CHECKING:
    import pyarrow as pa

_REQUIRED = ("timestamp", "job", "value")
_KNOWN = (*_REQUIRED, "metric", "gpu")
_SUFFIXES = (".csv", ".parquet", ".pq")
# 1990-01-01 .. 2100-01-01 in seconds. Outside, the number is no epoch second: most likely
# milliseconds, or a count of samples.
_EARLIEST_S, _LATEST_S = 631_152_000.0, 4_102_444_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One job's whole history, and who it is as far as a recording tells."""

    job: Job
    window: Window


class RecordingError(ValueError):
    """A recording cannot be used; the message names file, line and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows of one file, in its order. Strings where a column holds strings."""

    path: Path
    times_ms: IntArray
    job: np.ndarray
    value: FloatArray
    metric: np.ndarray | None
    gpu: np.ndarray | None


def read(
    paths: Iterable[Path], *, on_file: Callable[[Path], None] = lambda _: None
) -> dict[str, Recording]:
    """Return every job of the files and folders named, with its whole history.

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
        rows.append(_read_file(path))
    return _recordings(rows)


def files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the recordings that ``paths`` name; a folder means all of them below it."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in _SUFFIXES)
            if not inside:
                msg = f"{path}: no .csv or .parquet file in this folder"
                raise RecordingError(msg)
            found.update(dict.fromkeys(inside))
        elif path.suffix.lower() not in _SUFFIXES:
            msg = f"{path}: a recording is a .csv or .parquet file, or a folder of them"
            raise RecordingError(msg)
        elif not path.exists():
            msg = f"{path}: no such file"
            raise RecordingError(msg)
        else:
            found[path] = None
    if not found:
        msg = "no recording named: give files or folders"
        raise RecordingError(msg)
    return tuple(found)


def _read_file(path: Path) -> _Rows:
    table = _table(path)
    missing = [name for name in _REQUIRED if name not in table.column_names]
    if missing:
        msg = (
            f"{path}:1: no column {', '.join(missing)}; the header must have "
            f"timestamp,job,value[,metric][,gpu], it has {','.join(table.column_names)[:200]}"
        )
        raise RecordingError(msg)
    metric = _texts(path, table, "metric", empty="ofu") if _has(table, "metric") else None
    values = _values(path, table)
    _check_bounds(path, values, metric)
    return _Rows(
        path=path,
        times_ms=_times(path, table),
        job=_texts(path, table, "job"),
        value=values.astype(np.float32).astype(np.float64),
        metric=metric,
        gpu=_texts(path, table, "gpu", empty="") if _has(table, "gpu") else None,
    )


def _has(table: "pa.Table", name: str) -> bool:
    return name in table.column_names


def _table(path: Path) -> "pa.Table":
    """Read the known columns of a file; those of a CSV as text."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() != ".csv":
            file = parquet.ParquetFile(path)
            names = [name for name in file.schema_arrow.names if name in _KNOWN]
            return file.read(columns=names)
        with path.open("rb") as stream:
            header = stream.readline().decode("utf-8-sig", errors="replace").strip()
        if not header:
            msg = f"{path}:1: the file is empty; it must begin with timestamp,job,value"
            raise RecordingError(msg)
        names = [name.strip() for name in header.split(",")]
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=names, skip_rows=1),
            convert_options=csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                include_columns=[name for name in names if name in _KNOWN],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        text = " ".join(str(error).split())[:200]
        msg = f"{path}: cannot be read as {path.suffix[1:].upper()}: {text}"
        raise RecordingError(msg) from error
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror or error}"
        raise RecordingError(msg) from error
    return table


def _times(path: Path, table: "pa.Table") -> IntArray:
    """Return the timestamps in ms."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table["timestamp"].combine_chunks()
    if pa.types.is_timestamp(column.type):
        times_ms = pc.cast(column, pa.timestamp("ms"), safe=False).cast(pa.int64())
        _no_nulls(path, column, "timestamp")
        return _array(times_ms).astype(np.int64)
    seconds = _numbers(column)
    wrong = np.flatnonzero(~np.isfinite(seconds))
    if len(wrong) and pa.types.is_string(column.type):
        seconds = seconds.copy()
        for k in wrong.tolist():
            seconds[k] = _iso_seconds(path, k, column[k].as_py())
    bad = np.flatnonzero(~((seconds >= _EARLIEST_S) & (seconds <= _LATEST_S)))
    if len(bad):
        k = int(bad[0])
        msg = (
            f"{_place(path, k)}: timestamp {column[k].as_py()!r} is not between 1990 and 2100; "
            "write epoch seconds (not milliseconds) or ISO 8601"
        )
        raise RecordingError(msg)
    return np.rint(seconds * 1000).astype(np.int64)


def _iso_seconds(path: Path, row: int, text: str | None) -> float:
    try:
        moment = datetime.fromisoformat((text or "").strip())
    except ValueError:
        msg = (
            f"{_place(path, row)}: timestamp {_short(text)} is neither epoch seconds nor "
            "ISO 8601, for example 1759905628.389 or 2025-10-08T06:40:28.389Z"
        )
        raise RecordingError(msg) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _values(path: Path, table: "pa.Table") -> FloatArray:
    """Return the values; NaN where a cell is empty or says NaN."""
    import pyarrow as pa

    column = table["value"].combine_chunks()
    values = _numbers(column)
    if pa.types.is_string(column.type):
        for k in np.flatnonzero(np.isnan(values)).tolist():
            text = (column[k].as_py() or "").strip()
            if text.lower() not in ("", "nan", "null", "none"):
                msg = (
                    f"{_place(path, k)}: value {_short(text)} is not a number; "
                    "write a number, NaN or nothing"
                )
                raise RecordingError(msg)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        msg = f"{_place(path, int(infinite[0]))}: value is infinite; write NaN for no data"
        raise RecordingError(msg)
    return values


def _numbers(column: "pa.Array") -> FloatArray:
    """Return a column as float64, NaN where a cell is no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return _array(pc.cast(column, pa.float64())).astype(np.float64)
    text = pc.utf8_trim_whitespace(column)
    number = pc.match_substring_regex(
        text, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity)$"
    )
    clean = pc.if_else(pc.fill_null(number, False), text, pa.scalar(None, column.type))
    return _array(pc.cast(clean, pa.float64())).astype(np.float64)


def _texts(path: Path, table: "pa.Table", name: str, *, empty: str | None = None) -> np.ndarray:
    """Return a column as text; an empty cell is ``empty``, or an error when that is None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pc.fill_null(pc.cast(table[name].combine_chunks(), pa.string()), "")
    column = pc.utf8_trim_whitespace(column)
    texts = _array(column)
    blank = np.flatnonzero(texts == "")
    if len(blank) and empty is None:
        msg = f"{_place(path, int(blank[0]))}: the cell {name!r} is empty"
        raise RecordingError(msg)
    if len(blank):
        texts = texts.copy()
        texts[blank] = empty
    return texts


def _array(column: "pa.Array") -> np.ndarray:
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    return array


def _no_nulls(path: Path, column: "pa.Array", name: str) -> None:
    if column.null_count:
        row = int(np.flatnonzero(_array(column.is_null()))[0])
        msg = f"{_place(path, row)}: the cell {name!r} is empty"
        raise RecordingError(msg)


def _check_bounds(path: Path, values: FloatArray, metric: np.ndarray | None) -> None:
    """Refuse metrics that are not in the catalogue and values that the metric cannot have."""
    names: Sequence[str] = ["ofu"] if metric is None else np.unique(metric).tolist()
    for name in names:
        mine = np.ones(len(values), bool) if metric is None else metric == name
        entry = METRICS.get(name)
        if entry is None or not entry.field:
            known = [known.name for known in METRICS.values() if known.field]
            near = get_close_matches(name, known, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(known)}"
            msg = (
                f"{_place(path, int(np.flatnonzero(mine)[0]))}: unknown metric {name!r}; {hint}"
            )
            raise RecordingError(msg)
        wrong = np.flatnonzero(mine & ((values < entry.low) | (values > entry.high)))
        if len(wrong):
            k = int(wrong[0])
            msg = (
                f"{_place(path, k)}: {name} {values[k]:g} is outside "
                f"{entry.low:g}..{entry.high:g} ({entry.unit}); "
                "write NaN or nothing where there is no data"
            )
            raise RecordingError(msg)


def _place(path: Path, row: int) -> str:
    """File and line of a row; the header is line 1. A Parquet file has rows instead."""
    return f"{path}:{row + 2}" if path.suffix.lower() == ".csv" else f"{path}: row {row + 1}"


def _short(text: str | None) -> str:
    return repr((text or "")[:40])


def _recordings(parts: Sequence[_Rows]) -> dict[str, Recording]:
    """Gather the rows of all files by job; a job may be spread over several."""
    collected: dict[str, list[tuple[str, str, IntArray, FloatArray]]] = {}
    for rows in parts:
        metric = rows.metric if rows.metric is not None else np.full(len(rows.job), "ofu")
        gpu = rows.gpu if rows.gpu is not None else np.full(len(rows.job), "")
        for job, mine in _groups(rows.job):
            for name, of_metric in _groups(metric[mine]):
                for who, of_gpu in _groups(gpu[mine][of_metric]):
                    at = mine[of_metric][of_gpu]
                    collected.setdefault(job, []).append(
                        (name, who, rows.times_ms[at], rows.value[at])
                    )
    return {job: _recording(job, series) for job, series in collected.items()}


def _groups(names: np.ndarray) -> Iterable[tuple[str, IntArray]]:
    """Yield each name with the places where it stands, in order of first appearance."""
    if not len(names):
        return
    unique, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = np.append(np.searchsorted(inverse[order], np.arange(len(unique))), len(names))
    for k in np.argsort(first).tolist():
        yield str(unique[k]), order[bounds[k] : bounds[k + 1]]


def _recording(job: str, series: Sequence[tuple[str, str, IntArray, FloatArray]]) -> Recording:
    """Put the series of one job on the time axis of its OFU.

    Another metric's sample belongs to the OFU entry at its time or the next one after it, as if
    one collector had written both.
    """
    own = [times for metric, _, times, _ in series if metric == "ofu"]
    if not own:
        msg = f"job {job!r} has no OFU: a recording needs rows of metric ofu (or no metric column)"
        raise RecordingError(msg)
    axis = np.unique(np.concatenate(own))
    fields: dict[str, FloatArray] = {}
    gpus: dict[str, FloatArray] = {}
    for metric, gpu, at_ms, values in series:
        if gpu and metric != "ofu":
            continue
        column = (gpus if gpu else fields).setdefault(gpu or metric, np.full(len(axis), np.nan))
        # A time that is there twice keeps its first value, as a stream would.
        place, first = np.unique(np.searchsorted(axis, at_ms), return_index=True)
        inside = place < len(axis)
        column[place[inside]] = values[first[inside]]
    matrix = np.column_stack(list(gpus.values())) if gpus else None
    if matrix is not None:
        fields = _with_mean(fields, matrix)
    return Recording(
        job=Job(id=job, roster=tuple(Gpu(uuid=name, index=k) for k, name in enumerate(gpus))),
        window=Window(times_ms=axis, fields=fields, gpus=matrix),
    )


def _with_mean(fields: Mapping[str, FloatArray], matrix: FloatArray) -> dict[str, FloatArray]:
    """Add the job's OFU and the number of GPUs that report, as a collector would."""
    reporting = np.isfinite(matrix).sum(axis=1)
    total = np.where(np.isfinite(matrix), matrix, 0.0).sum(axis=1)
    mean = np.divide(total, reporting, out=np.full(len(total), np.nan), where=reporting > 0)
    return {"ofu": mean, "gpus": reporting.astype(np.float64), **fields}
