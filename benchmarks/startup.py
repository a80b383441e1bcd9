"""What it costs to ask for help: CPU time of ``ofuwatch --help`` over an empty interpreter."""

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from benchmarks.report import Row

_ROUNDS = 20


def measure(progress: Progress, *, rounds: int = _ROUNDS) -> list[Row]:
    """Return the figures of ``rounds`` starts, taken in turn so that a busy machine is fair."""
    task = progress.add_task("ofuwatch --help", total=rounds)
    # Not the console script: its start is the same two lines, but an editable install adds a
    # finder of its own that an installed wheel does not have.
    help_command = (sys.executable, "-c", "from detector.cli import main; main(['--help'])")
    nothing, asked = [], []
    for _ in range(rounds):
        nothing.append(_cpu_s((sys.executable, "-c", "pass")))
        asked.append(_cpu_s(help_command))
        progress.advance(task)
    base, help_s = statistics.median(nothing), statistics.median(asked)
    return [
        (
            "CPU time of `ofuwatch --help` over `python -c pass`",
            f"{help_s - base:.3f} s ({help_s:.3f} against {base:.3f})",
            "below 0.15 s",
        ),
    ]


def _cpu_s(command: Sequence[str]) -> float:
    """CPU seconds, user and system, that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
