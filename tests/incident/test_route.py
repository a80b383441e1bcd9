"""Who is owed what: the gates between a transition and the outbox."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.rules import SEVERITIES, Severity
from detector.incident.happening import Found, Recovered
from detector.incident.incident import TransitionType
from detector.incident.lifecycle import Policy, follow
from detector.incident.route import Destination, Owed, Withheld, owed
from detector.series import Duration
from tests.incident.samples import JOB, NOON_MS, found, transition

POLICY = Policy(max_age=Duration.parse("6h"))
PAGER = Destination(name="pager", severity="critical")
CHAT = Destination(name="chat")
HOUR_MS = 3_600_000


def receivers(owes: Owed) -> list[str]:
    return [notice.receiver for notice in owes.notices]


def test_everyone_whose_severity_is_reached_is_told() -> None:
    step = transition(severity="critical")
    owes = owed(step, [PAGER, CHAT], now_ms=NOON_MS, policy=POLICY)
    assert receivers(owes) == ["pager", "chat"]
    assert all(notice.transition == step for notice in owes.notices)
    assert owes.withheld == ()


def test_a_receiver_above_the_severity_is_spared_and_the_reason_given() -> None:
    owes = owed(transition(severity="error"), [PAGER, CHAT], now_ms=NOON_MS, policy=POLICY)
    assert receivers(owes) == ["chat"]
    assert owes.withheld == (
        Withheld(receiver="pager", reason="error is below the receiver's critical"),
    )


def test_information_is_recorded_and_told_to_nobody_by_default() -> None:
    owes = owed(transition(severity="info"), [CHAT], now_ms=NOON_MS, policy=POLICY)
    assert receivers(owes) == []


def test_a_rule_on_trial_tells_nobody() -> None:
    step = transition(severity="critical", shadow=True)
    owes = owed(step, [PAGER, CHAT], now_ms=NOON_MS, policy=POLICY)
    assert receivers(owes) == []
    assert owes.withheld[0].reason == "the rule straggler is on trial"


@pytest.mark.parametrize("kind", ["opened", "updated", "acknowledged", "escalated"])
def test_old_news_is_withheld(kind: TransitionType) -> None:
    owes = owed(transition(kind), [CHAT], now_ms=NOON_MS + 7 * HOUR_MS, policy=POLICY)
    assert owes.withheld == (Withheld(receiver="chat", reason="it is 7h old, above 6h"),)
    owes = owed(transition(kind), [CHAT], now_ms=NOON_MS + 6 * HOUR_MS, policy=POLICY)
    assert receivers(owes) == ["chat"]


def test_the_end_of_what_was_told_is_never_too_old() -> None:
    step = transition("resolved", state="resolved", resolve_reason="recovered")
    owes = owed(step, [CHAT], now_ms=NOON_MS + 48 * HOUR_MS, policy=POLICY)
    assert receivers(owes) == ["chat"]


def test_the_end_of_what_was_not_told_is_not_told() -> None:
    step = transition("resolved", state="resolved", quiet=True)
    owes = owed(step, [CHAT], now_ms=NOON_MS, policy=POLICY)
    assert receivers(owes) == []
    assert owes.withheld[0].reason == "it opened more than 6h before it was first seen"


@given(
    severities=st.lists(st.sampled_from(SEVERITIES), min_size=1, max_size=4),
    minimum=st.sampled_from(SEVERITIES),
    recovered_s=st.none() | st.integers(500, 40_000),
    lag_s=st.integers(0, 80_000),
)
def test_who_is_told_of_anything_is_told_of_the_end(
    severities: list[Severity], minimum: Severity, recovered_s: int | None, lag_s: int
) -> None:
    metrics = ["ofu", "tokens", "mfu", "power"]
    happenings: list[Found | Recovered] = [
        found(60 + 10 * k, metric=metrics[k], severity=severity)
        for k, severity in enumerate(severities)
    ]
    if recovered_s is not None:
        happenings += [
            Recovered(time_ms=recovered_s * 1000, since_ms=recovered_s * 1000, metric=metric)
            for metric in metrics
        ]
    now_ms = (lag_s + 60) * 1000
    lived = follow(
        [],
        happenings,
        until_ms=10**9,
        job=JOB,
        cluster="prod-a",
        policy=POLICY,
        now_ms=now_ms,
    )
    destination = Destination(name="chat", severity=minimum)
    told = [
        step.type
        for step in lived.transitions
        if owed(step, [destination], now_ms=now_ms, policy=POLICY).notices
    ]
    assert told == [] or told[-1] == "resolved"
