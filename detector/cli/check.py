"""``ofuwatch check``: every error of every file at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli import EXIT_PROBLEM

if TYPE_CHECKING:
    from detector.config import Config
    from detector.tables import Problem


@click.command(short_help="Check config, models and rules; print every error of every file.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The config.toml to check, with the models and rules it names; the shipped one if "
    "left out.",
)
@click.option(
    "--print", "show", is_flag=True, help="Print the whole effective configuration as TOML."
)
def command(config_file: Path | None, show: bool) -> None:
    """Check config, models, rules and their cases; print every error of every file.

    Secrets that receivers point to must be there and are never shown. Exit code 0 when all is
    in order, 1 when something is not.
    """
    from detector.config import effective

    config, problems, read = _check(config_file)
    for problem in problems:
        click.echo(problem, err=True)
    if show and config is not None:
        click.echo(effective(config), nl=False)
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        click.echo(f"ofuwatch: {count}; mend them and check again", err=True)
        raise SystemExit(EXIT_PROBLEM)
    # On stderr when the configuration is on stdout, so that it can be redirected.
    click.echo(f"ok: {read}", err=show)


def _check(config_file: Path | None) -> tuple[Config | None, list[Problem], str]:
    """Read everything; return the problems of all of it, and in words what was read."""
    from detector import config, content
    from detector.tables import attempt, shipped

    problems: list[Problem] = []
    file = config_file or shipped() / "config.toml"
    read = attempt(config.load, file, problems)
    # A broken config.toml must not hide what is broken in the folders beside it.
    where = (
        read.content
        if read
        else config.ContentSettings(models=file.parent / "models", rules=file.parent / "rules")
    )
    if read is not None or where.models.is_dir() or where.rules.is_dir():
        found = attempt(lambda _: content.load(where.models, where.rules), None, problems)
    else:
        found = None
    cases = sorted((where.rules / "tests").glob("*.toml"))
    for path in cases:
        attempt(content.load_cases, path, problems)
    receivers = read.receivers if read else ()
    for receiver in receivers:
        attempt(config.secret, receiver, problems)
        for warning in getattr(receiver, "problems", ()):
            click.echo(f"warning: {warning}", err=True)
    if read is None or found is None:
        return read, problems, ""
    return (
        read,
        problems,
        f"{file}, {len(found.models)} models, {len(found.gpus.gpu)} GPU models, "
        f"{len(found.rules)} rules, {len(cases)} files of cases, {len(receivers)} receivers",
    )
