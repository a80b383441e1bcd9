"""What may be written in a recording, what may not, and where the message says it stands."""

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from detector.store.recording import Recording, RecordingError, files, read

T = 1_760_000_000
HEADER = "timestamp,job,value\n"
ROWS = "".join(f"{T + 10 * k},j,0.{4 + k % 3}\n" for k in range(6))
PLAIN = HEADER + ROWS


def written(folder: Path, content: str | bytes, name: str = "r.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def only(path: Path) -> Recording:
    (recording,) = read([path]).values()
    return recording


def refused(path: Path) -> str:
    """Return the one line that says why, without the folder's name."""
    with pytest.raises(RecordingError) as caught:
        read([path])
    message = str(caught.value)
    assert message.isprintable()
    return message.replace(f"{path.parent}/", "")


# What editors, spreadsheets and other people's scripts make of the same six samples.
SAME = {
    "a byte order mark": "\ufeff" + PLAIN,
    "Windows line ends": PLAIN.replace("\n", "\r\n"),
    "old line ends": PLAIN.replace("\n", "\r"),
    "no newline at the end": PLAIN.rstrip(),
    "blank lines": PLAIN.replace("\n", "\n\n"),
    "blank lines first": "\n\n" + PLAIN,
    "lines of spaces": PLAIN.replace("\n", "\n  \n"),
    "spaces and capitals in the header": PLAIN.replace(HEADER, " Timestamp ,JOB, Value\n"),
    "a quoted header": PLAIN.replace(HEADER, '"timestamp","job","value"\n'),
    "quoted cells": PLAIN.replace(",j,", ',"j",'),
    "spaces around cells": PLAIN.replace(",j,", " , j , "),
    "extra columns": PLAIN.replace("\n", ',"a,b",\n').replace('value,"a,b"', "value,note"),
    "extra columns of one name": PLAIN.replace("\n", ",x,x\n"),
    "another order": "value,timestamp,job\n"
    + "".join(f"0.{4 + k % 3},{T + 10 * k},j\n" for k in range(6)),
    "rows in reverse": HEADER + "".join(reversed(ROWS.splitlines(keepends=True))),
    "every row twice": PLAIN + ROWS,
    "an empty metric and GPU": "timestamp,job,value,metric,gpu\n" + ROWS.replace("\n", ",,\n"),
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME.keys())
def test_the_same_samples_are_read_however_they_are_written(
    tmp_path: Path, content: str
) -> None:
    window = only(written(tmp_path, content)).window
    np.testing.assert_array_equal(window.times_ms, 1000 * (T + 10 * np.arange(6)))
    np.testing.assert_allclose(window.fields["ofu"], [0.4, 0.5, 0.6] * 2, rtol=1e-7)


@pytest.mark.parametrize(
    "blank", ["", "NaN", "nan", "-nan", "null", "None", "NA", "N/A", "<NA>", " "]
)
def test_nothing_and_all_usual_words_for_it_are_no_data(tmp_path: Path, blank: str) -> None:
    recording = only(written(tmp_path, PLAIN + f"{T + 60},j,{blank}\n"))
    assert np.isnan(recording.window.fields["ofu"]).tolist() == [False] * 6 + [True]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1760000000.389", 1760000000.389),
        ("1.76e9", 1.76e9),
        ("2025-10-09T08:53:20Z", 1.76e9),
        ("2025-10-09T08:53:20.389Z", 1760000000.389),
        ("2025-10-09T10:53:20+02:00", 1.76e9),
        ("2025-10-09 10:53:20+0200", 1.76e9),
        ("2025-10-09T08:53:20", 1.76e9),
        ("2025-10-09", 1759968000.0),
    ],
)
def test_a_timestamp_is_epoch_seconds_or_iso_8601(
    tmp_path: Path, text: str, seconds: float
) -> None:
    window = only(written(tmp_path, f"{HEADER}{text},j,0.4\n")).window
    assert window.times_ms.tolist() == [round(1000 * seconds)]


def test_a_file_may_mix_ways_to_write_a_timestamp(tmp_path: Path) -> None:
    content = f"{HEADER}2025-10-09T08:53:30Z,j,0.5\n{T},j,0.4\n2025-10-09 08:53:40,j,0.6\n"
    window = only(written(tmp_path, content)).window
    assert window.times_ms.tolist() == [1000 * (T + 10 * k) for k in range(3)]


# Content -> where it is, and words that must be in the message.
WRONG = {
    "nothing": ("", ":1", "empty"),
    "only a byte order mark": ("\ufeff", ":1", "empty"),
    "only a header": (HEADER, "", "no samples"),
    "only a header, no newline": (HEADER.strip(), "", "no samples"),
    "no header": (ROWS, ":1", "no column timestamp, job, value"),
    "a column too few": ("timestamp,value\n1,2\n", ":1", "no column job"),
    "a column twice": ("timestamp,job,value,Value\n1,j,0,0\n", ":1", "'value' is there twice"),
    "semicolons": (PLAIN.replace(",", ";"), ":1", "separated by commas"),
    "tabs": (PLAIN.replace(",", "\t"), ":1", "separated by commas"),
    "a cell too few": (PLAIN + f"\n{T},j\n", ":9", "2 of 3 cells; a cell is missing"),
    "a decimal comma": (PLAIN + f"{T},j,0,4\n", ":8", "4 of 3 cells"),
    "an open quote": (PLAIN + f'{T},"j,0.4\n{T},j,0.4\n', ":8", "quote not closed"),
    "text for a value": (PLAIN + f"{T},j,fast\n", ":8", "'fast' is not a number"),
    "infinity": (PLAIN + f"{T},j,inf\n", ":8", "infinite"),
    "too much": (PLAIN + f"{T},j,101.7\n", ":8", "ofu 101.7 is outside 0..1"),
    "less than nothing": (PLAIN + f"{T},j,-0.1\n", ":8", "ofu -0.1 is outside 0..1"),
    "percent": (f"{HEADER}{T},j,41.5\n", ":2", "divide by 100"),
    "a percent sign": (f"{HEADER}{T},j,41%\n", ":2", "'41%' is not a number"),
    "milliseconds": (f"{HEADER}{T}000,j,0.4\n", ":2", "milliseconds: divide by 1e3"),
    "microseconds": (f"{HEADER}{T}000000,j,0.4\n", ":2", "microseconds: divide by 1e6"),
    "nanoseconds": (f"{HEADER}{T}000000000,j,0.4\n", ":2", "nanoseconds: divide by 1e9"),
    "a count of samples": (f"{HEADER}1,j,0.4\n2,j,0.4\n", ":2", "count of samples"),
    "a date that is none": (f"{HEADER}2025-13-08,j,0.4\n", ":2", "neither epoch seconds nor"),
    "a date of another land": (f"{HEADER}10/08/2025,j,0.4\n", ":2", "neither epoch seconds"),
    "no timestamp": (PLAIN + ",j,0.4\n", ":8", "'timestamp' is empty"),
    "a timestamp that is no number": (PLAIN + "nan,j,0.4\n", ":8", "neither epoch seconds"),
    "no job": (PLAIN + f"{T}, ,0.4\n", ":8", "'job' is empty"),
    "blank lines before it": (f"{HEADER}\n\n{ROWS}\n \n{T},j,x\n", ":12", "'x' is not"),
    "a quoted line end before it": (
        f'{HEADER}{T},"a\nb",0.4\n\n{T},"c\r\nd",x\n',
        ":5",
        "'x' is not",
    ),
    "old line ends before it": ((PLAIN + f"{T},j,x\n").replace("\n", "\r"), ":8", "'x' is not"),
    "Latin-1": ((PLAIN + f"{T},j\xe9,0.4\n").encode("latin1"), ":8", "save it as UTF-8"),
    "UTF-16": (PLAIN.encode("utf-16"), "", "UTF-16; save it as UTF-8"),
    "gzip": (b"\x1f\x8b\x08\x00rest", "", "gzip; unpack it first"),
    "a spreadsheet": (b"PK\x03\x04rest", "", "export it as CSV"),
    "Parquet by another name": (b"PAR1rest", "", "name it .parquet"),
    "bytes": (bytes(range(256)), "", "binary file"),
    "an unknown metric": (
        f"timestamp,job,value,metric\n{T},j,0.4,ofu\n{T},j,9,tokenz\n",
        ":3",
        "unknown metric 'tokenz'; did you mean 'tokens'?",
    ),
    "a metric by its field": (f"timestamp,job,value,metric\n{T},j,1,v\n", ":2", "known: ofu,"),
    "a derived metric": (
        f"timestamp,job,value,metric\n{T},j,1,mfu_ratio\n",
        ":2",
        "unknown metric 'mfu_ratio'",
    ),
}


@pytest.mark.parametrize(("content", "place", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_in_one_line_with_its_place(
    tmp_path: Path, content: str | bytes, place: str, words: str
) -> None:
    message = refused(written(tmp_path, content))
    assert message.startswith(f"r.csv{place}: ")
    assert words in message
    assert len(message) < 250


def test_a_job_without_ofu_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, f"timestamp,job,value,metric\n{T},quiet,0.4,mfu\n")
    assert "job 'quiet' has no OFU" in refused(path)


def test_a_cell_of_megabytes_and_escapes_makes_a_short_clean_message(tmp_path: Path) -> None:
    message = refused(written(tmp_path, f"{HEADER}{T},j,\x1b[31m{'x' * 100_000}\n"))
    assert "\\x1b" in message
    assert len(message) < 200


def test_a_file_whose_name_breaks_lines_is_named_on_one(tmp_path: Path) -> None:
    assert refused(written(tmp_path, "", name="a\nb.csv")).startswith("a\\nb.csv:1: ")


def as_parquet(folder: Path, name: str = "r.parquet", **columns: Any) -> Path:
    path = folder / name
    table: dict[str, Any] = {
        "timestamp": [T + 10 * k for k in range(6)],
        "job": ["j"] * 6,
        "value": [0.4, 0.5, 0.6] * 2,
    }
    parquet.write_table(pa.table({**table, **columns}), path)
    return path


TIMES = [T + 10 * k for k in range(6)]
TYPES = {
    "integers": {"timestamp": pa.array(TIMES)},
    "floats": {"timestamp": [float(t) for t in TIMES]},
    "decimals": {"timestamp": [Decimal(t) for t in TIMES]},
    "text": {"timestamp": [str(t) for t in TIMES], "value": ["0.4", "0.5", "0.6"] * 2},
    "large text": {"timestamp": pa.array([str(t) for t in TIMES], pa.large_string())},
    "dictionaries": {"job": pa.array(["j"] * 6).dictionary_encode()},
    "string views": {"job": pa.array(["j"] * 6, pa.string_view())},
    "capitals": {"Metric": ["ofu"] * 6},
    "an extra column": {"note": [[1]] * 6},
    "seconds": {"timestamp": pa.array(TIMES, pa.timestamp("s"))},
    "milliseconds": {"timestamp": pa.array([t * 1000 for t in TIMES], pa.timestamp("ms"))},
    "microseconds": {"timestamp": pa.array([t * 10**6 for t in TIMES], pa.timestamp("us"))},
    "nanoseconds": {"timestamp": pa.array([t * 10**9 for t in TIMES], pa.timestamp("ns"))},
    "a time zone": {"timestamp": pa.array(TIMES, pa.timestamp("s", tz="Europe/Berlin"))},
}


@pytest.mark.parametrize("columns", TYPES.values(), ids=TYPES.keys())
def test_a_parquet_file_may_hold_the_same_in_any_fitting_type(
    tmp_path: Path, columns: dict[str, Any]
) -> None:
    window = only(as_parquet(tmp_path, **columns)).window
    np.testing.assert_array_equal(window.times_ms, 1000 * np.array(TIMES))
    np.testing.assert_allclose(window.fields["ofu"], [0.4, 0.5, 0.6] * 2, rtol=1e-7)


def test_parquet_holds_dates_numbers_for_jobs_and_columns_of_nothing(tmp_path: Path) -> None:
    days = [date(2025, 10, k + 1) for k in range(6)]
    path = as_parquet(tmp_path, timestamp=days, job=[7] * 6, value=pa.nulls(6))
    recording = only(path)
    assert recording.job.id == "7"
    assert recording.window.times_ms[0] == 1_759_276_800_000
    assert np.isnan(recording.window.fields["ofu"]).all()


MISTYPED = {
    "a null in time": ({"timestamp": [None, *TIMES[1:]]}, ": row 1: ", "'timestamp' is empty"),
    "a null in jobs": ({"job": ["j", None, *"jjjj"]}, ": row 2: ", "'job' is empty"),
    "lists": ({"value": [[0.4]] * 6}, ": ", "'value' holds 'list<element: double>'"),
    "truth": ({"value": [True] * 6}, ": ", "'value' holds 'bool' where numbers belong"),
    "structs": ({"job": [{"a": 1}] * 6}, ": ", "where text belongs"),
    "bytes": ({"job": [b"\xff"] * 6}, ": ", "'job' holds 'binary'"),
    "years ago": ({"timestamp": pa.array([1] * 6, pa.timestamp("s"))}, ": row 1: ", "1990"),
    "too much": ({"value": [0.4] * 5 + [1.7]}, ": row 6: ", "ofu 1.7 is outside 0..1"),
    "a column twice": ({"VALUE": [0.4] * 6}, ": ", "'value' is there twice"),
}


@pytest.mark.parametrize(("columns", "place", "words"), MISTYPED.values(), ids=MISTYPED.keys())
def test_a_parquet_file_is_refused_with_the_row_or_column(
    tmp_path: Path, columns: dict[str, Any], place: str, words: str
) -> None:
    message = refused(as_parquet(tmp_path, **columns))
    assert message.startswith(f"r.parquet{place}")
    assert words in message


@pytest.mark.parametrize("content", [b"", b"PAR1 not really", PLAIN.encode()])
def test_a_broken_parquet_file_is_refused(tmp_path: Path, content: bytes) -> None:
    message = refused(written(tmp_path, content, name="r.parquet"))
    assert message.startswith("r.parquet: cannot be read as Parquet: ")


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    whole = as_parquet(tmp_path).read_bytes()
    damaged = whole[:20] + bytes(60) + whole[80:]
    for content in (whole[:-20], damaged):
        assert "r.pq: cannot be read" in refused(written(tmp_path, content, name="r.pq"))


def test_a_folder_gives_all_recordings_below_it_and_nothing_else(tmp_path: Path) -> None:
    deep = tmp_path / "deep" / "er"
    deep.mkdir(parents=True)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / ".cache").mkdir()
    kept = [
        written(tmp_path, PLAIN, name="A.CSV"),
        written(deep, PLAIN, name="b.csv"),
        as_parquet(tmp_path / "folder.csv"),
    ]
    for name in ("labels.json", "README.md", "._A.csv", ".cache/c.csv"):
        written(tmp_path, "not a recording", name=name)
    assert files([tmp_path]) == tuple(sorted(kept))
    assert files([tmp_path, *kept, tmp_path / "deep" / ".." / "A.CSV"]) == tuple(sorted(kept))


def _link(folder: Path) -> Path:
    path = folder / "l.csv"
    path.symlink_to(folder / "nowhere")
    return path


NOWHERE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "a.csv", "a.csv: no such file"),
    "dangling": (_link, "l.csv: no such file"),
    "of another kind": (lambda folder: written(folder, "", name="a.txt"), "a recording is a"),
    "an empty folder": (lambda folder: folder, "no .csv or .parquet file in this folder"),
}


@pytest.mark.parametrize(("made", "words"), NOWHERE.values(), ids=NOWHERE.keys())
def test_a_path_that_names_no_recording_is_refused(
    tmp_path: Path, made: Callable[[Path], Path], words: str
) -> None:
    assert words in refused(made(tmp_path))


def test_a_job_may_be_spread_over_files_in_any_order(tmp_path: Path) -> None:
    lines = ROWS.splitlines(keepends=True)
    parts = [
        written(tmp_path, HEADER + "".join(lines[:3]), name="1.csv"),
        written(tmp_path, HEADER + "".join(lines[3:]), name="2.csv"),
        written(tmp_path, f"{HEADER}{T},j,0.9\n{T},other,0.1\n", name="3.csv"),
    ]

    def told(paths: Sequence[Path]) -> list[tuple[str, list[int], list[float]]]:
        return [
            (job, item.window.times_ms.tolist(), item.window.fields["ofu"].tolist())
            for job, item in read(paths).items()
        ]

    assert told(parts) == told(parts[::-1]) == told([tmp_path])
    assert told(parts)[0][2] == pytest.approx([0.4, 0.5, 0.6] * 2, rel=1e-7)


def test_jobs_may_have_any_name(tmp_path: Path) -> None:
    names = ["a/b", "../../x", "Ünï", "x" * 5_000, "[red]", "a, b", "#1"]
    content = HEADER + "".join(f'{T},"{name}",0.4\n' for name in names)
    assert sorted(read([written(tmp_path, content)])) == sorted(names)


def test_each_file_is_announced_before_it_is_read(tmp_path: Path) -> None:
    paths = [written(tmp_path, PLAIN, name=f"{k}.csv") for k in range(3)]
    seen: list[Path] = []
    read([tmp_path], on_file=seen.append)
    assert seen == paths
