"""An exporter's page of text read into GPUs' readings: every value filtered, no line fatal.

The Prometheus text format as dcgm-exporter 2 to 4 and ROCm's exporter write it, and as a
Prometheus server or an OpenMetrics exporter would hand it on. :func:`parse` never raises: what
can't be read is told in ``dropped``, with its line and the reason, and costs nothing else.

Scrape after scrape a page differs in its values alone, so its :class:`Layout` is handed in
again with the next one: then lines are compared and values read, and nothing is looked up. A
page read with its layout and one read without give the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from detector.metric import BLANKS_INT32, usable
from detector.reading import Dropped, Reading
from detector.telemetry.layout import MOST_DROPPED, Cell, Entity, Layout, layout_of
from detector.telemetry.samples import of_gpu

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# A page above this is read anew each time: what is remembered of a target stays bounded.
_LARGEST_REMEMBERED = 4 * 1024 * 1024

# Values of one GPU that lie further apart are not of one time. Twice dcgm-exporter's 30 s.
_APART_MS = 60_000

# Text formats give milliseconds, OpenMetrics seconds; 1e11 ms is 1973, 1e11 s the year 5138.
_SECONDS_BELOW = 1e11
_LATEST_MS = 1e14


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page said.

    Attributes
    ----------
    layout
        To hand in with the target's next page; None when nothing of it should be remembered.
    """

    readings: tuple[Reading, ...]
    dropped: tuple[Dropped, ...]
    layout: "Remembered | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A layout, and how its values are read at once; the latter only where each counts once.

    Attributes
    ----------
    lines
        The line of each value, GPU by GPU.
    gpus
        Each GPU, which of the values are its own, and their counters.
    decoder
        Of all values as one JSON array, each within its bounds: a fifth of what ``float`` and
        comparing take. What it refuses is looked at one by one.
    scaled
        Values that need scaling, and by what.
    wide
        Values whose bounds don't leave out the blanks of 32 bits.
    """

    layout: Layout
    lines: tuple[int, ...] = ()
    gpus: tuple[tuple[Entity, slice, tuple[str, ...]], ...] = ()
    decoder: msgspec.json.Decoder[tuple[float, ...]] | None = None
    scaled: tuple[tuple[int, float], ...] = ()
    wide: tuple[int, ...] = ()


def parse(
    page: bytes, *, time_ms: int, host: str = "", layout: Remembered | None = None
) -> Page:
    """Return the readings of an exporter's page, and the lines that gave none.

    Parameters
    ----------
    time_ms
        When the page was asked for: the time of all values that carry none of their own.
    host
        The name of GPUs' host where no label says it.
    layout
        ``Page.layout`` of the target's last page; any other, or None, only costs time.
    """
    page = page.removeprefix(_BYTE_ORDER_MARK)
    lines = page.split(b"\n")
    rests = layout.layout.rests(lines, len(page) - len(lines) + 1) if layout else None
    if layout is None or rests is None:
        layout = _remembered(layout_of(lines))
        rests = list(map(bytes.removeprefix, lines, layout.layout.starts))
    lasting = layout.layout.lasting and len(page) <= _LARGEST_REMEMBERED
    values = _values_at_once(rests, layout)
    dropped: tuple[Dropped, ...] = ()
    if values is not None:
        readings = _readings_at_once(values, layout, time_ms=time_ms, host=host)
    else:
        readings, dropped = _one_by_one(rests, layout.layout, time_ms=time_ms, host=host)
    if layout.layout.instances:
        readings = _completed(readings, layout.layout.instances)
    return Page(readings=readings, dropped=dropped, layout=layout if lasting else None)


def _remembered(layout: Layout) -> Remembered:
    """Lay out the values for reading all at once, if each is the only one of its counter."""
    by_gpu: list[list[Cell]] = [[] for _ in layout.entities]
    for cell in layout.cells:
        by_gpu[cell.entity].append(cell)
    plain = not layout.dropped and all(
        len({cell.counter.name for cell in cells}) == len(cells) for cells in by_gpu
    )
    cells = [cell for cells in by_gpu for cell in cells]
    if not plain:
        return Remembered(layout=layout)
    gpus, start = [], 0
    for entity, own in zip(layout.entities, by_gpu, strict=True):
        names = tuple(cell.counter.name for cell in own)
        gpus.append((entity, slice(start, start + len(own)), names))
        start += len(own)
    return Remembered(
        layout=layout,
        lines=tuple(cell.line for cell in cells),
        gpus=tuple(gpus),
        decoder=msgspec.json.Decoder(tuple.__class_getitem__(tuple(map(_within, cells)))),
        scaled=tuple((i, cell.scale) for i, cell in enumerate(cells) if cell.scale != 1.0),
        wide=tuple(
            i for i, cell in enumerate(cells)
            if cell.counter.high / cell.scale >= min(BLANKS_INT32)
        ),
    )  # fmt: skip


def _within(cell: Cell) -> Any:
    """Return the type of a raw number that is surely within its counter's bounds."""
    low, high = cell.counter.low / cell.scale, cell.counter.high / cell.scale
    if cell.scale != 1.0:  # a hair less than the bounds, which scaling may round away from
        low, high = low * (1 + 1e-9), high * (1 - 1e-9)
    return Annotated[float, msgspec.Meta(ge=low, le=high)]


def _values_at_once(rests: Sequence[bytes], layout: Remembered) -> list[float] | None:
    """Return all values in their units; None when one needs a closer look.

    What :func:`detector.metric.usable` finds one by one: JSON has no NaN, the bounds leave out
    every blank but those of 32 bits, and those are looked for.
    """
    if layout.decoder is None:
        return None
    texts = map(rests.__getitem__, layout.lines)
    try:
        values = list(layout.decoder.decode(b"[%b]" % b",".join(texts)))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if not BLANKS_INT32.isdisjoint(map(values.__getitem__, layout.wide)):
        return None
    for i, scale in layout.scaled:
        values[i] *= scale
    return values


def _readings_at_once(
    values: Sequence[float], layout: Remembered, *, time_ms: int, host: str
) -> tuple[Reading, ...]:
    return tuple(
        [
            entity.reading(
                dict(zip(names, values[part], strict=True)),
                time_ms=time_ms,
                own_clock=False,
                host=host,
            )
            for entity, part, names in layout.gpus
        ]
    )


def _completed(
    readings: tuple[Reading, ...], instances: Iterable[tuple[int, int]]
) -> tuple[Reading, ...]:
    """Give MIG instances what only their whole GPU's lines say, such as the clock."""
    found = list(readings)
    for place, whole in instances:
        one = found[place]
        shared = of_gpu(found[whole].values)
        if not shared.keys() <= one.values.keys():
            found[place] = msgspec.structs.replace(one, values={**shared, **one.values})
    return tuple(found)


@dataclass(slots=True, kw_only=True)
class _Read:
    """A counter of one GPU as far as the page was read."""

    cell: Cell
    raw: str
    value: float
    time_ms: float
    parts: int = 1


def _one_by_one(
    rests: Sequence[bytes], layout: Layout, *, time_ms: int, host: str
) -> tuple[tuple[Reading, ...], tuple[Dropped, ...]]:
    """Read the values one at a time, each with its own time and its own reason."""
    read: list[dict[str, _Read]] = [{} for _ in layout.entities]
    dropped = list(layout.dropped)
    for cell in layout.cells:
        raw, at = _value_and_time(rests[cell.line])
        value, reason = usable(cell.counter, raw, cell.scale)
        if reason:
            dropped.append(_dropped(cell, raw, reason))
        else:
            fresh = _Read(cell=cell, raw=raw, value=value, time_ms=at)
            dropped += _take(read[cell.entity], fresh)
    readings = []
    for entity, counters in zip(layout.entities, read, strict=True):
        newest = max((found.time_ms for found in counters.values()), default=0.0)
        dropped += _outdated(counters, newest)
        values = {name: found.value for name, found in counters.items()}
        at_ms = int(newest) or time_ms
        readings.append(entity.reading(values, time_ms=at_ms, own_clock=newest > 0, host=host))
    dropped.sort(key=lambda line: line.line or 0)
    return tuple(readings), _at_most(dropped)


def _value_and_time(rest: bytes) -> tuple[str, float]:
    """Split what follows a line's labels: value, time in ms or 0; an exemplar is cut off."""
    text = rest.decode(errors="replace").partition(" # ")[0].strip()
    parts = text.split(None, 2)
    if len(parts) == 2 and (at := _time(parts[1])):
        return parts[0], at
    return text, 0.0


def _time(text: str) -> float:
    """Return a time in milliseconds; 0 for what is none."""
    try:
        at = float(text)
    except ValueError:
        return 0.0
    at = at * 1e3 if at < _SECONDS_BELOW else at
    return at if 0.0 < at < _LATEST_MS else 0.0


def _take(counters: dict[str, _Read], fresh: _Read) -> Iterable[Dropped]:
    """Count a value, or say why it doesn't: the newest of a series counts, then the first."""
    name = fresh.cell.counter.name
    known = counters.setdefault(name, fresh)
    if known is fresh:
        return
    if fresh.cell.pooled and known.cell.pooled and fresh.cell.metric == known.cell.metric:
        known.parts += 1
        known.value += (fresh.value - known.value) / known.parts
    elif fresh.time_ms > known.time_ms:
        counters[name] = fresh
        yield _dropped(known.cell, known.raw, "the series has a newer value on the page")
    elif fresh.cell.claim != known.cell.claim and fresh.cell.metric == known.cell.metric:
        yield _dropped(
            fresh.cell, fresh.raw,
            "the same GPU again for another job: it counts once, and for both jobs",
        )  # fmt: skip
    elif fresh.cell.metric == known.cell.metric:
        yield _dropped(fresh.cell, fresh.raw, "the series a second time: the first one counts")


def _outdated(counters: dict[str, _Read], newest: float) -> Iterable[Dropped]:
    for name, found in list(counters.items()):
        if newest - found.time_ms > _APART_MS and found.time_ms > 0:
            del counters[name]
            late = (newest - found.time_ms) / 1e3
            yield _dropped(found.cell, found.raw, f"{late:.0f} s older than its GPU's newest")


def _dropped(cell: Cell, raw: str, reason: str) -> Dropped:
    return Dropped(line=cell.line + 1, metric=cell.metric, raw=raw[:60], reason=reason)


def _at_most(dropped: Sequence[Dropped]) -> tuple[Dropped, ...]:
    if len(dropped) <= MOST_DROPPED:
        return tuple(dropped)
    more = f"{len(dropped) - MOST_DROPPED} more lines could not be read"
    return (*dropped[:MOST_DROPPED], Dropped(metric="", raw="", reason=more))
