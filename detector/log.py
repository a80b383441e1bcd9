"""The service's log: events with fields, for people on a terminal or as one JSON a line."""

import logging
import sys
from typing import TYPE_CHECKING, Literal

import msgspec
import structlog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor

Level = Literal["debug", "info", "warning", "error"]


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[log]`` of config.toml."""

    level: Level = "info"
    format: Literal["console", "json"] = "console"


def configure(settings: LogSettings) -> None:
    """Send every event of this process to stderr, as ``settings`` say."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    render: Processor = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if settings.format == "json":
        render = structlog.processors.JSONRenderer(serializer=_json)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # APScheduler speaks through the standard library: its warnings are ours as well.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")


def get() -> "FilteringBoundLogger":
    """Return the logger."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def _json(event: object, **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
