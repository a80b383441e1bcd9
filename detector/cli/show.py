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

    from detector.fleet import Job
    from detector.incident.incident import Incident
    from detector.series import FloatArray, Interval, Window
    from detector.store.history import History, Rejected
    from detector.store.ledger import Ledger

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 72


@click.command()
@config_option
@click.argument("job")
@click.option("--last", default="6h", show_default=True, help="How much history to look at.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it to this PNG."
)
def command(config_file: Path | None, *, job: str, last: str, plot: Path | None) -> None:
    """Show JOB: who it is, its history, its set-aside entries and its incidents."""
    from detector.cli.incidents import print_table
    from detector.cli.jobs import aside_lines
    from detector.log import printable
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
        try:
            # Last the id as it stands in the job's key, and in what we print.
            seen = next(
                seen
                for name in dict.fromkeys((job, unquote(job)))
                if (seen := _look(name, history, ledger, span=span)).known
            )
        except ValueError as error:
            fail(str(error))
        except StopIteration:
            fail(f"no job {job!r}; `ofuwatch jobs` lists them", code=EXIT_PROBLEM)
    about, window, rejected, found = seen.about, seen.window, seen.rejected, seen.incidents

    for line in _who(about):
        click.echo(printable(line))
    for line in _history(window, last=last):
        click.echo(line)
    if rejected:
        click.echo("Set aside:")
        for line in aside_lines(rejected):
            click.echo(line)
    else:
        click.echo("Set aside: nothing")
    if found:
        print_table(found)
    else:
        click.echo("Incidents: none")
    if plot is not None:
        from detector.notify.chart import draw

        try:
            plot.write_bytes(draw(window, incidents=found, title=about.title))
        except OSError as error:
            fail(f"--plot {plot}: cannot be written: {error.strerror}")
        click.echo(f"Drawn to {plot}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the store has of a job."""

    about: "Job"
    window: "Window"
    rejected: "Mapping[str, Rejected]"
    incidents: "Sequence[Incident]"

    @property
    def known(self) -> bool:
        return bool(self.rejected or self.incidents or len(self.window.times_ms))


def _look(job: str, history: "History", ledger: "Ledger", *, span: "Interval") -> _Seen:
    return _Seen(
        about=history.describe(job),
        window=history.window(job, start_ms=span.start_ms, end_ms=span.end_ms),
        rejected=history.rejected(job),
        incidents=ledger.incidents(job=job),
    )


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
    from detector.series import Duration, iso

    ofu = window.fields["ofu"]
    known = np.isfinite(ofu)
    if not known.any():
        return [f"OFU: no usable sample in the last {last}"]
    times = window.times_ms
    # To a tenth of a second: scrapes jitter.
    step = round(float(np.median(np.diff(times))) / 100) * 100 if len(times) > 1 else 0
    low, middle, high = np.percentile(ofu[known], [5, 50, 95])
    usable = int(known.sum())
    fields = sorted(name for name in window.fields if name != "ofu")
    return [
        f"OFU over the last {last}: {usable} samples, {len(ofu) - usable} unusable, "
        f"every {Duration(step)}, newest {iso(int(times[-1]))}",
        f"  5 % / median / 95 %: {low:.3f} / {middle:.3f} / {high:.3f}, "
        f"now {ofu[known][-1]:.3f}",
        f"  {_sparkline(ofu)}",
        *([f"  also: {', '.join(fields)}"] if fields else []),
        *([f"  per GPU: {window.gpus.shape[1]}"] if window.gpus is not None else []),
    ]


def _sparkline(values: "FloatArray") -> str:
    """One character for each part of the history, its lowest value; a space is no data."""
    parts = np.array_split(values, min(_COLUMNS, len(values)))
    lows = [np.nanmin(part) if np.isfinite(part).any() else np.nan for part in parts]
    top = float(np.nanmax(lows)) or 1.0
    return "".join(
        " " if np.isnan(low) else _BARS[min(7, int(low / top * 7.999))] for low in lows
    )
