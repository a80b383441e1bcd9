"""Progress bars on stderr, and reading recordings behind one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detector.cli import fail

if TYPE_CHECKING:
    from rich.progress import Progress

    from detector.store.recording import Recording


def progress(*, quiet: bool) -> "Progress":
    """Return a bar that is drawn on a terminal alone, and goes when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        console=console,
        disable=quiet or not console.is_terminal,
        transient=True,
    )


def read_recordings(paths: Sequence[Path], *, quiet: bool) -> "Mapping[str, Recording]":
    """Return the recordings in files and folders by job; leaves on bad input."""
    from detector.store.recording import RecordingError, files, read

    try:
        named = files(paths)
        with progress(quiet=quiet) as bar:
            task = bar.add_task("reading", total=len(named), unit="files")
            return read(named, on_file=lambda _: bar.advance(task))
    except RecordingError as error:
        fail(str(error))
