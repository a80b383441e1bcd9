import pytest
import redis

from detector.incident.ledger import SHARDS
from detector.store.connection import RedisSettings, connect
from detector.store.errors import StoreError, Trouble
from detector.store.keys import Keys
from detector.store.lease import Lease

KEYS = Keys()
ALL = frozenset(range(SHARDS))


def test_the_first_owner_holds_every_shard(redis_client: redis.Redis) -> None:
    held = Lease(redis_client, KEYS, "a", ttl_ms=15_000).acquire_or_renew(1_000)
    assert held.shards == ALL
    assert set(held.fence.values()) == {1}
    assert held.until_ms == 16_000


def test_a_second_owner_is_a_standby_until_the_first_lets_go(redis_client: redis.Redis) -> None:
    first, second = Lease(redis_client, KEYS, "a"), Lease(redis_client, KEYS, "b")
    first.acquire_or_renew(0)
    assert second.acquire_or_renew(0).shards == frozenset()
    assert first.owners() == {"a": SHARDS}
    second.release()  # of what it does not hold
    assert second.acquire_or_renew(0).shards == frozenset()
    first.release()
    assert second.acquire_or_renew(0).shards == ALL


def test_renewing_keeps_the_fence_and_taking_over_raises_it(redis_client: redis.Redis) -> None:
    first, second = Lease(redis_client, KEYS, "a"), Lease(redis_client, KEYS, "b")
    assert first.acquire_or_renew(0).fence == first.acquire_or_renew(0).fence
    first.release()
    assert set(second.acquire_or_renew(0).fence.values()) == {2}


def test_an_owner_whose_lease_ran_out_sees_its_fence_change(redis_client: redis.Redis) -> None:
    lease = Lease(redis_client, KEYS, "a", ttl_ms=5)
    before = lease.acquire_or_renew(0).fence
    while redis_client.exists(KEYS.shard(63, "lease")):
        pass
    after = lease.acquire_or_renew(0).fence
    assert all(after[shard] == before[shard] + 1 for shard in ALL)


def test_a_renewal_lengthens_the_lease(redis_client: redis.Redis) -> None:
    Lease(redis_client, KEYS, "a", ttl_ms=1_000).acquire_or_renew(0)
    Lease(redis_client, KEYS, "a", ttl_ms=60_000).acquire_or_renew(0)
    assert int(redis_client.pttl(KEYS.shard(0, "lease"))) > 30_000


def test_without_a_server_nothing_is_held() -> None:
    client = connect(RedisSettings(url="unix:///nonexistent/socket"))
    with pytest.raises(StoreError) as caught:
        Lease(client, KEYS, "a").acquire_or_renew(0)
    assert caught.value.kind is Trouble.UNREACHABLE
