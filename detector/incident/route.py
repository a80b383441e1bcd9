"""Which receivers are owed a transition, and for those that are not, why. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from detector.analysis.rules import SEVERITIES, Severity
from detector.incident.incident import Transition
from detector.incident.ledger import Notice
from detector.incident.lifecycle import Policy
from detector.series import Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A receiver and what it wants to hear of: incidents of ``severity`` and above.

    The default keeps incidents that are recorded as mere information to the record.
    """

    name: str
    severity: Severity = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A receiver that is not told of a transition, and why, in words for log and page."""

    receiver: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What a transition owes, and to whom it owes nothing."""

    notices: tuple[Notice, ...] = ()
    withheld: tuple[Withheld, ...] = ()


def owed(
    transition: Transition,
    destinations: Iterable[Destination],
    *,
    now_ms: int,
    policy: Policy,
) -> Owed:
    """Return the notices that a transition owes, and each receiver it owes none, with why.

    Whoever was owed an incident's opening is owed its end: severity never falls, a rule's
    trial is fixed at the beginning, and an opening that was too old to tell has marked its
    incident ``quiet``. An end is therefore never too old.
    """
    notices, withheld = [], []
    for destination in destinations:
        reason = _reason(transition, destination, now_ms=now_ms, policy=policy)
        if reason:
            withheld.append(Withheld(receiver=destination.name, reason=reason))
        else:
            notices.append(Notice(receiver=destination.name, transition=transition))
    return Owed(notices=tuple(notices), withheld=tuple(withheld))


def _reason(
    transition: Transition, destination: Destination, *, now_ms: int, policy: Policy
) -> str:
    """Why the receiver is not told; "" when it is."""
    incident = transition.incident
    if incident.shadow:
        return f"the rule {incident.rule} is on trial"
    if SEVERITIES.index(incident.severity) < SEVERITIES.index(destination.severity):
        return f"{incident.severity} is below the receiver's {destination.severity}"
    if incident.quiet:
        return f"it opened more than {policy.max_age} before it was first seen"
    age_ms = now_ms - transition.time_ms
    if transition.type != "resolved" and age_ms > policy.max_age:
        return f"it is {_rounded(age_ms)} old, above {policy.max_age}"
    return ""


def _rounded(age_ms: int) -> Duration:
    return Duration(age_ms // 60_000 * 60_000)
