"""`ofuwatch calibrate`: the false alarms of a bound, and the setting that keeps a rate."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli import EXIT_INTERRUPTED, EXIT_PROBLEM, EXIT_UNAVAILABLE, fail
from detector.cli.opening import config_option, read_config, read_content
from detector.cli.progress import progress, read_recordings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from detector.analysis.bounds import Calibration
    from detector.analysis.judge import Content
    from detector.calibration.search import Bound, Quiet, Tried
    from detector.store.recording import Recording

# What is to be kept unless said, false alarms a job-day: the goals of docs/detection.md.
TARGETS = {"notify": 0.1, "page": 0.001}
# Made-up job-days without recordings: a few more than it takes to show the target.
_DAYS = {"notify": 400.0, "page": 3_750.0}
_KNOBS = {"notify": "caution", "page": "after"}
# Of what is left behind the first hour of a recording: at least as long again.
_LEAST_MS = 3_600_000
# Options whose value says where the settings came from.
_SETTINGS_FROM = ("--config", "--models")
# Alarms in recordings that are listed; the rest are counted.
_LISTED = 20


@click.command(short_help="Set a bound by the false alarms it gives on jobs that were well.")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--bound",
    type=click.Choice(["notify", "page"]),
    default="notify",
    show_default=True,
    help="What is told, or what somebody is woken for.",
)
@click.option(
    "--target",
    type=click.FloatRange(min=0, min_open=True),
    help="False alarms a job-day at most.  [default: 0.1, of page 0.001]",
)
@click.option("--model", "name", default="ofu", show_default=True, help="Which model's bound.")
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    help="Folder of models to calibrate instead of the configuration's.",
)
@click.option(
    "--job-days",
    type=click.FloatRange(min=0, max=1_000_000),
    help="Days of made-up quiet jobs.  [default: 400, of page 3750; 0 with PATHS]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Which made-up jobs.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: all cores]")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
@config_option
def command(
    paths: Sequence[Path],
    *,
    bound: Bound,
    target: float | None,
    name: str,
    models: Path | None,
    job_days: float | None,
    seed: int,
    workers: int | None,
    dry_run: bool,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Count the false alarms of a bound on jobs that were well, and set it.

    PATHS are recordings as `replay` reads them, in which nothing went wrong; what is found in
    them is listed, since it may be no false alarm. Without any, made-up jobs are taken. The
    most sensitive setting is chosen whose rate is shown to keep the target: the upper end of
    its 95 % interval does. It is written with what was measured into the model's TOML.

    Exit code 0 when a setting keeps the target, 1 when none does, 2 on bad input, 3 when the
    file cannot be written.
    """
    from detector.calibration.search import MADE_UP, Quiet, made_days

    where = read_config(config_file).content
    folder = models or where.models
    content = read_content(folder, where.rules)
    file = _file(folder, name, content, bound)
    before = b"" if dry_run else _writable(file)
    wanted = TARGETS[bound] if target is None else target
    if not isfinite(wanted):
        fail(f"--target {wanted} is not a rate: give false alarms a job-day, for example 0.1")
    metric = next(one.metric for one in content.models if one.name == name)
    if metric != MADE_UP and (job_days or not paths):
        fail(f"made-up jobs report {MADE_UP} alone: name recordings that hold {metric}")
    days = job_days if job_days is not None else 0.0 if paths else _DAYS[bound]
    with _interruptible():
        recordings = _long_enough(read_recordings(paths, quiet=False), metric) if paths else {}
        made = made_days(days)
        quiet = Quiet(recordings=recordings, metric=metric, made=made, seed=seed)
        _suffices(quiet, wanted)
        tried = _search(content, name, bound, quiet, target=wanted, workers=workers)
    chosen = next((one for one in tried if one.keeps(wanted)), None)
    _print_table(tried, chosen, bound, wanted)
    _print_alarms(chosen or tried[-1], recordings)
    if chosen is None:
        fail(f"no setting keeps {wanted:g} a job-day; nothing was written", code=EXIT_PROBLEM)
    said = _calibration(chosen, quiet)
    if dry_run:
        click.echo(f"{file} is left as it is (--dry-run)")
        return
    _write(file, before, bound, chosen, said)
    click.echo(
        f"wrote [{bound}] {_KNOBS[bound]} = {_setting(chosen)} and its calibration to {file}"
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        fail("interrupted; nothing was written", code=EXIT_INTERRUPTED)
    except RuntimeError as error:
        fail(str(error))


def _file(folder: Path, name: str, content: Content, bound: str) -> Path:
    """Return the file of the model; leaves when there is none, or it has no such bound."""
    from detector.tables import did_you_mean, read

    known = {model.name: model for model in content.models}
    if name not in known:
        fail(f"no model is called {name!r} in {folder}{did_you_mean(name, known)}")
    if bound == "page" and known[name].page is None:
        fail(
            f"model {name} has no [page]: its falls wake nobody. Add the table to calibrate it"
        )
    tables = ((path, read(path).content) for path in sorted(folder.glob("*.toml")))
    return next(
        path for path, table in tables if table.get("name") == name and "metric" in table
    )


def _writable(file: Path) -> bytes:
    """Return what the file holds; leaves when it may not be written."""
    from detector.tables import shipped

    packaged = shipped()
    if packaged.name == "_content" and packaged in file.resolve().parents:
        fail(
            f"{file} came with the package; make a folder of your own with `ofuwatch init DIR`"
        )
    if not os.access(file, os.W_OK) or not os.access(file.parent, os.W_OK):
        fail(
            f"{file}: may not be written; make a folder of your own with `ofuwatch init DIR`, "
            "or look with --dry-run",
            code=EXIT_UNAVAILABLE,
        )
    return file.read_bytes()


def _long_enough(recordings: Mapping[str, Recording], metric: str) -> dict[str, Recording]:
    """Return the recordings that show something of the metric; names those that do not."""
    from detector.calibration.search import watched_ms

    kept = {job: one for job, one in recordings.items() if watched_ms(one, metric) >= _LEAST_MS}
    short = len(recordings) - len(kept)
    if short:
        click.echo(
            f"left out: {short} of {len(recordings)} jobs show {metric} above zero for less "
            "than 2 h; a job's first hour is not counted",
            err=True,
        )
    if not kept:
        fail(f"no recording is long enough: each needs at least 2 h of {metric} above zero")
    return kept


def _suffices(quiet: Quiet, target: float) -> None:
    """Leave when the jobs are too few to show the target, however quiet they are."""
    from detector.calibration.rate import shows

    if not quiet.job_days:
        fail("no jobs: name recordings, or take made-up ones with --job-days")
    least = shows(quiet.job_days)
    if least > target:
        needed = shows(1.0) / target
        fail(
            f"{quiet.job_days:.3g} job-days can show no rate below {least:.2g} a job-day "
            f"(95 %); for {target:g} it takes {needed:.0f}: add recordings, --job-days "
            f"{needed - quiet.job_days + 1:.0f}, or a higher --target"
        )


def _search(
    content: Content,
    name: str,
    bound: Bound,
    quiet: Quiet,
    *,
    target: float,
    workers: int | None,
) -> tuple[Tried, ...]:
    from detector.calibration.search import search

    click.echo(
        f"{len(quiet.recordings)} recorded and {quiet.made} made-up jobs, "
        f"{quiet.job_days:.0f} job-days; at most {target:g} false alarms a job-day",
        err=True,
    )
    with progress(quiet=False) as bar:
        task = bar.add_task("replaying", total=None, unit="samples")

        def told(one: Tried) -> None:
            bar.console.print(
                f"{_KNOBS[bound]} {_setting(one)}: {one.rate.events} in "
                f"{one.rate.exposure:.0f} job-days",
                highlight=False,
            )
            bar.reset(task, total=quiet.samples)

        bar.reset(task, total=quiet.samples)
        return search(
            content, name, bound, quiet, target=target, workers=workers, on_tried=told,
            on_samples=lambda count: bar.advance(task, count),
        )  # fmt: skip


def _setting(one: Tried) -> str:
    return f"{one.setting:g}" if isinstance(one.setting, float) else str(one.setting)


def _print_table(
    tried: Sequence[Tried], chosen: Tried | None, bound: str, target: float
) -> None:
    click.echo(
        f"{_KNOBS[bound]:>8}  false alarms  a job-day  95 % interval     keeps {target:g}"
    )
    for one in tried:
        low, high = one.rate.interval
        keeps = (
            "yes" if one.keeps(target) else "not shown" if one.rate.value <= target else "no"
        )
        mark = "  <- chosen" if one is chosen else ""
        click.echo(
            f"{_setting(one):>8}  {one.rate.events:>12}  {one.rate.value:>9.4f}  "
            f"{low:.4f} - {high:.4f}  {keeps:>9}{mark}"
        )


def _print_alarms(one: Tried, recordings: Mapping[str, Recording]) -> None:
    """List what was found in recordings: people know whether it was a change."""
    from detector.log import printable
    from detector.notify.wording import span_text
    from detector.series import iso

    found = [alarm for alarm in one.alarms if alarm.job in recordings]
    if not found:
        return
    click.echo(f"found in the recordings at {_setting(one)}; cut out what was a real change:")
    for alarm in found[:_LISTED]:
        line = (
            f"  {iso(alarm.onset_ms // 1000 * 1000)}  {alarm.change:+.1%}  {alarm.kind}, after "
            f"{span_text(alarm.time_ms - alarm.onset_ms)}  {alarm.job}"
        )
        click.echo(printable(line))
    if len(found) > _LISTED:
        click.echo(f"  and {len(found) - _LISTED} more")


def _calibration(chosen: Tried, quiet: Quiet) -> Calibration:
    from detector.analysis.bounds import Calibration

    low, high = chosen.rate.interval
    recorded = f"{len(quiet.recordings)} recordings" if quiet.recordings else ""
    made = f"{quiet.made} made-up jobs of seed {quiet.seed}" if quiet.made else ""
    return Calibration(
        false_alarms=chosen.rate.value,
        low=low,
        high=high,
        events=chosen.rate.events,
        job_days=round(chosen.rate.exposure, 1),
        data=" and ".join(filter(None, (recorded, made))),
        date=datetime.now(UTC).date().isoformat(),
        command="ofuwatch calibrate " + shlex.join(_plain(sys.argv[2:])),
    )


def _plain(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as they were given, but for the folders of recordings.

    A model is no place for where somebody keeps recordings; what the command was told to read
    its settings from is needed to run it again.
    """
    kept: list[str] = []
    option = False
    for one in arguments:
        kept.append(one if option or one.startswith("-") else Path(one).name or one)
        option = one in _SETTINGS_FROM
    return kept


def _write(
    file: Path, before: bytes, bound: str, chosen: Tried, calibration: Calibration
) -> None:
    from detector.calibration.editing import EditError, replaced, written

    try:
        after = written(
            before.decode(), bound, knob=_KNOBS[bound], setting=chosen.setting,
            calibration=calibration,
        )  # fmt: skip
        replaced(file, before=before, after=after.encode())
    except EditError as error:
        fail(
            f"{error}" if str(file) in str(error) else f"{file}: {error}", code=EXIT_UNAVAILABLE
        )
