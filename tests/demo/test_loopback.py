import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.webhook import WebhookClient
from standardwebhooks import Webhook

from detector.demo.loopback import CHANNEL, SECRET, TOKEN, Loopback
from detector.notify.http import Failure, Response, post

EVENTS = "application/cloudevents+json; charset=utf-8"


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    with Loopback(save_to=tmp_path) as server:
        yield server


@pytest.fixture
def client(loopback: Loopback) -> WebClient:
    """Slack's own client, which knows how Slack is to be called."""
    return WebClient(token=TOKEN, base_url=loopback.api_url + "/")


def event(**changes: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "evt_1",
        "source": "https://ofu.example.com",
        "type": "io.ofu.incident.opened.v1",
        "data": {},
        **changes,
    }


def deliver(
    server: Loopback,
    body: dict[str, Any],
    *,
    secret: str = SECRET,
    age_s: int = 0,
    kind: str = EVENTS,
) -> int:
    """Sign with the reference library, send, and return the status."""
    content = json.dumps(body)
    moment = int(time.time()) - age_s
    name = str(body.get("id"))
    signature = Webhook(secret).sign(name, datetime.fromtimestamp(moment, tz=UTC), content)
    answer = post(
        server.webhook_url,
        body=content.encode(),
        headers={
            "webhook-id": name,
            "webhook-timestamp": str(moment),
            "webhook-signature": signature,
            "content-type": kind,
        },
        timeout_s=5,
    )
    assert isinstance(answer, Response)
    return answer.status


def error(call: Any, **arguments: Any) -> str:
    with pytest.raises(SlackApiError) as raised:
        call(**arguments)
    return str(raised.value.response["error"])


def test_it_listens_on_the_loopback_address_alone(loopback: Loopback) -> None:
    assert loopback.url.startswith("http://127.0.0.1:")


def test_slacks_own_client_posts_edits_threads_and_reads_back(
    loopback: Loopback, client: WebClient
) -> None:
    metadata = {"event_type": "x", "event_payload": {"a": 1}}
    sent = client.chat_postMessage(channel=CHANNEL, text="one", metadata=metadata)
    client.chat_postMessage(channel=CHANNEL, text="reply", thread_ts=sent["ts"])
    client.chat_update(channel=CHANNEL, ts=sent["ts"], text="two")
    root, reply = loopback.slack.messages
    assert (root.text, root.earlier, reply.thread_ts) == ("two", ("one",), root.ts)
    assert loopback.slack.thread(root.ts) == (reply,)
    (seen,) = client.conversations_history(channel=CHANNEL, include_all_metadata=True)[
        "messages"
    ]
    assert seen["metadata"] == metadata
    (seen,) = client.conversations_history(channel=CHANNEL)["messages"]
    assert "metadata" not in seen


def test_slacks_own_client_uploads_a_file_into_a_thread(
    loopback: Loopback, client: WebClient, tmp_path: Path
) -> None:
    root = client.chat_postMessage(channel=CHANNEL, text="root")["ts"]
    client.files_upload_v2(
        channel=CHANNEL, thread_ts=root, content=b"\x89PNG", filename="../a.png", title="t"
    )
    (file,) = loopback.slack.files
    assert (file.content, file.title, file.thread_ts) == (b"\x89PNG", "t", root)
    assert [path.name for path in tmp_path.iterdir()] == ["_a.png"]


def test_slacks_own_webhook_client_is_answered_ok(loopback: Loopback) -> None:
    assert WebhookClient(loopback.incoming_url).send(text="hello").body == "ok"
    gone = WebhookClient(loopback.url + "/services/T/B/other").send(text="hello")
    assert (gone.status_code, gone.body) == (404, "no_service")
    assert WebhookClient(loopback.incoming_url).send(text="").body == "no_text"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"text": "x" * 40_001}, "msg_too_long"),
        ({"text": "x", "channel": "CELSEWHERE"}, "channel_not_found"),
        ({"text": "x", "thread_ts": "1.000001"}, "thread_not_found"),
        ({"text": "x", "blocks": [{"type": "divider"}] * 51}, "invalid_blocks"),
        ({"text": "x", "blocks": [{"type": "section"}]}, "invalid_blocks"),
        ({"text": "x", "blocks": [{"type": "made_up"}]}, "invalid_blocks"),
        ({"text": "x", "metadata": {"event_type": 1}}, "invalid_metadata_format"),
    ],
)
def test_what_slack_refuses_is_refused(
    client: WebClient, arguments: dict[str, Any], answer: str
) -> None:
    arguments = {"channel": CHANNEL, **arguments}
    assert error(client.chat_postMessage, **arguments) == answer


@pytest.mark.parametrize(
    ("block", "length"),
    [
        (lambda n: {"type": "header", "text": {"type": "plain_text", "text": "x" * n}}, 150),
        (lambda n: {"type": "section", "text": {"type": "mrkdwn", "text": "x" * n}}, 3_000),
        (lambda n: {"type": "section", "fields": [{"type": "mrkdwn", "text": "x" * n}]}, 2_000),
        (lambda n: {"type": "context", "elements": [{"type": "mrkdwn", "text": "x"}] * n}, 10),
    ],
)
def test_block_kits_limits_hold_to_the_character(
    client: WebClient, block: Any, length: int
) -> None:
    client.chat_postMessage(channel=CHANNEL, text="x", blocks=[block(length)])
    for wrong in (0, length + 1):
        arguments = {"channel": CHANNEL, "text": "x", "blocks": [block(wrong)]}
        assert error(client.chat_postMessage, **arguments) == "invalid_blocks"


def test_an_edit_needs_a_message_that_is_there_and_a_text_that_is_short(
    loopback: Loopback, client: WebClient
) -> None:
    ts = client.chat_postMessage(channel=CHANNEL, text="x")["ts"]
    update = client.chat_update
    assert error(update, channel=CHANNEL, ts=ts, text="x" * 4_001) == "msg_too_long"
    assert error(update, channel=CHANNEL, ts="1.000001", text="x") == "message_not_found"
    loopback.slack.edits_allowed = False
    assert error(update, channel=CHANNEL, ts=ts, text="x") == "edit_window_closed"
    loopback.slack.edits_allowed = True
    loopback.slack.delete(ts)
    assert error(update, channel=CHANNEL, ts=ts, text="x") == "message_not_found"


def test_a_wrong_token_and_a_missing_scope_are_refused(
    loopback: Loopback, client: WebClient
) -> None:
    stranger = WebClient(token="xoxb-other", base_url=loopback.api_url + "/")
    assert error(stranger.chat_postMessage, channel=CHANNEL, text="x") == "invalid_auth"
    loopback.slack.scopes = frozenset({"chat:write"})
    assert error(client.conversations_history, channel=CHANNEL) == "missing_scope"


def test_a_file_whose_bytes_never_came_cannot_be_shown(client: WebClient) -> None:
    asked = client.files_getUploadURLExternal(filename="a.png", length=3)
    arguments = {"files": [{"id": asked["file_id"], "title": ""}], "channel_id": CHANNEL}
    assert error(client.files_completeUploadExternal, **arguments) == "file_not_found"


def test_an_event_with_a_good_signature_is_kept_once_however_often_it_comes(
    loopback: Loopback,
) -> None:
    assert [deliver(loopback, event()) for _ in range(2)] == [204, 204]
    (kept,) = loopback.events
    assert (kept.type, kept.copies) == ("io.ofu.incident.opened.v1", 2)


def test_an_event_that_a_consumer_must_not_trust_is_refused(loopback: Loopback) -> None:
    other = "whsec_" + base64.b64encode(b"0" * 24).decode()
    assert deliver(loopback, event(), secret=other) == 401
    assert deliver(loopback, event(), age_s=301) == 401
    assert deliver(loopback, event(), kind="application/json") == 415
    assert deliver(loopback, event(specversion="0.3")) == 400
    assert deliver(loopback, event(type="")) == 400
    assert loopback.events == ()


def form(server: Loopback, **arguments: str) -> Response | Failure:
    return post(
        f"{server.api_url}/chat.postMessage",
        body=urlencode({"channel": CHANNEL, **arguments}).encode(),
        headers={
            "Authorization": f"Bearer {TOKEN}",
            "Content-Type": "application/x-www-form-urlencoded",
        },
        timeout_s=5,
    )


def test_faults_come_as_planned_and_then_no_more(loopback: Loopback) -> None:
    loopback.fail_next("/api/chat.postMessage", status=429, headers={"Retry-After": "1"})
    loopback.drop_next("/api/chat.postMessage", acts=False)
    loopback.drop_next("/api/chat.postMessage")
    first, second, third, fourth = (form(loopback, text=str(n)) for n in range(4))
    assert isinstance(first, Response)
    assert (first.status, first.headers["retry-after"]) == (429, "1")
    assert isinstance(second, Failure)
    assert isinstance(third, Failure)
    assert third.ambiguous
    assert isinstance(fourth, Response)
    assert [message.text for message in loopback.slack.messages] == ["2", "3"]
    assert [status for _, status in loopback.requests] == [429, 0, 0, 200]


def test_a_malformed_form_is_answered_and_harms_nothing(loopback: Loopback) -> None:
    answer = form(loopback, text="x", blocks="[not json")
    assert isinstance(answer, Response)
    assert json.loads(answer.body) == {"ok": False, "error": "invalid_form_data"}


def test_waiting_ends_as_soon_as_it_came_true(loopback: Loopback) -> None:
    assert not loopback.wait(lambda: bool(loopback.slack.messages), timeout_s=0.01)
    form(loopback, text="x")
    assert loopback.wait(lambda: bool(loopback.slack.messages), timeout_s=5)
