"""The text of a recording: its header, and the line on which a record stands.

The csv module knows on which line each record begins, quoted line ends and blank lines
included; it is too slow for millions of rows, so it reads the header, and the rest only when
something is wrong and the message has to say where.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

REQUIRED = ("timestamp", "job", "value")
KNOWN = (*REQUIRED, "metric", "gpu")
_HEADER = "timestamp,job,value[,metric][,gpu]"
# How a file begins that is called .csv and is something else.
_FOREIGN = (
    (b"PAR1", "a Parquet file; name it .parquet"),
    (b"\x1f\x8b", "compressed by gzip; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd; unpack it first"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet; export it as CSV"),
    (b"\xff\xfe", "UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16; save it as UTF-8"),
)


class RecordingError(ValueError):
    """A recording cannot be used; the message names file, line and what to do."""


def read_header(path: Path) -> tuple[list[str], int]:
    """Return the names of a CSV file's columns and the number of lines up to them."""
    with path.open("rb") as stream:
        start = stream.read(4096)
    for magic, what in _FOREIGN:
        if start.startswith(magic):
            msg = f"{named(path)}: this is {what}"
            raise RecordingError(msg)
    if b"\0" in start:
        msg = f"{named(path)}: this is a binary file, not CSV"
        raise RecordingError(msg)
    for line, lines, cells in records(path):
        names = [column_name(cell) for cell in cells]
        check_columns(path, names, f":{line}")
        return names, lines
    msg = f"{named(path)}:1: the file is empty; it must begin with {_HEADER}"
    raise RecordingError(msg)


def column_name(name: str) -> str:
    """Return a column's name as the format writes it."""
    return name.strip().lower()


def check_columns(path: Path, names: Sequence[str], line: str) -> None:
    """Refuse a header without a required column, or with a known one twice."""
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        msg = (
            f"{named(path)}{line}: no column {', '.join(missing)}; the header must have "
            f"{_HEADER}, separated by commas; it has {shown(','.join(names), 120)}"
        )
        raise RecordingError(msg)
    twice = [name for name in KNOWN if list(names).count(name) > 1]
    if twice:
        msg = f"{named(path)}{line}: the column {twice[0]!r} is there twice; keep one of them"
        raise RecordingError(msg)


def records(path: Path) -> Iterator[tuple[int, int, list[str]]]:
    """Yield each record of a CSV file with the lines on which it begins and ends.

    Blank lines are no records, just as for Arrow. The header is the first record.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        reader, line = csv.reader(stream), 1
        try:
            for cells in reader:
                if len(cells) > 1 or (cells and cells[0].strip()):
                    yield line, reader.line_num, cells
                line = reader.line_num + 1
        except csv.Error as error:
            msg = f"{named(path)}:{line}: this is no CSV: {one_line(error)}"
            raise RecordingError(msg) from error


def diagnosed(path: Path, *, columns: int, error: Exception) -> RecordingError:
    """Return why Arrow refused a CSV file, with the line."""
    line = 0
    for line, _, cells in islice(records(path), 1, None):
        if len(cells) != columns:
            hint = "a cell is missing" if len(cells) < columns else "quote cells with commas"
            if any("\n" in cell for cell in cells):
                hint = "is a quote not closed?"
            return RecordingError(
                f"{named(path)}:{line}: {len(cells)} of {columns} cells; {hint}"
            )
    if not line:
        return no_rows(path)
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            if raw.decode(errors="replace") != raw.decode(errors="ignore"):
                return RecordingError(f"{named(path)}:{number}: not UTF-8; save it as UTF-8")
    return RecordingError(f"{named(path)}: cannot be read as CSV: {one_line(error)}")


def no_rows(path: Path) -> RecordingError:
    """Return what to say of a file that has a header and nothing else."""
    return RecordingError(f"{named(path)}: no samples: there is no row below the header")


def place(path: Path, row: int) -> str:
    """File and line of a row; a Parquet file has rows instead, from 1."""
    if path.suffix.lower() != ".csv":
        return f"{named(path)}: row {row + 1}"
    # The header is the first record. Blank lines and quoted line ends make lines of their own.
    line = next((line for line, _, _ in islice(records(path), row + 1, None)), row + 2)
    return f"{named(path)}:{line}"


def named(path: Path) -> str:
    """Return the path on one line, whatever its name holds."""
    text = str(path)
    return text if text.isprintable() else ascii(text)[1:-1]


def shown(text: str, limit: int = 40) -> str:
    """Return a cell for a message: quoted, on one line, at most ``limit`` of it."""
    return ascii(text[:limit]) if not text.isprintable() else repr(text[:limit])


def one_line(error: Exception) -> str:
    """Return what a library said, short and printable."""
    return ascii(" ".join(str(error).split())[:160])[1:-1]
