"""Who a job is and what was announced about it, from its hash ``:m`` and its stream ``:e``.

Both are written by people and scripts: what cannot be read is left out and noted.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from detector.fleet import Gpu, Job
from detector.series import ContextEvent, Interval
from detector.store.entries import safe

_PLAIN = ("name", "owner", "team", "scheduler", "cluster", "gpu_model", "precision")
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?")

# From 1973 in milliseconds, and to the year 5138 in seconds: no time is meant both ways.
_MILLISECONDS_FROM = 10**11

# Digits of a time in milliseconds, from 2001 to 2286.
_MILLISECONDS = 13

# In no UUID, and in every piece of JSON.
_NO_NAME = frozenset("{}[]\"'")
_ROSTER = (
    'write the UUIDs in the order of the values, "GPU-1,GPU-2", or as JSON '
    '[{"uuid":"GPU-1","host":"n1","index":0}]'
)

# Fields of a job's hash that collectors write: one a host, and how many places there are.
_HOST, _PLACES = "gpus:", "gpus#"

_LONGEST_TEXT = 1024  # of a label, a name or a note; chosen: more is no label but a mistake

Note = Callable[[str, str], None]
_Read = TypeVar("_Read")


def time_ms(text: str) -> int:
    """Return the time that epoch seconds, epoch milliseconds or ISO 8601 (UTC if bare) names.

    Raises
    ------
    ValueError
        When ``text`` is none of them.
    """
    text = text.strip()
    if len(text) == _MILLISECONDS and text.isascii() and text.isdecimal():
        return int(text)  # as nearly all are: two in every event that a tick reads
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number > 2**53:
            msg = f"time {safe(text)} is too large"
            raise ValueError(msg)
        return round(number if abs(number) >= _MILLISECONDS_FROM else number * 1000)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def read_job(job: str, fields: Mapping[str, str], note: Note) -> Job:
    """Return who a job is; ``note(field, why)`` is told what cannot be read."""
    plain: dict[str, str] = {}
    labels: dict[str, str] = {}
    roster: tuple[Gpu, ...] = ()
    seen: list[tuple[int, Gpu]] = []
    start_ms: int | None = None
    for name, text in fields.items():
        if name == "gpus":
            roster = _or_noted(_roster, text, name, note) or ()
        elif name.startswith(_HOST):
            seen += _or_noted(_seats(name[len(_HOST) :]), text, name, note) or ()
        elif name == "start":
            start_ms = _or_noted(time_ms, text, name, note)
        elif name in ("lineage", _PLACES):
            continue
        elif len(text) > _LONGEST_TEXT:
            note(name, f"{len(text)} characters are too long")
        else:
            (plain if name in _PLAIN else labels)[name] = text
    return Job(
        id=job,
        roster=_with_seen(roster, seen),
        start_ms=start_ms,
        lineage=_listed(fields.get("lineage", "")),
        labels=labels,
        **plain,
    )


def write_job(job: Job) -> dict[str, str]:
    """Return a description as :func:`read_job` reads it; what is empty is left out."""
    fields = dict(job.labels) | {name: getattr(job, name) for name in _PLAIN}
    if job.start_ms is not None:
        fields["start"] = str(job.start_ms)
    if job.lineage:
        fields["lineage"] = ",".join(job.lineage)
    if job.roster:
        fields["gpus"] = msgspec.json.encode(job.roster).decode()
    return {
        name: text if name == "gpus" else text[:_LONGEST_TEXT]
        for name, text in fields.items()
        if text
    }


def read_event(entry_ms: int, fields: Mapping[str, str]) -> ContextEvent:
    """Return the event of one entry; a time that cannot be read is the entry's own."""
    start = _or_noted(time_ms, fields.get("start", ""), "", _ignored)
    start = entry_ms if start is None else start
    end = _or_noted(time_ms, fields.get("end", ""), "", _ignored)
    span = Interval(start_ms=start, end_ms=max(start, start if end is None else end))
    note = fields.get("note", "")[:_LONGEST_TEXT]
    kind = fields.get("kind", "unknown")[:64]
    return ContextEvent(kind=kind, span=span, note=note, told_ms=entry_ms)


def write_event(event: ContextEvent) -> list[str | int]:
    """Return the fields of an event's entry, ``[name, text, ...]``."""
    flat: list[str | int] = ["kind", event.kind, "start", event.span.start_ms]
    if event.span.length_ms:
        flat += ["end", event.span.end_ms]
    return [*flat, "note", event.note] if event.note else flat


def touching(events: Iterable[ContextEvent], span: Interval) -> tuple[ContextEvent, ...]:
    """Return the events that touch ``span``, oldest first, each once."""
    found = {
        (event.span.start_ms, event.span.end_ms, event.kind, event.note): event
        for event in events
        if event.span.start_ms < span.end_ms
        and (event.span.end_ms > span.start_ms or event.span.start_ms >= span.start_ms)
    }
    return tuple(found[key] for key in sorted(found))


class _Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as a collector found it, and its place behind the GPUs of the description."""

    at: int
    uuid: str
    index: int | None = None


def _seats(host: str) -> Callable[[str], tuple[tuple[int, Gpu], ...]]:
    def read(text: str) -> tuple[tuple[int, Gpu], ...]:
        seats = msgspec.json.decode(text, type=tuple[_Seat, ...])
        return tuple(
            (seat.at, Gpu(uuid=seat.uuid, host=host, index=seat.index)) for seat in seats
        )

    return read


def _with_seen(roster: tuple[Gpu, ...], seen: list[tuple[int, Gpu]]) -> tuple[Gpu, ...]:
    """Return the roster, and behind it what collectors saw beyond it, by their places."""
    named = {gpu.uuid for gpu in roster}
    later = sorted(seen, key=lambda seat: (seat[0], seat[1].host, seat[1].uuid))
    return (*roster, *(gpu for _, gpu in later if gpu.uuid not in named))


def is_seen(fields: Iterable[str]) -> bool:
    """Whether collectors see to a job's roster: then it grows at its end."""
    return _PLACES in fields


def _roster(text: str) -> tuple[Gpu, ...]:
    """GPUs as a JSON list of objects or UUIDs, or as UUIDs with commas between.

    A count is no roster, and neither is a broken piece of JSON: it would name a GPU that is
    none, and a job of thousands would be told as one of one GPU.
    """
    if not text.lstrip().startswith("["):
        names = _listed(text)
        if (len(names) == 1 and _NUMBER.fullmatch(names[0])) or not _NO_NAME.isdisjoint(text):
            msg = f"{_ROSTER}, not {safe(text[:40])}"
            raise ValueError(msg)
        return tuple(Gpu(uuid=uuid) for uuid in names)
    try:
        items = msgspec.json.decode(text, type=list[Gpu | str])
    except msgspec.MsgspecError as error:
        msg = f"{_ROSTER}; as JSON it is wrong: {error}"
        raise ValueError(msg) from None
    return tuple(Gpu(uuid=item) if isinstance(item, str) else item for item in items)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _or_noted(read: Callable[[str], _Read], text: str, name: str, note: Note) -> _Read | None:
    try:
        return read(text)
    except (ValueError, OverflowError) as exc:  # msgspec's errors are ValueErrors
        note(name, str(exc))
        return None


def _ignored(_name: str, _why: str) -> None:
    """Events are shown as far as they can be read."""
