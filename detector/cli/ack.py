"""`ofuwatch ack`: say that somebody looks after an incident, or that it is none."""

import getpass
import time
from pathlib import Path

import click

from detector.cli import EXIT_PROBLEM, fail
from detector.cli.opening import config_option, opened


@click.command()
@config_option
@click.argument("incident")
@click.option(
    "--by", "actor", default=getpass.getuser, help="Who; default: the user logged in."
)
@click.option(
    "--resolve",
    "reason",
    type=click.Choice(["expected_change", "false_positive"]),
    help="End the incident instead; the present level becomes the baseline.",
)
def command(config_file: Path | None, *, incident: str, actor: str, reason: str | None) -> None:
    """Acknowledge INCIDENT, or end it with --resolve. The service does it at its next tick."""
    from detector.incident.ledger import Action
    from detector.store.ledger import Ledger

    with opened(config_file) as (_, client, keys):
        action = Action(
            verb="resolve" if reason else "acknowledge",
            incident=incident,
            actor=actor,
            time_ms=time.time_ns() // 1_000_000,
            reason=reason or "",
        )
        known = Ledger(client, keys).act(action)
    if not known:
        fail(
            f"no incident {incident!r}; `ofuwatch incidents --all` lists them",
            code=EXIT_PROBLEM,
        )
    click.echo(f"{incident}: {'resolve as ' + reason if reason else 'acknowledge'} by {actor}")
