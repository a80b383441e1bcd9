"""What moves together in the store: detector state, incidents and what is owed to receivers.

A shard of jobs is committed in one transaction: either its state, its incidents and the
notices they owe are all written, or none is. Quiet ticks need no commit, since folding the same
samples again gives the same state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

import msgspec

from detector.analysis.lineage import Kept
from detector.incident.incident import Incident, Transition

# 64 shards: the grain at which replicas share a fleet, as measured for leases and state blobs
# (1.7 ms to renew all 64, 3.3 ms to load and save them). Part of the layout: never changed.
SHARDS = 64


def shard_of(job: str) -> int:
    """Return the shard, 0..63, that a job belongs to for ever."""
    return crc32(job.encode()) % SHARDS


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One transition that is owed to one receiver.

    ``follow_up`` names work that must never hold the alert back, such as ``chart``: it is
    queued by the dispatcher behind the notice that it illustrates.
    """

    receiver: str
    transition: Transition
    follow_up: str = ""

    @property
    def lane(self) -> str:
        """Notices of one lane are delivered one by one, in order."""
        return f"{self.receiver}|{self.transition.incident.id}"


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What a person or a program asked the service to do to an incident.

    ``verb`` is ``acknowledge`` or ``resolve``; ``reason`` is a resolve reason.
    """

    verb: str
    incident: str
    actor: str
    time_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a shard had committed when it was last written.

    Attributes
    ----------
    states
        Model name -> packed state (``analysis.watch.packed``); empty for a shard that was
        never written.
    cursors
        Job -> time of the last entry that the states have folded, ms.
    kept
        Job -> what is kept of it beside its baselines.
    incidents
        Every live incident and those resolved lately.
    """

    shard: int
    states: Mapping[str, bytes] = field(default_factory=dict)
    cursors: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, Kept] = field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a tick wants written of one shard, all of it or nothing.

    Attributes
    ----------
    states, cursors, kept
        None leaves what is stored; given together, always.
    incidents
        Incidents that are new or changed. A store refuses a revision that is not above the
        one it has, and with it the notices of that revision: this is what makes a repeated
        tick harmless.
    notices
        What is owed to receivers for these incidents' transitions.
    actions_done
        How many of the shard's waiting actions were carried out, oldest first.
    """

    shard: int
    states: Mapping[str, bytes] | None = None
    cursors: Mapping[str, int] | None = None
    kept: Mapping[str, Kept] | None = None
    incidents: tuple[Incident, ...] = ()
    notices: tuple[Notice, ...] = ()
    actions_done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A lane that one dispatcher holds for a while.

    Attributes
    ----------
    notices
        What waits in the lane, oldest first (at most 100).
    token
        Proof of the claim; a store refuses to finish a claim that has run out or passed on.
    receipt
        What the receiver last left for this incident, see ``notify.receiver.Sent.receipt``.
    attempts
        Failed tries at the lane's head so far.
    maybe_sent
        The last try ended without an answer.
    """

    receiver: str
    lane: str
    shard: int
    token: str
    notices: tuple[Notice, ...]
    receipt: str | None = None
    attempts: int = 0
    maybe_sent: bool = False


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that its receiver will never accept, kept until a person replays or drops it."""

    notice: Notice
    reason: str
    attempts: int
    time_ms: int
