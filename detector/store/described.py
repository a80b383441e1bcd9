"""A file that says who recorded jobs are: JSON lines or CSV, with the names of a job's hash.

Recordings hold samples alone; who the jobs are, and which earlier runs they continue, lies in
Redis for a live fleet. Each record describes one job: ``id``, and any of ``lineage``, ``name``,
``owner``, ``team``, ``scheduler``, ``cluster``, ``gpu_model``, ``precision``, ``gpus``,
``start``; whatever else is there is a label. In JSON a list may be a list, and ``labels`` an
object.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from detector.fleet import Job
from detector.store.about import Note, read_job
from detector.store.keys import is_job
from detector.store.recording import Recording
from detector.store.table import RecordingError, named, one_line, shown

_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")


def read_described(path: Path) -> dict[str, Job]:
    """Return the jobs that a file describes, by their ids.

    Raises
    ------
    RecordingError
        When the file cannot be read or a record breaks the format: file, line, what to do.
    """
    if path.suffix.lower() not in _SUFFIXES:
        msg = f"{named(path)}: jobs are described in a .jsonl or .csv file"
        raise RecordingError(msg)
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{named(path)}: not UTF-8; save it as UTF-8"
        raise RecordingError(msg) from error
    except OSError as error:
        msg = f"{named(path)}: cannot be read: {error.strerror or one_line(error)}"
        raise RecordingError(msg) from error
    records = _csv(path, text) if path.suffix.lower() == ".csv" else _json_lines(path, text)
    jobs: dict[str, Job] = {}
    for place, fields in records:
        job = fields.pop("id", "").strip()
        if not is_job(job):
            msg = f"{place}: no usable id; each record needs the id that the recording gives"
            raise RecordingError(msg)
        if job in jobs:
            msg = f"{place}: job {shown(job)} is described twice; keep one of them"
            raise RecordingError(msg)
        jobs[job] = read_job(job, fields, _refusing(place))
    if not jobs:
        msg = f"{named(path)}: describes no job"
        raise RecordingError(msg)
    return jobs


def _refusing(place: str) -> Note:
    """Return what is told of fields that cannot be used: a file can be mended at once."""

    def refuse(field: str, why: str) -> None:
        msg = f"{place}: {field}: {why}"
        raise RecordingError(msg)

    return refuse


def _csv(path: Path, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each record with its place; empty cells say nothing."""
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            place, line = f"{named(path)}:{line}", reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = _header(place, cells)
                continue
            if len(cells) != len(header):
                hint = "quote cells with commas" if len(cells) > len(header) else "add commas"
                msg = f"{place}: {len(cells)} of {len(header)} cells; {hint}"
                raise RecordingError(msg)
            fields = zip(header, cells, strict=True)
            yield place, {name: cell.strip() for name, cell in fields if cell.strip()}
    except csv.Error as error:
        msg = f"{named(path)}:{line}: this is no CSV: {one_line(error)}"
        raise RecordingError(msg) from error


def _header(place: str, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if "id" not in names:
        msg = f"{place}: no column id; the header must name it, as in id,lineage,gpu_model"
        raise RecordingError(msg)
    if len(set(names)) < len(names) or "" in names:
        msg = f"{place}: each column needs a name of its own"
        raise RecordingError(msg)
    return names


def _json_lines(path: Path, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{named(path)}:{number}"
        try:
            record = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.MsgspecError as error:
            msg = f"{place}: each line must be one JSON object: {one_line(error)}"
            raise RecordingError(msg) from error
        labels = record.pop("labels", None)
        if labels is not None and not isinstance(labels, Mapping):
            msg = f"{place}: labels: write an object, name to text"
            raise RecordingError(msg)
        fields = {**(labels or {}), **record}
        yield (
            place,
            {
                str(name): _text(place, str(name), value)
                for name, value in fields.items()
                if value is not None
            },
        )


def _text(place: str, name: str, value: object) -> str:
    """Return a JSON value as a hash would hold it."""
    if isinstance(value, str):
        return value
    if name == "lineage" and not _ids(value):
        msg = f'{place}: {name}: write ids as text, "run-1" or ["run-1", "run-2"]'
        raise RecordingError(msg)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list) and name == "gpus":
        return msgspec.json.encode(value).decode()
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    msg = f"{place}: {name}: write text, a number or a list of texts"
    raise RecordingError(msg)


def _ids(value: object) -> bool:
    """Whether it names earlier runs: a number is no id that a recording gives."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def described(
    recordings: Mapping[str, Recording], jobs: Mapping[str, Job], *, path: Path
) -> dict[str, Recording]:
    """Return the recordings with what is said of their jobs; a recorded roster stays.

    A file may describe more jobs than are replayed, as long as it describes one of them.

    Raises
    ------
    RecordingError
        When it describes none of them.
    """
    if not recordings.keys() & jobs.keys():
        some = ", ".join(shown(job) for job in list(recordings)[:3])
        msg = f"{named(path)}: describes none of the jobs recorded, such as {some}"
        raise RecordingError(msg)
    return {
        name: Recording(job=_told(item.job, jobs.get(name)), window=item.window)
        for name, item in recordings.items()
    }


def _told(recorded: Job, told: Job | None) -> Job:
    if told is None:
        return recorded
    return msgspec.structs.replace(told, roster=told.roster or recorded.roster)
