"""`ofuwatch show JOB`: one job, as far as the store knows it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import click
import numpy as np

from detector.cli import EXIT_PROBLEM, fail
from detector.cli.opening import config_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detector.cli.readiness import Readiness
    from detector.config import ContentSettings
    from detector.fleet import Job
    from detector.incident.incident import Incident
    from detector.series import ContextEvent, FloatArray, Interval, Window
    from detector.store.history import History, Rejected
    from detector.store.ledger import Ledger

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 72
_EVENTS = 5  # chosen: the last hour or two of a job with checkpoints


@click.command()
@config_option
@click.argument("job")
@click.option("--last", default="6h", show_default=True, help="How much history to look at.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it to this PNG."
)
def command(config_file: Path | None, *, job: str, last: str, plot: Path | None) -> None:
    """Show JOB: who it is, its history, its set-aside entries and its incidents."""
    from detector.series import Duration, Interval
    from detector.store.history import History
    from detector.store.ledger import Ledger

    try:
        length_ms = Duration.parse(last)
    except ValueError as error:
        fail(f"--last: {error}")
    now_ms = time.time_ns() // 1_000_000
    span = Interval(start_ms=now_ms - length_ms, end_ms=now_ms + 60_000)
    with opened(config_file) as (config, client, keys):
        history, ledger = History(client, keys, config.history), Ledger(client, keys)
        history.discover(now_ms)
        try:
            # Last the id as it stands in the job's key, and in what we print.
            seen = next(
                seen
                for name in dict.fromkeys((job, unquote(job)))
                if (seen := _look(name, history, ledger, config.content, span=span)).known
            )
        except ValueError as error:
            fail(str(error))
        except StopIteration:
            fail(f"no job {job!r}; `ofuwatch jobs` lists them", code=EXIT_PROBLEM)
    _print(seen, last=last, now_ms=now_ms)
    if plot is not None:
        _draw(seen, plot)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the store has of a job."""

    about: "Job"
    window: "Window"
    undescribed: "Sequence[str]"
    rejected: "Mapping[str, Rejected]"
    incidents: "Sequence[Incident]"
    newest_ms: int | None
    stands: "Readiness | None"

    @property
    def known(self) -> bool:
        return bool(self.rejected or self.incidents or self.newest_ms is not None)


def _look(
    job: str,
    history: "History",
    ledger: "Ledger",
    content: "ContentSettings",
    *,
    span: "Interval",
) -> _Seen:
    from detector.cli.readiness import readiness

    stands = readiness([job], content, history, ledger, now_ms=span.end_ms)
    return _Seen(
        about=history.describe(job),
        window=history.window(job, start_ms=span.start_ms, end_ms=span.end_ms),
        undescribed=history.undescribed(job),
        rejected=history.rejected(job),
        incidents=ledger.incidents(job=job),
        newest_ms=history.last_seen(job),
        stands=stands.get(job),
    )


def _print(seen: _Seen, *, last: str, now_ms: int) -> None:
    from detector.cli.incidents import print_table
    from detector.cli.jobs import ago, aside_lines
    from detector.log import printable

    unusable = [f"  not usable in its description: {text}" for text in seen.undescribed]
    history = [*_history(seen.window, last=last), *_announced(seen.window.events)]
    for line in [*_who(seen.about), *unusable, *history, *_stands(seen)]:
        click.echo(printable(line))
    if not len(seen.window.times_ms):
        said = ago(seen.newest_ms, now_ms=now_ms)
        click.echo(f"  {said if said.startswith('its') else f'its newest entry: {said}'}")
    click.echo("Set aside:" if seen.rejected else "Set aside: nothing")
    for line in aside_lines(seen.rejected):
        click.echo(line)
    if seen.incidents:
        print_table(seen.incidents)
        for line in _paged(seen.incidents):
            click.echo(printable(line))
    else:
        click.echo("Incidents: none")


def _draw(seen: _Seen, plot: Path) -> None:
    from detector.notify.chart import draw

    try:
        plot.write_bytes(draw(seen.window, incidents=seen.incidents, title=seen.about.title))
    except OSError as error:
        fail(f"--plot {plot}: cannot be written: {error.strerror}")
    click.echo(f"Drawn to {plot}")


def _who(job: "Job") -> list[str]:
    facts = {
        "owner": job.owner,
        "team": job.team,
        "cluster": job.cluster,
        "scheduler": job.scheduler,
        "GPU": job.gpu_model,
        "precision": job.precision,
        "roster": f"{len(job.roster)} GPUs" if job.roster else "",
        "continues": ", ".join(job.lineage),
    }
    told = "  ".join(f"{name} {value}" for name, value in facts.items() if value)
    return [f"Job {job.title}", *([f"  {told}"] if told else [])]


def _history(window: "Window", *, last: str) -> list[str]:
    from detector.analysis.derived import reports
    from detector.series import Duration, iso

    told = reports(window.fields)
    alone = f", its own reports without a scrape: {told.sum()}" if told.any() else ""
    ofu, times = window.fields["ofu"][~told], window.times_ms[~told]
    known = np.isfinite(ofu)
    if not known.any():
        return [f"OFU: no usable sample in the last {last}{alone}"]
    step = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    # To a tenth of a second, since scrapes jitter; what is quicker than that, as it is.
    step = max(1, round(step)) if step < 1000 else round(step / 100) * 100
    every = f"every {Duration(step)}, " if len(times) > 1 else ""
    low, middle, high = np.percentile(ofu[known], [5, 50, 95])
    usable = int(known.sum())
    fields = sorted(name for name in window.fields if name != "ofu")
    return [
        f"OFU over the last {last}: {usable} samples, {len(ofu) - usable} unusable, "
        f"{every}newest {iso(int(times[-1]))}{alone}",
        f"  5 % / median / 95 %: {low:.3f} / {middle:.3f} / {high:.3f}, "
        f"now {ofu[known][-1]:.3f}",
        f"  {_sparkline(ofu)}",
        *([f"  also: {', '.join(fields)}"] if fields else []),
        *([f"  per GPU: {window.gpus.shape[1]}"] if window.gpus is not None else []),
    ]


def _stands(seen: _Seen) -> list[str]:
    """What is expected of the job, or why nothing is yet, and what it took over from whom."""
    from detector.series import iso

    stands = seen.stands
    if stands is None:
        return ["Baseline: not known, the models cannot be read; `ofuwatch check` says why"]
    lines = [
        f"No baseline yet: {stands.unready}"
        if stands.unready
        else f"Baseline: OFU {stands.level:.3f}"
    ]
    origin = stands.origin
    if origin is None:
        # What the next save of the service's state will tell.
        return [*lines, *(["Lineage: not looked at yet"] if seen.about.lineage else [])]
    levels = {item.run: iso(item.until_ms) for item in origin.levels.values()}
    took = "habits, age and level" if levels else "habits and age"
    what = f"{took} of {origin.run}" if origin.run else "nothing taken over"
    since = "".join(
        f", up to {until}" if run == origin.run else f", the level that of {run} up to {until}"
        for run, until in levels.items()
    )
    why = f" ({origin.why})" if origin.why else ""
    return [*lines, f"Lineage: {what}{since}{why}"]


def _announced(events: "Sequence[ContextEvent]") -> list[str]:
    """What was announced, newest last; the older ones are only counted."""
    from detector.notify.wording import span_text
    from detector.series import iso

    if not events:
        return []
    more = len(events) - _EVENTS
    lines = [f"Announced:{f' (and {more} earlier)' if more > 0 else ''}"]
    for event in events[-_EVENTS:]:
        lasted = f" for {span_text(event.span.length_ms)}" if event.span.length_ms else ""
        note = f": {event.note}" if event.note else ""
        lines.append(f"  {iso(event.span.start_ms // 1000 * 1000)}{lasted}  {event.kind}{note}")
    return lines


def _paged(incidents: "Sequence[Incident]") -> list[str]:
    """Whether people were called, and why, or why not yet; only of what was asked about."""
    from detector.series import iso

    lines = []
    for item in incidents:
        if item.paged_ms is not None:
            when = iso(item.paged_ms // 1000 * 1000)
            lines.append(f"  {item.id}: people called {when}: {item.page_reason}")
        elif item.live and item.page_reason:
            lines.append(f"  {item.id}: nobody called: {item.page_reason}")
    return lines


def _sparkline(values: "FloatArray") -> str:
    """One character for each part of the history, its lowest value; a space is no data."""
    parts = np.array_split(values, min(_COLUMNS, len(values)))
    lows = [np.nanmin(part) if np.isfinite(part).any() else np.nan for part in parts]
    top = float(np.nanmax(lows)) or 1.0
    return "".join(
        " " if np.isnan(low) else _BARS[min(7, int(low / top * 7.999))] for low in lows
    )
