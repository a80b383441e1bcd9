"""Measures what docs/performance.md says, and writes it there: ``make bench``."""

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import fleet_size, startup
from benchmarks.collection import backfill, parse, scrape
from benchmarks.machine import machine
from benchmarks.report import PAGE, Row, write

_SECTIONS = ("startup", "fleet", "parse", "scrape", "backfill")


def main() -> None:
    """Run the benchmarks that the command line names, and say where the figures went."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="|".join(_SECTIONS), help="default: all")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument(
        "--hours",
        type=int,
        default=6,
        help="of history at the cold start and of the past of new jobs",
    )
    parser.add_argument("--minutes", type=float, default=2, help="of scraping exporters")
    parser.add_argument("--no-write", action="store_true", help="print, and leave the page")
    options = parser.parse_args()
    if unknown := set(options.only) - set(_SECTIONS):
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(_SECTIONS)}"
        )
    console = Console()
    console.print(f"on {machine()}")
    columns = (TextColumn("{task.description:44}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        measures: dict[str, Callable[[], Iterable[Row]]] = {
            "startup": partial(startup.measure, progress),
            "fleet": partial(
                fleet_size.measure,
                progress, jobs=options.jobs, ticks=options.ticks, hours=options.hours,
            ),
            "parse": partial(parse.measure, progress),
            "scrape": partial(scrape.measure, progress, minutes=options.minutes),
            "backfill": partial(backfill.measure, progress, hours=options.hours),
        }  # fmt: skip
        results = {
            name: list(measures[name]())
            for name in _SECTIONS
            if name in (options.only or _SECTIONS)
        }
    for section, rows in results.items():
        for what, figure, goal in rows:
            console.print(f"{what}: [bold]{figure}[/bold] (goal: {goal})")
        if not options.no_write:
            given = f' ARGS="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else ""
            write(section, rows, command=f"make bench{given}")
    if not options.no_write:
        console.print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
