"""What a replay found, as a table for people."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from detector.analysis.change import Shift
from detector.cli import counted
from detector.incident.incident import Incident
from detector.notify.wording import plain, span_text, value_text
from detector.replay import Replayed
from detector.series import iso
from detector.store.recording import Recording

# A pipe has no width: what reads it wants every line whole.
_UNBOUNDED = 100_000
_STYLES = {"critical": "bold red", "error": "red", "warning": "yellow", "info": "cyan"}
_RIGHT = ("delay", "paged", "change")
# Jobs named below a heading; chosen: half a screenful.
_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One incident or rise. ``cells`` are by heading, in the order of the columns."""

    job: str
    onset_ms: int
    style: str
    cells: Mapping[str, str]


def print_summary(recordings: Mapping[str, Recording], replayed: Replayed) -> None:
    """Print what was found, when, how fast, how big, how it ended; and what was followed."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=_UNBOUNDED)
    rows = [_of_incident(item) for item in replayed.incidents]
    rows += [_of_rise(job, metric, shift) for job, metric, shift in replayed.shifts]
    rows.sort(key=lambda row: (row.job, row.onset_ms, row.style))
    if rows:
        for text in _table(rows, width=console.width):
            console.print(text)
        console.print()
    for line in _lines(recordings, replayed):
        console.print(line)


def _of_incident(incident: Incident) -> _Row:
    end, paged = "open", ""
    if incident.paged_ms is not None:
        paged = f"after {span_text(incident.paged_ms - incident.onset_ms)}"
    if incident.resolved_ms is not None:
        reason = (incident.resolve_reason or "resolved").replace("_", " ")
        end = f"{reason} in {span_text(incident.resolved_ms - incident.onset_ms)}"
    return _Row(
        job=incident.job.id,
        onset_ms=incident.onset_ms,
        style=_STYLES[incident.severity],
        cells={
            "found": incident.kind,
            "severity": incident.severity,
            "onset (UTC)": _moment(incident.onset_ms),
            "delay": span_text(incident.detected_ms - incident.onset_ms),
            "paged": paged,
            "change": f"{100 * incident.relative_change:+.1f} %",
            "level": _levels(incident.metric, incident.before.value, incident.after.value)
            + _whose(incident),
            "end": end,
        },
    )


def _of_rise(job: str, metric: str, shift: Shift) -> _Row:
    change = f"{100 * (shift.after / shift.before - 1):+.1f} %" if shift.before else ""
    return _Row(
        job=job,
        onset_ms=shift.onset_ms,
        style="green",
        cells={
            "found": "rise",
            "severity": "none",
            "onset (UTC)": _moment(shift.onset_ms),
            "delay": span_text(shift.time_ms - shift.onset_ms),
            "paged": "",
            "change": change,
            "level": _levels(metric, shift.before, shift.after),
            "end": "followed",
        },
    )


def _moment(time_ms: int) -> str:
    return iso(time_ms // 1000 * 1000).replace("T", " ").removesuffix("Z")


def _levels(metric: str, before: float, after: float) -> str:
    name = "OFU" if metric == "ofu" else metric
    return f"{name} {value_text(before, metric)} -> {value_text(after, metric)}"


def _whose(incident: Incident) -> str:
    """Whose level it was before, where it was not the job's own."""
    earlier = incident.earlier
    return "" if earlier is None else f" (before: {plain(earlier.id, len(earlier.id))})"


def _table(rows: Sequence[_Row], *, width: int) -> Iterable[Text]:
    """Return the table's lines: the job in each, or above its own where that is too wide."""
    names = {row.job: plain(row.job, len(row.job)) for row in rows}
    flat = [{"job": names[row.job], **row.cells} for row in rows]
    heads = [head for head in flat[0] if head != "paged" or any(c["paged"] for c in flat)]
    widths = {head: max(len(head), *(len(cells[head]) for cells in flat)) for head in heads}
    if sum(widths.values()) + 2 * (len(heads) - 1) <= width:
        yield _line({head: head for head in heads}, widths, style="bold")
        for row, cells in zip(rows, flat, strict=True):
            yield _line(cells, widths, style=row.style)
        return
    heads.remove("job")
    for spare in ("severity", "level"):
        if sum(widths[head] for head in heads) + 2 * len(heads) > width:
            heads.remove(spare)
    widths = {head: widths[head] for head in heads}
    yield _line({head: head for head in heads}, widths, style="bold", indent="  ")
    for job, mine in groupby(rows, key=lambda row: row.job):
        yield Text(names[job], style="bold")
        for row in mine:
            yield _line(row.cells, widths, style=row.style, indent="  ")


def _line(
    cells: Mapping[str, str], widths: Mapping[str, int], *, style: str, indent: str = ""
) -> Text:
    """Return one line, what was found in its colour."""
    text = Text(indent)
    for head, width in widths.items():
        cell = cells[head].rjust(width) if head in _RIGHT else cells[head].ljust(width)
        text.append(cell, style=style if style == "bold" or head == "found" else "")
        text.append("  ")
    text.rstrip()
    return text


def _lines(recordings: Mapping[str, Recording], replayed: Replayed) -> Iterable[str]:
    windows = [item.window for item in recordings.values()]
    samples = sum(len(window.times_ms) for window in windows)
    span_ms = sum(int(window.times_ms[-1] - window.times_ms[0]) for window in windows)
    found = Counter(item.kind for item in replayed.incidents)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
    with_any = len({item.job.id for item in replayed.incidents})
    yield (
        f"{counted(len(recordings), 'job')}, {counted(samples, 'sample')} over "
        f"{span_text(span_ms)} of job time: "
        + (
            f"{counted(len(replayed.incidents), 'incident')} in {counted(with_any, 'job')} "
            f"({kinds})."
            if found
            else "no incident."
        )
    )
    if replayed.shifts:
        yield (
            f"{counted(len(replayed.shifts), 'lasting rise')} became the new baseline, "
            "without an alert."
        )
    if replayed.rejected:
        yield (
            f"{counted(len(replayed.rejected), 'suspicion')} did not stand up to verification."
        )
    alone = {job: item.why for job, item in replayed.inherited.items() if item.why}
    yield from _by_job("Not, or not all, taken over from an earlier run", alone)
    yield from _by_job("No baseline yet when the recording ends", replayed.unready)


def _by_job(heading: str, reasons: Mapping[str, str]) -> Iterable[str]:
    """Yield a heading and one line a job, as many as people read."""
    if not reasons:
        return
    yield f"{heading}: {counted(len(reasons), 'job')}."
    for job, reason in list(reasons.items())[:_LISTED]:
        yield f"  {plain(job, len(job))}: {plain(reason, len(reason))}"
    if len(reasons) > _LISTED:
        yield f"  ... and {len(reasons) - _LISTED} more"
