"""docs/cli.md names every verb with all of its options, and none that is not there."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from detector.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def verbs() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield name, command


def options(command: click.Command) -> set[str]:
    own = {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
        if name.startswith("--")
    }
    nested = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*(options(each) for each in nested)) - {"--help"}


def test_the_page_has_a_section_for_each_verb_with_exactly_its_options() -> None:
    _, *sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    told = {
        section.partition("\n")[0]: set(re.findall(r"--[a-z][a-z-]+", section))
        for section in sections
    }
    assert told == {name: options(command) for name, command in verbs()}


def test_every_command_of_a_group_stands_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, command in verbs():
        if isinstance(command, click.Group):
            for each in command.commands:
                assert f"ofuwatch {name} {each} " in text
