"""`ofuwatch replay`: the detector over recordings."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from detector.cli import EXIT_INTERRUPTED, EXIT_UNAVAILABLE, fail
from detector.cli.opening import config_option, read_config, read_content
from detector.cli.progress import progress, read_recordings

if TYPE_CHECKING:
    from detector.analysis.judge import Content
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
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    help="Folder of models to use instead of the configuration's.",
)
@click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="Folder of rules to use instead of the configuration's.",
)
@click.option(
    "--jobs",
    "jobs_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Who the jobs are and which runs they continue: JSON lines or CSV.",
)
@click.option(
    "--events",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="CSV of what jobs announced: timestamp,job,kind[,start][,end][,note].",
)
@config_option
@click.option("--cluster", default="replay", show_default=True, help="Goes into incident ids.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
def command(
    paths: Sequence[Path],
    *,
    json_file: str | None,
    plot: Path | None,
    models: Path | None,
    rules: Path | None,
    jobs_file: Path | None,
    events: Path | None,
    config_file: Path | None,
    cluster: str,
    quiet: bool,
) -> None:
    """Run the detector over recordings: CSV or Parquet files, or folders of them.

    Columns timestamp,job,value[,metric][,gpu]; timestamp in epoch seconds or ISO 8601, value
    0..1 or NaN or empty. Exit 0 whether or not something was found, 2 on bad input.
    """
    content = _content(models, rules, config_file)
    try:
        recordings = _read(paths, jobs_file, quiet=quiet)
        if events is not None:
            recordings = _announced(recordings, events)
        # Before the work, so that nobody waits for results that have nowhere to go.
        lines = _opened(json_file)
        _made(plot)
        replayed = _replay(
            recordings, content, cluster=cluster, bands=plot is not None, quiet=quiet
        )
        for job, why in replayed.poisoned.items():
            reason = " ".join(f"job {job!r} could not be judged: {why}".split())
            click.echo(f"ofuwatch: {reason}", err=True)
        if lines is not None:
            _write_json(replayed, lines, name=json_file or "")
        if plot is not None:
            _plot(recordings, replayed, plot, quiet=quiet)
        if not quiet and json_file != "-":
            _summarise(recordings, replayed)
    except KeyboardInterrupt:
        fail("interrupted", code=EXIT_INTERRUPTED)


def _content(models: Path | None, rules: Path | None, config_file: Path | None) -> "Content":
    """What `serve` would judge with, but for the folders that were named."""
    if models and rules:
        return read_content(models, rules)
    where = read_config(config_file).content
    return read_content(models or where.models, rules or where.rules)


def _read(
    paths: Sequence[Path], jobs_file: Path | None, *, quiet: bool
) -> "Mapping[str, Recording]":
    from detector.store.described import described, read_described
    from detector.store.recording import RecordingError

    try:
        jobs = read_described(jobs_file) if jobs_file else {}
        recordings = read_recordings(paths, quiet=quiet)
        return described(recordings, jobs, path=jobs_file) if jobs_file else recordings
    except RecordingError as error:
        fail(str(error))


def _announced(recordings: "Mapping[str, Recording]", file: Path) -> "Mapping[str, Recording]":
    """Return the recordings with what the file announces about their jobs."""
    from dataclasses import replace

    from detector.store.announcements import read_announcements
    from detector.store.recording import RecordingError
    from detector.store.table import named

    try:
        announced = read_announcements(file)
    except RecordingError as error:
        fail(str(error))
    if announced.keys().isdisjoint(recordings):
        fail(f"--events {named(file)}: it announces nothing about the jobs of these recordings")
    return {
        job: replace(recording, window=replace(recording.window, events=announced.get(job, ())))
        for job, recording in recordings.items()
    }


def _opened(target: str | None) -> BinaryIO | None:
    if target is None:
        return None
    if target == "-":
        return sys.stdout.buffer
    try:
        return Path(target).open("wb")
    except OSError as error:
        fail(f"--json {target}: cannot be written: {error.strerror}", code=EXIT_UNAVAILABLE)


def _made(folder: Path | None) -> None:
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "is a file" if folder.is_file() else error.strerror
        fail(f"--plot {folder}: no folder can be made: {why}", code=EXIT_UNAVAILABLE)


def _replay(
    recordings: "Mapping[str, Recording]",
    content: "Content",
    *,
    cluster: str,
    bands: bool,
    quiet: bool,
) -> "Replayed":
    from detector.incident.lifecycle import Policy
    from detector.replay import replay

    with progress(quiet=quiet) as bar:
        task = bar.add_task(
            f"replaying {len(recordings)} jobs",
            total=sum(len(recording.window.times_ms) for recording in recordings.values()),
            unit="samples",
        )
        return replay(
            recordings,
            content,
            cluster=cluster,
            policy=Policy(),
            expected=bands,
            on_entries=lambda count: bar.advance(task, count),
        )


def _write_json(replayed: "Replayed", stream: BinaryIO, *, name: str) -> None:
    import msgspec

    from detector.replay import as_line

    try:
        for incident in replayed.incidents:
            stream.write(msgspec.json.encode(as_line(incident)) + b"\n")
        stream.flush()
    except BrokenPipeError:
        raise  # a reader that has seen enough; click knows what to do
    except OSError as error:
        _lost(f"--json {name}", error)
    finally:
        if name != "-":
            with suppress(OSError):  # what did not fit, once more
                stream.close()


def _plot(
    recordings: "Mapping[str, Recording]",
    replayed: "Replayed",
    folder: Path,
    *,
    quiet: bool,
) -> None:
    from detector.notify.chart import draw

    names = _file_names(recordings)
    with progress(quiet=quiet) as bar:
        task = bar.add_task("drawing", total=len(recordings), unit="charts")
        for job, recording in recordings.items():
            picture = draw(
                recording.window,
                incidents=[item for item in replayed.incidents if item.job.id == job],
                title=job,
                band=replayed.expected.get(job),
                excluded=replayed.excluded.get(job, ()),
            )
            try:
                (folder / f"{names[job]}.png").write_bytes(picture)
            except OSError as error:
                fail(
                    f"--plot {folder / names[job]}.png: cannot be written: {error.strerror}",
                    code=EXIT_UNAVAILABLE,
                )
            bar.advance(task)


def _file_names(jobs: Iterable[str]) -> dict[str, str]:
    """Return a file name for each job: its id where that is safe, else with a hash of it."""
    import hashlib
    import re

    names: dict[str, str] = {}
    taken: set[str] = set()
    for job in jobs:
        # 50 characters of at most 4 bytes, a hash and a suffix: below every system's 255.
        name = re.sub(r"[^\w.=+-]+", "_", job)[:50].lstrip(".-")
        # Some file systems do not tell upper from lower case.
        if name != job or name.casefold() in taken:
            name = f"{name or 'job'}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
        taken.add(name.casefold())
        names[job] = name
    return names


def _summarise(recordings: "Mapping[str, Recording]", replayed: "Replayed") -> None:
    from detector.cli.summary import print_summary

    try:
        print_summary(recordings, replayed)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _lost("the summary", error)


def _lost(what: str, error: OSError) -> None:
    """Leave because an output cannot be written, without Python trying once more at exit."""
    if what in ("--json -", "the summary"):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    fail(f"{what}: cannot be written: {error.strerror}", code=EXIT_UNAVAILABLE)
