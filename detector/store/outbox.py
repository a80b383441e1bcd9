"""What is owed to receivers: lanes that survive any crash and are emptied in order.

A lane holds the notices of one incident for one receiver; only its head is ever under way, so
a resolve cannot overtake its alert. A lane is claimed for a while: two dispatchers never send
one lane at once, and the lane of a dispatcher that died is claimed again when its time is up.
Nothing here is ever trimmed or left to expire.

Keys, each ``ofu:{s<NN>}:<name>``:

====================  ======  ==========================================================
``lane:<lane>``       list    ``<queued at, ms> <blob>``, oldest first
``due:<receiver>``    zset    lane -> when to send next, or until when it is claimed
``tokens``            hash    lane -> token of the claim that holds it
``attempts``          hash    lane -> failed tries at its head
``unsure``            hash    lane -> 1 when a try at its head may have succeeded
``reasons``           hash    lane -> why the last try failed
``receipts``          hash    lane -> what the receiver left for its next message
``dlq:<receiver>``    list    blobs of dead letters, oldest first
``receivers``         set     receivers with lanes here
``dead``              set     receivers with dead letters here
====================  ======  ==========================================================
"""

import secrets
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import redis
import structlog

from detector.incident.ledger import SHARDS, Claim, DeadLetter, Notice
from detector.store.blob import decode, encode
from detector.store.errors import StoreError
from detector.store.keys import Keys
from detector.store.script import answers, outcomes, script

log = structlog.get_logger(__name__)

# Notices in one claim, as the ledger's Claim promises.
_NOTICES = 100


class Pending(NamedTuple):
    """What waits for one receiver: how many notices, and since when the oldest (wall time)."""

    notices: int
    oldest_ms: int


class Stuck(NamedTuple):
    """A lane whose head has failed before: how often, and why the last time."""

    receiver: str
    incident: str
    attempts: int
    reason: str


class _Dead(NamedTuple):
    """A dead letter where it lies; ``letter`` is None when the blob cannot be read."""

    shard: int
    receiver: str
    blob: bytes
    letter: DeadLetter | None


class Outbox:
    """The lanes of all shards."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client, self._keys = client, keys
        self._claim = script(client, "claim")
        self._finish = script(client, "finish")
        self._exhume = script(client, "exhume")
        self._pending = script(client, "pending")
        self._broken: set[int] = set()

    def claim(
        self, receivers: Collection[str], *, now_ms: int, lease_ms: int, limit: int
    ) -> tuple[Claim, ...]:
        """Return at most ``limit`` due lanes of ``receivers``, longest due first, as claims.

        They are the caller's until ``now_ms + lease_ms``. A lane whose last holder never
        finished comes with one more attempt and ``maybe_sent``.
        """
        due = self._due(receivers, now_ms, limit)
        token = secrets.token_hex(8)
        pipeline = self._client.pipeline(transaction=False)
        for shard, lanes in due.items():
            keys = self._named(shard, "tokens", "attempts", "unsure", "receipts")
            for lane in lanes:
                keys += self._named(shard, f"lane:{lane}", f"due:{_receiver(lane)}")
            args: list[Any] = [now_ms, now_ms + lease_ms, token, _NOTICES, *lanes]
            self._claim(keys=keys, args=args, client=pipeline)
        claims: list[Claim] = []
        for shard, got in self._usable(list(due), outcomes(pipeline)):
            for row in got:
                claim, items = _claimed(shard, token, row)
                if claim.notices:
                    claims.append(claim)
                else:
                    self._set_aside(claim, items[:1], now_ms=now_ms)
        return tuple(claims)

    def done(
        self,
        claim: Claim,
        *,
        count: int,
        receipt: str | None = None,
        follow_ups: tuple[Notice, ...] = (),
        now_ms: int,
    ) -> bool:
        """Take the first ``count`` notices off the lane; they were accepted.

        Parameters
        ----------
        receipt
            Kept for the lane's next message; None leaves the one that is there.
        follow_ups
            Queued at the end of the same lane.

        Returns
        -------
        bool
            False when the claim had passed to another dispatcher: nothing was changed.
        """
        items = [f"{now_ms} ".encode() + encode(notice) for notice in follow_ups]
        return self._end(claim, pop=count, due_ms=now_ms, receipt=receipt or "", items=items)

    def postpone(
        self, claim: Claim, *, due_ms: int, reason: str, maybe_sent: bool, counts: bool
    ) -> bool:
        """Give the lane back until ``due_ms``; False when the claim had passed on.

        Parameters
        ----------
        maybe_sent
            The try may have been accepted. Once said, it holds for the lane's head until
            that is done: a clear refusal afterwards does not unsend the first try.
        counts
            Whether this was a failed try; waiting for a receiver that is known to be down
            is none.
        """
        return self._end(
            claim, due_ms=due_ms, reason=reason, maybe_sent=maybe_sent, counts=counts
        )

    def bury(self, claim: Claim, *, count: int, reason: str, now_ms: int) -> bool:
        """Move the first ``count`` notices to the dead letters; False when it passed on."""
        dead = [
            DeadLetter(
                notice=notice, reason=reason, attempts=claim.attempts + 1, time_ms=now_ms
            )
            for notice in claim.notices[:count]
        ]
        return self._end(claim, pop=count, due_ms=now_ms, dead=[encode(one) for one in dead])

    def dead_letters(self, receiver: str | None = None) -> tuple[DeadLetter, ...]:
        """Return what was refused for good, oldest first."""
        letters = [one.letter for one in self._dead(receiver) if one.letter is not None]
        return tuple(sorted(letters, key=lambda letter: letter.time_ms))

    def replay_dead(
        self,
        receiver: str | None = None,
        ids: Collection[str] | None = None,
        *,
        now_ms: int,
    ) -> int:
        """Queue dead letters again, at their lanes' ends, and return how many.

        ``ids`` are event ids of their transitions; None means all that can be read.
        """
        chosen = [one for one in self._dead(receiver) if one.letter and _meant(one.letter, ids)]
        return self._exhumed(chosen, now_ms=now_ms)

    def drop_dead(self, receiver: str | None = None, ids: Collection[str] | None = None) -> int:
        """Forget dead letters and return how many; without ``ids`` unreadable ones too."""
        chosen = [
            one
            for one in self._dead(receiver)
            if (ids is None if one.letter is None else _meant(one.letter, ids))
        ]
        return self._exhumed(chosen, now_ms=None)

    def pending(self) -> Mapping[str, Pending]:
        """Return what waits for each receiver, those that are configured no more included."""
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            keys = self._named(shard, "receivers")
            prefix = self._keys.shard(shard, "lane:").removesuffix("lane:")
            self._pending(keys=keys, args=[prefix], client=pipeline)
        found: dict[str, Pending] = {}
        for _, reply in self._usable(list(range(SHARDS)), outcomes(pipeline)):
            for name, count, oldest in reply:
                receiver, oldest_ms = name.decode(), int(oldest)
                known = found.get(receiver, Pending(0, oldest_ms))
                found[receiver] = Pending(
                    known.notices + count, min(known.oldest_ms, oldest_ms)
                )
        return found

    def stuck(self) -> tuple[Stuck, ...]:
        """Return the lanes whose head has failed, most attempts first."""
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            pipeline.hgetall(self._keys.shard(shard, "reasons"))
            pipeline.hgetall(self._keys.shard(shard, "attempts"))
        replies = answers(pipeline)
        found = []
        for reasons, attempts in zip(replies[::2], replies[1::2], strict=True):
            for lane in reasons.keys() | attempts.keys():
                receiver, _, incident = lane.decode().rpartition("|")
                reason = reasons.get(lane, b"").decode(errors="replace")
                found.append(Stuck(receiver, incident, int(attempts.get(lane, 0)), reason))
        return tuple(sorted(found, key=lambda one: (-one.attempts, one)))

    def _due(self, receivers: Collection[str], now_ms: int, limit: int) -> dict[int, list[str]]:
        """Return the lanes to claim, by shard."""
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            for receiver in receivers:
                name = self._keys.shard(shard, f"due:{receiver}")
                pipeline.zrangebyscore(name, "-inf", now_ms, 0, limit, withscores=True)
        shards = [shard for shard in range(SHARDS) for _ in receivers]
        found = sorted(
            (score, shard, lane.decode())
            for shard, reply in self._usable(shards, outcomes(pipeline))
            for lane, score in reply
        )
        lanes: dict[int, list[str]] = {}
        for _, shard, lane in found[:limit]:
            lanes.setdefault(shard, []).append(lane)
        return lanes

    def _usable(self, shards: list[int], replies: list[Any]) -> Iterator[tuple[int, Any]]:
        """Yield each shard's reply; a shard with foreign keys holds up no other's alerts."""
        for shard, reply in zip(shards, replies, strict=True):
            if not isinstance(reply, StoreError):
                yield shard, reply
            elif shard not in self._broken:
                self._broken.add(shard)
                log.error("shard_unusable", shard=shard, reason=str(reply))

    def _end(
        self,
        claim: Claim,
        *,
        pop: int = 0,
        due_ms: int,
        counts: bool = False,
        maybe_sent: bool = False,
        reason: str = "",
        receipt: str = "",
        items: Collection[bytes] = (),
        dead: Collection[bytes] = (),
    ) -> bool:
        """End the claim by ``finish.lua``."""
        keys = self._named(
            claim.shard,
            *(f"lane:{claim.lane}", f"due:{claim.receiver}", "tokens", "attempts", "unsure"),
            *("reasons", "receipts", "receivers", f"dlq:{claim.receiver}", "dead"),
        )
        args: list[Any] = [
            *(claim.token, claim.lane, claim.receiver, pop, due_ms),
            *(int(counts), int(maybe_sent), reason, receipt, len(items), *items, *dead),
        ]
        pipeline = self._client.pipeline(transaction=False)
        self._finish(keys=keys, args=args, client=pipeline)
        return bool(answers(pipeline)[0])

    def _set_aside(self, claim: Claim, items: list[bytes], *, now_ms: int) -> None:
        """Move a lane's unreadable head, as it is, to the dead letters: it blocks nothing."""
        log.warning("notice_unreadable", lane=claim.lane)
        dead = [item.partition(b" ")[2] for item in items]
        self._end(claim, pop=len(items), due_ms=now_ms, dead=dead)

    def _dead(self, receiver: str | None) -> list[_Dead]:
        """Return every dead letter of ``receiver``, or of all."""
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            pipeline.smembers(self._keys.shard(shard, "dead"))
        places = [
            (shard, name.decode())
            for shard, names in enumerate(answers(pipeline))
            for name in sorted(names)
            if receiver in (None, name.decode())
        ]
        pipeline = self._client.pipeline(transaction=False)
        for shard, name in places:
            pipeline.lrange(self._keys.shard(shard, f"dlq:{name}"), 0, -1)
        return [
            _Dead(shard, name, blob, _letter(blob))
            for (shard, name), blobs in zip(places, answers(pipeline), strict=True)
            for blob in blobs
        ]

    def _exhumed(self, chosen: Collection[_Dead], *, now_ms: int | None) -> int:
        """Take letters off their lists, and queue them again unless ``now_ms`` is None."""
        groups: dict[tuple[int, str], list[_Dead]] = {}
        for one in chosen:
            groups.setdefault((one.shard, one.receiver), []).append(one)
        pipeline = self._client.pipeline(transaction=False)
        for (shard, receiver), letters in groups.items():
            names = [f"dlq:{receiver}", "dead", f"due:{receiver}", "receivers"]
            args: list[Any] = [
                receiver,
                now_ms or 0,
                len(letters),
                *(one.blob for one in letters),
            ]
            if now_ms is not None:
                notices = [one.letter.notice for one in letters if one.letter]
                names += [f"lane:{notice.lane}" for notice in notices]
                for notice in notices:
                    args += [notice.lane, f"{now_ms} ".encode() + encode(notice)]
            self._exhume(keys=self._named(shard, *names), args=args, client=pipeline)
        return sum(answers(pipeline))

    def _named(self, shard: int, *names: str) -> list[str]:
        return [self._keys.shard(shard, name) for name in names]


def _receiver(lane: str) -> str:
    return lane.rpartition("|")[0]


def _meant(letter: DeadLetter, ids: Collection[str] | None) -> bool:
    return ids is None or letter.notice.transition.event_id in ids


def _letter(blob: bytes) -> DeadLetter | None:
    try:
        return decode(blob, DeadLetter)
    except ValueError as error:
        log.warning("dead_letter_unreadable", reason=str(error))
        return None


def _claimed(shard: int, token: str, row: list[Any]) -> tuple[Claim, list[bytes]]:
    """Return a claim of the lane's readable notices, and the lane's items as they lie."""
    lane, items, receipt, attempts, unsure = row
    claim = Claim(
        receiver=_receiver(lane.decode()),
        lane=lane.decode(),
        shard=shard,
        token=token,
        notices=tuple(_until_unreadable(items)),
        receipt=receipt.decode() or None,
        attempts=attempts,
        maybe_sent=bool(unsure),
    )
    return claim, items


def _until_unreadable(items: list[bytes]) -> Iterator[Notice]:
    """Yield an item's notice, one after the other, and stop at the first that is none."""
    for item in items:
        try:
            yield decode(item.partition(b" ")[2], Notice)
        except ValueError:
            return
