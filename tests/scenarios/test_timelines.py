"""Whole timelines, from a sample in Redis to a message at a receiver, with deaths between."""

import time
from typing import cast

import redis

from detector.config import Config
from detector.demo.loopback import Loopback
from detector.incident.ledger import Action
from detector.store.keys import Keys
from detector.store.ledger import Ledger
from tests.scenarios.stage import (
    CADENCE_MS,
    END_MS,
    START_MS,
    Clock,
    fleet,
    roots,
    told,
    watching,
    write,
)

TRUTH = fleet()[0].truth
MOMENT_MS = 30  # a lease that a dead process leaves behind for no longer than this


def after_lease() -> None:
    time.sleep(2 * MOMENT_MS / 1000)


def test_a_fall_is_told_once_to_everybody_however_often_the_service_looks(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    clock, last_ms = Clock(), 0
    with watching(config, clock) as service:
        for step in range(1, 19):  # three hours, ten minutes at a time
            clock.now_ms = START_MS + step * 600_000
            write(redis_client, after_ms=last_ms, until_ms=clock.now_ms)
            last_ms = clock.now_ms
            service.tick()
            service.tick()
        clock.now_ms = END_MS
        service.deliver()
        service.deliver()
    assert service.counters.incidents_opened == 1
    assert len(roots(loopback)) == 1
    assert "falls" in roots(loopback)[0]
    assert told(loopback) == [("opened", 1)]
    assert len(loopback.slack.files) == 1
    (incident,) = Ledger(redis_client, Keys()).incidents()
    assert TRUTH is not None
    assert incident.kind == TRUTH.kind
    assert abs(incident.onset_ms - TRUTH.onset_ms) <= 4 * CADENCE_MS


def test_a_service_that_dies_between_judging_and_telling_loses_nothing_and_repeats_nothing(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    write(redis_client)
    clock = Clock()
    with watching(config, clock, lease_ms=MOMENT_MS) as first:
        first.tick()
    assert first.counters.incidents_opened == 1
    assert told(loopback) == []
    after_lease()
    with watching(config, clock, lease_ms=MOMENT_MS) as second:
        second.tick()
        second.deliver()
    after_lease()
    with watching(config, clock) as third:
        third.tick()
        third.deliver()
    assert second.counters.incidents_opened == third.counters.incidents_opened == 0
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]


def test_a_death_after_sending_and_before_noting_it_shows_in_no_channel(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    write(redis_client)
    clock = Clock()
    with watching(config, clock, lease_ms=MOMENT_MS) as first:
        first.tick()
        before = {key: redis_client.dump(key) for key in redis_client.scan_iter("ofu:{s*")}
        first.deliver()
    assert len(roots(loopback)) == 1
    after_lease()
    # What had been sent is forgotten, as when the process is killed with the answer in hand:
    # the lane is claimed and nothing of its outcome is written.
    for key in redis_client.scan_iter("ofu:{s*"):
        redis_client.delete(key)
    for key, blob in before.items():
        assert blob is not None
        redis_client.restore(key, 0, blob)
    lane = Keys()
    for shard in range(64):
        due = lane.shard(shard, "due:slack")
        for name in cast("list[bytes]", redis_client.zrange(due, 0, -1)):
            redis_client.hset(lane.shard(shard, "tokens"), name.decode(), "dead")
    with watching(config, clock) as second:
        second.tick()
        second.deliver()
    assert len(roots(loopback)) == 1
    # At least once is what a machine is promised: the same id again, which it knows.
    assert [step for step, _ in told(loopback)] == ["opened"]


def test_a_state_that_is_lost_with_its_incidents_kept_tells_nothing_again(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    write(redis_client)
    clock = Clock()
    with watching(config, clock, lease_ms=MOMENT_MS) as first:
        first.tick()
        first.deliver()
    after_lease()
    for shard in range(64):
        redis_client.delete(Keys().shard(shard, "state"))
    with watching(config, clock) as second:
        second.tick()
        second.deliver()
    assert second.counters.entries > 600  # the whole history was read again
    assert second.counters.incidents_opened == 0
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]


def test_what_people_call_expected_ends_the_incident_and_edits_its_message(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    write(redis_client)
    clock, ledger = Clock(), Ledger(redis_client, Keys())
    with watching(config, clock) as service:
        service.tick()
        service.deliver()
        (incident,) = ledger.incidents()
        for verb, reason in (("acknowledge", ""), ("resolve", "expected_change")):
            action = Action(
                verb=verb, incident=incident.id, actor="ada", time_ms=END_MS, reason=reason
            )
            assert ledger.act(action)
            service.tick()
            clock.now_ms += 2_000
            service.deliver()
        service.tick()
    (incident,) = ledger.incidents()
    assert incident.resolve_reason == "expected_change"
    assert [step for step, _ in told(loopback)] == ["opened", "acknowledged", "resolved"]
    (root,) = [item for item in loopback.slack.messages if item.thread_ts is None]
    assert "Expected change" in root.text
    assert root.earlier
    assert service.counters.incidents_opened == 1  # the new level is the baseline


def test_a_receiver_that_is_down_holds_up_nobody_and_is_told_when_it_is_back(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    write(redis_client)
    clock = Clock()
    loopback.fail_next("/api", status=503, times=1)
    with watching(config, clock, lease_ms=MOMENT_MS) as service:
        service.tick()
        service.deliver()
        assert roots(loopback) == []
        assert told(loopback) == [("opened", 1)]
    after_lease()
    clock.now_ms += 120_000
    with watching(config, clock) as service:
        service.deliver()
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]


def test_two_services_lead_in_turn_and_alert_once(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    half_ms = (START_MS + END_MS) // 2
    write(redis_client, until_ms=half_ms)
    clock = Clock()
    with (
        watching(config, clock, lease_ms=MOMENT_MS) as leader,
        watching(config, clock, lease_ms=60_000) as standby,
    ):
        standby.tick()
        assert standby.counters.ticks == 0
        leader.tick()
        assert leader.counters.ticks > 0
        after_lease()  # the leader is paused for longer than its lease
        standby.renew()
        write(redis_client, after_ms=half_ms)
        standby.tick()
        leader.tick()  # wakes up, and believes that it leads
        leader.renew()
        leader.tick()
        assert standby.counters.incidents_opened == 1
        assert leader.counters.incidents_opened == 0
        for service in (leader, standby, leader):
            service.deliver()
    assert len(roots(loopback)) == 1
    assert told(loopback) == [("opened", 1)]


def test_a_service_that_ends_in_order_leaves_the_lead_and_all_it_knew(
    redis_client: redis.Redis, config: Config
) -> None:
    write(redis_client)
    clock = Clock()
    with watching(config, clock) as first:
        first.tick()
        first.save()
        first.renew()  # one that was under way must not take the lead again
    with watching(config, clock) as second:
        second.tick()
        assert second.counters.ticks == 1
        assert second.counters.entries == 0  # nothing had to be read again
        assert second.counters.incidents_opened == 0
