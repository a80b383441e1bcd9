"""What somebody is woken for: incidents that pass the page bound of their metric. Pure.

A rule says what a change is and how severe; that it wakes a person is said here alone. Only an
open incident of falling performance is asked, while nobody has taken it: a straggler that does
not slow its job, GPUs that are missing, a broken collector or a job that got faster can wait
for the morning, and who has acknowledged an incident needs no call.
"""

from collections.abc import Callable

from msgspec.structs import replace

from detector.analysis.paging import Later, Passed
from detector.incident.incident import Incident, State

# Whether an incident passes its page bound at a time, ms; None where none is set for it.
AskPage = Callable[[Incident, int], Passed | Later | None]

# What is told of the telemetry is never a loss, whichever metric shows it.
_NEVER = ("telemetry_fault",)


def asked(incident: Incident) -> bool:
    """Whether the page bound has a say about the incident as it is now."""
    return (
        incident.state is State.OPEN
        and incident.paged_ms is None
        and incident.recovering_ms is None
        and not incident.shadow
        and incident.family == "performance"
        and incident.direction == "down"
        and incident.cause in ("excursion", "drift")
        and incident.severity != "info"
        and incident.kind not in _NEVER
    )


def unasked(incident: Incident) -> str:
    """Return why an incident that nobody is called for opens without the bound being asked.

    Of a job that is slower than earlier runs alone: whoever sees its loss expects a call.
    """
    if incident.cause != "lineage" or incident.direction != "down":
        return ""
    return "it was slow from its first sample on, and what began with the job can wait"


def answered(incident: Incident, answer: Passed | Later | None, *, at: int) -> Incident:
    """Return the incident after its page bound was asked at ``at``."""
    match answer:
        case Passed():
            return replace(
                incident,
                severity="critical",
                paged_ms=at,
                ask_page_ms=None,
                page_reason=answer.reason,
            )
        case Later():
            again_ms = None if answer.again_ms is None else max(answer.again_ms, at + 1)
            return replace(incident, ask_page_ms=again_ms, page_reason=answer.reason)
        case None:
            return replace(incident, ask_page_ms=None)
