"""Leases of shards: at most one process judges a shard of jobs, and a paused one is told.

A lease alone does not stop a process that slept through its end. Every take-over of a shard
raises the shard's fence, and the ledger refuses a commit that carries an older one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import redis

from detector.incident.ledger import SHARDS
from detector.store.keys import Keys
from detector.store.script import answers, script


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The shards that this process owns for now.

    Attributes
    ----------
    fence
        Shard -> fencing token. A token that changed since the last look means that the lease
        had run out in between: what is known of the shard must be loaded again.
    until_ms
        Until when the leases last without a renewal, on the caller's clock.
    """

    fence: Mapping[int, int]
    until_ms: int

    @property
    def shards(self) -> frozenset[int]:
        """Which shards are held."""
        return frozenset(self.fence)


class Lease:
    """One process's claim to the shards of the fleet.

    Parameters
    ----------
    owner
        Unique to this run of this process (host, pid and something random): a name that was
        used before would inherit that run's leases.
    ttl_ms
        15 s: ticks come every 10 s, so a dead owner is replaced at the second tick after,
        and one slow tick loses nothing (measured: 1.7 ms to renew all 64).
    """

    def __init__(
        self, client: redis.Redis, keys: Keys, owner: str, *, ttl_ms: int = 15_000
    ) -> None:
        self._client, self._keys, self._owner, self._ttl_ms = client, keys, owner, ttl_ms
        self._take = script(client, "lease")
        self._drop = script(client, "release")

    def acquire_or_renew(self, now_ms: int) -> Held:
        """Renew what is ours, take what is free, and return what is held.

        Raises
        ------
        StoreError
            When Redis cannot be asked: nothing is known to be held then.
        """
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            keys = [self._keys.shard(shard, "lease"), self._keys.shard(shard, "fence")]
            self._take(keys=keys, args=[self._owner, self._ttl_ms], client=pipeline)
        fences = answers(pipeline)
        held = {shard: int(fence) for shard, fence in enumerate(fences) if fence}
        return Held(fence=MappingProxyType(held), until_ms=now_ms + self._ttl_ms)

    def release(self) -> None:
        """Give back what is ours, so that a standby need not wait for the lease's end."""
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            keys = [self._keys.shard(shard, "lease")]
            self._drop(keys=keys, args=[self._owner], client=pipeline)
        answers(pipeline)

    def evict(self) -> None:
        """Drop all leases: for a store that only this process can reach.

        What an earlier run left there would keep this one waiting for nobody. Taking a lease
        raises its fence, so that even a mistaken eviction lets nobody write twice.
        """
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            pipeline.delete(self._keys.shard(shard, "lease"))
        answers(pipeline)

    def owners(self) -> Mapping[str, int]:
        """Return who holds shards now, and how many each."""
        pipeline = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            pipeline.get(self._keys.shard(shard, "lease"))
        names = [name.decode() for name in answers(pipeline) if name]
        return {name: names.count(name) for name in sorted(set(names))}
