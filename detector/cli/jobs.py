"""`ofuwatch jobs`: the jobs that have histories."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli.opening import config_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detector.store.history import Rejected


@click.command()
@config_option
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="At most this many.",
)
def command(config_file: Path | None, *, limit: int) -> None:
    """List the jobs that have histories, the latest to report first."""
    from detector.log import printable
    from detector.store.history import History

    with opened(config_file) as (config, client, keys):
        history = History(client, keys, config.history)
        history.discover(time.time_ns() // 1_000_000)
        seen = {job: history.last_seen(job) for job in history.jobs()}
        latest = sorted(seen, key=lambda job: (-(seen[job] or 0), job))
        about = history.describe_many(latest[:limit])
        nobodys = history.rejected("")
    if not latest:
        click.echo(
            f"No job has a history yet. One begins with: XADD {keys.samples('JOB')} * v 0.41"
        )
    now_ms = time.time_ns() // 1_000_000
    for job in latest[:limit]:
        who = about[job]
        parts = (who.title, ago(seen[job], now_ms=now_ms), who.owner, who.gpu_model)
        click.echo("  ".join(printable(part) for part in parts if part))
    if len(latest) > limit:
        click.echo(f"... and {len(latest) - limit} more; --limit shows them")
    if nobodys:
        click.echo("Set aside, of no job:")
        for line in aside_lines(nobodys):
            click.echo(line)


def ago(time_ms: int | None, *, now_ms: int) -> str:
    """Return how long ago the newest entry was; ids of third parties may be any number."""
    from detector.series import Duration

    if time_ms is None:
        return "never"
    since_ms = (now_ms - time_ms) // 1000 * 1000
    return f"{Duration(since_ms)} ago" if since_ms >= 0 else "from the future"


def aside_lines(rejected: "Mapping[str, Rejected]") -> list[str]:
    """Return one line for each reason: how often, what to do, the last entry."""
    from detector.log import printable
    from detector.store.history import REASONS

    return [
        printable(f"  {aside.count:>6} {reason}: {REASONS.get(reason, '')}. Last: {aside.last}")
        for reason, aside in sorted(rejected.items())
    ]
