"""`ofuwatch dlq`: notices that no receiver accepted."""

import time
from collections.abc import Sequence
from pathlib import Path

import click

from detector.cli import EXIT_PROBLEM, fail
from detector.cli.opening import config_option, opened


@click.group()
def command() -> None:
    """List, replay or drop notices that their receiver refused for good."""


@command.command("list")
@config_option
@click.option("--receiver", help="Only this receiver's.")
def listing(config_file: Path | None, *, receiver: str | None) -> None:
    """List dead letters, with the reason each receiver gave."""
    from detector.log import printable
    from detector.series import iso
    from detector.store.outbox import Outbox

    with opened(config_file) as (_, client, keys):
        letters = Outbox(client, keys).dead_letters(receiver)
    for letter in letters:
        transition = letter.notice.transition
        tries = "1 try" if letter.attempts == 1 else f"{letter.attempts} tries"
        line = (
            f"{transition.event_id}  {iso(letter.time_ms)}  {letter.notice.receiver}  "
            f"{transition.type} {transition.incident.id} ({transition.incident.job.title}): "
            f"{letter.reason}, after {tries}"
        )
        click.echo(printable(line))
    if not letters:
        click.echo("No dead letters.")


@command.command("replay")
@config_option
@click.option("--receiver", help="Only this receiver's.")
@click.argument("events", nargs=-1)
def replay(config_file: Path | None, *, receiver: str | None, events: Sequence[str]) -> None:
    """Queue dead letters again: all, a receiver's, or the EVENTS named."""
    from detector.store.outbox import Outbox

    with opened(config_file) as (_, client, keys):
        count = Outbox(client, keys).replay_dead(
            receiver, ids=events or None, now_ms=time.time_ns() // 1_000_000
        )
    _counted(count, "queued again", wanted=events)


@command.command("drop")
@config_option
@click.option("--receiver", help="Only this receiver's.")
@click.argument("events", nargs=-1, required=True)
def drop(config_file: Path | None, *, receiver: str | None, events: Sequence[str]) -> None:
    """Drop the dead letters of EVENTS for good."""
    from detector.store.outbox import Outbox

    with opened(config_file) as (_, client, keys):
        count = Outbox(client, keys).drop_dead(receiver, ids=events)
    _counted(count, "dropped", wanted=events)


def _counted(count: int, what: str, *, wanted: Sequence[str]) -> None:
    """Say how many there were; of events that were named, none at all is a mistake."""
    if wanted and not count:
        fail("no dead letter of these; `ofuwatch dlq list` lists them", code=EXIT_PROBLEM)
    click.echo(f"{count} {what}.")
