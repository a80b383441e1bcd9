"""How well changes are found: ``python -m benchmarks.detection``, and docs/detection.md.

``--quick --only ofuwatch`` answers in about a minute, for whoever turns a knob; without
``--only`` the peers and the optimum are measured on the same jobs too, and the page is written
anew; ``--full`` takes as many quiet jobs as the rarest false alarms need. ``--generator
heldout`` takes another author's jobs, and writes its part of the page.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.detection import cost, environment, page
from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import CADENCE_MS, SEEDS
from benchmarks.detection.optimum import Optimum
from benchmarks.detection.plan import GENERATORS, Plan, heard, sizes
from benchmarks.detection.report import HEAD, Figures, figures, rows
from benchmarks.detection.rivals import Jobs, calibrated
from benchmarks.detection.score import Heard
from benchmarks.machine import machine, today


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many jobs each part of a run gets.

    Attributes
    ----------
    pages
        Quiet jobs of our own run; None is as many as for all the rest.
    dear
        Peers whose every job costs seconds.
    """

    quiet: int
    change: int
    pages: int | None
    cheap: Jobs
    dear: Jobs
    fleet: int


QUICK = Size(
    quiet=60, change=12, pages=None, fleet=1_000,
    cheap=Jobs(quiet=48, change=12, test_quiet=60, test_change=12),
    dear=Jobs(quiet=6, change=3, test_quiet=6, test_change=3),
)  # fmt: skip
USUAL = Size(
    quiet=440, change=60, pages=None, fleet=cost.JOBS,
    cheap=Jobs(quiet=240, change=36, test_quiet=440, test_change=60),
    dear=Jobs(quiet=22, change=4, test_quiet=24, test_change=8),
)  # fmt: skip
FULL = Size(
    quiet=440, change=120, pages=3_900, fleet=cost.JOBS,
    cheap=Jobs(quiet=440, change=60, test_quiet=440, test_change=120),
    dear=Jobs(quiet=36, change=12, test_quiet=60, test_change=20),
)  # fmt: skip
# With announcements and the other metrics: what they are to halve, and what it may not cost.
RICH = ("quiet", "drop2.5x", "drop2x", "drop1.33x")
WITH = {
    "with context events": (True, False),
    "with other metrics": (False, True),
    "with both": (True, True),
}


def _named(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with files by their names: a page is no place for one's folders."""
    return [Path(one).name if "/" in one else one for one in arguments]


def main() -> None:
    """Run what the command line asks for."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 132)
    size = QUICK if options.quick else FULL if options.full else USUAL
    began = time.monotonic()
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        plan = _plan(options, size)
        found = _ours(plan, "ofuwatch", progress, workers=options.workers)
        console.print(
            _compact(found, f"ofuwatch, {options.generator} jobs, seed {options.seed}")
        )
        results: dict[str, Any] = {
            "command": "python -m benchmarks.detection " + shlex.join(_named(sys.argv[1:])),
            "date": today(),
            "machine": machine(),
            "seeds": [SEEDS["calibration"], plan.seed],
            "ours": figures(found),
        }
        if options.only is None:
            results |= _beside(plan, size, progress, workers=options.workers)
            results |= (
                _kept(options.reuse)
                if options.reuse
                else _others(size, progress, console, workers=options.workers)
            )
    results["minutes"] = (time.monotonic() - began) / 60
    console.print(f"{results['minutes']:.1f} min")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if not options.no_write:
        _write(options, results, console)


def _write(options: argparse.Namespace, results: dict[str, Any], console: Console) -> None:
    """Put what a whole run found into the page; a part of a run leaves it."""
    if options.only is None:
        page.write(results)
    elif options.generator == "heldout" and not (options.quick or options.classes):
        page.write_heldout(results)
    else:
        return
    console.print(f"written to {page.PAGE}")


def _beside(plan: Plan, size: Size, progress: Progress, *, workers: int) -> dict[str, Any]:
    """Measure our detector with more to go by, and what it costs."""
    context = {}
    few = {**plan.only(RICH).jobs, "quiet": size.quiet}
    for what, (announced, metrics) in WITH.items():
        rich = replace(plan, jobs=few, announced=announced, metrics=metrics)
        context[what] = figures(_ours(rich, what, progress, workers=workers))
    task = progress.add_task("speed", total=1)
    spent = cost.measure(jobs=size.fleet)
    progress.advance(task)
    per_point = spent.day_quarter_s / (spent.jobs * 6 * 360)
    return {
        "context": context,
        "cost": {name: getattr(spent, name) for name in spent.__slots__}
        | {"ms_per_1000": per_point * 1e6},
    }


def _others(
    size: Size, progress: Progress, console: Console, *, workers: int
) -> dict[str, Any]:
    """Measure the optimum and the peers."""
    best = _optimum(size.cheap, progress, workers=workers)
    return {"optimum": best, **_peers(size, progress, console, workers=workers)}


def _kept(file: Path) -> dict[str, Any]:
    """Return what an earlier run found of the optimum and the peers."""
    earlier = json.loads(file.read_text())
    return {name: earlier[name] for name in ("optimum", "peers", "batch", "calls")}


def _ours(plan: Plan, what: str, progress: Progress, *, workers: int) -> dict[str, list[Heard]]:
    task = progress.add_task(what, total=sum(plan.jobs.values()))
    return heard(plan, workers=workers, on_jobs=lambda n: progress.advance(task, n))


def _optimum(jobs: Jobs, progress: Progress, *, workers: int) -> dict[str, Figures]:
    """Measure the optimum: for each class of drops the one that knows its size."""
    task = progress.add_task("optimum", total=None)
    rivals = {
        name: (Optimum(factor=kind.factor), jobs, ("quiet", name))
        for name, kind in CLASSES.items()
        if kind.kind == "drop"
    }
    found = calibrated(
        rivals,
        workers=workers,
        on_part=lambda done, parts: progress.update(task, completed=done, total=parts),
    )
    return {
        name: {**figures(items)[name], "quiet": figures(items)["quiet"]}
        for name, (_, items) in found.items()
    }


def _peers(size: Size, progress: Progress, console: Console, *, workers: int) -> dict[str, Any]:
    """Measure the peers in their own environment."""
    interpreter = environment.python(console.print)
    task = progress.add_task("peers", total=None)
    numbers = [
        str(getattr(jobs, name)) for jobs in (size.cheap, size.dear) for name in jobs.__slots__
    ]
    arguments = ["--workers", str(workers), "--cheap", *numbers[:4], "--dear", *numbers[4:]]
    out: dict[str, Any] = {"peers": []}
    for line in environment.told(interpreter, arguments):
        if "done" in line:
            progress.update(task, completed=line["done"], total=line["parts"])
        elif "peer" in line:
            out["peers"].append(line)
        else:
            out |= line
    return out


def _plan(options: argparse.Namespace, size: Size) -> Plan:
    change = options.change_jobs or size.change
    jobs = sizes(quiet=size.quiet, change=change, pages=size.pages)
    if options.quiet_jobs:
        jobs["quiet"] = options.quiet_jobs
    plan = Plan(
        jobs=jobs,
        seed=SEEDS[options.seed] if options.seed in SEEDS else int(options.seed),
        announced=options.announced,
        metrics=options.metrics,
        generator=options.generator,
        cadence_s=options.cadence,
    )
    return plan.only(options.classes.split(",")) if options.classes else plan


def _compact(found: dict[str, list[Heard]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in HEAD:
        table.add_column(name)
    for row in rows(found):
        table.add_row(*row)
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few jobs")
    size.add_argument(
        "--full", action="store_true", help="enough quiet jobs for the page bound"
    )
    parser.add_argument("--only", choices=["ofuwatch"], help="leave out peers and optimum")
    parser.add_argument("--classes", help=f"with --only: some of {','.join(CLASSES)}")
    parser.add_argument("--quiet-jobs", type=int, help="how many quiet jobs")
    parser.add_argument("--change-jobs", type=int, help="with --only: how many of each change")
    parser.add_argument("--seed", default="test", help="calibration, test, or a number")
    parser.add_argument("--announced", action="store_true", help="with context events")
    parser.add_argument("--metrics", action="store_true", help="with the other metrics")
    parser.add_argument("--generator", choices=GENERATORS, default="own",
                        help="with --only: who makes the jobs")  # fmt: skip
    parser.add_argument("--cadence", type=float, default=CADENCE_MS / 1000, metavar="SECONDS",
                        help="with --only: distance of two samples")  # fmt: skip
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures there too")
    parser.add_argument("--reuse", type=Path, metavar="JSON",
                        help="take optimum and peers from an earlier run's --json")  # fmt: skip
    parser.add_argument("--no-write", action="store_true", help="leave docs/detection.md")
    options = parser.parse_args()
    if (options.classes or options.change_jobs) and not options.only:
        parser.error("--classes and --change-jobs need --only ofuwatch")
    if options.generator != "own" and (not options.only or options.metrics):
        parser.error("--generator heldout needs --only ofuwatch and goes without --metrics")
    if options.cadence != CADENCE_MS / 1000 and not options.only:
        parser.error("--cadence needs --only ofuwatch")
    if options.generator == "own" and (options.cadence < 10 or options.cadence % 10):
        parser.error("--cadence is a multiple of 10 s, but for --generator heldout")
    unknown = set((options.classes or "").split(",")) - CLASSES.keys() - {""}
    if unknown:
        parser.error(f"no class {', '.join(sorted(unknown))}; there are {', '.join(CLASSES)}")
    return options


if __name__ == "__main__":
    main()
