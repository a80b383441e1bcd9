"""The dispatcher over an honest outbox in memory, and over the real one in Redis."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from detector.incident.incident import TransitionType
from detector.incident.ledger import Claim, Commit, Notice, shard_of
from detector.notify.dispatch import Dispatcher, DispatchReport, DispatchSettings
from detector.notify.receiver import Attempt, Outcome, Policy, Receiver, Refused, Retry, Sent
from detector.notify.webhook import Webhook, WebhookSettings
from detector.series import Duration
from detector.store.keys import Keys
from detector.store.ledger import Ledger
from detector.store.outbox import Outbox as RedisOutbox
from tests.incident.samples import JOB, incident, transition
from tests.notify.loopback import Received, serving, status

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


# -- the two sides ---------------------------------------------------------------------------


@dataclass(kw_only=True)
class Lane:
    """What waits for one receiver about one incident."""

    notices: list[Notice] = field(default_factory=list)
    due_ms: int = 0
    token: str = ""
    attempts: int = 0
    maybe_sent: bool = False
    receipt: str | None = None


class MemoryOutbox:
    """Lanes in a dict, under the same rules as in Redis."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.dead: list[tuple[Notice, str]] = []
        self.down = False
        self._claims = 0

    def owe(self, notice: Notice, *, now_ms: int = 0) -> None:
        lane = self.lanes.setdefault(notice.lane, Lane(due_ms=now_ms))
        if not lane.notices:
            lane.due_ms = now_ms
        lane.notices.append(notice)

    def claim(
        self, receivers: Collection[str], *, now_ms: int, lease_ms: int, limit: int
    ) -> tuple[Claim, ...]:
        self._reach()
        due = [
            (lane.due_ms, name)
            for name, lane in self.lanes.items()
            if lane.notices and lane.due_ms <= now_ms and name.split("|")[0] in receivers
        ]
        claims = []
        for _, name in sorted(due)[:limit]:
            lane = self.lanes[name]
            if lane.token:
                lane.attempts, lane.maybe_sent = lane.attempts + 1, True
            self._claims += 1
            lane.token, lane.due_ms = str(self._claims), now_ms + lease_ms
            claims.append(
                Claim(
                    receiver=name.split("|")[0],
                    lane=name,
                    shard=0,
                    token=lane.token,
                    notices=tuple(lane.notices[:100]),
                    receipt=lane.receipt,
                    attempts=lane.attempts,
                    maybe_sent=lane.maybe_sent,
                )
            )
        return tuple(claims)

    def done(
        self,
        claim: Claim,
        *,
        count: int,
        receipt: str | None,
        follow_ups: tuple[Notice, ...],
        now_ms: int,
    ) -> bool:
        lane = self._pop(claim, count, due_ms=now_ms)
        if lane is None:
            return False
        lane.receipt = receipt if receipt is not None else lane.receipt
        lane.notices += follow_ups
        return True

    def postpone(
        self, claim: Claim, *, due_ms: int, reason: str, maybe_sent: bool, counts: bool
    ) -> bool:
        lane = self._end(claim, due_ms=due_ms)
        if lane is None:
            return False
        lane.attempts += counts
        lane.maybe_sent |= maybe_sent
        return True

    def bury(self, claim: Claim, *, count: int, reason: str, now_ms: int) -> bool:
        if self._pop(claim, count, due_ms=now_ms) is None:
            return False
        self.dead += [(notice, reason) for notice in claim.notices[:count]]
        return True

    def _end(self, claim: Claim, *, due_ms: int) -> Lane | None:
        self._reach()
        lane = self.lanes[claim.lane]
        if lane.token != claim.token:
            return None
        lane.token, lane.due_ms = "", due_ms
        return lane

    def _pop(self, claim: Claim, count: int, *, due_ms: int) -> Lane | None:
        lane = self._end(claim, due_ms=due_ms)
        if lane is not None:
            del lane.notices[:count]
            lane.attempts, lane.maybe_sent = 0, False
        return lane

    def _reach(self) -> None:
        if self.down:
            raise ConnectionError


Script = Callable[[Attempt], Outcome]


class Scripted:
    """A receiver that answers as it is told and remembers what it was asked."""

    def __init__(
        self, *answers: Outcome | Script, name: str = "chat", policy: Policy = "latest"
    ) -> None:
        self.name = name
        self.policy: Policy = policy
        self.answers = list(answers)
        self.attempts: list[Attempt] = []

    def deliver(self, attempt: Attempt) -> Outcome:
        self.attempts.append(attempt)
        answer = self.answers.pop(0) if self.answers else Sent()
        return answer(attempt) if callable(answer) else answer

    @property
    def heard(self) -> list[str]:
        """What it was asked to send, as words."""
        return [
            one.notice.follow_up or f"{one.notice.transition.type}" for one in self.attempts
        ]


def notice(
    kind: TransitionType = "opened", *, receiver: str = "chat", which: str = "a", **more: Any
) -> Notice:
    step = transition(kind, id=f"inc_{which}", **more)
    return Notice(receiver=receiver, transition=step)


def chart(which: str = "a") -> Notice:
    step = transition("opened", id=f"inc_{which}")
    return Notice(receiver="chat", transition=step, follow_up="chart")


def dispatcher(outbox: MemoryOutbox, *receivers: Receiver, **more: Any) -> Dispatcher:
    """A dispatcher whose deliveries take no time."""
    return Dispatcher(
        outbox,
        receivers,
        settings=DispatchSettings(**more),
        rng=random.Random(7),
        stopwatch=lambda: 0.0,
    )


def results(report: DispatchReport) -> list[str]:
    return [one.result for one in report.deliveries]


@pytest.fixture
def outbox() -> MemoryOutbox:
    return MemoryOutbox()


# -- what is sent ----------------------------------------------------------------------------


def test_people_get_the_newest_state_alone(outbox: MemoryOutbox) -> None:
    waiting = [notice("opened"), notice("acknowledged"), notice("resolved")]
    for one in waiting:
        outbox.owe(one)
    chat = Scripted()
    dispatcher(outbox, chat).run_once(0)
    assert chat.heard == ["resolved"]
    assert list(chat.attempts[0].skipped) == waiting[:2]
    assert outbox.lanes[waiting[0].lane].notices == []


def test_machines_get_every_transition_in_order(outbox: MemoryOutbox) -> None:
    for kind in ("opened", "updated", "resolved"):
        outbox.owe(notice(kind, receiver="robot"))
    robot = Scripted(name="robot", policy="every")
    dispatcher(outbox, robot).run_once(0)
    assert robot.heard == ["opened", "updated", "resolved"]
    assert all(one.skipped == () for one in robot.attempts)


def test_a_resolve_never_overtakes_an_alert_that_waits_for_its_retry(
    outbox: MemoryOutbox,
) -> None:
    outbox.owe(notice("opened", receiver="robot"))
    robot = Scripted(Retry(reason="503"), name="robot", policy="every")
    machine = dispatcher(outbox, robot)
    machine.run_once(0)
    outbox.owe(notice("resolved", receiver="robot"))
    machine.run_once(1 * SECOND)
    assert robot.heard == ["opened"]
    machine.run_once(10 * SECOND)
    assert robot.heard == ["opened", "opened", "resolved"]


def test_a_receipt_comes_back_with_the_next_notice(outbox: MemoryOutbox) -> None:
    chat = Scripted(Sent(receipt='{"ts":"1"}'))
    machine = dispatcher(outbox, chat)
    outbox.owe(notice("opened"))
    machine.run_once(0)
    outbox.owe(notice("resolved"))
    machine.run_once(1)
    assert [one.receipt for one in chat.attempts] == [None, '{"ts":"1"}']


def test_one_receiver_s_backlog_does_not_keep_another_waiting(outbox: MemoryOutbox) -> None:
    for k in range(50):
        outbox.owe(notice(which=f"{k}"))
    outbox.owe(notice(receiver="robot"), now_ms=1)
    order: list[str] = []

    def say(name: str) -> Script:
        return lambda _: order.append(name) or Sent()  # type: ignore[func-returns-value]

    chat = Scripted(*[say("chat")] * 50)
    robot = Scripted(say("robot"), name="robot", policy="every")
    dispatcher(outbox, chat, robot).run_once(1)
    assert order.index("robot") == 1


def test_a_burst_ends_a_pass_and_says_that_there_is_more(outbox: MemoryOutbox) -> None:
    for k in range(5):
        outbox.owe(notice(which=f"{k}"))
    chat = Scripted()
    machine = dispatcher(outbox, chat, burst=3)
    assert machine.run_once(0).more
    assert len(chat.attempts) == 3
    assert not machine.run_once(0).more
    assert len(chat.attempts) == 5


def test_nothing_is_sent_twice_when_nothing_fails(outbox: MemoryOutbox) -> None:
    outbox.owe(notice())
    chat = Scripted()
    machine = dispatcher(outbox, chat)
    for now_ms in (0, 1, HOUR):
        machine.run_once(now_ms)
    assert len(chat.attempts) == 1


def test_an_attempt_has_the_time_at_which_it_is_made(outbox: MemoryOutbox) -> None:
    outbox.owe(notice(which="a"))
    outbox.owe(notice(which="b"))
    seconds = iter(range(100))
    chat = Scripted()
    Dispatcher(outbox, [chat], stopwatch=lambda: float(next(seconds))).run_once(HOUR)
    first, second = (one.now_ms for one in chat.attempts)
    assert HOUR < first < second


# -- what fails ------------------------------------------------------------------------------


def test_a_retry_waits_and_counts_and_says_that_it_may_have_been_sent(
    outbox: MemoryOutbox,
) -> None:
    outbox.owe(notice())
    chat = Scripted(Retry(reason="no answer", ambiguous=True))
    machine = dispatcher(outbox, chat)
    assert results(machine.run_once(0)) == ["retry"]
    assert machine.run_once(1).deliveries == ()
    assert results(machine.run_once(2 * SECOND)) == ["sent"]
    assert [(one.number, one.maybe_sent) for one in chat.attempts] == [(1, False), (2, True)]


@pytest.mark.parametrize(
    ("policy", "tries", "shortest_h", "longest_h"),
    [("latest", 158, 20, 28), ("every", 10, 38, 114)],
)
def test_a_dead_receiver_is_tried_for_a_day_or_more_and_then_given_up(
    outbox: MemoryOutbox, policy: Policy, tries: int, shortest_h: int, longest_h: int
) -> None:
    outbox.owe(notice())
    chat = Scripted(*[Retry(reason="connection refused")] * 500, policy=policy)
    machine = dispatcher(outbox, chat, breaker_failures=1000)
    now_ms = 0
    while not outbox.dead:
        machine.run_once(now_ms)
        now_ms = outbox.lanes["chat|inc_a"].due_ms
    assert len(chat.attempts) == tries
    assert shortest_h < now_ms / HOUR < longest_h
    assert outbox.dead == [(notice(), f"given up after {tries} tries: connection refused")]


def test_lanes_that_failed_together_are_not_tried_together(outbox: MemoryOutbox) -> None:
    for k in range(20):
        outbox.owe(notice(which=f"{k}"))
    chat = Scripted(*[Retry(reason="down")] * 20)
    dispatcher(outbox, chat, breaker_failures=1000).run_once(0)
    assert len({lane.due_ms for lane in outbox.lanes.values()}) > 15


def test_what_is_refused_is_set_aside_and_the_next_goes_on(outbox: MemoryOutbox) -> None:
    outbox.owe(notice("opened", receiver="robot"))
    outbox.owe(notice("resolved", receiver="robot"))
    robot = Scripted(Refused(reason="422"), name="robot", policy="every")
    report = dispatcher(outbox, robot).run_once(0)
    assert results(report) == ["dead_letter", "sent"]
    assert [(one.transition.type, why) for one, why in outbox.dead] == [("opened", "422")]


def test_refused_news_for_people_is_set_aside_whole(outbox: MemoryOutbox) -> None:
    outbox.owe(notice("opened"))
    outbox.owe(notice("resolved"))
    dispatcher(outbox, Scripted(Refused(reason="is_archived"))).run_once(0)
    assert [one.transition.type for one, _ in outbox.dead] == ["opened", "resolved"]


def test_a_provider_that_asks_to_wait_is_left_alone_with_all_its_lanes(
    outbox: MemoryOutbox,
) -> None:
    for which in "abc":
        outbox.owe(notice(which=which))
    chat = Scripted(Retry(reason="429", after_ms=30 * SECOND))
    machine = dispatcher(outbox, chat)
    report = machine.run_once(0)
    assert report.paused == {"chat": 30 * SECOND}
    machine.run_once(29 * SECOND)
    assert len(chat.attempts) == 1
    machine.run_once(30 * SECOND)
    assert len(chat.attempts) == 4


def test_waiting_because_a_provider_asked_costs_no_try(outbox: MemoryOutbox) -> None:
    outbox.owe(notice(receiver="robot"))
    robot = Scripted(*[Retry(reason="429", after_ms=SECOND)] * 30, name="robot", policy="every")
    machine = dispatcher(outbox, robot)
    for k in range(31):
        machine.run_once(k * SECOND)
    assert outbox.dead == []
    assert {one.number for one in robot.attempts} == {1}
    assert robot.heard == ["opened"] * 31


def test_a_nonsensical_wish_silences_nobody_for_ever(outbox: MemoryOutbox) -> None:
    outbox.owe(notice())
    chat = Scripted(Retry(reason="429", after_ms=10**12))
    report = dispatcher(outbox, chat).run_once(0)
    assert report.paused == {"chat": 24 * HOUR}
    chat = Scripted(*[Retry(reason="429", after_ms=0)] * 2)
    report = dispatcher(outbox, chat).run_once(24 * HOUR)
    assert report.paused == {"chat": 24 * HOUR + SECOND}
    assert len(chat.attempts) == 1


def test_a_receiver_that_asks_to_wait_does_not_keep_another_waiting(
    outbox: MemoryOutbox,
) -> None:
    outbox.owe(notice())
    outbox.owe(notice(receiver="robot"))
    chat = Scripted(Retry(reason="429", after_ms=HOUR))
    robot = Scripted(name="robot", policy="every")
    dispatcher(outbox, chat, robot).run_once(0)
    assert robot.heard == ["opened"]


def test_after_failures_in_a_row_a_receiver_is_left_alone_and_then_tried_once(
    outbox: MemoryOutbox,
) -> None:
    for k in range(20):
        outbox.owe(notice(which=f"{k:02}"))
    chat = Scripted(*[Retry(reason="down")] * 6)
    machine = dispatcher(outbox, chat, breaker_failures=5, breaker_pause=Duration(30 * SECOND))
    report = machine.run_once(0)
    assert results(report) == ["retry"] * 5
    assert report.paused == {"chat": 30 * SECOND}
    assert machine.run_once(29 * SECOND).deliveries == ()
    assert results(machine.run_once(30 * SECOND)) == ["retry"]
    assert results(machine.run_once(60 * SECOND)) == ["sent"] * 20


def test_lanes_behind_an_open_breaker_lose_no_try(outbox: MemoryOutbox) -> None:
    for k in range(20):
        outbox.owe(notice(which=f"{k:02}"))
    chat = Scripted(*[Retry(reason="down")] * 5)
    machine = dispatcher(outbox, chat)
    machine.run_once(0)
    assert sum(lane.attempts for lane in outbox.lanes.values()) == 5


def test_a_success_between_failures_keeps_the_breaker_closed(outbox: MemoryOutbox) -> None:
    for k in range(20):
        outbox.owe(notice(which=f"{k:02}"))
    down = [Retry(reason="down")] * 4
    chat = Scripted(*down, Sent(), *down, Refused(reason="no"), *down)
    assert dispatcher(outbox, chat).run_once(0).paused == {}


def test_a_receiver_that_raises_is_tried_again_and_holds_back_nothing(
    outbox: MemoryOutbox,
) -> None:
    def broken(_: Attempt) -> Outcome:
        msg = "token xoxb-hunter2 is bad"
        raise KeyError(msg)

    outbox.owe(notice())
    outbox.owe(notice(receiver="robot"))
    chat, robot = Scripted(broken), Scripted(name="robot", policy="every")
    machine = dispatcher(outbox, chat, robot)
    with capture_logs() as logs:
        report = machine.run_once(0)
    assert [(one.result, one.reason) for one in report.deliveries] == [
        ("retry", "the receiver raised KeyError"),
        ("sent", ""),
    ]
    assert results(machine.run_once(MINUTE)) == ["sent"]
    assert "hunter2" not in repr(logs)
    (raised,) = [entry for entry in logs if entry["event"] == "receiver_raised"]
    assert raised["place"].startswith("test_dispatch.py:")


# -- follow-ups ------------------------------------------------------------------------------


def test_a_follow_up_is_queued_behind_its_notice(outbox: MemoryOutbox) -> None:
    outbox.owe(notice())
    chat = Scripted(Sent(receipt="r", follow_ups=("chart",)))
    dispatcher(outbox, chat).run_once(0)
    assert chat.heard == ["opened", "chart"]
    assert chat.attempts[1].receipt == "r"


def test_a_follow_up_waits_behind_an_alert_that_came_later(outbox: MemoryOutbox) -> None:
    outbox.owe(chart())
    outbox.owe(notice("resolved"))
    chat = Scripted()
    dispatcher(outbox, chat).run_once(0)
    assert chat.heard == ["resolved", "chart"]
    assert chat.attempts[0].skipped == ()


def test_a_follow_up_that_was_overtaken_is_made_once(outbox: MemoryOutbox) -> None:
    outbox.owe(chart())
    outbox.owe(notice("resolved"))
    chat = Scripted(Sent(follow_ups=("chart",)))
    dispatcher(outbox, chat).run_once(0)
    assert chat.heard == ["resolved", "chart"]


def test_a_follow_up_that_waits_already_is_not_queued_twice(outbox: MemoryOutbox) -> None:
    outbox.owe(notice())
    outbox.owe(chart())
    chat = Scripted(Sent(follow_ups=("chart",)))
    dispatcher(outbox, chat).run_once(0)
    assert chat.heard == ["opened", "chart"]


def test_a_follow_up_asks_for_no_follow_ups(outbox: MemoryOutbox) -> None:
    outbox.owe(chart())
    chat = Scripted(Sent(follow_ups=("chart",)))
    dispatcher(outbox, chat).run_once(0)
    assert chat.heard == ["chart"]


@pytest.mark.parametrize("failure", [Refused(reason="too big"), Retry(reason="broken")])
def test_a_follow_up_that_fails_is_dropped_and_buried_nowhere(
    outbox: MemoryOutbox, failure: Outcome
) -> None:
    outbox.owe(chart())
    chat = Scripted(*[failure] * 10)
    machine = dispatcher(outbox, chat)
    with capture_logs() as logs:
        for k in range(10):
            machine.run_once(k * MINUTE)
    assert len(chat.attempts) <= 3
    assert outbox.dead == []
    assert outbox.lanes["chat|inc_a"].notices == []
    assert [entry["event"] for entry in logs].count("follow_up_dropped") == 1


def test_charts_that_fail_never_shut_the_receiver_off(outbox: MemoryOutbox) -> None:
    for k in range(10):
        outbox.owe(chart(which=f"{k}"))
    outbox.owe(notice(which="z"), now_ms=1)
    chat = Scripted(*[Retry(reason="no font")] * 10)
    report = dispatcher(outbox, chat).run_once(1)
    assert report.paused == {}
    assert chat.heard[-1] == "opened"


# -- the store goes away ---------------------------------------------------------------------


def test_an_outcome_that_the_store_was_not_told_is_told_later_and_sent_once(
    outbox: MemoryOutbox,
) -> None:
    def lose_store(_: Attempt) -> Outcome:
        outbox.down = True
        return Sent(receipt="r")

    outbox.owe(notice())
    chat = Scripted(lose_store)
    machine = dispatcher(outbox, chat)
    with pytest.raises(ConnectionError):
        machine.run_once(0)
    with pytest.raises(ConnectionError):
        machine.run_once(SECOND)
    outbox.down = False
    machine.run_once(2 * SECOND)
    machine.run_once(HOUR)
    assert len(chat.attempts) == 1
    assert outbox.lanes["chat|inc_a"].receipt == "r"


def test_an_outcome_that_can_never_be_told_holds_up_nothing(outbox: MemoryOutbox) -> None:
    told: list[int] = []

    def refuse(claim: Claim, *, count: int, reason: str, now_ms: int) -> bool:
        told.append(now_ms)
        raise ValueError

    outbox.bury = refuse  # type: ignore[method-assign]
    outbox.owe(notice(which="a"))
    outbox.owe(notice(which="b"), now_ms=1)
    chat = Scripted(Refused(reason="no"))
    machine = dispatcher(outbox, chat, lease=Duration(MINUTE))
    assert results(machine.run_once(1)) == ["unsettled", "sent"]
    for k in range(1, 10):
        machine.run_once(1 + k * 20 * SECOND)
    assert len(told) == 4  # with its claim's end telling it has no use


def test_a_lane_that_passed_to_another_dispatcher_is_reported_as_lost(
    outbox: MemoryOutbox,
) -> None:
    def slow(_: Attempt) -> Outcome:
        dispatcher(outbox, Scripted()).run_once(HOUR)
        return Sent()

    outbox.owe(notice())
    assert results(dispatcher(outbox, Scripted(slow)).run_once(0)) == ["lost"]


def test_a_dispatcher_that_died_leaves_its_lane_to_the_next(outbox: MemoryOutbox) -> None:
    outbox.owe(notice())
    outbox.claim(["chat"], now_ms=0, lease_ms=5 * MINUTE, limit=1)
    chat = Scripted()
    machine = dispatcher(outbox, chat)
    machine.run_once(4 * MINUTE)
    assert chat.attempts == []
    machine.run_once(5 * MINUTE)
    assert [(one.number, one.maybe_sent) for one in chat.attempts] == [(2, True)]


# -- what is said ----------------------------------------------------------------------------


def test_the_log_names_incident_receiver_reason_and_try(outbox: MemoryOutbox) -> None:
    outbox.owe(notice())
    machine = dispatcher(outbox, Scripted(Retry(reason="503"), Refused(reason="gone")))
    with capture_logs() as logs:
        machine.run_once(0)
        machine.run_once(2 * SECOND)
        outbox.owe(notice(), now_ms=2 * SECOND)
        machine.run_once(3 * SECOND)
    told = [(one["event"], one["attempt"], one.get("reason")) for one in logs]
    assert told == [
        ("delivery_failed", 1, "503"),
        ("dead_letter", 2, "gone"),
        ("delivered", 1, None),
    ]
    assert all((one["incident"], one["receiver"]) == ("inc_a", "chat") for one in logs)


# -- laws ------------------------------------------------------------------------------------

OUTCOMES = st.sampled_from(
    [
        Sent(),
        Sent(follow_ups=("chart",)),
        Retry(reason="r"),
        Retry(reason="a", ambiguous=True),
        Retry(reason="w", after_ms=5 * SECOND),
        Refused(reason="no"),
    ]
)


@settings(max_examples=60)
@given(
    answers=st.lists(OUTCOMES, max_size=30),
    waiting=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 600)), max_size=12),
    policy=st.sampled_from(["latest", "every"]),
    seed=st.integers(0, 100),
)
def test_every_notice_is_sent_stood_for_or_set_aside_and_in_order(
    answers: list[Outcome], waiting: Sequence[tuple[str, int]], policy: Policy, seed: int
) -> None:
    outbox = MemoryOutbox()
    chat = Scripted(*answers, policy=policy)
    machine = Dispatcher(outbox, [chat], rng=random.Random(seed), stopwatch=lambda: 0.0)
    owed = [
        (at_s, notice("updated", which=which, revision=k + 1))
        for k, (which, at_s) in enumerate(sorted(waiting, key=lambda one: one[1]))
    ]
    settled: list[Notice] = []
    for now_s in [*range(0, 660, 30), *range(1_000, 400_000, 3_000)]:
        while owed and owed[0][0] <= now_s:
            outbox.owe(owed.pop(0)[1], now_ms=now_s * 1000)
        before = len(chat.attempts)
        report = machine.run_once(now_s * 1000)
        for attempt, delivery in zip(chat.attempts[before:], report.deliveries, strict=True):
            if delivery.result in ("sent", "dead_letter") and not attempt.notice.follow_up:
                settled += [*attempt.skipped, attempt.notice]
    assert all(lane.notices == [] for lane in outbox.lanes.values())
    for which in "abc":
        revisions = [
            one.transition.incident.revision
            for one in settled
            if one.transition.incident.id == f"inc_{which}"
        ]
        assert revisions == sorted(set(revisions))
    assert len(settled) == len(waiting)


# -- over Redis, to a real endpoint ----------------------------------------------------------


def test_what_a_tick_commits_arrives_at_an_endpoint_that_was_down_at_first(
    redis_client: redis.Redis,
) -> None:
    keys = Keys("ofu")
    opened = transition("opened", revision=1)
    over = transition("resolved", revision=2)
    ledger, outbox = Ledger(redis_client, keys), RedisOutbox(redis_client, keys)
    shard = shard_of(JOB.id)
    for step in (opened, over):
        owed = Notice(receiver="robot", transition=step)
        ledger.commit([Commit(shard=shard, incidents=(step.incident,), notices=(owed,))])
    now_ms = _server_ms(redis_client)
    received: list[Received] = []
    answers = iter([500, 204, 204])

    def answer(request: BaseHTTPRequestHandler) -> None:
        status(next(answers))(request)

    with serving(answer, received=received) as url:
        table = WebhookSettings(name="robot", url=url, secret_env="S")
        webhook = Webhook(table, secret="a" * 32, source="urn:test")
        machine = Dispatcher(outbox, [webhook], rng=random.Random(1))
        assert results(machine.run_once(now_ms)) == ["retry"]
        assert results(machine.run_once(now_ms + SECOND)) == []
        assert results(machine.run_once(now_ms + MINUTE)) == ["sent", "sent"]
        assert machine.run_once(now_ms + HOUR).deliveries == ()
    ids = [one.headers["webhook-id"] for one in received]
    assert ids == [opened.event_id, opened.event_id, over.event_id]
    assert outbox.pending() == {}


def test_what_an_endpoint_refuses_lies_with_the_dead_letters_in_redis(
    redis_client: redis.Redis,
) -> None:
    keys = Keys("ofu")
    ledger, outbox = Ledger(redis_client, keys), RedisOutbox(redis_client, keys)
    owed = Notice(receiver="chat", transition=transition())
    commit = Commit(shard=shard_of(JOB.id), incidents=(incident(),), notices=(owed,))
    ledger.commit([commit])
    now_ms = _server_ms(redis_client)
    chat = Scripted(Refused(reason="channel_not_found"))
    Dispatcher(outbox, [chat]).run_once(now_ms)
    (letter,) = outbox.dead_letters()
    assert (letter.notice, letter.reason, letter.attempts) == (owed, "channel_not_found", 1)


def _server_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000 + 1
