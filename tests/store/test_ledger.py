from typing import cast

import msgspec
import pytest
import redis
from structlog.testing import capture_logs

from detector.incident.incident import State
from detector.incident.ledger import SHARDS, Action, Commit, Saved, shard_of
from detector.store.errors import StoreError, Trouble
from detector.store.keys import Keys
from detector.store.lease import Lease
from detector.store.ledger import REMEMBER_MS, CommitResult, Ledger
from detector.store.outbox import Outbox
from tests.store.owed import T0, everything, incident, notice, owing

KEYS = Keys()
SHARD = shard_of("job-1")


@pytest.fixture
def ledger(redis_client: redis.Redis) -> Ledger:
    return Ledger(redis_client, KEYS)


def test_a_shard_never_written_is_empty(ledger: Ledger) -> None:
    assert ledger.load([3, 5]) == (Saved(shard=3), Saved(shard=5))


def test_what_was_committed_is_loaded(ledger: Ledger) -> None:
    one = incident()
    commit = Commit(
        shard=SHARD,
        states={"ofu": b"\x00packed", "cursors": b"a model may be called so"},
        cursors={"job-1": T0, "jöb %{2}": 1},
        incidents=(one,),
    )
    assert ledger.commit([commit]) == (CommitResult(shard=SHARD, accepted=(one.id,)),)
    (saved,) = ledger.load([SHARD])
    assert saved.states == commit.states
    assert saved.cursors == commit.cursors
    assert saved.incidents == (one,)


def test_a_commit_without_states_leaves_those_that_are_stored(ledger: Ledger) -> None:
    ledger.commit([Commit(shard=1, states={"ofu": b"x"}, cursors={"a": 1})])
    ledger.commit([Commit(shard=1)])
    assert ledger.load([1])[0].states == {"ofu": b"x"}


def test_a_model_that_is_gone_leaves_no_state_behind(ledger: Ledger) -> None:
    ledger.commit([Commit(shard=1, states={"ofu": b"x", "mfu": b"y"}, cursors={"a": 1})])
    ledger.commit([Commit(shard=1, states={"ofu": b"z"}, cursors={"a": 2})])
    assert ledger.load([1])[0].states == {"ofu": b"z"}


def test_all_shards_are_loaded_in_order(ledger: Ledger) -> None:
    ledger.commit(
        [Commit(shard=n, states={"ofu": bytes([n])}, cursors={}) for n in range(SHARDS)]
    )
    loaded = ledger.load(range(SHARDS))
    assert [saved.states["ofu"] for saved in loaded] == [bytes([n]) for n in range(SHARDS)]


def test_a_repeated_commit_changes_nothing(redis_client: redis.Redis, ledger: Ledger) -> None:
    one = incident()
    ledger.act(Action(verb="acknowledge", incident=one.id, actor="ann", time_ms=T0))
    commit = Commit(
        shard=SHARD,
        states={"ofu": b"x"},
        cursors={"job-1": T0},
        incidents=(one,),
        notices=(notice(one),),
    )
    assert ledger.commit([commit])[0].notices == 1
    before = everything(redis_client)
    again = ledger.commit([commit])
    assert again == (CommitResult(shard=SHARD),)
    assert everything(redis_client) == before


def test_a_revision_that_is_not_above_the_stored_one_is_refused_with_its_notices(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    second = incident(revision=2)
    ledger.commit([owing(second, notice(second))])
    for revision in (1, 2):
        stale = incident(revision=revision, state=State.RESOLVED)
        (result,) = ledger.commit([owing(stale, notice(stale, "resolved"))])
        assert result == CommitResult(shard=SHARD)
    assert ledger.incident(second.id) == second
    assert Outbox(redis_client, KEYS).pending()["slack"].notices == 1


def test_of_several_steps_in_one_commit_only_the_new_ones_are_owed(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    first, second = incident(revision=1), incident(revision=2, state=State.RESOLVED)
    ledger.commit([owing(first, notice(first))])
    both = (notice(first), notice(second, "resolved"))
    assert ledger.commit([owing(second, *both)])[0].notices == 1
    assert Outbox(redis_client, KEYS).pending()["slack"].notices == 2


def test_a_stale_fence_writes_nothing(redis_client: redis.Redis, ledger: Ledger) -> None:
    old = Lease(redis_client, KEYS, "old").acquire_or_renew(T0).fence
    redis_client.delete(*(KEYS.shard(n, "lease") for n in range(SHARDS)))
    new = Lease(redis_client, KEYS, "new").acquire_or_renew(T0).fence
    before = everything(redis_client)
    one = incident()
    commit = Commit(
        shard=SHARD,
        states={"ofu": b"x"},
        cursors={},
        incidents=(one,),
        notices=(notice(one),),
    )
    (result,) = ledger.commit([commit], fences=old)
    assert result == CommitResult(shard=SHARD, stale=True)
    assert everything(redis_client) == before
    (result,) = ledger.commit([commit], fences=new)
    assert result.accepted == (one.id,)


def test_a_notice_without_its_incident_is_the_callers_mistake(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="without its incident"):
        ledger.commit([Commit(shard=SHARD, notices=(notice(incident()),))])


@pytest.mark.parametrize(
    "name", ["state", "incidents", "revisions", "ends", "actions", "receivers", "lane", "due"]
)
def test_a_key_of_a_foreign_type_refuses_the_whole_commit(
    redis_client: redis.Redis, ledger: Ledger, name: str
) -> None:
    one = incident()
    owed = notice(one)
    full = {"lane": f"lane:{owed.lane}", "due": "due:slack"}.get(name, name)
    redis_client.set(KEYS.shard(SHARD, full), "not ours")
    before = everything(redis_client)
    commit = Commit(
        shard=SHARD, states={"ofu": b"x"}, cursors={}, incidents=(one,), notices=(owed,)
    )
    with pytest.raises(StoreError) as caught:
        ledger.commit([commit])
    assert caught.value.kind is Trouble.WRONG_TYPE
    assert f"keys ofu:{{s{SHARD:02d}}}:*" in str(caught.value)
    assert everything(redis_client) == before


def test_a_full_server_writes_nothing_and_says_so(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    first, second = incident(revision=1), incident(revision=2)
    stored = Commit(
        shard=SHARD, states={"ofu": b"x"}, cursors={"job-1": T0}, incidents=(first,)
    )
    ledger.commit([stored])
    before = everything(redis_client)
    refused = Commit(
        shard=SHARD,
        states={"ofu": b"y"},
        cursors={"job-1": T0 + 1},
        incidents=(second,),
        notices=(notice(second),),
    )
    redis_client.config_set("maxmemory", "100kb")
    try:
        with pytest.raises(StoreError, match="maxmemory") as caught:
            ledger.commit([refused])
        assert caught.value.kind is Trouble.OUT_OF_MEMORY
        assert everything(redis_client) == before
    finally:
        redis_client.config_set("maxmemory", "0")
    assert ledger.commit([refused])[0].accepted == (second.id,)


def test_one_unreadable_blob_costs_that_incident_alone(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    one, two = incident(), incident(onset_ms=T0 + 1)
    ledger.commit([owing(one)])
    ledger.commit([owing(two)])
    redis_client.hset(KEYS.shard(SHARD, "incidents"), one.id, b"\x09from the future")
    with capture_logs() as logs:
        assert ledger.load([SHARD])[0].incidents == (two,)
    assert [entry["event"] for entry in logs] == ["blob_unreadable"]
    assert ledger.incidents() == (two,)


def test_unreadable_cursors_start_the_shard_cold(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    ledger.commit([Commit(shard=1, states={"ofu": b"x"}, cursors={"a": 1})])
    redis_client.hset(KEYS.shard(1, "state"), "cursors", b"\x01\xc1")
    with capture_logs() as logs:
        assert ledger.load([1]) == (Saved(shard=1),)
    assert [entry["event"] for entry in logs] == ["detector_state_unreadable"]


def test_an_incident_that_ended_long_ago_is_listed_but_not_loaded(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    over = incident(state=State.RESOLVED)
    ledger.commit([owing(over)])
    assert ledger.load([SHARD])[0].incidents == (over,)
    redis_client.zincrby(KEYS.shard(SHARD, "ends"), -86_400_001, over.id)
    assert ledger.load([SHARD])[0].incidents == ()
    assert ledger.incident(over.id) == over
    assert ledger.incidents() == (over,)


def test_incidents_are_found_by_state_and_by_job_the_live_ones_first(ledger: Ledger) -> None:
    over = incident("a", state=State.RESOLVED, onset_ms=T0 + 9)
    live = incident("a", onset_ms=T0)
    newer = incident("b", onset_ms=T0 + 5)
    seen = incident("b", state=State.ACKNOWLEDGED, onset_ms=T0 + 4)
    everyone = (newer, seen, live, over)
    for one in everyone:
        ledger.commit([owing(one)])
    assert ledger.incidents() == everyone
    assert ledger.incidents(limit=2) == (newer, seen)
    assert ledger.incidents(job="a") == (live, over)
    assert ledger.incidents(states={State.RESOLVED}) == (over,)
    assert ledger.incidents(states={State.ACKNOWLEDGED}, job="b") == (seen,)
    assert ledger.incidents(states=set()) == ()


def test_an_unknown_incident_is_none_and_takes_no_action(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    assert ledger.incident("inc_none") is None
    action = Action(verb="acknowledge", incident="inc_none", actor="ann", time_ms=T0)
    assert ledger.act(action) is False
    assert not redis_client.keys()


def test_an_action_waits_for_the_tick_that_carries_it_out(ledger: Ledger) -> None:
    one = incident()
    ledger.commit([owing(one)])
    first = Action(verb="acknowledge", incident=one.id, actor="ann", time_ms=T0)
    second = Action(verb="resolve", incident=one.id, actor="bob", time_ms=T0, reason="expired")
    assert ledger.act(first)
    assert ledger.actions(range(SHARDS)) == {SHARD: (first,)}
    assert ledger.act(second)
    done = Commit(shard=SHARD, actions_done=1)
    ledger.commit([done])
    ledger.commit([done])  # its first reply was lost, say
    assert ledger.actions(range(SHARDS)) == {SHARD: (second,)}


def test_an_action_that_was_never_read_cannot_be_done(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="1 actions done, 0 read"):
        ledger.commit([Commit(shard=SHARD, actions_done=1)])


def test_actions_that_nobody_carries_out_do_not_pile_up_for_ever(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    one = incident()
    ledger.commit([owing(one)])
    redis_client.rpush(KEYS.shard(SHARD, "actions"), *([b"x"] * 1_000))
    with pytest.raises(StoreError, match="ofuwatch serve"):
        ledger.act(Action(verb="acknowledge", incident=one.id, actor="ann", time_ms=T0))


def test_sweeping_forgets_what_ended_a_month_ago_but_nothing_that_is_owed(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    outbox = Outbox(redis_client, KEYS)
    live, over, owed = incident("a"), incident("b"), incident("c")
    for one in (live, over, owed):
        ledger.commit([owing(one, notice(one))])
        (claim,) = outbox.claim(["slack"], now_ms=T0, lease_ms=1_000, limit=9)
        outbox.done(claim, count=1, receipt="here", now_ms=T0)
    for one in (over, owed):
        ended = msgspec.structs.replace(one, state=State.RESOLVED, revision=2)
        ledger.commit([owing(ended, *([notice(ended, "resolved")] if one is owed else []))])
    seconds, _ = redis_client.time()
    assert ledger.sweep(seconds * 1_000 - 60_000 + REMEMBER_MS) == 0
    assert ledger.sweep(seconds * 1_000 + 60_000 + REMEMBER_MS) == 2
    assert [one.id for one in ledger.incidents()] == [live.id]
    receipts = [
        lane for n in range(SHARDS) for lane in redis_client.hkeys(KEYS.shard(n, "receipts"))
    ]
    assert {cast("bytes", lane).decode() for lane in receipts} == {
        notice(live).lane,
        notice(owed).lane,
    }
    (claim,) = outbox.claim(["slack"], now_ms=T0, lease_ms=1_000, limit=9)
    assert claim.receipt == "here"
    outbox.done(claim, count=1, now_ms=T0)
    ledger.sweep(seconds * 1_000 + 60_000 + REMEMBER_MS)
    shard = shard_of("c")
    assert not redis_client.keys(f"ofu:{{s{shard:02d}}}:*")


def test_an_old_redis_says_out_of_memory_inside_a_scripts_error(
    redis_client: redis.Redis, ledger: Ledger
) -> None:
    # Redis 6.2 wraps the error of a command that a script called
    redis_client.set(KEYS.shard(SHARD, "state"), "x")
    source = (
        "return redis.error_reply('ERR Error running script (call to f_aa): "
        "@user_script:20: @user_script: 20: -OOM command not allowed')"
    )
    ledger._load = redis_client.register_script(source)
    with pytest.raises(StoreError) as caught:
        ledger.load([SHARD])
    assert caught.value.kind is Trouble.OUT_OF_MEMORY
