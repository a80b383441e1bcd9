"""`ofuwatch serve`: the service."""

import signal
from pathlib import Path
from types import FrameType

import click

from detector.cli import EXIT_UNAVAILABLE, fail
from detector.cli.opening import config_option, read_config, read_content


@click.command()
@config_option
def command(config_file: Path | None) -> None:
    """Watch the fleet: read histories, judge, alert. Runs until SIGINT or SIGTERM."""
    from detector import log
    from detector.notify.message import terminal_line
    from detector.service import Service
    from detector.store.errors import StoreError

    config = read_config(config_file)
    content = read_content(config.content.models, config.content.rules)
    log.configure(config.log)
    try:
        service = Service(
            config,
            content,
            announce=lambda transition: click.echo(terminal_line(transition)),
        )
    except StoreError as error:
        fail(str(error), code=EXIT_UNAVAILABLE)

    def end(signum: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(signum, signal.SIG_DFL)  # a second signal ends at once
        service.stop()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    if service.store.server is not None:
        click.echo(f"Histories go in with: redis-cli -s {service.store.server.socket}")
        click.echo("                      XADD 'ofu:{JOB}:s' '*' v 0.41")
    service.run()
