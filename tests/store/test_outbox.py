import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from detector.incident.incident import State
from detector.incident.ledger import SHARDS, Claim, Notice, shard_of
from detector.store.embedded import start
from detector.store.errors import StoreError, Trouble
from detector.store.keys import Keys
from detector.store.lease import Lease
from detector.store.ledger import Ledger
from detector.store.outbox import Outbox, Stuck
from tests.store.owed import T0, everything, incident, notice, owing

KEYS = Keys()
MINUTE = 60_000


@pytest.fixture
def outbox(redis_client: redis.Redis) -> Outbox:
    return Outbox(redis_client, KEYS)


@pytest.fixture
def ledger(redis_client: redis.Redis) -> Ledger:
    return Ledger(redis_client, KEYS)


def owe(ledger: Ledger, job: str = "job-1", *receivers: str) -> Notice:
    one = incident(job)
    notices = [notice(one, receiver=name) for name in receivers or ("slack",)]
    ledger.commit([owing(one, *notices)])
    return notices[0]


def owe_end(ledger: Ledger, job: str = "job-1") -> Notice:
    over = incident(job, revision=2, state=State.RESOLVED)
    end = notice(over, "resolved")
    ledger.commit([owing(over, end)])
    return end


def claim_all(outbox: Outbox, *, now_ms: int = T0, limit: int = 100) -> tuple[Claim, ...]:
    return outbox.claim(["slack", "hook"], now_ms=now_ms, lease_ms=MINUTE, limit=limit)


def outbox_keys(client: redis.Redis) -> set[str]:
    """Names of the keys that lanes have, without prefix and shard."""
    names = {name.decode().split("}:", 1)[1] for name in everything(client)}
    return names - {"incidents", "revisions", "ends"}


def test_what_is_owed_is_claimed_whole_and_in_order(outbox: Outbox, ledger: Ledger) -> None:
    begin, end = owe(ledger), owe_end(ledger)
    (claim,) = claim_all(outbox)
    assert claim.notices == (begin, end)
    assert (claim.receiver, claim.lane) == ("slack", begin.lane)
    assert (claim.receipt, claim.attempts, claim.maybe_sent) == (None, 0, False)


def test_two_dispatchers_never_hold_one_lane(outbox: Outbox, ledger: Ledger) -> None:
    owe(ledger)
    assert len(claim_all(outbox)) == 1
    assert claim_all(outbox) == ()
    assert claim_all(outbox, now_ms=T0 + MINUTE - 1) == ()


def test_a_dispatcher_that_died_leaves_a_lane_that_may_have_been_sent(
    outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (dead,) = claim_all(outbox)
    (claim,) = claim_all(outbox, now_ms=T0 + MINUTE)
    assert (claim.maybe_sent, claim.attempts) == (True, 1)
    assert claim.token != dead.token


def test_a_claim_that_passed_on_changes_nothing(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (late,) = claim_all(outbox)
    claim_all(outbox, now_ms=T0 + MINUTE)
    before = everything(redis_client)
    assert not outbox.done(late, count=1, receipt="mine", now_ms=T0)
    assert not outbox.bury(late, count=1, reason="gone", now_ms=T0)
    assert not outbox.postpone(late, due_ms=T0, reason="", maybe_sent=True, counts=True)
    assert everything(redis_client) == before


def test_a_late_holder_may_finish_while_nobody_took_over(
    outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (claim,) = claim_all(outbox)
    assert outbox.done(claim, count=1, now_ms=T0 + 2 * MINUTE)
    assert not outbox.done(claim, count=1, now_ms=T0 + 2 * MINUTE)


def test_a_lane_that_is_empty_leaves_its_receipt_and_nothing_else(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (claim,) = claim_all(outbox)
    outbox.postpone(claim, due_ms=T0, reason="503", maybe_sent=True, counts=True)
    (claim,) = claim_all(outbox)
    assert outbox.done(claim, count=1, receipt='{"ts":"1.2"}', now_ms=T0)
    assert outbox_keys(redis_client) == {"receipts"}
    assert claim_all(outbox, now_ms=T0 + 10 * MINUTE) == ()


def test_a_receipt_comes_with_the_next_claim_and_stays_until_replaced(
    outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (claim,) = claim_all(outbox)
    outbox.done(claim, count=1, receipt="one", now_ms=T0)
    end = owe_end(ledger)
    (claim,) = claim_all(outbox)
    assert (claim.receipt, claim.notices) == ("one", (end,))
    outbox.done(claim, count=1, receipt=None, follow_ups=(end,), now_ms=T0)
    (claim,) = claim_all(outbox)
    assert claim.receipt == "one"


def test_a_follow_up_waits_behind_what_is_already_owed(outbox: Outbox, ledger: Ledger) -> None:
    begin, end = owe(ledger), owe_end(ledger)
    chart = msgspec.structs.replace(begin, follow_up="chart")
    (claim,) = claim_all(outbox)
    outbox.done(claim, count=1, follow_ups=(chart,), now_ms=T0)
    (claim,) = claim_all(outbox)
    assert claim.notices == (end, chart)


def test_a_notice_that_comes_during_a_send_waits_for_its_end(
    outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (claim,) = claim_all(outbox)
    end = owe_end(ledger)
    assert claim_all(outbox) == ()
    outbox.done(claim, count=1, now_ms=T0)
    (claim,) = claim_all(outbox)
    assert claim.notices == (end,)


def test_a_postponed_lane_comes_back_at_its_time_with_its_attempts(
    outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (claim,) = claim_all(outbox)
    assert outbox.postpone(claim, due_ms=T0 + 5, reason="429", maybe_sent=False, counts=True)
    owe_end(ledger)  # what comes in between does not hurry a lane that waits
    assert claim_all(outbox, now_ms=T0 + 4) == ()
    (claim,) = claim_all(outbox, now_ms=T0 + 5)
    assert (claim.attempts, claim.maybe_sent) == (1, False)
    assert outbox.stuck() == (
        Stuck("slack", claim.notices[0].transition.incident.id, 1, "429"),
    )


def test_waiting_for_a_receiver_that_is_down_is_no_attempt(
    outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (claim,) = claim_all(outbox)
    outbox.postpone(claim, due_ms=T0, reason="breaker", maybe_sent=False, counts=False)
    assert claim_all(outbox)[0].attempts == 0


def test_a_doubt_stays_with_the_head_until_the_head_is_gone(
    outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    owe_end(ledger)
    (claim,) = claim_all(outbox)
    outbox.postpone(claim, due_ms=T0, reason="timeout", maybe_sent=True, counts=True)
    (claim,) = claim_all(outbox)
    outbox.postpone(claim, due_ms=T0, reason="refused", maybe_sent=False, counts=True)
    (claim,) = claim_all(outbox)
    assert (claim.maybe_sent, claim.attempts) == (True, 2)
    outbox.done(claim, count=1, now_ms=T0)
    (claim,) = claim_all(outbox)
    assert (claim.maybe_sent, claim.attempts) == (False, 0)
    assert outbox.stuck() == ()


def test_buried_notices_leave_the_lane_to_the_next(outbox: Outbox, ledger: Ledger) -> None:
    begin, end = owe(ledger), owe_end(ledger)
    (claim,) = claim_all(outbox)
    assert outbox.bury(claim, count=1, reason="400 no such channel", now_ms=T0 + 7)
    (letter,) = outbox.dead_letters()
    assert letter.notice == begin
    assert (letter.reason, letter.attempts, letter.time_ms) == (
        "400 no such channel",
        1,
        T0 + 7,
    )
    (claim,) = claim_all(outbox, now_ms=T0 + 7)
    assert claim.notices == (end,)


def test_dead_letters_can_be_sent_again_or_dropped_one_by_one(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger
) -> None:
    jobs = ["a", "b", "c"]
    notices = [owe(ledger, job, "slack", "hook") for job in jobs]
    for claim in claim_all(outbox):
        outbox.bury(claim, count=1, reason="410", now_ms=T0)
    assert len(outbox.dead_letters()) == 6
    assert len(outbox.dead_letters("slack")) == 3
    assert outbox.dead_letters("nobody") == ()
    assert claim_all(outbox) == ()
    first = notices[0].transition.event_id
    assert outbox.replay_dead("slack", [first], now_ms=T0) == 1
    (claim,) = claim_all(outbox)
    assert claim.notices == (notices[0],)
    outbox.done(claim, count=1, now_ms=T0)
    assert outbox.drop_dead("slack", ["evt_other"]) == 0
    assert outbox.drop_dead("slack") == 2
    assert outbox.replay_dead(now_ms=T0) == 3
    assert {claim.receiver for claim in claim_all(outbox)} == {"hook"}
    assert not outbox_keys(redis_client) & {"dead", "dlq:slack", "dlq:hook"}


def test_lanes_of_a_receiver_that_is_gone_are_kept_and_counted(
    outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger, "a", "old-pager", "slack")
    owe(ledger, "b", "old-pager")
    assert [claim.receiver for claim in claim_all(outbox)] == ["slack"]
    counts = {name: pending.notices for name, pending in outbox.pending().items()}
    assert counts == {"old-pager": 2, "slack": 1}
    assert len(outbox.claim(["old-pager"], now_ms=T0, lease_ms=1, limit=9)) == 2


def test_pending_says_since_when_on_the_servers_clock(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger
) -> None:
    assert outbox.pending() == {}
    owe(ledger)
    seconds, _ = redis_client.time()
    assert abs(outbox.pending()["slack"].oldest_ms - seconds * 1_000) < 5_000


def test_the_oldest_of_all_that_waits_counts(outbox: Outbox, ledger: Ledger) -> None:
    jobs = [job for job in map(str, range(1_000)) if shard_of(job) == 7]
    queued_ms = {jobs[0]: 30, jobs[1]: 10, jobs[2]: 20, "job-1": 40}
    for job in queued_ms:
        owe(ledger, job)
    for claim in claim_all(outbox):
        outbox.bury(claim, count=1, reason="400", now_ms=T0)
    for letter in outbox.dead_letters():
        step = letter.notice.transition
        outbox.replay_dead(ids=[step.event_id], now_ms=queued_ms[step.incident.job.id])
    assert outbox.pending() == {"slack": (4, 10)}


def test_no_more_lanes_than_asked_for_and_the_longest_due_first(
    outbox: Outbox, ledger: Ledger
) -> None:
    for job in ("a", "b", "c"):
        owe(ledger, job)
    for wait, claim in enumerate(claim_all(outbox)):
        outbox.postpone(claim, due_ms=T0 + 9 - wait, reason="", maybe_sent=False, counts=False)
    last = claim.lane
    (claim,) = claim_all(outbox, now_ms=T0 + 99, limit=1)
    assert claim.lane == last
    assert len(claim_all(outbox, now_ms=T0 + 99, limit=5)) == 2
    assert outbox.claim([], now_ms=T0 + 99, lease_ms=1, limit=5) == ()


def test_a_claim_holds_at_most_a_hundred_notices_and_loses_none(
    outbox: Outbox, ledger: Ledger
) -> None:
    for revision in range(1, 151):
        one = incident(revision=revision)
        ledger.commit([owing(one, notice(one, "updated"))])
    (claim,) = claim_all(outbox)
    assert len(claim.notices) == 100
    outbox.done(claim, count=100, now_ms=T0)
    (claim,) = claim_all(outbox)
    assert [one.transition.incident.revision for one in claim.notices] == list(range(101, 151))


def test_an_unreadable_notice_is_set_aside_and_blocks_nobody(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger
) -> None:
    begin = owe(ledger)
    redis_client.lpush(KEYS.shard(shard_of("job-1"), f"lane:{begin.lane}"), b"1 \x07new")
    with capture_logs() as logs:
        assert claim_all(outbox) == ()
    assert [entry["event"] for entry in logs] == ["notice_unreadable"]
    (claim,) = claim_all(outbox)
    assert claim.notices == (begin,)
    with capture_logs():
        assert outbox.dead_letters() == ()
        assert outbox.replay_dead(now_ms=T0) == 0
        assert outbox.drop_dead() == 1
    assert "dead" not in outbox_keys(redis_client)


def test_a_notice_from_a_clock_ahead_is_due_at_once(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger
) -> None:
    seconds, _ = redis_client.time()
    one = incident()
    step = msgspec.structs.replace(
        notice(one).transition, time_ms=seconds * 1_000 + 60 * MINUTE
    )
    ledger.commit([owing(one, Notice(receiver="slack", transition=step))])
    assert len(claim_all(outbox, now_ms=(seconds + 5) * 1_000)) == 1


def test_dispatchers_that_look_at_the_same_time_share_the_lanes(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    lanes = {owe(ledger, f"job-{number}").lane for number in range(40)}
    everyone_looks = threading.Barrier(4)

    def dispatch() -> list[str]:
        outbox = Outbox(redis_client, KEYS)
        got = []
        for _ in range(10):
            everyone_looks.wait()
            got += [claim.lane for claim in claim_all(outbox, limit=10)]
        return got

    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(dispatch) for _ in range(4)]
    claimed = [lane for part in parts for lane in part.result()]
    assert sorted(claimed) == sorted(lanes)


def test_a_foreign_key_in_the_dead_letters_place_loses_no_notice(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger
) -> None:
    owe(ledger)
    (claim,) = claim_all(outbox)
    redis_client.set(KEYS.shard(claim.shard, "dlq:slack"), "not ours")
    before = everything(redis_client)
    with pytest.raises(StoreError) as caught:
        outbox.bury(claim, count=1, reason="400", now_ms=T0)
    assert caught.value.kind is Trouble.WRONG_TYPE
    assert everything(redis_client) == before


@pytest.mark.parametrize("name", ["due:slack", "tokens"])
def test_foreign_keys_in_one_shard_hold_up_no_other(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger, name: str
) -> None:
    good = owe(ledger, "job-2")
    owe(ledger, "job-1")
    redis_client.delete(KEYS.shard(shard_of("job-1"), name))
    redis_client.set(KEYS.shard(shard_of("job-1"), name), "not ours")
    with capture_logs() as logs:
        (claim,) = claim_all(outbox)
        assert claim_all(outbox) == ()
    assert claim.notices == (good,)
    (entry,) = logs  # once, not at every look
    assert f"keys ofu:{{s{shard_of('job-1'):02d}}}:*" in entry["reason"]


def test_a_letter_sent_again_waits_for_the_lane_that_is_held(
    outbox: Outbox, ledger: Ledger
) -> None:
    begin, _ = owe(ledger), owe_end(ledger)
    (claim,) = claim_all(outbox)
    outbox.bury(claim, count=1, reason="400", now_ms=T0)
    (claim,) = claim_all(outbox)
    outbox.replay_dead(now_ms=T0)
    assert claim_all(outbox) == ()
    outbox.done(claim, count=1, now_ms=T0)
    (claim,) = claim_all(outbox)
    assert claim.notices == (begin,)


def test_what_is_owed_goes_out_while_the_server_is_full(
    redis_client: redis.Redis, outbox: Outbox, ledger: Ledger
) -> None:
    begin = owe(ledger)
    redis_client.config_set("maxmemory", "100kb")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            redis_client.set("a", "1")
        assert Lease(redis_client, KEYS, "a").acquire_or_renew(T0).shards
        (claim,) = claim_all(outbox)
        assert claim.notices == (begin,)
        assert outbox.done(claim, count=1, receipt="here", now_ms=T0)
        assert outbox.pending() == {}
    finally:
        redis_client.config_set("maxmemory", "0")


def test_a_receivers_name_may_hold_the_lanes_own_bar(outbox: Outbox, ledger: Ledger) -> None:
    owe(ledger, "a", "team|slack:{x}")
    (claim,) = outbox.claim(["team|slack:{x}"], now_ms=T0, lease_ms=1, limit=9)
    assert claim.receiver == "team|slack:{x}"
    outbox.done(claim, count=1, now_ms=T0)
    assert outbox.pending() == {}


def test_what_is_owed_survives_a_killed_server(tmp_path: Path) -> None:
    server = start(tmp_path)
    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        begin = owe(Ledger(client, KEYS))
        os.kill(server.pid, signal.SIGKILL)
    while server.alive():
        time.sleep(0.001)
    server.stop()
    server = start(tmp_path)
    try:
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            (claim,) = claim_all(Outbox(client, KEYS))
            assert claim.notices == (begin,)
            assert Ledger(client, KEYS).incident(begin.transition.incident.id) is not None
    finally:
        server.stop()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["owe", "claim", "claim", "done", "postpone", "die", "bury", "replay"]),
        st.integers(min_value=0, max_value=3),
    ),
    max_size=40,
)


@given(STEPS)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_notice_is_accepted_once_and_in_order_whatever_happens(
    redis_client: redis.Redis, steps: list[tuple[str, int]]
) -> None:
    """Dispatchers die, providers refuse and letters are replayed; replays may come late."""
    redis_client.flushall()
    ledger, outbox = Ledger(redis_client, KEYS), Outbox(redis_client, KEYS)
    now_ms, revision, accepted, held = T0, 0, [], list[Claim]()
    buried = False
    for step, number in [*steps, ("die", 0), ("replay", 0), ("claim", 0), ("done", 9)]:
        match step:
            case "owe":
                revision += 1
                one = incident(revision=revision)
                ledger.commit([owing(one, notice(one, "updated"))] * (1 + number % 2))
            case "claim":
                held += claim_all(outbox, now_ms=now_ms)
            case "done":
                for claim in held:
                    count = min(max(number, 1), len(claim.notices))
                    if outbox.done(claim, count=count, now_ms=now_ms):
                        sent = claim.notices[:count]
                        accepted += [one.transition.incident.revision for one in sent]
                held = []
            case "postpone":
                for claim in held:
                    outbox.postpone(
                        claim, due_ms=now_ms, reason="503", maybe_sent=False, counts=True
                    )
            case "bury":
                for claim in held:
                    buried |= outbox.bury(claim, count=1, reason="400", now_ms=now_ms)
            case "replay":
                outbox.replay_dead(now_ms=now_ms)
            case "die":
                now_ms += 2 * MINUTE  # whoever held a lane does not any more
    assert sorted(accepted) == sorted(set(accepted))
    assert sorted(accepted) == accepted or buried
    rest = sum(pending.notices for pending in outbox.pending().values())
    assert len(accepted) + rest == revision
    assert all(pending.notices > 0 for pending in outbox.pending().values())
    assert SHARDS == 64
