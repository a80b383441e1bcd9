"""How well changes are found: ``python -m benchmarks.detection``, and docs/detection.md.

``--quick --only ofuwatch`` answers in about a minute, for whoever turns a knob; without
options the peers and the optimum are measured on the same jobs too; ``--full`` takes as many
quiet jobs as the rarest false alarms need.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import SEEDS
from benchmarks.detection.plan import Plan, heard, sizes
from benchmarks.detection.report import HEAD, figures, rows
from benchmarks.machine import machine, today

QUICK = {"quiet": 60, "change": 12}
USUAL = {"quiet": 440, "change": 60}
FULL = {"quiet": 440, "change": 120, "pages": 3200}


def main() -> None:
    """Run what the command line asks for."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 132)
    seed = SEEDS[options.seed] if options.seed in SEEDS else int(options.seed)
    jobs = sizes(**(QUICK if options.quick else FULL if options.full else USUAL))
    if options.quiet_jobs:
        jobs["quiet"] = options.quiet_jobs
    plan = Plan(jobs=jobs, seed=seed, announced=options.announced, metrics=options.metrics)
    if options.classes:
        plan = plan.only(options.classes.split(","))
    columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("jobs"), TimeElapsedColumn())  # fmt: skip
    began = time.monotonic()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("ofuwatch", total=sum(plan.jobs.values()))
        found = heard(
            plan, workers=options.workers, on_jobs=lambda n: progress.advance(task, n)
        )
    table = Table(title=f"ofuwatch, seed {options.seed}, {time.monotonic() - began:.0f} s",
                  title_justify="left")  # fmt: skip
    for name in HEAD:
        table.add_column(name)
    for row in rows(found):
        table.add_row(*row)
    console.print(table)
    if options.json:
        about = {"seed": seed, "date": today(), "machine": machine()}
        text = json.dumps({**about, "classes": figures(found)}, indent=1)
        options.json.write_text(text + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few jobs, about a minute")
    size.add_argument(
        "--full", action="store_true", help="enough quiet jobs for the page bound"
    )
    parser.add_argument("--only", choices=["ofuwatch"], help="leave out peers and optimum")
    parser.add_argument("--classes", help=f"of {','.join(CLASSES)}")
    parser.add_argument("--quiet-jobs", type=int, help="how many quiet jobs")
    parser.add_argument("--seed", default="test", help="calibration, test, or a number")
    parser.add_argument("--announced", action="store_true", help="with context events")
    parser.add_argument("--metrics", action="store_true", help="with the other metrics")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
