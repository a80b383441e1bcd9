"""The seam every receiver stands behind: a notice goes in, an outcome comes out.

A receiver builds its message from the notice alone, sends it once and classifies the answer.
It never sleeps, never retries and never raises for what a provider does: when to try again is
the dispatcher's business, and the outcome tells it all it needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from detector.incident.ledger import Notice
from detector.series import Window

# What of a lane is sent when several notices wait:
#   latest  people: the newest state alone ("fired and resolved 02:51-03:20")
#   every   machines: each transition in order, a resolve is never skipped
Policy = Literal["latest", "every"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Accepted.

    Attributes
    ----------
    receipt
        What the receiver must know to continue this incident's conversation (a message's
        channel and timestamp, say), as JSON text; None leaves the stored one.
    follow_ups
        Work to queue behind this notice, by name; see ``Notice.follow_up``.
    note
        What is worth a line in the log, such as a degraded resend.
    """

    receipt: str | None = None
    follow_ups: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Not accepted now; ``after_ms`` is the provider's own wish (Retry-After), if it had one.

    ``ambiguous`` says that it may have been accepted all the same (a time-out after sending):
    the receiver is told on its next attempt and reconciles where its provider lets it.
    """

    reason: str
    after_ms: int | None = None
    ambiguous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Never acceptable as it is: the notice goes to the dead letters with this reason."""

    reason: str


Outcome = Sent | Retry | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a lane's head.

    Attributes
    ----------
    notice
        What to send: the head of the lane, or its newest notice under policy ``latest``.
    skipped
        Older notices of the lane that this one stands for; empty under ``every``.
    receipt
        What :attr:`Sent.receipt` last said for this receiver and incident.
    number
        1 for the first try.
    maybe_sent
        The last try was ambiguous.
    now_ms
        Wall time of this attempt.
    """

    notice: Notice
    skipped: Sequence[Notice]
    receipt: str | None
    number: int
    maybe_sent: bool
    now_ms: int


class Receiver(Protocol):
    """One configured destination."""

    @property
    def name(self) -> str:
        """The name in config.toml, unique."""
        ...

    @property
    def policy(self) -> Policy:
        """What of a lane is sent when several notices wait."""
        ...

    def deliver(self, attempt: Attempt) -> Outcome:
        """Send once and say how it went; raises for programming errors only."""
        ...


class Histories(Protocol):
    """Where a chart's data comes from."""

    def window(self, job: str, *, start_ms: int, end_ms: int) -> Window:
        """Return the job's history in ``[start_ms, end_ms)``."""
        ...
