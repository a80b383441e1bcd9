"""``ofuwatch rules test``: run the rules' cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli import EXIT_PROBLEM, fail
from detector.cli.opening import config_option, read_config

if TYPE_CHECKING:
    from detector.analysis.cases import Want


@click.group(short_help="Test rules against TOML cases.")
def command() -> None:
    """Work with the rules."""


@command.command("test")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@config_option
def test(files: tuple[Path, ...], config_file: Path | None) -> None:
    """Run the cases in FILES, or those in the `tests` folder of the configuration's rules.

    Exit code 0 when all pass, 1 when one fails, 2 when a file is wrong.
    """
    from detector import content
    from detector.analysis.cases import run_case

    where = read_config(config_file).content
    try:
        rules, gpus = content.load_rules(where.rules), content.load_gpus(where.models)
        files = files or tuple(sorted((where.rules / "tests").glob("*.toml")))
        if not files:
            fail(f"{where.rules / 'tests'}: no cases there; name the files")
        cases = [(file, case) for file in files for case in content.load_cases(file)]
    except content.ContentErrors as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        fail(f"{len(error.problems)} problem(s); nothing was tested")
    failed = 0
    for file, case in cases:
        result = run_case(case, rules, gpus)
        strangers = _strangers(case.want, [rule.name for rule in rules])
        failed += bool(result.failures or strangers)
        _print(file, case.name, [*strangers, *result.failures], result.rows)
    passed = len(cases) - failed
    click.echo(f"{passed} of {len(cases)} cases passed, {len(rules)} rules of {where.rules}")
    if failed:
        raise SystemExit(EXIT_PROBLEM)


def _strangers(want: Want, known: Sequence[str]) -> list[str]:
    """Names of rules that a case wants and nobody has."""
    from detector.tables import did_you_mean

    wanted = [want.rule, *(want.runners_up or ()), *want.ruled_out, *want.unknown]
    return [
        f'no rule is called "{name}"{did_you_mean(name, known)}'
        for name in (*wanted, *want.shadowed)
        if name is not None and name not in known
    ]


def _print(file: Path, name: str, failures: Sequence[str], rows: Sequence[str]) -> None:
    if not failures:
        return
    click.echo(f"FAILED {file}: {name}")
    for line in failures:
        click.echo(f"  {line}")
    for line in rows:
        click.echo(f"  row of {line}")
