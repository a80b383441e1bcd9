"""`ofuwatch incidents`: what is open, and what was."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli.opening import config_option, opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detector.incident.incident import Incident


@click.command()
@config_option
@click.option("--all", "everything", is_flag=True, help="Resolved ones as well.")
@click.option("--job", help="Only this job's.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="At most this many.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line, as consumers get it."
)
def command(
    config_file: Path | None, *, everything: bool, job: str | None, limit: int, as_json: bool
) -> None:
    """List incidents, live ones first, then the newest."""
    from detector.incident.incident import State
    from detector.store.ledger import Ledger

    with opened(config_file) as (config, client, keys):
        states = None if everything else (State.PENDING, State.OPEN, State.ACKNOWLEDGED)
        found = Ledger(client, keys).incidents(states=states, job=job, limit=limit)
    if as_json:
        import msgspec

        from detector.incident.export import document

        now_ms, base = time.time_ns() // 1_000_000, config.permalink_base
        for incident in found:
            told = document(incident, now_ms=now_ms, permalink_base=base)
            click.echo(msgspec.json.encode(told).decode())
        return
    if not found:
        click.echo(
            "No incidents." if everything else "No live incidents; --all lists the rest."
        )
        return
    print_table(found)


def print_table(incidents: "Sequence[Incident]") -> None:
    """Print incidents: on a terminal two lines each, within 80 columns; else one line each."""
    from detector.log import printable

    if not sys.stdout.isatty():
        click.echo(
            "incident                  state         severity  onset (UTC)           change"
            "   kind                job"
        )
        for item in incidents:
            state, kind, change = _cells(item)
            line = (
                f"{item.id:<24}  {state:<12}  {item.severity:<8}  {_onset(item)}  "
                f"{change:>7}  {kind:<18}  {item.job.title}"
            )
            click.echo(printable(line))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("incident\nonset (UTC)", "kind\njob", "state\nseverity", "change\n"):
        # The id is there to be copied: it stays whole however narrow the terminal is.
        table.add_column(name, overflow="fold", no_wrap=name.startswith("incident"))
    for item in incidents:
        state, kind, change = _cells(item)
        cells = (
            f"{item.id}\n{_onset(item)}",
            f"{kind}\n{printable(item.job.title)}",
            f"{state}\n{item.severity}",
            change,
        )
        # As texts, since a job's name may look like markup.
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def _cells(item: "Incident") -> tuple[str, str, str]:
    state = item.resolve_reason or item.state.value
    kind = f"{item.kind} (on trial)" if item.shadow else item.kind
    return state, kind, f"{item.relative_change:+.1%}"


def _onset(item: "Incident") -> str:
    from detector.series import iso

    return iso(item.onset_ms // 1000 * 1000)
