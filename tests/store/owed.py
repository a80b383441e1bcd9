"""Incidents, notices and commits with the least that they need."""

from typing import cast

import msgspec
import redis

from detector.analysis.change import Estimate
from detector.fleet import Job
from detector.incident.incident import Incident, State, Transition, TransitionType, incident_id
from detector.incident.ledger import Commit, Notice, shard_of

T0 = 1_764_000_000_000

_STATES: dict[TransitionType, State] = {
    "opened": State.OPEN,
    "updated": State.OPEN,
    "escalated": State.OPEN,
    "acknowledged": State.ACKNOWLEDGED,
    "resolved": State.RESOLVED,
}


def incident(
    job: str = "job-1", *, revision: int = 1, state: State = State.OPEN, onset_ms: int = T0
) -> Incident:
    level = Estimate(value=0.4, low=0.39, high=0.41)
    return Incident(
        id=incident_id(cluster="c", job=job, kind="unexplained", onset_ms=onset_ms),
        cluster="c",
        job=Job(id=job),
        kind="unexplained",
        family="performance",
        metric="ofu",
        direction="down",
        cause="excursion",
        state=state,
        revision=revision,
        severity="warning",
        confidence=0.99,
        rule="unexplained",
        summary="OFU fell",
        onset_ms=onset_ms,
        onset_low_ms=onset_ms,
        onset_high_ms=onset_ms,
        detected_ms=onset_ms + 60_000,
        resolved_ms=onset_ms + 90_000 if state is State.RESOLVED else None,
        before=level,
        after=level,
        relative_change=-0.4,
        features={"ofu_after": 0.24, "clock_change": None},
    )


def notice(
    one: Incident, step: TransitionType = "opened", *, receiver: str = "slack"
) -> Notice:
    after = msgspec.structs.replace(one, state=_STATES[step])
    return Notice(
        receiver=receiver, transition=Transition(type=step, time_ms=T0, incident=after)
    )


def owing(one: Incident, *notices: Notice) -> Commit:
    """The commit of one incident, with what is owed for it."""
    return Commit(shard=shard_of(one.job.id), incidents=(one,), notices=notices)


def everything(client: redis.Redis) -> dict[bytes, bytes]:
    """What the server holds, bit for bit."""
    names = cast("list[bytes]", client.keys())
    return {name: client.dump(name) or b"" for name in names}
