"""What the service knows of its jobs, kept in Redis: detector state, incidents, actions.

A shard is committed by one script (``commit.lua``): detector state, incidents and the notices
owed for them are all written or none is. A revision is accepted once, so a tick that is
repeated after a crash changes nothing and alerts nobody twice.

Keys, each ``ofu:{s<NN>}:<name>``:

=============  ======  ================================================================
``state``      hash    ``model:<name>`` -> packed state; ``cursors``, ``kept`` -> maps
``incidents``  hash    incident id -> blob
``revisions``  hash    incident id -> highest revision accepted
``ends``       zset    incident id -> when its end was recorded, +inf while it is live
``actions``    list    blobs of what people asked for, oldest first
=============  ======  ================================================================

Ends are recorded on the server's clock, since replayed histories lie in the past and would be
forgotten at once on their own. What a lane and a due set are says :mod:`detector.store.outbox`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
import structlog

from detector.analysis.lineage import Kept
from detector.incident.incident import Incident, State
from detector.incident.ledger import SHARDS, Action, Commit, Saved, shard_of
from detector.store.blob import decode, encode
from detector.store.errors import StoreError
from detector.store.keys import Keys
from detector.store.script import answers, script

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

# Ended incidents that a tick must still know: a job that falls back within a day flaps.
# chosen: a day covers a job's daily habits.
_RECENT_MS = 86_400_000
# Ended incidents that people can still list. chosen: a month, as long as a post-mortem takes.
REMEMBER_MS = 30 * 86_400_000
# Shards in one round trip of a load: 10,000 jobs' state is 30 MB, which need not all lie in
# the server's and the client's buffers at once.
_SHARDS_A_TRIP = 8
# Waiting actions of one shard. chosen: far above what people click, far below what hurts.
_ACTIONS = 1_000

_MODEL = "model:"
_CURSORS = "cursors"
_KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What became of one shard's commit.

    Attributes
    ----------
    stale
        Another process has taken the shard over: nothing was written.
    accepted
        Ids of the incidents whose revision was new.
    notices
        How many notices were queued for receivers.
    """

    shard: int
    stale: bool = False
    accepted: tuple[str, ...] = ()
    notices: int = 0


class Ledger:
    """Detector state, incidents and actions of all shards."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client, self._keys = client, keys
        self._commit = script(client, "commit")
        self._load = script(client, "load")
        self._sweep = script(client, "sweep")
        self._waiting: dict[int, list[bytes]] = {}

    def load(self, shards: Collection[int]) -> tuple[Saved, ...]:
        """Return what each of ``shards`` had committed, its ended incidents for a day.

        A blob that cannot be read is logged and left out; the rest is returned.
        """
        saved: list[Saved] = []
        rest = sorted(shards)
        while rest:
            trip, rest = rest[:_SHARDS_A_TRIP], rest[_SHARDS_A_TRIP:]
            pipeline = self._client.pipeline(transaction=False)
            for shard in trip:
                keys = self._named(shard, "state", "incidents", "ends")
                self._load(keys=keys, args=[_RECENT_MS], client=pipeline)
            replies = answers(pipeline)
            saved += [_saved(shard, reply) for shard, reply in zip(trip, replies, strict=True)]
        return tuple(saved)

    def commit(
        self, commits: Sequence[Commit], *, fences: Mapping[int, int] | None = None
    ) -> tuple[CommitResult, ...]:
        """Write each shard's commit, each in one transaction, and say what was accepted.

        Parameters
        ----------
        fences
            Shard -> fencing token of the caller's lease; None when no one else can write.

        Raises
        ------
        StoreError
            When a shard could not be written; other shards may have been. The same commits
            may be sent again: what was accepted is not accepted twice.
        ValueError
            When a notice's incident is not in its commit, or an action was not read before.
        """
        pipeline = self._client.pipeline(transaction=False)
        for commit in commits:
            fence = "" if fences is None else fences[commit.shard]
            keys = self._named(
                commit.shard,
                *("fence", "state", "incidents", "revisions", "ends", "actions", "receivers"),
            )
            for notice in commit.notices:
                keys += self._named(
                    commit.shard, f"lane:{notice.lane}", f"due:{notice.receiver}"
                )
            args: list[Any] = [fence, *_arguments(commit), *self._done(commit)]
            self._commit(keys=keys, args=args, client=pipeline)
        replies = answers(pipeline)
        return tuple(_result(c.shard, reply) for c, reply in zip(commits, replies, strict=True))

    def incident(self, incident_id: str) -> Incident | None:
        """Return the incident, or None when it is unknown or was forgotten."""
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            pipeline.hget(self._keys.shard(shard, "incidents"), incident_id)
        blobs = [blob for blob in answers(pipeline) if blob]
        return next(_readable(blobs, Incident), None)

    def incidents(
        self,
        *,
        states: Collection[State] | None = None,
        job: str | None = None,
        limit: int = 1_000,
    ) -> tuple[Incident, ...]:
        """Return at most ``limit`` incidents: live ones first, then the latest first."""
        wanted = frozenset(State if states is None else states)
        shards = range(SHARDS) if job is None else (shard_of(job),)
        pipeline = self._client.pipeline(transaction=False)
        for shard in shards:
            ends = self._keys.shard(shard, "ends")
            if wanted - {State.RESOLVED}:
                pipeline.zrangebyscore(ends, "+inf", "+inf")
            if State.RESOLVED in wanted:
                # -1 is no limit: one job's incidents are sought among all of its shard's
                few = limit if job is None else -1
                pipeline.zrevrangebyscore(ends, "(+inf", "-inf", start=0, num=few)
        replies = answers(pipeline)
        ids = _by_shard(replies, shards)
        pipeline = self._client.pipeline(transaction=False)
        for shard, some in ids.items():
            pipeline.hmget(self._keys.shard(shard, "incidents"), some)
        blobs = [blob for reply in answers(pipeline) for blob in reply]
        found = [
            incident
            for incident in _readable(blobs, Incident)
            if incident.state in wanted and job in (None, incident.job.id)
        ]
        found.sort(key=lambda one: (not one.live, -one.detected_ms, one.id))
        return tuple(found[:limit])

    def act(self, action: Action) -> bool:
        """Queue an action for the incident's next tick; False when there is no such incident.

        Raises
        ------
        StoreError
            When Redis fails, or so many actions wait that nobody seems to carry them out.
        """
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            pipeline.hexists(self._keys.shard(shard, "revisions"), action.incident)
        known = answers(pipeline)
        if not any(known):
            return False
        name = self._keys.shard(known.index(True), "actions")
        pipeline = self._client.pipeline(transaction=False)
        pipeline.llen(name)
        (waiting,) = answers(pipeline)
        if waiting >= _ACTIONS:
            msg = f"{waiting} actions wait already; is `ofuwatch serve` running?"
            raise StoreError(msg)
        pipeline = self._client.pipeline(transaction=False)
        pipeline.rpush(name, encode(action))
        answers(pipeline)
        return True

    def actions(self, shards: Collection[int]) -> dict[int, tuple[Action, ...]]:
        """Return what waits to be carried out, by shard; shards without any are left out."""
        pipeline = self._client.pipeline(transaction=False)
        for shard in shards:
            pipeline.lrange(self._keys.shard(shard, "actions"), 0, _ACTIONS)
        found: dict[int, tuple[Action, ...]] = {}
        for shard, blobs in zip(shards, answers(pipeline), strict=True):
            self._waiting[shard] = blobs
            if blobs:
                found[shard] = tuple(_readable(blobs, Action))
        return found

    def sweep(self, now_ms: int) -> int:
        """Forget incidents that ended 30 days before ``now_ms`` (wall time); return how many.

        Receipts of forgotten incidents go too. What is still owed to a receiver stays, with
        its receipt, however old it is.
        """
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            keys = self._named(shard, "incidents", "revisions", "ends", "receipts")
            args: list[Any] = [now_ms - REMEMBER_MS, self._keys.shard(shard, "lane:")]
            self._sweep(keys=keys, args=args, client=pipeline)
        return sum(answers(pipeline))

    def _named(self, shard: int, *names: str) -> list[str]:
        return [self._keys.shard(shard, name) for name in names]

    def _done(self, commit: Commit) -> list[Any]:
        """Return the blobs of the actions that a commit took care of, counted."""
        waiting = self._waiting.get(commit.shard, [])
        if commit.actions_done > len(waiting):
            msg = (
                f"shard {commit.shard}: {commit.actions_done} actions done, {len(waiting)} read"
            )
            raise ValueError(msg)
        return [commit.actions_done, *waiting[: commit.actions_done]]


def _arguments(commit: Commit) -> Iterator[Any]:
    """Yield what ``commit.lua`` wants to know of states, incidents and notices.

    Raises
    ------
    ValueError
        When a notice's incident is not in the commit.
    """
    if commit.states is None:
        yield 0
    else:
        yield len(commit.states) + 2
        for model, state in commit.states.items():
            yield from (_MODEL + model, state)
        yield from (_CURSORS, encode(dict(commit.cursors or {})))
        yield from (_KEPT, encode(dict(commit.kept or {})))
    yield len(commit.incidents)
    for one in commit.incidents:
        yield from (one.id, one.revision, int(one.live), encode(one))
    yield len(commit.notices)
    ids = {one.id for one in commit.incidents}
    for notice in commit.notices:
        step = notice.transition
        if step.incident.id not in ids:
            msg = f"shard {commit.shard}: a notice of {step.incident.id} without its incident"
            raise ValueError(msg)
        yield from (notice.receiver, notice.lane, step.incident.id, step.incident.revision)
        yield from (step.time_ms, encode(notice))


def _result(shard: int, reply: list[Any]) -> CommitResult:
    if reply[0] == b"stale":
        return CommitResult(shard=shard, stale=True)
    _, notices, *accepted = reply
    return CommitResult(
        shard=shard, accepted=tuple(one.decode() for one in accepted), notices=notices
    )


def _saved(shard: int, reply: list[Any]) -> Saved:
    """Return a shard as ``load.lua`` gave it; cursors that cannot be read drop the states."""
    flat, blobs = reply
    fields = {name.decode(): blob for name, blob in zip(flat[::2], flat[1::2], strict=True)}
    states = {
        name.removeprefix(_MODEL): blob
        for name, blob in fields.items()
        if name.startswith(_MODEL)
    }
    cursors: dict[str, int] = {}
    if _CURSORS in fields:
        try:
            cursors = decode(fields[_CURSORS], dict[str, int])
        except ValueError as error:
            log.warning("detector_state_unreadable", shard=shard, reason=str(error))
            states = {}
    kept: dict[str, Kept] = {}
    if _KEPT in fields:
        try:
            kept = decode(fields[_KEPT], dict[str, Kept])
        except ValueError as error:  # earlier runs are then unknown, and the rest goes on
            log.warning("lineage_unreadable", shard=shard, reason=str(error))
    incidents = tuple(_readable(blobs, Incident))
    return Saved(shard=shard, states=states, cursors=cursors, kept=kept, incidents=incidents)


def _readable(blobs: Sequence[bytes | None], kind: type[_T]) -> Iterator[_T]:
    """Yield the blobs that can be read; say of the others why not."""
    for blob in blobs:
        if not blob:
            continue
        try:
            yield decode(blob, kind)
        except ValueError as error:
            log.warning("blob_unreadable", kind=kind.__name__, reason=str(error))


def _by_shard(replies: list[Any], shards: Sequence[int]) -> dict[int, list[bytes]]:
    """Return the ids of each shard that has any; every shard has as many replies."""
    each = len(replies) // len(shards)
    ids = {
        shard: [one for reply in replies[i * each : (i + 1) * each] for one in reply]
        for i, shard in enumerate(shards)
    }
    return {shard: some for shard, some in ids.items() if some}
