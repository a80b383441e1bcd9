import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.demo.loopback import CHANNEL, TOKEN, Loopback
from detector.incident.incident import State, Transition
from detector.incident.ledger import Notice
from detector.notify.receiver import Attempt, Receiver, Refused, Retry, Sent
from detector.notify.slack import receiver
from detector.notify.slack_settings import SlackSettings
from detector.series import Window
from tests.notify.incidents import ONSET_MS, STRAGGLER, opened, resolved, step

NOW_MS = 1_800_000_000_000
# What an incident is once people were called.
PAGED: dict[str, Any] = {
    "severity": "critical",
    "paged_ms": ONSET_MS + 30 * 60_000,
    "page_reason": "33% below the level before, low for 11m30s",
}
POST, UPDATE = "/api/chat.postMessage", "/api/chat.update"


class History:
    """Ten minutes of one job, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def window(self, job: str, *, start_ms: int, end_ms: int) -> Window:
        self.asked.append((job, start_ms, end_ms))
        times = np.arange(ONSET_MS - 300_000, ONSET_MS + 300_000, 10_000, dtype=np.int64)
        return Window(times_ms=times, fields={"ofu": np.where(times < ONSET_MS, 0.41, 0.33)})


class Broken:
    """A store that is away."""

    def window(self, job: str, *, start_ms: int, end_ms: int) -> Window:
        msg = "the store is away"
        raise ConnectionError(msg)


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with Loopback() as server:
        yield server


@pytest.fixture
def slack(loopback: Loopback) -> Receiver:
    return app(loopback)


def app(
    server: Loopback, *, token: str = TOKEN, histories: Any = None, **settings: Any
) -> Receiver:
    settings = {"name": "chat", "channel": CHANNEL, "token_env": "X", **settings}
    return receiver(
        SlackSettings(api_url=server.api_url, **settings),
        secret=token,
        histories=histories or History(),
    )


def hook(server: Loopback, url: str = "", **settings: Any) -> Receiver:
    return receiver(
        SlackSettings(name="hook", webhook_env="X", **settings),
        secret=url or server.incoming_url,
        histories=History(),
    )


def attempt(
    transition: Transition,
    *,
    receipt: str | None = None,
    skipped: tuple[Transition, ...] = (),
    follow_up: str = "",
    number: int = 1,
    maybe_sent: bool = False,
) -> Attempt:
    return Attempt(
        notice=Notice(receiver="chat", transition=transition, follow_up=follow_up),
        skipped=[Notice(receiver="chat", transition=each) for each in skipped],
        receipt=receipt,
        number=number,
        maybe_sent=maybe_sent,
        now_ms=NOW_MS,
    )


def tell(slack: Receiver, transition: Transition, **more: Any) -> Sent:
    outcome = slack.deliver(attempt(transition, **more))
    assert isinstance(outcome, Sent), outcome
    return outcome


# The message and its edits


def test_an_incident_is_one_message_that_is_edited(loopback: Loopback, slack: Receiver) -> None:
    first = tell(slack, opened())
    assert first.follow_ups == ("chart",)
    taken = step(
        "acknowledged", 25, state=State.ACKNOWLEDGED, acknowledged_by="bob", revision=2
    )
    second = tell(slack, taken, receipt=first.receipt)
    assert (second.receipt, second.follow_ups) == (None, ())
    (message,) = loopback.slack.messages
    assert message.text.startswith("ACKNOWLEDGED")
    assert message.earlier[0].startswith("FIRING (error): OFU −19.7 %")
    assert message.metadata == {
        "event_type": "ofu_incident",
        "event_payload": {
            "event_id": taken.event_id,
            "incident_id": STRAGGLER.id,
            "revision": 2,
        },
    }


def test_the_receipt_says_channel_and_timestamp(loopback: Loopback, slack: Receiver) -> None:
    receipt = tell(slack, opened()).receipt
    assert json.loads(receipt or "") == {
        "channel": CHANNEL,
        "ts": loopback.slack.messages[0].ts,
    }


def test_a_resolve_edits_adds_one_quiet_line_and_calls_nobody(loopback: Loopback) -> None:
    slack = app(loopback, mention="<!here>")
    receipt = tell(slack, opened(**PAGED)).receipt
    assert "<!here>" in json.dumps(loopback.slack.messages[0].blocks)
    tell(slack, resolved(**PAGED), receipt=receipt)
    root, line = loopback.slack.messages
    assert root.text.startswith("RESOLVED (Recovered after 29 min)")
    assert line.thread_ts == root.ts
    assert not line.broadcast
    assert "<!here>" not in json.dumps(root.blocks) + line.text


def test_an_escalation_is_heard_although_edits_are_silent(loopback: Loopback) -> None:
    slack = app(loopback, mention="<!here>")
    receipt = tell(slack, opened()).receipt
    tell(slack, step("escalated", 30, revision=2, **PAGED), receipt=receipt)
    root, line = loopback.slack.messages
    assert line.thread_ts == root.ts
    assert line.broadcast
    assert line.text.startswith("<!here> :red_circle: Escalated to *critical*")
    assert line.text.endswith(", 33% below the level before, low for 11m30s.")


def test_a_reopening_is_heard_and_gets_a_new_chart(loopback: Loopback, slack: Receiver) -> None:
    receipt = tell(slack, opened()).receipt
    tell(slack, resolved(), receipt=receipt)
    again = tell(slack, step("opened", 40, revision=10, flap_count=1), receipt=receipt)
    assert again.follow_ups == ("chart",)
    assert "Open again" in loopback.slack.messages[-1].text


def test_an_escalation_folded_under_an_acknowledgement_is_still_heard(
    loopback: Loopback, slack: Receiver
) -> None:
    receipt = tell(slack, opened()).receipt
    worse = step("escalated", 30, severity="critical", revision=2)
    taken = step("acknowledged", 31, severity="critical", state=State.ACKNOWLEDGED, revision=3)
    tell(slack, taken, skipped=(worse,), receipt=receipt)
    assert loopback.slack.messages[0].text.startswith("ACKNOWLEDGED")
    assert "Escalated" in loopback.slack.messages[1].text


def test_what_opened_and_ended_while_slack_was_away_is_one_message(
    loopback: Loopback, slack: Receiver
) -> None:
    tell(slack, resolved(), skipped=(opened(),))
    (message,) = loopback.slack.messages
    assert message.text.startswith("RESOLVED")


@pytest.mark.parametrize("cause", ["deleted", "closed", "other_channel"])
def test_a_message_that_cannot_be_edited_is_posted_anew(
    loopback: Loopback, slack: Receiver, cause: str
) -> None:
    receipt = tell(slack, opened()).receipt
    if cause == "deleted":
        loopback.slack.delete(loopback.slack.messages[0].ts)
    elif cause == "closed":
        loopback.slack.edits_allowed = False
    else:
        receipt = '{"channel": "CGONE00000", "ts": "1.2"}'
    sent = tell(slack, resolved(), receipt=receipt)
    newest = loopback.slack.messages[-1]
    assert json.loads(sent.receipt or "")["ts"] == newest.ts
    assert newest.thread_ts is None
    assert "posted anew" in sent.note


def test_a_receipt_that_cannot_be_read_counts_as_none(
    loopback: Loopback, slack: Receiver
) -> None:
    assert tell(slack, opened(), receipt="{not json").receipt
    assert len(loopback.slack.messages) == 1


# What providers do


@pytest.mark.parametrize("error", ["internal_error", "ratelimited", "service_unavailable"])
def test_a_passing_trouble_is_tried_again(
    loopback: Loopback, slack: Receiver, error: str
) -> None:
    loopback.refuse_next(POST, error)
    outcome = slack.deliver(attempt(opened()))
    assert isinstance(outcome, Retry)
    assert outcome.ambiguous == (error == "internal_error")


def test_a_rate_limit_is_obeyed_to_the_second(loopback: Loopback, slack: Receiver) -> None:
    loopback.fail_next(POST, status=429, headers={"Retry-After": "7"})
    assert slack.deliver(attempt(opened())) == Retry(
        reason="slack: rate limit (HTTP 429)", after_ms=7_000
    )
    assert loopback.slack.messages == ()


def test_a_server_error_may_have_posted_all_the_same(
    loopback: Loopback, slack: Receiver
) -> None:
    loopback.fail_next(POST, status=502)
    assert slack.deliver(attempt(opened())) == Retry(reason="slack: HTTP 502", ambiguous=True)


def test_an_answer_that_is_not_slacks_may_hide_a_post(
    loopback: Loopback, slack: Receiver
) -> None:
    loopback.fail_next(POST, status=200, body=b"<html>sign in</html>")
    outcome = slack.deliver(attempt(opened()))
    assert isinstance(outcome, Retry)
    assert outcome.ambiguous


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("not_in_channel", "invite the app"),
        ("token_revoked", "install the app again"),
        ("made_up_tomorrow", "made_up_tomorrow"),
    ],
)
def test_a_lasting_trouble_is_refused_with_what_to_do(
    loopback: Loopback, slack: Receiver, error: str, advice: str
) -> None:
    loopback.refuse_next(POST, error)
    outcome = slack.deliver(attempt(opened()))
    assert isinstance(outcome, Refused)
    assert error in outcome.reason
    assert advice in outcome.reason


def test_a_wrong_token_is_refused_and_never_shown(loopback: Loopback) -> None:
    outcome = app(loopback, token="xoxb-very-secret").deliver(attempt(opened()))
    assert isinstance(outcome, Refused)
    assert "very-secret" not in repr(outcome)


@pytest.mark.parametrize("error", ["invalid_blocks", "msg_too_long", "metadata_too_large"])
def test_a_disliked_form_is_resent_as_plain_text_at_once(
    loopback: Loopback, slack: Receiver, error: str
) -> None:
    loopback.refuse_next(POST, error)
    sent = tell(slack, opened())
    (message,) = loopback.slack.messages
    assert message.blocks == ()
    assert message.text.startswith("FIRING (error)")
    assert error in sent.note


def test_an_edit_that_is_disliked_takes_the_old_blocks_away(
    loopback: Loopback, slack: Receiver
) -> None:
    receipt = tell(slack, opened()).receipt
    loopback.refuse_next(UPDATE, "invalid_blocks")
    tell(slack, step("updated", 30, revision=2), receipt=receipt)
    assert loopback.slack.messages[0].blocks == ()


def test_a_failed_quiet_line_does_not_hold_the_resolve_back(
    loopback: Loopback, slack: Receiver
) -> None:
    receipt = tell(slack, opened()).receipt
    loopback.fail_next(POST, status=429, headers={"Retry-After": "30"})
    sent = tell(slack, resolved(), receipt=receipt)
    assert "no thread line" in sent.note
    assert loopback.slack.messages[0].text.startswith("RESOLVED")


def test_a_loud_line_is_tried_until_it_is_heard(loopback: Loopback, slack: Receiver) -> None:
    receipt = tell(slack, opened()).receipt
    worse = step("escalated", 30, severity="critical", revision=2)
    loopback.fail_next(POST, status=429)
    assert isinstance(slack.deliver(attempt(worse, receipt=receipt)), Retry)
    tell(slack, worse, receipt=receipt, number=2)
    assert len(loopback.slack.thread(loopback.slack.messages[0].ts)) == 1


# Posts whose answer was lost


def test_a_post_that_got_no_answer_is_found_and_not_repeated(
    loopback: Loopback, slack: Receiver
) -> None:
    loopback.drop_next(POST)
    lost = slack.deliver(attempt(opened()))
    assert isinstance(lost, Retry)
    assert lost.ambiguous
    sent = tell(slack, resolved(), skipped=(opened(),), number=2, maybe_sent=True)
    message, line = loopback.slack.messages
    assert json.loads(sent.receipt or "")["ts"] == message.ts
    assert message.text.startswith("RESOLVED")
    assert line.thread_ts == message.ts
    assert sent.follow_ups == ("chart",)


def test_a_post_that_never_arrived_is_repeated(loopback: Loopback, slack: Receiver) -> None:
    loopback.drop_next(POST, acts=False)
    slack.deliver(attempt(opened()))
    assert tell(slack, opened(), number=2, maybe_sent=True).note == ""
    assert len(loopback.slack.messages) == 1


def test_the_lost_post_is_found_behind_a_storm_of_others(
    loopback: Loopback, slack: Receiver
) -> None:
    loopback.drop_next(POST)
    slack.deliver(attempt(opened()))
    for number in range(40):
        tell(slack, opened(id=f"inc_{number}"))
    tell(slack, opened(), number=2, maybe_sent=True)
    assert len(loopback.slack.messages) == 41


def test_a_lookup_that_fails_for_now_stays_ambiguous(
    loopback: Loopback, slack: Receiver
) -> None:
    loopback.fail_next("/api/conversations.history", status=429)
    outcome = slack.deliver(attempt(opened(), number=2, maybe_sent=True))
    assert isinstance(outcome, Retry)
    assert outcome.ambiguous
    assert loopback.slack.messages == ()


def test_without_the_scope_a_possible_duplicate_is_accepted_and_said(
    loopback: Loopback, slack: Receiver
) -> None:
    loopback.slack.scopes = frozenset({"chat:write"})
    loopback.drop_next(POST)
    slack.deliver(attempt(opened()))
    sent = tell(slack, opened(), number=2, maybe_sent=True)
    assert "may be a duplicate" in sent.note
    assert "channels:history" in sent.note
    assert len(loopback.slack.messages) == 2


def test_a_channel_given_by_name_cannot_be_looked_up_and_the_note_says_so(
    loopback: Loopback,
) -> None:
    slack = app(loopback, channel="#loopback")
    sent = tell(slack, opened(), maybe_sent=True)
    assert "may be a duplicate: slack: only a channel given by its ID" in sent.note
    assert json.loads(sent.receipt or "")["channel"] == CHANNEL
    assert [path for path, _ in loopback.requests] == [POST]


def test_a_loud_line_that_got_no_answer_is_not_repeated(
    loopback: Loopback, slack: Receiver
) -> None:
    receipt = tell(slack, opened()).receipt
    worse = step("escalated", 30, severity="critical", revision=2)
    loopback.drop_next(POST)
    assert isinstance(slack.deliver(attempt(worse, receipt=receipt)), Retry)
    tell(slack, worse, receipt=receipt, number=2, maybe_sent=True)
    assert len(loopback.slack.thread(loopback.slack.messages[0].ts)) == 1


def test_an_escalation_behind_a_post_that_got_no_answer_is_heard(
    loopback: Loopback, slack: Receiver
) -> None:
    loopback.drop_next(POST)
    slack.deliver(attempt(opened()))
    worse = step("escalated", 30, severity="critical", revision=2)
    loopback.fail_next(POST, status=429)
    later = slack.deliver(attempt(worse, skipped=(opened(),), number=2, maybe_sent=True))
    assert isinstance(later, Retry)
    assert later.ambiguous  # nothing remembers the post yet
    tell(slack, worse, skipped=(opened(),), number=3, maybe_sent=True)
    root, line = loopback.slack.messages
    assert line.thread_ts == root.ts
    assert "Escalated" in line.text


FAULTS: dict[str, Callable[[Loopback, str], None]] = {
    "none": lambda server, path: None,
    "lost answer": lambda server, path: server.drop_next(path),
    "lost request": lambda server, path: server.drop_next(path, acts=False),
    "rate limit": lambda server, path: server.fail_next(path, status=429),
    "server error": lambda server, path: server.fail_next(path, status=500),
    "internal error": lambda server, path: server.refuse_next(path, "internal_error"),
}


def deliver_all(
    slack: Receiver,
    server: Loopback,
    story: list[Transition],
    *,
    gaps: list[int],
    faults: list[tuple[str, str]],
) -> None:
    """A dispatcher in small: a lane into which the story falls while tries fail or not."""
    lane: list[Transition] = []
    receipt, number, maybe_sent = None, 1, False
    while story or lane:
        while story and (not lane or gaps[0] == 0):
            lane.append(story.pop(0))
            gaps.append(gaps.pop(0))
        gaps[0] = max(0, gaps[0] - 1)
        if faults:
            fault, path = faults.pop(0)
            FAULTS[fault](server, path)
        outcome = slack.deliver(
            attempt(
                lane[-1],
                skipped=tuple(lane[:-1]),
                receipt=receipt,
                number=number,
                maybe_sent=maybe_sent,
            )
        )
        assert not isinstance(outcome, Refused)
        if isinstance(outcome, Sent):
            receipt = outcome.receipt or receipt
            lane, number, maybe_sent = [], 1, False
        else:
            number, maybe_sent = number + 1, outcome.ambiguous


@settings(max_examples=60, deadline=None)
@given(
    faults=st.lists(
        st.tuples(
            st.sampled_from(sorted(FAULTS)),
            st.sampled_from([POST, UPDATE, "/api/conversations"]),
        ),
        max_size=10,
    ),
    gaps=st.lists(st.integers(0, 3), min_size=5, max_size=5),
)
def test_whatever_fails_one_message_ends_true_and_what_is_loud_is_told_once(
    faults: list[tuple[str, str]], gaps: list[int]
) -> None:
    story = [
        opened(),
        step("escalated", 24, severity="critical", revision=2),
        step("acknowledged", 25, state=State.ACKNOWLEDGED, severity="critical", revision=3),
        resolved(severity="critical", revision=4),
        step("opened", 40, severity="critical", revision=5, flap_count=1),
    ]
    with Loopback() as server:
        slack = app(server, mention="<!here>")
        deliver_all(slack, server, story, gaps=gaps, faults=faults)
        (root,) = [each for each in server.slack.messages if each.thread_ts is None]
        lines = [each.text for each in server.slack.thread(root.ts)]
    assert root.text.startswith("FIRING (critical)")
    assert len(lines) == len(set(lines))
    assert not any("<!here>" in line for line in lines if "Recovered" in line)
    posted_as = [*root.earlier, root.text][0]
    if posted_as.splitlines()[0] != root.text.splitlines()[0]:
        assert any("Open again" in line for line in lines)


# The chart


def test_the_chart_follows_into_the_thread(loopback: Loopback) -> None:
    history = History()
    slack = app(loopback, histories=history)
    receipt = tell(slack, opened()).receipt
    assert history.asked == []  # the alert did not wait for it
    assert tell(slack, opened(), receipt=receipt, follow_up="chart") == Sent()
    (picture,) = loopback.slack.files
    assert picture.content.startswith(b"\x89PNG")
    assert picture.thread_ts == loopback.slack.messages[0].ts
    assert "llm-70b-v3" in picture.alt
    ((job, start_ms, end_ms),) = history.asked
    assert job == "5728163"
    assert start_ms < ONSET_MS < opened().time_ms < end_ms


def test_a_store_that_is_away_costs_the_chart_and_nothing_else(loopback: Loopback) -> None:
    slack = app(loopback, histories=Broken())
    receipt = tell(slack, opened()).receipt
    outcome = slack.deliver(attempt(opened(), receipt=receipt, follow_up="chart"))
    assert outcome == Retry(reason="no chart: ConnectionError: the store is away")


@pytest.mark.parametrize(
    "path",
    ["/api/files.getUploadURLExternal", "/upload/", "/api/files.completeUploadExternal"],
)
def test_an_upload_that_is_turned_away_for_now_can_be_tried_again(
    loopback: Loopback, slack: Receiver, path: str
) -> None:
    receipt = tell(slack, opened()).receipt
    loopback.fail_next(path, status=429, headers={"Retry-After": "2"})
    first = slack.deliver(attempt(opened(), receipt=receipt, follow_up="chart"))
    assert isinstance(first, Retry)
    assert (first.after_ms, first.ambiguous) == (2_000, False)
    tell(slack, opened(), receipt=receipt, follow_up="chart", number=2)
    assert len(loopback.slack.files) == 1


def test_an_upload_that_may_have_worked_is_not_repeated(
    loopback: Loopback, slack: Receiver
) -> None:
    receipt = tell(slack, opened()).receipt
    loopback.drop_next("/api/files.completeUploadExternal")
    assert tell(slack, opened(), receipt=receipt, follow_up="chart").note
    assert len(loopback.slack.files) == 1


def test_without_the_scope_for_files_the_alert_stands_alone(
    loopback: Loopback, slack: Receiver
) -> None:
    loopback.slack.scopes = frozenset({"chat:write"})
    receipt = tell(slack, opened()).receipt
    outcome = slack.deliver(attempt(opened(), receipt=receipt, follow_up="chart"))
    assert isinstance(outcome, Refused)
    assert "files:write" in outcome.reason


def test_a_chart_without_a_message_is_let_go(loopback: Loopback, slack: Receiver) -> None:
    outcome = slack.deliver(attempt(opened(), follow_up="chart"))
    assert isinstance(outcome, Refused)
    assert loopback.requests == ()


def test_a_loud_line_that_cannot_be_looked_up_is_said_again_and_the_note_says_so(
    loopback: Loopback, slack: Receiver
) -> None:
    receipt = tell(slack, opened()).receipt
    loopback.slack.scopes = frozenset({"chat:write"})
    worse = step("escalated", 30, severity="critical", revision=2)
    sent = tell(slack, worse, receipt=receipt, number=2, maybe_sent=True)
    assert "may be a duplicate" in sent.note
    assert len(loopback.slack.messages) == 2


# Incoming webhooks


def test_a_webhook_gets_one_message_at_the_opening_and_one_at_the_end(
    loopback: Loopback,
) -> None:
    slack = hook(loopback)
    assert tell(slack, opened()) == Sent()
    tell(slack, step("updated", 24))
    tell(slack, step("acknowledged", 25, state=State.ACKNOWLEDGED))
    tell(slack, resolved())
    first, second = loopback.slack.messages
    assert first.text.startswith("FIRING")
    assert second.text.startswith("RESOLVED")
    assert first.blocks


def test_an_opening_folded_under_an_acknowledgement_is_still_posted(
    loopback: Loopback,
) -> None:
    taken = step("acknowledged", 25, state=State.ACKNOWLEDGED)
    tell(hook(loopback), taken, skipped=(opened(),))
    assert len(loopback.slack.messages) == 1


@pytest.mark.parametrize(
    ("status", "word"),
    [(403, "invalid_token"), (404, "no_service"), (410, "channel_is_archived")],
)
def test_a_webhook_that_is_gone_is_refused_with_what_to_do(
    loopback: Loopback, status: int, word: str
) -> None:
    loopback.fail_next("/services", status=status, body=word.encode())
    outcome = hook(loopback).deliver(attempt(opened()))
    assert isinstance(outcome, Refused)
    assert word in outcome.reason
    assert ";" in outcome.reason  # the advice


def test_a_webhook_obeys_the_rate_limit(loopback: Loopback) -> None:
    loopback.fail_next("/services", status=429, headers={"Retry-After": "3"})
    outcome = hook(loopback).deliver(attempt(opened()))
    assert isinstance(outcome, Retry)
    assert outcome.after_ms == 3_000


def test_a_webhook_resends_as_plain_text(loopback: Loopback) -> None:
    loopback.fail_next("/services", status=400, body=b"invalid_blocks")
    assert "plain text" in tell(hook(loopback), opened()).note
    assert loopback.slack.messages[0].blocks == ()


def test_a_webhooks_address_is_a_secret(loopback: Loopback) -> None:
    outcome = hook(loopback, url="http://127.0.0.1:9/services/very/secret").deliver(
        attempt(opened())
    )
    assert isinstance(outcome, Retry)
    assert "secret" not in outcome.reason


# Settings


GOOD = {"type": "slack", "name": "chat", "channel": "C0123456789", "token_env": "T"}


def read(**changes: Any) -> SlackSettings:
    wanted = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return msgspec.convert(wanted, SlackSettings)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"token_env": None}, "exactly one of"),
        ({"webhook_file": "/x"}, "exactly one of"),
        ({"channel": None}, "give the channel"),
        ({"token_env": None, "webhook_env": "W"}, "leave channel out"),
        ({"api_url": "http://slack.example/api"}, "https://"),
        ({"mention": "@here"}, "<!here>"),
        ({"severity": "loud"}, "severity"),
        ({"chanel": "x"}, "chanel"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_what_to_write(
    changes: dict[str, Any], advice: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=advice):
        read(**changes)


@pytest.mark.parametrize("mention", ["", "<!here>", "<!subteam^S0123456789>", "<@U012AB3CD>"])
def test_a_mention_is_slacks_own_mark_up(mention: str) -> None:
    assert read(mention=mention).mention == mention


def test_both_tiers_are_told_the_newest_state_alone(loopback: Loopback) -> None:
    make: Callable[..., Receiver]
    for make in (app, hook):
        assert make(loopback).policy == "latest"
