"""`ofuwatch jobs`: the jobs that have histories."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detector.cli.opening import config_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detector.store.history import Rejected

# chosen: a screenful
_STRANGERS = 20
# Clocks of hosts differ by so much without anything being wrong; [history] future's default.
_JITTER_MS = 60_000


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
    from detector.cli.readiness import readiness
    from detector.log import printable
    from detector.store.history import History
    from detector.store.ledger import Ledger

    with opened(config_file) as (config, client, keys):
        history = History(client, keys, config.history)
        history.discover(time.time_ns() // 1_000_000)
        seen = {job: history.last_seen(job) for job in history.jobs()}
        now_ms = time.time_ns() // 1_000_000
        latest = sorted(seen, key=lambda job: (*_place(seen[job], now_ms=now_ms), job))
        about = history.describe_many(latest[:limit])
        stands = readiness(
            latest[:limit], config.content, history, Ledger(client, keys), now_ms=now_ms
        )
        nobodys, strangers = history.rejected(""), history.strangers()
    if not latest:
        socket = client.connection_pool.connection_kwargs.get("path")
        write = f"redis-cli{f' -s {socket}' if socket else ''} XADD '{keys.samples('JOB')}'"
        click.echo(f"No job has a history yet. One begins with: {write} '*' v 0.41")
    for job in latest[:limit]:
        who = about[job]
        missing = stands[job].unready if job in stands else None
        baseline = f"no baseline yet: {missing}" if missing else ""
        parts = (who.title, ago(seen[job], now_ms=now_ms), who.owner, who.gpu_model, baseline)
        click.echo("  ".join(printable(part) for part in parts if part))
    if len(latest) > limit:
        click.echo(f"... and {len(latest) - limit} more; --limit shows them")
    if nobodys:
        click.echo("Set aside, of no job:")
        for line in aside_lines(nobodys):
            click.echo(line)
    if strangers:
        click.echo(
            "Keys that name no job; percent-encode %, {, }, white space in the job's id:"
        )
        for key in strangers[:_STRANGERS]:
            click.echo(printable(f"  {key}"))
        if len(strangers) > _STRANGERS:
            click.echo(f"  ... and {len(strangers) - _STRANGERS} more")


def ago(time_ms: int | None, *, now_ms: int) -> str:
    """Return how long ago the newest entry was; ids of third parties may be any number."""
    from detector.notify.wording import span_text
    from detector.store.entries import EARLIEST_MS

    if time_ms is None or time_ms < 0:
        return "no entry yet"
    if time_ms < EARLIEST_MS:
        return "its newest entry has no time in epoch milliseconds"
    since_ms = now_ms - time_ms
    if since_ms < -_JITTER_MS:
        return "its newest entry lies in the future: the writer's clock is wrong"
    return f"{span_text(since_ms)} ago"


def _place(time_ms: int | None, *, now_ms: int) -> tuple[bool, int]:
    """Where a job stands in the list: a sane newest entry first, the latest of them first."""
    from detector.store.entries import EARLIEST_MS

    sane = time_ms is not None and EARLIEST_MS <= time_ms <= now_ms + _JITTER_MS
    return not sane, -(time_ms or 0)


def aside_lines(rejected: "Mapping[str, Rejected]") -> list[str]:
    """Return one line for each reason: how often, what to do, the last entry."""
    from detector.log import printable
    from detector.store.history import REASONS

    return [
        printable(f"  {aside.count:>6} {reason}: {REASONS.get(reason, '')}. Last: {aside.last}")
        for reason, aside in sorted(rejected.items())
    ]
