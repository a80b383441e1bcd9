"""The commands that docs/metric.md shows, run."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from detector.cli import main

_PAGE = Path(__file__).parent.parent.parent / "docs" / "metric.md"


def _examples() -> list[tuple[str, list[str]]]:
    """Return the page's commands and the lines that they are said to print."""
    text = _PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n\$ ofuwatch (.*?)\n(.*?)```", text, re.DOTALL)
    return [(command, output.splitlines()) for command, output in blocks]


@pytest.mark.parametrize(("command", "lines"), _examples())
def test_a_command_of_the_page_prints_what_is_shown(command: str, lines: list[str]) -> None:
    result = CliRunner().invoke(main, shlex.split(command))
    printed = (result.stdout or result.stderr).splitlines()
    if lines[0] == "...":
        lines = lines[1:]
        printed = printed[-len(lines) :]
    if lines[-1] == "...":
        lines = lines[:-1]
        printed = printed[: len(lines)]
    assert printed == lines


def test_the_page_has_worked_examples_of_both_calculators() -> None:
    verbs = [command.partition(" ")[0] for command, _ in _examples()]
    assert verbs.count("ofu") >= 6
    assert verbs.count("mfu") >= 2
