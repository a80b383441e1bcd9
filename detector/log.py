"""The service's log: events with fields, for people on a terminal or as one JSON a line."""

import logging
import sys
from collections.abc import MutableMapping
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec
import structlog
from structlog.dev import plain_traceback

if TYPE_CHECKING:
    from structlog.typing import ExcInfo, FilteringBoundLogger, Processor

    from detector.tick import Report

Level = Literal["debug", "info", "warning", "error"]

# What is said once is remembered for so many jobs and reasons, then said again. Chosen: 10 MB.
_REMEMBERED = 100_000


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[log]`` of config.toml."""

    level: Level = "info"
    format: Literal["console", "json"] = "console"


def configure(settings: LogSettings) -> None:
    """Send every event of this process to stderr, as ``settings`` say."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    out = _Out(sys.stderr)
    render: list[Processor]
    if settings.format == "json":
        render = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json),
        ]
    else:
        console = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=_traceback
        )
        render = [_printable_fields, console]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Not the printing one: it writes a line and its end apart, and threads get in between.
        logger_factory=structlog.WriteLoggerFactory(out),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    # Libraries speak through the standard library; one line of theirs that is no event would
    # break the JSON. What APScheduler has to say, the service says itself.
    logging.basicConfig(level=logging.WARNING, handlers=[_Libraries()], force=True)
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL + 1)
    logging.captureWarnings(capture=True)


def get() -> "FilteringBoundLogger":
    """Return the logger."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def printable(text: str) -> str:
    """Return ``text`` with everything that a terminal would act on percent-encoded.

    Job ids are anybody's: escape sequences, line breaks and marks that turn the reading order
    become ``%1B``, ``%0A``, ``%E2%80%AE``, as they stand in keys.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
        for character in text
    )


class Teller:
    """Puts what passes did into the log; what repeats is said once for each job and reason."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def tell(self, to: "FilteringBoundLogger", report: "Report") -> None:
        """Say what one pass did."""
        for reject in report.rejects:
            if self._is_new(reject.job, reject.reason):
                to.warning(
                    "set_aside",
                    job=reject.job,
                    reason=reject.reason,
                    entry=reject.entry,
                    detail=reject.detail,
                )
        for job, candidate, outcome in report.rejected:
            to.debug(
                "candidate_rejected", job=job, cause=candidate.cause, reason=outcome.reason
            )
        for job, metric, shift in report.shifts:
            to.info(
                "rise_followed", job=job, metric=metric, before=shift.before, after=shift.after
            )
        for transition in report.transitions:
            incident = transition.incident
            to.info(
                f"incident_{transition.type}",
                incident=incident.id,
                job=incident.job.id,
                kind=incident.kind,
                rule=incident.rule,
                severity=incident.severity,
                change=round(incident.relative_change, 4),
                reason=incident.resolve_reason,
            )
        for transition, receiver, reason in report.withheld:
            to.debug(
                "notice_withheld",
                incident=transition.incident.id,
                receiver=receiver,
                reason=reason,
            )

    def _is_new(self, job: str, reason: str) -> bool:
        if (job, reason) in self._said:
            return False
        if len(self._said) >= _REMEMBERED:
            self._said.clear()
        self._said.add((job, reason))
        return True


class _Out:
    """A stream whose failure stops nothing: a full disk must not make alerts go out twice."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # ValueError: it is closed
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return


class _Libraries(logging.Handler):
    """Turns what libraries log into events.

    Only the message's template is kept: what libraries put into it may be an address with a
    secret, such as a webhook's.
    """

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage() if record.name == "py.warnings" else str(record.msg)
        get().warning("library_warning", library=record.name, message=text.strip())


def _printable_fields(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value)
    return event


def _traceback(out: TextIO, exc_info: "ExcInfo") -> None:
    """Write a traceback without the values of variables: they may be secrets."""
    text = StringIO()
    plain_traceback(text, exc_info)
    out.write("\n".join(printable(line) for line in text.getvalue().split("\n")))


def _json(event: object, **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
