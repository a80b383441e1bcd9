"""`ofuwatch incidents`: what is open, and what was."""

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
@click.option("--limit", default=50, show_default=True, help="At most this many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(
    config_file: Path | None, *, everything: bool, job: str | None, limit: int, as_json: bool
) -> None:
    """List incidents, newest first."""
    from detector.incident.incident import State
    from detector.store.ledger import Ledger

    with opened(config_file) as (_, client, keys):
        states = None if everything else (State.PENDING, State.OPEN, State.ACKNOWLEDGED)
        found = Ledger(client, keys).incidents(states=states, job=job, limit=limit)
    if as_json:
        import msgspec

        for incident in found:
            click.echo(msgspec.json.encode(incident).decode())
        return
    if not found:
        click.echo(
            "No incidents." if everything else "No live incidents; --all lists the rest."
        )
        return
    print_table(found)


def print_table(incidents: "Sequence[Incident]") -> None:
    """Print incidents as a table, one row each."""
    from rich.console import Console
    from rich.table import Table

    from detector.series import iso

    table = Table()
    for name in (
        "incident",
        "job",
        "kind",
        "state",
        "severity",
        "onset (UTC)",
        "change",
        "end",
    ):
        table.add_column(name, overflow="fold")
    for item in incidents:
        table.add_row(
            item.id,
            item.job.title,
            f"{item.kind} (on trial)" if item.shadow else item.kind,
            item.state.value,
            item.severity,
            iso(item.onset_ms),
            f"{item.relative_change:+.1%}",
            item.resolve_reason or "",
        )
    Console().print(table)
