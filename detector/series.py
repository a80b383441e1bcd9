"""Time series, panels and spans of time, as every other module sees them.

Times are integers: milliseconds since 1970-01-01 UTC. Values are float64 that were rounded
to float32 when they came in, so that a value reads the same from a stream entry and from a
packed chunk. NaN means "no data" and nothing else does. This module knows no job, no GPU,
no Redis and no clock.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Self

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
SmallArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class Duration(int):
    """A length of time in milliseconds, written as ``10s``, ``5m``, ``1h30m``, ``7d``."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the duration that ``text`` names.

        Raises
        ------
        ValueError
            When ``text`` is not numbers with units ms, s, m, h or d.
        """
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            msg = f"{text!r} is not a duration; write for example 10s, 5m, 1h30m or 7d"
            raise ValueError(msg)
        return cls(round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts)))

    def __str__(self) -> str:
        """Return the shortest text that :meth:`parse` reads back."""
        rest, text = int(self), ""
        for unit in ("d", "h", "m", "s", "ms"):
            count, rest = divmod(rest, _UNITS_MS[unit])
            text += f"{count}{unit}" if count else ""
        return text or "0s"


def below(name: str, value: int, least: int) -> tuple[str, ...]:
    """Return what is wrong with a setting below ``least``, both as they would be written."""
    return (f"{name} must be at least {least}, not {value}",) if value < least else ()


def refuse(wrong: Iterable[str]) -> None:
    """Refuse settings with all that is wrong with them, one line each.

    Raises
    ------
    ValueError
        When anything is.
    """
    if lines := tuple(wrong):
        raise ValueError("\n".join(lines))


def iso(time_ms: int) -> str:
    """Return ``time_ms`` as ISO 8601 in UTC, with milliseconds only where there are any."""
    moment = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    spec = "milliseconds" if time_ms % 1000 else "seconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Half-open span ``[start_ms, end_ms)``."""

    start_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        """How long the span is, in ms."""
        return self.end_ms - self.start_ms

    def holds(self, other: Self) -> bool:
        """Whether the other span lies within this one."""
        return self.start_ms <= other.start_ms and other.end_ms <= self.end_ms

    def covers(self, time_ms: int) -> bool:
        """Whether ``time_ms`` lies in the span."""
        return self.start_ms <= time_ms < self.end_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A stretch of one job's history that somebody asks for.

    Attributes
    ----------
    gpus
        Whether the values of its GPUs are wanted too: many times as many.
    """

    job: str
    span: Interval
    gpus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one job (or GPU), oldest first.

    Attributes
    ----------
    times_ms
        End of the interval each value stands for, strictly increasing. Shape ``(n,)``.
    values
        In the metric's catalogue unit. Shape ``(n,)``; NaN is no data.
    """

    times_ms: IntArray
    values: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """New samples of many series: row k holds the k-th new sample of each column.

    Rows are ordinals, not points of a common clock: series of 1 s and of 1 h cadence lie
    side by side. A column with fewer samples than rows is filled up with time 0.

    Attributes
    ----------
    times_ms
        Shape ``(rows, columns)``; 0 where the column has no k-th sample.
    values
        Shape ``(rows, columns)``; NaN is a sample that carries no usable value.
    gpus
        Values of the GPUs behind the samples, flat, NaN is no data; None without any.
    gpu_starts, gpu_counts
        Where in ``gpus`` a sample's GPUs stand, in the roster's order. Shape
        ``(rows, columns)``.
    """

    times_ms: IntArray
    values: FloatArray
    gpus: SmallArray | None = None
    gpu_starts: IntArray | None = None
    gpu_counts: IntArray | None = None

    def cut(self, columns: slice | IntArray) -> Self:
        """Return these columns alone."""

        def of(cells: IntArray | None) -> IntArray | None:
            return None if cells is None else cells[:, columns]

        return replace(
            self,
            times_ms=self.times_ms[:, columns],
            values=self.values[:, columns],
            gpu_starts=of(self.gpu_starts),
            gpu_counts=of(self.gpu_counts),
        )

    @property
    def columns(self) -> int:
        """How many series stand side by side."""
        return int(self.times_ms.shape[1])

    @property
    def rows(self) -> int:
        """How many new samples the longest column has."""
        return int(self.times_ms.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEvent:
    """Something that was announced about a job: a checkpoint, a restart, a planned change.

    Attributes
    ----------
    kind
        ``restart``, ``checkpoint``, ``evaluation``, ``deploy``, ``planned_change``,
        ``precision_switch`` or ``node_fault``; others are kept and shown.
    span
        When it was going on. An event that was announced without an end has length 0.
    told_ms
        When it was announced, where that is known; what it is does not depend on it.
    """

    kind: str
    span: Interval
    note: str = ""
    told_ms: int | None = field(default=None, compare=False)

    @property
    def heard_ms(self) -> int:
        """When it could be known at the earliest, ms."""
        start_ms = self.span.start_ms
        return start_ms if self.told_ms is None else max(self.told_ms, start_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of one job's history: every field that its entries carried.

    Attributes
    ----------
    times_ms
        Shape ``(n,)``, strictly increasing.
    fields
        Catalogue metric name -> values, shape ``(n,)``, NaN where an entry lacked the field
        or its text was refused. ``ofu`` is always there.
    gpus
        OFU of each GPU in the roster's order, shape ``(n, g)``, NaN is no data; None when no
        entry carried it. Rosters that changed in mid-way are padded with NaN on the right.
    events
        Announced context that touches the window, oldest first.
    own_ms
        Where the window begins with the history of an earlier run that the job continues:
        the time of the job's own first entry. 0 where all is its own.
    """

    times_ms: IntArray
    fields: Mapping[str, FloatArray]
    gpus: FloatArray | None = None
    events: tuple[ContextEvent, ...] = ()
    own_ms: int = 0

    def within(self, span: Interval) -> Self:
        """Return the part of the window that lies in ``span``, with the same events."""
        first, last = np.searchsorted(self.times_ms, [span.start_ms, span.end_ms]).tolist()
        part = slice(first, last)
        return replace(
            self,
            times_ms=self.times_ms[part],
            fields={name: values[part] for name, values in self.fields.items()},
            gpus=None if self.gpus is None else self.gpus[part],
        )

    def since(self, start_ms: int) -> Self:
        """Return the window from ``start_ms`` on, with the events that touch it."""
        first = int(np.searchsorted(self.times_ms, start_ms))
        return replace(
            self,
            times_ms=self.times_ms[first:],
            fields={name: values[first:] for name, values in self.fields.items()},
            gpus=None if self.gpus is None else self.gpus[first:],
            events=tuple(item for item in self.events if item.span.end_ms >= start_ms),
        )

    def series(self, metric: str) -> Series | None:
        """The metric's finite samples as a series, or None when the window has none."""
        values = self.fields.get(metric)
        if values is None:
            return None
        known = np.isfinite(values)
        if not known.any():
            return None
        return Series(times_ms=self.times_ms[known], values=values[known])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """An entry that was set aside: whose, which, and why.

    Attributes
    ----------
    reason
        One of the slugs in ``store.history.REASONS``, such as ``no_value``,
        ``not_a_number``, ``out_of_range``, ``from_the_future``, ``wrong_type``.
    detail
        What the entry held, shortened and safe to print.
    """

    job: str
    entry: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What arrived since the last look: entries of many jobs, flat, each job's in time order.

    Attributes
    ----------
    jobs
        The jobs that have entries here.
    job
        Index into ``jobs`` of each entry, non-decreasing. Shape ``(m,)``.
    times_ms
        Shape ``(m,)``; strictly increasing within a job.
    fields
        Catalogue metric name -> values, shape ``(m,)``, NaN where the entry lacks it.
        ``ofu`` is always there; NaN in it is an entry that was set aside.
    rejects
        Entries, or single fields of entries, that could not be used.
    more
        Whether the jobs have still more to read: call again.
    gpus
        OFU of the entries' GPUs in the roster's order, entry after entry, flat; NaN is no
        data. None when no entry carries any.
    gpu_counts
        How many of ``gpus`` are each entry's, 0 where it has none. Shape ``(m,)``.
    """

    jobs: tuple[str, ...]
    job: IntArray
    times_ms: IntArray
    fields: Mapping[str, FloatArray]
    rejects: tuple[Reject, ...] = field(default=())
    more: bool = False
    gpus: SmallArray | None = None
    gpu_counts: IntArray | None = None
