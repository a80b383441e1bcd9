"""The signed webhook against a real endpoint: what is sent, what is not, what answers mean."""

import base64
import json
import re
import textwrap
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from standardwebhooks import Webhook as Oracle
from standardwebhooks import WebhookVerificationError

from detector.incident.export import schema
from detector.incident.incident import Transition
from detector.incident.ledger import Notice
from detector.notify.receiver import Attempt, Outcome, Receiver, Refused, Retry, Sent
from detector.notify.webhook import Webhook, WebhookSettings, signature, signing_keys
from detector.series import Duration
from tests.incident.samples import NOON_MS, transition
from tests.notify.loopback import Answer, Received, serving, status

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OLD_SECRET = "whsec_" + base64.b64encode(b"o" * 24).decode()
SOURCE = "https://ofu.example.com/clusters/prod-a"
TOKEN = "Bearer hunter2"
DOCS = Path(__file__).parents[2] / "docs"


def settings(url: str = "https://consumer.example/ofu", **more: Any) -> WebhookSettings:
    return WebhookSettings(**{"name": "robot", "url": url, "secret_env": "SECRET", **more})


def attempt(step: Transition | None = None, *, number: int = 1, now_ms: int = 0) -> Attempt:
    notice = Notice(receiver="robot", transition=step or transition())
    return Attempt(
        notice=notice,
        skipped=(),
        receipt=None,
        number=number,
        maybe_sent=False,
        now_ms=now_ms or int(datetime.now(UTC).timestamp() * 1000),
    )


def delivered(
    answer: Answer, *attempts: Attempt, secret: str = SECRET, **more: Any
) -> tuple[list[Outcome], list[Received]]:
    """Outcomes of the attempts on an endpoint with this answer, and what it was sent."""
    received: list[Received] = []
    with serving(answer, path="/ofu?tenant=7", received=received) as url:
        webhook: Receiver = Webhook(settings(url, **more), secret=secret, source=SOURCE)
        outcomes = [webhook.deliver(one) for one in attempts or [attempt()]]
    return outcomes, received


def test_an_event_arrives_signed_as_the_reference_verifier_wants_it() -> None:
    step = transition()
    outcomes, (request,) = delivered(status(204), attempt(step))
    assert outcomes == [Sent()]
    event = Oracle(SECRET).verify(request.body, request.headers)
    Draft202012Validator(schema()).validate(event)
    assert event["id"] == request.headers["webhook-id"] == step.event_id
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert request.path == "/ofu?tenant=7"


def test_a_changed_byte_is_found_out() -> None:
    _, (request,) = delivered(status(204))
    with pytest.raises(WebhookVerificationError):
        Oracle(SECRET).verify(request.body.replace(b"0.4", b"0.5"), request.headers)


def test_a_retry_has_the_same_id_and_bytes_and_its_own_time() -> None:
    step = transition()
    tries = [attempt(step, now_ms=NOON_MS), attempt(step, number=2, now_ms=NOON_MS + 5_000)]
    _, (first, second) = delivered(status(503), *tries)
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) == NOON_MS // 1000 + 5
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


def test_while_a_secret_is_replaced_the_old_one_and_the_new_one_verify() -> None:
    _, (request,) = delivered(status(204), secret=f"{SECRET}\n{OLD_SECRET}\n\n")
    for secret in (SECRET, OLD_SECRET):
        Oracle(secret).verify(request.body, request.headers)


def test_nothing_is_sent_that_would_give_the_secret_or_its_place_away() -> None:
    _, (request,) = delivered(status(204))
    sent = request.body + repr(request.headers).encode()
    for word in (b"whsec", base64.b64encode(b"k" * 32), b"k" * 32, b"secret_env"):
        assert word not in sent


def test_configured_headers_travel_and_cannot_replace_ours() -> None:
    _, (request,) = delivered(status(204), headers={"Authorization": TOKEN})
    assert request.headers["authorization"] == TOKEN
    for name in ("Webhook-Signature", "content-type", "Host", "bad name", ""):
        with pytest.raises(ValueError, match="headers"):
            settings(headers={name: "x"})
    with pytest.raises(ValueError, match="headers"):
        settings(headers={"X-A": "split\r\nX-B: 1"})


@pytest.mark.parametrize("code", [200, 201, 202, 204])
def test_any_2xx_is_accepted(code: int) -> None:
    assert delivered(status(code))[0] == [Sent()]


def test_a_duplicate_that_the_endpoint_knows_counts_as_sent() -> None:
    (outcome,), _ = delivered(status(409))
    assert isinstance(outcome, Sent)
    assert "409" in outcome.note


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_is_refused_and_not_followed(code: int) -> None:
    (outcome,), requests = delivered(status(code, headers={"Location": "/other?k=hunter2"}))
    assert isinstance(outcome, Refused)
    assert "set `url`" in outcome.reason
    assert len(requests) == 1


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413, 415, 422])
def test_other_4xx_are_final(code: int) -> None:
    (outcome,), _ = delivered(status(code))
    assert isinstance(outcome, Refused)
    assert str(code) in outcome.reason


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504])
def test_trouble_that_passes_is_tried_again(code: int) -> None:
    (outcome,), _ = delivered(status(code))
    assert isinstance(outcome, Retry)
    assert outcome.after_ms is None


@pytest.mark.parametrize("code", [429, 503])
def test_the_endpoint_s_own_wish_to_wait_is_passed_on(code: int) -> None:
    (outcome,), _ = delivered(status(code, headers={"Retry-After": "90"}))
    assert isinstance(outcome, Retry)
    assert outcome.after_ms == 90_000


def test_a_wish_given_as_a_date_is_measured_from_the_attempt() -> None:
    date = format_datetime(datetime.fromtimestamp(NOON_MS / 1000 + 60, UTC), usegmt=True)
    answer = status(429, headers={"Retry-After": date})
    (outcome,), _ = delivered(answer, attempt(now_ms=NOON_MS))
    assert isinstance(outcome, Retry)
    assert outcome.after_ms == 60_000


def test_after_410_nothing_more_is_sent() -> None:
    outcomes, requests = delivered(status(410), attempt(), attempt(transition(revision=2)))
    assert all(isinstance(outcome, Refused) for outcome in outcomes)
    assert len(requests) == 1


def test_no_outcome_repeats_a_header_a_path_or_what_the_endpoint_said() -> None:
    for code in (302, 400, 409, 410, 415, 429, 500):
        answer = status(code, body=b"you sent hunter2", headers={"Location": "/hunter2"})
        (outcome,), _ = delivered(answer, headers={"Authorization": TOKEN})
        assert "hunter2" not in repr(outcome)
        assert "tenant" not in repr(outcome)


def test_an_endpoint_that_is_not_there_is_tried_again_unambiguously() -> None:
    with serving(status(204)) as url:
        pass
    outcome = Webhook(settings(url), secret=SECRET, source=SOURCE).deliver(attempt())
    assert isinstance(outcome, Retry)
    assert not outcome.ambiguous


# -- settings and secrets --------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "consumer.example",
        "ftp://consumer.example",
        "https://",
        "https:///path",
        "https://consumer.example/a b",
        "https://consumer.example/\n",
        "https://consumer.example:99999/",
        "https://[::1/",
    ],
)
def test_what_is_no_http_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url must look like"):
        settings(url)


def test_a_password_in_the_url_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValueError, match="password") as refused:
        settings("https://user:hunter2@consumer.example/")
    assert "hunter2" not in str(refused.value)


def test_an_unsigned_webhook_cannot_be_configured() -> None:
    for places in ({"secret_env": ""}, {"secret_file": "/run/s"}):
        with pytest.raises(ValueError, match="exactly one of"):
            settings(**places)


def test_plain_http_beyond_this_machine_is_a_problem_to_show() -> None:
    assert settings("http://consumer.example/").problems
    for fine in ("https://consumer.example/", "http://127.0.0.1:8080/", "http://[::1]:1/"):
        assert settings(fine).problems == ()


def test_settings_are_read_from_a_table_by_their_type() -> None:
    table = {"type": "webhook", "name": "robot", "url": "https://a.example", "secret_env": "S"}
    read = msgspec.convert({**table, "timeout": "20s"}, WebhookSettings, dec_hook=_duration)
    assert read.timeout == 20_000
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({**table, "retries": 3}, WebhookSettings)
    with pytest.raises(msgspec.ValidationError, match="timeout must be"):
        msgspec.convert({**table, "timeout": "1h"}, WebhookSettings, dec_hook=_duration)


def _duration(kind: type, value: object) -> object:
    assert kind is Duration
    return Duration.parse(str(value))


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("whsec_c2hvcnQ=", "line 1"),
        (f"{SECRET}\nhunter2 is not base64!", "line 2"),
        ("whsec_" + base64.b64encode(b"x" * 65).decode(), "24 to 64 bytes"),
    ],
)
def test_a_bad_secret_is_named_by_its_line_alone(secret: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refused:
        Webhook(settings(), secret=secret, source=SOURCE)
    assert "hunter2" not in str(refused.value)


def test_the_published_test_vector_is_reproduced() -> None:
    keys = signing_keys("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signature(
        keys,
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        time_s=1_614_265_330,
        body=b'{"test": 2432232314}',
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(
    key=st.binary(min_size=24, max_size=64),
    message_id=st.from_regex(r"evt_[a-z2-7]{20}", fullmatch=True),
    time_s=st.integers(0, 4_000_000_000),
    body=st.text(),
)
def test_signing_agrees_with_the_reference_implementation(
    key: bytes, message_id: str, time_s: int, body: str
) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    ours = signature(
        signing_keys(secret), message_id=message_id, time_s=time_s, body=body.encode()
    )
    theirs = Oracle(secret).sign(message_id, datetime.fromtimestamp(time_s, UTC), body)
    assert ours == theirs


# -- the verifier that the documentation shows -----------------------------------------------


def documented_verifier() -> Any:
    """The function ``verify`` of the first Python block in docs/webhook.md."""
    text = (DOCS / "webhook.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    exec(textwrap.dedent(block.group(1)), names)
    return names["verify"]


def test_the_documented_verifier_accepts_what_is_sent() -> None:
    _, (request,) = delivered(status(204), secret=f"{OLD_SECRET}\n{SECRET}")
    event = documented_verifier()(SECRET, request.headers, request.body)
    assert event == json.loads(request.body)


def test_the_documented_verifier_refuses_what_was_tampered_with_or_is_late() -> None:
    verify = documented_verifier()
    _, (request,) = delivered(status(204))
    _, (late,) = delivered(status(204), attempt(now_ms=NOON_MS))
    forged = {**request.headers, "webhook-id": "evt_other"}
    for secret, headers, body in (
        (OLD_SECRET, request.headers, request.body),
        (SECRET, forged, request.body),
        (SECRET, request.headers, request.body + b" "),
        (SECRET, late.headers, late.body),
        (SECRET, {**request.headers, "webhook-timestamp": "soon"}, request.body),
        (SECRET, {}, request.body),
    ):
        with pytest.raises(ValueError, match="webhook"):
            verify(secret, headers, body)
