"""``ofuwatch check``: every error of every file at once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli import EXIT_PROBLEM, counted
from detector.cli.opening import config_option, config_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from detector.config import Config, Examined
    from detector.tables import Problem


@click.command(short_help="Check config, models and rules; print every error of every file.")
@config_option
@click.option(
    "--print", "show", is_flag=True, help="Print the whole effective configuration as TOML."
)
def command(config_file: Path | None, show: bool) -> None:
    """Check config, models, rules and their cases; print every error of every file.

    What receivers point to must be there and be a secret of their kind; it is never shown.
    Exit code 0 when all is in order, 1 when something is not.
    """
    from detector import config, sources
    from detector.receivers import doubts
    from detector.tables import attempt

    file = config_path(config_file)
    problems: list[Problem] = []
    examined = attempt(config.examine, file, problems)
    read = _check(file, examined, problems)
    for problem in dict.fromkeys(problems):
        click.echo(problem, err=True)
    doubtful = (
        (*doubts(examined.readable), *sources.doubts(examined.readable)) if examined else ()
    )
    for doubt in dict.fromkeys(doubtful):
        click.echo(f"warning: {doubt}", err=True)
    if show and examined is not None and examined.whole is not None:
        click.echo(config.effective(examined.whole), nl=False)
    if problems:
        count = counted(len(problems), "problem")
        click.echo(f"ofuwatch: {count} with {file}; mend them and check again", err=True)
        raise SystemExit(EXIT_PROBLEM)
    # On stderr when the configuration is on stdout, so that it can be redirected.
    click.echo(f"ok: {read}", err=show)


def _check(file: Path, examined: Examined | None, problems: list[Problem]) -> str:
    """Add the problems of all that the configuration leads to; return what was read."""
    from detector import config, content
    from detector.receivers import mistaken_secrets
    from detector.secrecy import unreadable
    from detector.tables import attempt

    # A broken config.toml must not hide what is broken in the folders beside it.
    beside = config.ContentSettings(models=file.parent / "models", rules=file.parent / "rules")
    where = examined.readable.content if examined else beside
    found = None
    if examined is not None:
        told = (*examined.problems, *unreadable(examined.table))
        problems += sorted(told, key=lambda problem: problem.line or 0)
        mistaken = mistaken_secrets(examined.readable.receivers)
        problems += (replace(problem, file=file) for problem in mistaken)
        problems += _store(file, examined.readable)
    if (examined and examined.whole) or where.models.is_dir() or where.rules.is_dir():
        found = attempt(lambda _: content.load(where.models, where.rules), None, problems)
    cases = sorted((where.rules / "tests").glob("*.toml"))
    for path in cases:
        attempt(content.load_cases, path, problems)
    if examined is None or found is None:
        return ""
    return (
        f"{file}, {counted(len(found.models), 'model')}, "
        f"{counted(len(found.gpus.gpu), 'GPU model')}, {counted(len(found.rules), 'rule')}, "
        f"{counted(len(cases), 'file')} of cases, "
        f"{counted(len(examined.readable.sources), 'source')}, "
        f"{counted(len(examined.readable.receivers), 'receiver')}"
    )


def _store(file: Path, read: Config) -> Iterator[Problem]:
    """What keeps the service from even asking the store; nothing is connected to."""
    from detector.store.connection import connect
    from detector.store.errors import StoreError
    from detector.tables import Problem

    if read.redis.url or os.environ.get("REDIS_URL"):
        try:
            connect(read.redis).close()
        except StoreError as error:
            yield Problem(file=file, path="redis", message=str(error))
    certificates = read.redis.tls_ca_file
    if certificates and not Path(certificates).is_file():
        yield Problem(file=file, path="redis.tls_ca_file", message=f"{certificates} is no file")
