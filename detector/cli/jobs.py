"""`ofuwatch jobs`: the jobs that have histories."""

import time
from pathlib import Path

import click

from detector.cli.opening import config_option, opened

_RECENT_MS = 3_600_000


@click.command()
@config_option
@click.option("--limit", default=100, show_default=True, help="At most this many.")
def command(config_file: Path | None, *, limit: int) -> None:
    """List the jobs that have histories, the latest to report first."""
    from detector.series import Duration
    from detector.store.history import History

    with opened(config_file) as (config, client, keys):
        history = History(client, keys, config.history)
        history.discover(time.time_ns() // 1_000_000)
        seen = {job: history.last_seen(job) for job in history.jobs()}
        latest = sorted(seen, key=lambda job: (-(seen[job] or 0), job))
        about = history.describe_many(latest[:limit])
    if not latest:
        click.echo(
            "No job has a history yet. One begins with: "
            f"redis-cli XADD '{keys.samples('JOB')}' '*' v 0.41"
        )
        return
    now_ms = time.time_ns() // 1_000_000
    for job in latest[:limit]:
        at_ms = seen[job]
        ago = "never" if at_ms is None else f"{Duration((now_ms - at_ms) // 1000 * 1000)} ago"
        who = about[job]
        click.echo(
            "  ".join(part for part in (who.title, ago, who.owner, who.gpu_model) if part)
        )
    if len(latest) > limit:
        click.echo(f"... and {len(latest) - limit} more; --limit shows them")
