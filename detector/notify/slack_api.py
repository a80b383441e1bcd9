"""Slack's Web API as this service uses it: one call, and what its answer means.

Slack answers HTTP 200 with ``ok: false`` for most errors, 429 with ``Retry-After`` for its rate
limits. There is no idempotency key, so an answer that does not say whether a call was carried
out is ambiguous, and the caller has to look before it posts again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import msgspec

from detector.httpdate import parse_retry_after
from detector.notify.http import Failure, Response, host_of, post
from detector.notify.message import EVENT_TYPE
from detector.notify.receiver import Retry

# Chosen: Slack usually answers within 1 s; a dispatcher's thread must not hang on one receiver.
TIMEOUT_S = 15.0

# Worth another try. The first group may have been carried out all the same: Slack's reference
# says of internal_error and fatal_error that some of the operation may have succeeded.
_AMBIGUOUS = ("internal_error", "fatal_error")
_TRANSIENT = (
    *_AMBIGUOUS,
    "ratelimited",
    "rate_limited",
    "message_limit_exceeded",
    "service_unavailable",
    "request_timeout",
    "team_added_to_org",
)

# Slack dislikes the form, not the content: plain text may pass.
MALFORMED = (
    "invalid_blocks",
    "invalid_blocks_format",
    "msg_too_long",
    "msg_blocks_too_long",
    "invalid_metadata_format",
    "invalid_metadata_schema",
    "metadata_too_large",
    "invalid_payload",
    "no_text",
)

# Transitions that must be heard, and so need a message or a line of their own.
LOUD = ("opened", "escalated", "resolved")

# Where an earlier post of an incident is looked for: the newest 60 messages, in pages that stay
# below the 64 KiB that are read of an answer (our own messages measure about 4 kB each).
_PAGE, _PAGES = 12, 5
CHANNEL_ID = re.compile(r"[CGD][A-Z0-9]{6,}")

# What an operator can do about an error that no retry will cure.
_HINTS = {
    "channel_not_found": "give the channel's ID, and invite the app if it is private",
    "not_in_channel": "invite the app: /invite @<app> in the channel",
    "is_archived": "unarchive the channel or configure another one",
    "channel_is_archived": "unarchive the channel or configure another one",
    "invalid_auth": "check the token",
    "not_authed": "check the token",
    "account_inactive": "the app's user was removed; install the app again",
    "token_revoked": "install the app again and store its new token",
    "token_expired": "store a new token; rotated tokens are not supported",
    "missing_scope": "add the scope to the app and install it again",
    "restricted_action": "ask a workspace admin to let the app post there",
    "invalid_token": "create the incoming webhook anew",
    "no_service": "the incoming webhook was removed; create it anew",
    "no_team": "the workspace is gone; create the incoming webhook anew",
    "team_disabled": "the workspace is disabled",
    "action_prohibited": "ask a workspace admin to let the webhook post there",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """Slack said no, and will say no again. ``error`` is its own word for why."""

    error: str
    needed: str = ""

    def __str__(self) -> str:
        """Slack's error and what to do about it, for people."""
        hint = _HINTS.get(self.error, "")
        scope = f" (needs {self.needed})" if self.needed else ""
        return f"slack: {self.error}{scope}" + (f"; {hint}" if hint else "")


class Api:
    """Calls methods of one workspace with one bot token, which it never shows."""

    def __init__(self, *, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._authorization = f"Bearer {token}"

    def call(
        self, method: str, arguments: Mapping[str, object], *, now_ms: int
    ) -> Mapping[str, Any] | Denied | Retry:
        """Call ``method`` once and return its answer, or why there is none.

        Arguments go as a form with nested values as JSON, which every method takes (some
        refuse a JSON body). None is left out.
        """
        form = {
            name: _form_value(value) for name, value in arguments.items() if value is not None
        }
        answer = post(
            f"{self._url}/{method}",
            body=urlencode(form).encode(),
            headers={
                "Authorization": self._authorization,
                "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
            },
            timeout_s=TIMEOUT_S,
        )
        if isinstance(answer, Failure):
            return Retry(reason=answer.reason, ambiguous=answer.ambiguous)
        return self._judge(answer, now_ms=now_ms)

    def find(
        self, *, channel: str, incident_id: str, after: str, now_ms: int
    ) -> str | Denied | Retry | None:
        """Look for the message of an earlier try that got no answer.

        Returns
        -------
        The ``ts`` of the newest message of this incident that is younger than ``after``
        ("" is any), None when there is none, or why that can't be known.
        """
        if not CHANNEL_ID.fullmatch(channel):
            return Denied(error="only a channel given by its ID can be looked up")
        query: dict[str, object] = {
            "channel": channel,
            "oldest": after or None,
            "include_all_metadata": True,
            "limit": _PAGE,
        }
        for _ in range(_PAGES):
            answer = self.call("conversations.history", query, now_ms=now_ms)
            if isinstance(answer, Denied | Retry):
                return answer
            for entry in answer.get("messages", ()):
                if _payload(entry).get("incident_id") == incident_id and _is_root(entry):
                    return str(entry["ts"])
            query["cursor"] = (answer.get("response_metadata") or {}).get("next_cursor")
            if not query["cursor"]:
                break
        return None

    def in_thread(
        self, *, channel: str, ts: str, event_id: str, now_ms: int
    ) -> bool | Denied | Retry:
        """Whether the thread under ``ts`` has this event's line already."""
        query = {
            "channel": channel,
            "ts": ts,
            "include_all_metadata": True,
            "limit": _PAGE * _PAGES,
        }
        answer = self.call("conversations.replies", query, now_ms=now_ms)
        if isinstance(answer, Denied | Retry):
            return answer
        return any(
            _payload(entry).get("event_id") == event_id and not _is_root(entry)
            for entry in answer.get("messages", ())
        )

    def share(
        self,
        content: bytes,
        *,
        filename: str,
        title: str,
        channel: str,
        thread_ts: str,
        now_ms: int,
    ) -> Denied | Retry | None:
        """Put a file into a thread; None is success.

        Slack's three steps: ask where to, send the bytes, say where the file belongs. Only
        the last one shows anything to anybody, so only it can be ambiguous.
        """
        asked = {"filename": filename, "length": len(content), "alt_txt": title}
        place = self.call("files.getUploadURLExternal", asked, now_ms=now_ms)
        if isinstance(place, Denied | Retry):
            return _harmless(place)
        if trouble := self._upload(str(place.get("upload_url", "")), content, now_ms=now_ms):
            return trouble
        done = {
            "files": [{"id": place.get("file_id"), "title": title}],
            "channel_id": channel,
            "thread_ts": thread_ts,
        }
        answer = self.call("files.completeUploadExternal", done, now_ms=now_ms)
        return answer if isinstance(answer, Denied | Retry) else None

    def _upload(self, url: str, content: bytes, *, now_ms: int) -> Denied | Retry | None:
        # Bytes go where Slack says, but never in clear to another machine.
        if not url.startswith("https://") and host_of(url) != host_of(self._url):
            return Denied(error="upload_url is not https")
        answer = post(
            url,
            body=content,
            headers={"Content-Type": "application/octet-stream"},
            timeout_s=TIMEOUT_S,
        )
        if isinstance(answer, Failure):
            return Retry(reason=answer.reason)
        return _harmless(judge_status(answer, now_ms=now_ms))

    def _judge(self, answer: Response, *, now_ms: int) -> Mapping[str, Any] | Denied | Retry:
        if refused := judge_status(answer, now_ms=now_ms):
            return refused
        try:
            said = msgspec.json.decode(answer.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            reason = f"{host_of(self._url)}: the answer is not Slack's (no JSON object)"
            return Retry(reason=reason, ambiguous=True)
        if said.get("ok") is True:
            return said
        error = str(said.get("error", "no reason given"))[:100]
        if error in _TRANSIENT:
            return Retry(
                reason=f"slack: {error}",
                after_ms=parse_retry_after(answer.headers.get("retry-after"), now_ms),
                ambiguous=error in _AMBIGUOUS,
            )
        return Denied(error=error, needed=str(said.get("needed", ""))[:100])


def judge_status(answer: Response, *, now_ms: int) -> Denied | Retry | None:
    """Return what the HTTP status alone decides; None when the body has the word."""
    match answer.status:
        case 200:
            return None
        case 429:
            wait = parse_retry_after(answer.headers.get("retry-after"), now_ms)
            return Retry(reason="slack: rate limit (HTTP 429)", after_ms=wait)
        case 408 | 503:
            wait = parse_retry_after(answer.headers.get("retry-after"), now_ms)
            return Retry(reason=f"slack: HTTP {answer.status}", after_ms=wait)
        case status if status >= 500:
            return Retry(reason=f"slack: HTTP {status}", ambiguous=True)
        case status:
            return Denied(error=_said(answer) or f"HTTP {status}")


def _harmless(trouble: Denied | Retry | None) -> Denied | Retry | None:
    """The same trouble, of a call that shows nothing to anybody and so can be repeated."""
    return replace(trouble, ambiguous=False) if isinstance(trouble, Retry) else trouble


def _said(answer: Response) -> str:
    """Slack's error word from a short text answer, such as an incoming webhook's."""
    text = answer.body[:100].decode(errors="replace").strip()
    return text if text.replace("_", "").isalnum() and text.isascii() else ""


def _payload(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = entry.get("metadata") or {}
    payload = (
        metadata.get("event_payload") if metadata.get("event_type") == EVENT_TYPE else None
    )
    return payload if isinstance(payload, dict) else {}


def _is_root(entry: Mapping[str, Any]) -> bool:
    return entry.get("thread_ts") in (None, entry.get("ts"))


def _form_value(value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case _:
            return msgspec.json.encode(value).decode()
