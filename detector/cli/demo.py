"""`ofuwatch demo`: the service at work on this machine."""

import shutil
import signal
import tempfile
from pathlib import Path
from types import FrameType

import click

from detector.cli import EXIT_PROBLEM, EXIT_UNAVAILABLE, fail


@click.command()
@click.option("--stay", is_flag=True, help="Keep the service running afterwards.")
@click.option(
    "--jobs",
    default=200,
    show_default=True,
    type=click.IntRange(0, 2_000),
    help="Synthetic jobs in the fleet.",
)
@click.option("--seed", default=1, show_default=True, help="Another seed, another fleet.")
@click.option(
    "--seconds",
    default=55.0,
    show_default=True,
    type=click.FloatRange(10, 3_600),
    help="How long three hours are played.",
)
@click.option("--strict", is_flag=True, help="Exit 1 when a fault is missed or an alert false.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for charts, log and data; default: ofuwatch-demo in the temporary folder.",
)
def command(
    *, stay: bool, jobs: int, seed: int, seconds: float, strict: bool, out: Path | None
) -> None:
    """Play a fleet with real and synthetic regressions to the real service, and show it."""
    from rich.console import Console

    from detector.content import shipped
    from detector.demo.stage import Plan, perform
    from detector.store.errors import StoreError

    folder = (out or Path(tempfile.gettempdir()) / "ofuwatch-demo").resolve()
    if out is None:
        shutil.rmtree(folder, ignore_errors=True)
    plan = Plan(folder=folder, content=shipped(), jobs=jobs, play_s=seconds, seed=seed)

    def end(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        raise KeyboardInterrupt  # so that the service is ended too

    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end)
    # Into a file or a pipe the tables get the room that they need.
    console = Console() if Console().is_terminal else Console(width=100)
    try:
        good = perform(plan, console, stay=stay)
    except StoreError as error:
        fail(str(error), code=EXIT_UNAVAILABLE)
    except OSError as error:
        fail(f"{folder}: {error.strerror or error}", code=EXIT_UNAVAILABLE)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if strict and not good:
        raise SystemExit(EXIT_PROBLEM)
