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
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.detection.page import PAGE, put, table
from benchmarks.machine import machine, today
from benchmarks.recordings.disturb import DISTURBANCES
from benchmarks.recordings.labelled import Judged, Labelled, load
from benchmarks.recordings.play import Played, played

HERE = Path(__file__).parents[2] / "tests" / "recordings" / "real"
HEAD = ("recording", "as it is", "each event found, share of copies", "false alarm, share",
        "what those said")  # fmt: skip


def main() -> None:
    """Play what the command line asks for, and say what came of it."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160)
    recordings = load(HERE)
    if options.more:
        here = {recording.name for recording in recordings}
        recordings += [item for item in load(options.more) if item.name not in here]
    if options.only:
        wanted = options.only.split(",")
        recordings = [item for item in recordings if item.name in wanted]
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
    _show(console, ("disturbance", "copies", "judged right", "without it"), by_cause(found))
    minutes = (time.monotonic() - began) / 60
    console.print(f"{total(found)} {minutes:.1f} min")
    if options.json:
        options.json.write_text(json.dumps([asdict(item) for item in found], indent=1) + "\n")
    if not (options.no_write or options.only):
        given = " ".join(Path(one).name if "/" in one else one for one in sys.argv[1:])
        command = f"python -m benchmarks.recordings {given}".strip()
        write(rows, found, command=shlex.join(command.split()))
        console.print(f"written to {PAGE}")


def row(recording: Labelled, found: list[Played]) -> tuple[str, ...]:
    """Return a recording's line of the table."""
    mine = [item for item in found if item.name == recording.name]
    whole = next(item.judged for item in mine if not item.copy)
    copies = [item.judged for item in mine if item.copy]
    required = [event for event in recording.events if event.required]
    shares = [
        f"{event.kind} {event.change:+.0%}: {_share([item.found[k] for item in copies])}"
        for k, event in enumerate(required)
    ]
    said = Counter(
        alarm.kind + ("" if alarm.change is None else f" {alarm.change:+.0%}")
        for item in copies
        for alarm in item.wrong
    )
    return (
        recording.name,
        "right" if whole.right else _wrongs(whole),
        "; ".join(shares),
        _share([bool(item.wrong) for item in copies]),
        ", ".join(f"{count} x {text}" for text, count in said.most_common(3)),
    )


def _wrongs(judged: Judged) -> str:
    missed = [] if all(judged.found) else ["missed"]
    return " and ".join(missed + (["false alarm"] if judged.wrong else []))


def by_cause(found: list[Played]) -> list[tuple[str, ...]]:
    """Return for each disturbance the share judged right with it and without it."""
    copies = [item for item in found if item.copy]
    rows: list[tuple[str, ...]] = []
    for name in DISTURBANCES:
        having = [item.judged.right for item in copies if name in item.done]
        lacking = [item.judged.right for item in copies if name not in item.done]
        rows.append((name, str(len(having)), _share(having), _share(lacking)))
    return rows


def total(found: list[Played]) -> str:
    """Return the sum of it in a sentence."""
    whole = [item.judged for item in found if not item.copy]
    copies = [item.judged for item in found if item.copy]
    events = [hit for item in copies for hit in item.found]
    return (
        f"As they are, {sum(item.right for item in whole)} of {len(whole)} are judged right. "
        f"Of {len(copies)} disturbed copies {_share([item.right for item in copies])} are; "
        f"{_share(events)} of their {len(events)} events are found, and "
        f"{_share([bool(item.wrong) for item in copies])} have a false alarm."
    )


def write(rows: list[tuple[str, ...]], found: list[Played], *, command: str) -> None:
    """Put the tables into docs/detection.md."""
    block = "\n\n".join(
        (
            f"{total(found)} `{command}`, {today()}, on {machine()}.",
            table(HEAD, rows),
            table(("disturbance", "copies", "judged right", "without it"), by_cause(found)),
        )
    )
    PAGE.write_text(put(PAGE.read_text(), "recordings", block))


def _share(claims: list[bool]) -> str:
    return f"{sum(claims) / len(claims):.2f}" if claims else "-"


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
