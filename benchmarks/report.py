"""Writes measured figures into docs/performance.md, between the markers of their section."""

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import machine, today

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"

Row = tuple[str, str, str]


def write(section: str, rows: Sequence[Row], *, command: str, page: Path = PAGE) -> None:
    """Replace a section's table: what was measured, the figure, and what it must reach.

    Raises
    ------
    ValueError
        When the page has no markers for ``section``.
    """
    text = page.read_text()
    start, end = f"<!-- measured: {section} -->", "<!-- end -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        msg = f"{page} has no {start} ... {end} to put the figures between"
        raise ValueError(msg)
    block = "\n".join((start, table(rows, command=command), end))
    page.write_text(pattern.sub(lambda _: block, text))


def table(rows: Sequence[Row], *, command: str) -> str:
    """Return the table with the command, the date and the machine below it."""
    lines = ["| what | measured | goal |", "| --- | --- | --- |"]
    lines += [f"| {what} | {figure} | {goal} |" for what, figure, goal in rows]
    lines += ["", f"`{command}`, {today()}, on {machine()}."]
    return "\n".join(lines)
