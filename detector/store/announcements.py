"""Announcements from a CSV file: what a replay knows of its jobs beside their samples.

Columns ``timestamp,job,kind`` and, where wanted, ``start``, ``end`` and ``note``, in any order:
a row is what an entry of the stream ``ofu:{job}:e`` is, its timestamp the entry's time. Times
are epoch seconds, epoch milliseconds or ISO 8601 (UTC where they name no zone).
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from detector.series import ContextEvent
from detector.store.about import read_event, time_ms
from detector.store.table import (
    RecordingError,
    column_name,
    named,
    one_line,
    records,
    shown,
)

_REQUIRED = ("timestamp", "job", "kind")
_KNOWN = (*_REQUIRED, "start", "end", "note")
_HEADER = "timestamp,job,kind[,start][,end][,note]"


def read_announcements(path: Path) -> dict[str, tuple[ContextEvent, ...]]:
    """Return what the file announces, by job, each job's oldest first.

    Raises
    ------
    RecordingError
        When the file cannot be read or breaks the format: names file, line and reason.
    """
    found: defaultdict[str, list[ContextEvent]] = defaultdict(list)
    try:
        names = _columns(path)
        for line, _, cells in islice(records(path), 1, None):
            if len(cells) != len(names):
                msg = f"{named(path)}:{line}: {len(cells)} of {len(names)} cells"
                raise RecordingError(msg)
            row = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
            found[row["job"]].append(_event(f"{named(path)}:{line}", row))
    except OSError as error:
        msg = f"{named(path)}: cannot be read: {error.strerror or one_line(error)}"
        raise RecordingError(msg) from error
    if not found:
        msg = f"{named(path)}: no announcements: there is no row below the header"
        raise RecordingError(msg)
    return {
        job: tuple(sorted(events, key=lambda item: (item.span.start_ms, item.span.end_ms)))
        for job, events in found.items()
    }


def _columns(path: Path) -> list[str]:
    """Return the names of the file's columns."""
    for line, _, cells in records(path):
        names = [column_name(cell) for cell in cells]
        missing = [name for name in _REQUIRED if name not in names]
        if missing:
            msg = (
                f"{named(path)}:{line}: no column {', '.join(missing)}; the header must have "
                f"{_HEADER}, separated by commas; it has {shown(','.join(names), 120)}"
            )
            raise RecordingError(msg)
        twice = [name for name in _KNOWN if names.count(name) > 1]
        if twice:
            msg = f"{named(path)}:{line}: the column {twice[0]!r} is there twice; keep one"
            raise RecordingError(msg)
        return names
    msg = f"{named(path)}:1: the file is empty; it must begin with {_HEADER}"
    raise RecordingError(msg)


def _event(where: str, row: Mapping[str, str]) -> ContextEvent:
    for name in ("job", "kind"):
        if not row[name]:
            msg = f"{where}: the cell {name!r} is empty"
            raise RecordingError(msg)
    told_ms = _time(where, "timestamp", row["timestamp"])
    start = _time(where, "start", row["start"]) if row.get("start") else told_ms
    if row.get("end") and _time(where, "end", row["end"]) < start:
        msg = f"{where}: end {shown(row['end'])} is before the start"
        raise RecordingError(msg)
    return read_event(told_ms, row)


def _time(where: str, name: str, text: str) -> int:
    try:
        return time_ms(text)
    except (ValueError, OverflowError):
        msg = (
            f"{where}: {name} {shown(text)} is neither epoch seconds, epoch milliseconds nor "
            "ISO 8601, for example 1759905628 or 2025-10-08T06:40:28Z"
        )
        raise RecordingError(msg) from None
