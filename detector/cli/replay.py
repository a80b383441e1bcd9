"""`ofuwatch replay`: the detector over recordings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli import EXIT_UNAVAILABLE, fail

if TYPE_CHECKING:
    from detector.analysis.judge import Content
    from detector.incident.incident import Incident
    from detector.replay import Replayed
    from detector.store.recording import Recording


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--json", "json_file", metavar="FILE", help="Write one line an incident; - is stdout."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Write one PNG a job to this folder."
)
@click.option("--models", type=click.Path(path_type=Path), help="Folder of models to use.")
@click.option("--rules", type=click.Path(path_type=Path), help="Folder of rules to use.")
@click.option("--cluster", default="replay", show_default=True, help="Goes into incident ids.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
def command(
    paths: Sequence[Path],
    *,
    json_file: str | None,
    plot: Path | None,
    models: Path | None,
    rules: Path | None,
    cluster: str,
    quiet: bool,
) -> None:
    """Run the detector over recordings: CSV or Parquet files, or folders of them.

    Columns timestamp,job,value[,metric][,gpu]; timestamp in epoch seconds or ISO 8601, value
    0..1 or NaN or empty. Exit 0 whether or not something was found, 2 on bad input.
    """
    from detector.store.recording import RecordingError, read

    content = _content(models, rules)
    try:
        recordings = read(paths)
    except RecordingError as error:
        fail(str(error))
    replayed = _replay(recordings, content, cluster=cluster, quiet=quiet)
    for job, why in replayed.poisoned.items():
        click.echo(f"ofuwatch: job {job} could not be judged: {why}", err=True)
    if json_file is not None:
        _write_json(replayed, json_file)
    if plot is not None:
        _plot(recordings, replayed.incidents, plot, quiet=quiet)
    if not quiet and json_file != "-":
        _table(recordings, replayed)


def _content(models: Path | None, rules: Path | None) -> "Content":
    from detector.content import ContentErrors, load, shipped

    try:
        return load(models or shipped() / "models", rules or shipped() / "rules")
    except ContentErrors as errors:
        fail("\nofuwatch: ".join(str(problem) for problem in errors.problems))


def _replay(
    recordings: "Mapping[str, Recording]", content: "Content", *, cluster: str, quiet: bool
) -> "Replayed":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from detector.incident.lifecycle import Policy
    from detector.replay import replay

    total = sum(len(recording.window.times_ms) for recording in recordings.values())
    with Progress(
        TextColumn("replaying {task.fields[jobs]} jobs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("samples"),
        console=Console(stderr=True),
        disable=quiet,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=total, jobs=len(recordings))
        return replay(
            recordings,
            content,
            cluster=cluster,
            policy=Policy(),
            on_entries=lambda count: progress.advance(task, count),
        )


def _write_json(replayed: "Replayed", target: str) -> None:
    import msgspec

    from detector.replay import as_line

    lines = b"".join(msgspec.json.encode(as_line(item)) + b"\n" for item in replayed.incidents)
    if target == "-":
        click.get_binary_stream("stdout").write(lines)
        return
    try:
        Path(target).write_bytes(lines)
    except OSError as error:
        fail(f"--json {target}: cannot be written: {error.strerror}", code=EXIT_UNAVAILABLE)


def _plot(
    recordings: "Mapping[str, Recording]",
    incidents: "Sequence[Incident]",
    folder: Path,
    *,
    quiet: bool,
) -> None:
    import re

    from rich.console import Console
    from rich.progress import track

    from detector.notify.chart import draw

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for job, recording in track(
            recordings.items(),
            "drawing",
            console=Console(stderr=True),
            disable=quiet,
            transient=True,
        ):
            mine = [incident for incident in incidents if incident.job.id == job]
            name = re.sub(r"[^\w.=+-]+", "_", job)[:120]
            (folder / f"{name}.png").write_bytes(
                draw(recording.window, incidents=mine, title=job)
            )
    except OSError as error:
        fail(f"--plot {folder}: cannot be written: {error.strerror}", code=EXIT_UNAVAILABLE)


def _table(recordings: "Mapping[str, Recording]", replayed: "Replayed") -> None:
    from rich.console import Console
    from rich.table import Table

    from detector.series import Duration, iso

    table = Table(title="What the detector found", title_justify="left")
    for name in ("job", "samples", "span", "incident", "onset (UTC)", "after", "change", "end"):
        table.add_column(
            name, justify="right" if name in ("samples", "span", "change") else "left"
        )
    for job, recording in recordings.items():
        times = recording.window.times_ms
        seconds = int(times[-1] - times[0]) // 1000 if len(times) else 0
        head = (job, str(len(times)), str(Duration(seconds * 1000)))
        mine = [item for item in replayed.incidents if item.job.id == job]
        if not mine:
            table.add_row(*head, "-", "", "", "", "")
        for item in mine:
            table.add_row(
                *head,
                item.kind,
                iso(item.onset_ms),
                str(Duration((item.detected_ms - item.onset_ms) // 1000 * 1000)),
                f"{item.relative_change:+.1%}",
                "open" if item.resolve_reason is None else item.resolve_reason,
            )
            head = ("", "", "")
    console = Console()
    console.print(table)
    kinds = Counter(item.kind for item in replayed.incidents)
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"
    rises = f"; {len(replayed.shifts)} lasting rises followed" if replayed.shifts else ""
    console.print(
        f"{len(recordings)} jobs, {len(replayed.incidents)} incidents: {named}{rises}."
    )
