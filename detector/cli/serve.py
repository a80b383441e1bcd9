"""`ofuwatch serve`: the service."""

import gc
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from detector.cli import EXIT_UNAVAILABLE, fail
from detector.cli.opening import (
    config_option,
    config_path,
    read_config,
    read_content,
    refused,
)
from detector.duties import DUTIES

if TYPE_CHECKING:
    from detector.config import Config
    from detector.incident.incident import Transition


# New objects after which cycles are looked for; Python's own 700 cost a tenth of a scrape.
# Chosen: as many as one round over some hundred exporters keeps at a time.
_NEW_OBJECTS = 50_000


@click.command()
@config_option
@click.option(
    "--only",
    "only",
    type=click.Choice(DUTIES),
    multiple=True,
    help="Do this part alone, and others in other processes. Repeatable.",
)
def command(config_file: Path | None, only: tuple[str, ...]) -> None:
    """Watch the fleet: collect, judge, alert. Runs until SIGINT or SIGTERM."""
    config = read_config(config_file)
    watch(config, file=config_path(config_file).absolute(), only=only or DUTIES)


def watch(config: "Config", *, file: Path, only: tuple[str, ...]) -> None:
    """Run the service, or a part of it, until it is told to stop."""
    from detector import log, sources
    from detector.receivers import doubts
    from detector.service import Service
    from detector.store.errors import StoreError
    from detector.store.keys import Keys
    from detector.tables import ContentErrors
    from detector.telemetry.source import SourceError

    if only == ("collect",) and not config.sources:
        fail("no [[source]] is configured: there is nothing to collect; see docs/collection.md")
    content = read_content(config.content.models, config.content.rules)
    log.configure(config.log)

    def announce(transition: "Transition") -> None:
        _print(transition, permalink_base=config.permalink_base)

    try:
        service = Service(config, content, announce=announce, only=only)
    except StoreError as error:
        fail(str(error), code=EXIT_UNAVAILABLE)
    except ContentErrors as errors:
        refused(errors)
    except SourceError as error:
        fail(str(error))

    def end(signum: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(signum, signal.SIG_DFL)  # a second signal ends at once
        service.stop()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, end)  # the terminal was closed; nohup ignores it
    log.get().info("configuration_read", file=str(file))
    for doubt in (*doubts(config), *sources.doubts(config)):
        log.get().warning("configuration_doubtful", reason=doubt)
    if service.store.server is not None:
        click.echo(f"Histories go in with: redis-cli -s {service.store.server.socket}")
        key = Keys(config.redis.prefix).samples("JOB")
        click.echo(f"                      XADD '{key}' '*' v 0.41")
    look_for_garbage_seldom()
    service.run()


def look_for_garbage_seldom() -> None:
    """Spare Python's garbage collector what it would look through in vain.

    What is loaded by now stays; and rounds and ticks make objects by the ten thousand, but few
    cycles.
    """
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def _print(transition: "Transition", *, permalink_base: str) -> None:
    from detector.notify.message import terminal_line

    try:
        click.echo(terminal_line(transition, permalink_base=permalink_base))
    except OSError:
        return  # nobody reads along any more; the log and the receivers have it
