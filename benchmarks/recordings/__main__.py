"""Whether real recordings are judged right, and stay so when they are slightly disturbed.

``python -m benchmarks.recordings`` plays each as it is and in disturbed copies, shows what
share of the copies is judged right, and writes the table into docs/detection.md.
"""

import argparse
import json
import os
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.detection.page import PAGE
from benchmarks.recordings.labelled import Labelled, load
from benchmarks.recordings.play import played
from benchmarks.recordings.report import CAUSES, HEAD, by_cause, row, total, write

HERE = Path(__file__).parents[2] / "tests" / "recordings" / "real"


def main() -> None:
    """Play what the command line asks for, and say what came of it."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160)
    recordings = _recordings(options)
    began = time.monotonic()
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        found = played(
            recordings,
            copies=options.copies,
            seed=options.seed,
            workers=options.workers,
            progress=progress,
        )
    rows = [row(recording, found) for recording in recordings]
    _show(console, HEAD, rows)
    _show(console, CAUSES, by_cause(found))
    minutes = (time.monotonic() - began) / 60
    console.print(f"{total(found)} {minutes:.1f} min")
    if options.json:
        options.json.write_text(json.dumps([asdict(item) for item in found], indent=1) + "\n")
    if not (options.no_write or options.only):
        given = " ".join(Path(one).name if "/" in one else one for one in sys.argv[1:])
        command = f"python -m benchmarks.recordings {given}".strip()
        write(rows, found, command=shlex.join(command.split()))
        console.print(f"written to {PAGE}")


def _recordings(options: argparse.Namespace) -> list[Labelled]:
    """Return the recordings that are here, those elsewhere, or some of them."""
    found = {item.name: item for item in load(options.more)} if options.more else {}
    found |= {item.name: item for item in load(HERE)}
    wanted = options.only.split(",") if options.only else sorted(found)
    unknown = [name for name in wanted if name not in found]
    if unknown:
        sys.exit(f"no recording {', '.join(unknown)}; there are {', '.join(sorted(found))}")
    return [found[name] for name in wanted]


def _show(console: Console, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    shown: Any = Table(*head)
    for cells in rows:
        shown.add_row(*cells)
    console.print(shown)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recordings", description=__doc__
    )
    parser.add_argument("--copies", type=int, default=20, help="of each recording")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--more", type=Path, metavar="DIR",
                        help="another folder with labels.json")  # fmt: skip
    parser.add_argument("--only", metavar="NAMES", help="some recordings; writes no page")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every copy there")
    parser.add_argument("--no-write", action="store_true", help="leave docs/detection.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
