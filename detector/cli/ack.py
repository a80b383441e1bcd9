"""`ofuwatch ack`: say that somebody looks after an incident, or that it is none."""

import getpass
import os
import time
from pathlib import Path

import click

from detector.cli import EXIT_PROBLEM, fail
from detector.cli.opening import config_option, opened

_LONGEST_NAME = 80  # chosen: more does not fit into a message's first line


@click.command()
@config_option
@click.argument("incident")
@click.option("--by", "actor", default="", help="Who; default: the user logged in.")
@click.option(
    "--resolve",
    "reason",
    type=click.Choice(["expected_change", "false_positive"]),
    help="End the incident instead; the present level becomes the baseline.",
)
def command(config_file: Path | None, *, incident: str, actor: str, reason: str | None) -> None:
    """Acknowledge INCIDENT, or end it with --resolve. The service does it at its next tick."""
    from detector.incident.ledger import Action
    from detector.log import printable
    from detector.store.ledger import Ledger

    actor = printable(actor.strip())[:_LONGEST_NAME] or _user()
    with opened(config_file) as (_, client, keys):
        ledger = Ledger(client, keys)
        known = ledger.incident(incident)
        if known is None:
            fail(
                f"no incident {incident!r}; `ofuwatch incidents --all` lists them",
                code=EXIT_PROBLEM,
            )
        if not known.live:
            fail(f"{incident} is over already: {known.resolve_reason}", code=EXIT_PROBLEM)
        action = Action(
            verb="resolve" if reason else "acknowledge",
            incident=incident,
            actor=actor,
            time_ms=time.time_ns() // 1_000_000,
            reason=reason or "",
        )
        ledger.act(action)
    what = f"will be resolved as {reason}" if reason else "will be acknowledged"
    click.echo(f"{incident} {what} at the service's next tick, by {actor}.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return str(os.getuid())
