"""A Slack workspace in memory: the methods this service calls, with Slack's answers and limits.

For the demo and the tests. It knows no HTTP: a method's name and its arguments go in, the JSON
object that Slack would answer comes out. It is stricter than Slack where Slack would silently
cut or repair, so that what passes here passes there.
"""

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

# Slack's limits: docs.slack.dev, Block Kit reference and chat.postMessage / chat.update.
_BLOCKS, _HEADER, _SECTION, _FIELDS, _FIELD, _ELEMENTS = 50, 150, 3_000, 10, 2_000, 10
_POST_TEXT, _EDIT_TEXT = 40_000, 4_000

# What the channel is called.
NAME = "#loopback"

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A message as the channel shows it now, with what it said before its edits.

    Attributes
    ----------
    thread_ts
        The message it replies to; None for one of the channel itself.
    broadcast
        A reply that the channel sees too.
    earlier
        The texts it had, oldest first.
    """

    channel: str
    ts: str
    text: str
    blocks: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] | None = None
    thread_ts: str | None = None
    broadcast: bool = False
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A file that was uploaded and shown in a channel or thread."""

    id: str
    name: str
    title: str
    alt: str
    content: bytes
    channel: str
    thread_ts: str | None


@dataclass(slots=True, kw_only=True)
class _Upload:
    name: str
    alt: str
    length: int
    content: bytes | None = None


class Workspace:
    """One workspace with one channel, in which one app has one bot token.

    Parameters
    ----------
    scopes
        What the app may do; without ``channels:history`` it can't look messages up.
    """

    def __init__(
        self,
        *,
        token: str,
        channel: str,
        scopes: frozenset[str] = frozenset({"chat:write", "files:write", "channels:history"}),
        start_s: int,
    ) -> None:
        self.scopes = scopes
        self.edits_allowed = True
        self._token = token
        self._channel = channel
        self._start_s = start_s
        self._numbers = itertools.count(1)
        self._posted: dict[str, Posted] = {}
        self._uploads: dict[str, _Upload] = {}
        self._shared: list[Shared] = []
        self._lock = threading.RLock()
        self._methods: dict[str, tuple[str, Callable[[Mapping[str, Any]], Answer]]] = {
            "chat.postMessage": ("chat:write", self._post),
            "chat.update": ("chat:write", self._update),
            "conversations.history": ("channels:history", self._history),
            "conversations.replies": ("channels:history", self._replies),
            "files.getUploadURLExternal": ("files:write", self._ask_upload),
            "files.completeUploadExternal": ("files:write", self._complete_upload),
        }

    @property
    def messages(self) -> tuple[Posted, ...]:
        """What the channel holds, oldest first, replies included."""
        with self._lock:
            return tuple(self._posted.values())

    @property
    def files(self) -> tuple[Shared, ...]:
        """The files that were shared, oldest first."""
        with self._lock:
            return tuple(self._shared)

    def thread(self, ts: str) -> tuple[Posted, ...]:
        """The replies to one message, oldest first."""
        return tuple(message for message in self.messages if message.thread_ts == ts)

    def delete(self, ts: str) -> None:
        """Take a message away, as a person might."""
        with self._lock:
            del self._posted[ts]

    def call(self, method: str, token: str, arguments: Mapping[str, Any]) -> Answer:
        """Answer a Web API call as Slack would, ``ok`` or not."""
        if method not in self._methods:
            return _no("unknown_method")
        if not token:
            return _no("not_authed")
        if token != self._token:
            return _no("invalid_auth")
        scope, act = self._methods[method]
        if scope not in self.scopes:
            return _no("missing_scope", needed=scope, provided=",".join(sorted(self.scopes)))
        with self._lock:
            return act(arguments)

    def webhook(self, payload: Mapping[str, Any]) -> str:
        """Post what came to the incoming webhook; ``ok`` or Slack's word for what is wrong."""
        if trouble := _trouble(payload, most=_POST_TEXT):
            return trouble
        with self._lock:
            self._keep(payload)
        return "ok"

    def upload(self, file_id: str, content: bytes) -> bool:
        """Take a file's bytes; False when nobody announced so many under this id."""
        with self._lock:
            upload = self._uploads.get(file_id)
            if upload is None or len(content) != upload.length:
                return False
            upload.content = content
            return True

    def _post(self, arguments: Mapping[str, Any]) -> Answer:
        # Posting alone takes a channel's name for its ID.
        if arguments.get("channel") not in (self._channel, NAME):
            return _no("channel_not_found")
        if trouble := _trouble(arguments, most=_POST_TEXT):
            return _no(trouble)
        parent = arguments.get("thread_ts")
        if parent is not None and not self._is_root(parent):
            return _no("thread_not_found")
        return self._said(self._keep(arguments))

    def _update(self, arguments: Mapping[str, Any]) -> Answer:
        if arguments.get("channel") != self._channel:
            return _no("channel_not_found")
        message = self._posted.get(str(arguments.get("ts")))
        if message is None:
            return _no("message_not_found")
        if not self.edits_allowed:
            return _no("edit_window_closed")
        if trouble := _trouble(arguments, most=_EDIT_TEXT):
            return _no(trouble)
        # Blocks and metadata that are not named stay; an empty list removes.
        blocks = arguments.get("blocks")
        self._posted[message.ts] = edited = replace(
            message,
            text=str(arguments.get("text", message.text)),
            blocks=message.blocks if blocks is None else tuple(blocks),
            metadata=arguments.get("metadata", message.metadata),
            earlier=(*message.earlier, message.text),
        )
        return self._said(edited)

    def _history(self, arguments: Mapping[str, Any]) -> Answer:
        oldest = str(arguments.get("oldest", ""))
        seen = [
            message
            for message in reversed(self._posted.values())
            if (message.thread_ts is None or message.broadcast) and message.ts > oldest
        ]
        return self._page(seen, arguments)

    def _replies(self, arguments: Mapping[str, Any]) -> Answer:
        parent = str(arguments.get("ts"))
        if not self._is_root(parent):
            return _no("thread_not_found")
        return self._page([self._posted[parent], *self.thread(parent)], arguments)

    def _page(self, seen: list[Posted], arguments: Mapping[str, Any]) -> Answer:
        if arguments.get("channel") != self._channel:
            return _no("channel_not_found")
        start = int(arguments.get("cursor") or 0)
        end = start + int(arguments.get("limit", 100))
        with_metadata = _true(arguments.get("include_all_metadata"))
        return {
            "ok": True,
            "messages": [
                _shown(message, metadata=with_metadata) for message in seen[start:end]
            ],
            "has_more": end < len(seen),
            "response_metadata": {"next_cursor": str(end) if end < len(seen) else ""},
        }

    def _ask_upload(self, arguments: Mapping[str, Any]) -> Answer:
        name, length = arguments.get("filename"), int(arguments.get("length", 0))
        if not name or length <= 0:
            return _no("invalid_arguments")
        file_id = f"F{next(self._numbers):010d}"
        alt = str(arguments.get("alt_txt", ""))
        self._uploads[file_id] = _Upload(name=str(name), alt=alt, length=length)
        return {"ok": True, "file_id": file_id, "upload_url": f"/upload/{file_id}"}

    def _complete_upload(self, arguments: Mapping[str, Any]) -> Answer:
        parent = arguments.get("thread_ts")
        if arguments.get("channel_id") != self._channel:
            return _no("channel_not_found")
        if parent is not None and not self._is_root(parent):
            return _no("thread_not_found")
        for entry in arguments.get("files", ()):
            upload = self._uploads.get(entry.get("id"))
            if upload is None or upload.content is None:
                return _no("file_not_found")
            self._shared.append(
                Shared(
                    id=entry["id"],
                    name=upload.name,
                    title=str(entry.get("title", "")),
                    alt=upload.alt,
                    content=upload.content,
                    channel=self._channel,
                    thread_ts=parent,
                )
            )
        return {"ok": True, "files": list(arguments.get("files", ()))}

    def _keep(self, arguments: Mapping[str, Any]) -> Posted:
        message = Posted(
            channel=self._channel,
            ts=f"{self._start_s}.{next(self._numbers):06d}",
            text=str(arguments.get("text", "")),
            blocks=tuple(arguments.get("blocks") or ()),
            metadata=arguments.get("metadata"),
            thread_ts=arguments.get("thread_ts"),
            broadcast=_true(arguments.get("reply_broadcast")),
        )
        self._posted[message.ts] = message
        return message

    def _is_root(self, ts: object) -> bool:
        message = self._posted.get(str(ts))
        return message is not None and message.thread_ts is None

    def _said(self, message: Posted) -> Answer:
        shown = _shown(message, metadata=False)
        return {"ok": True, "channel": message.channel, "ts": message.ts, "message": shown}


def _true(value: object) -> bool:
    """How Slack reads a flag from a form, a query or JSON."""
    return str(value).lower() in ("true", "1")


def _shown(message: Posted, *, metadata: bool) -> Answer:
    shown: Answer = {"ts": message.ts, "text": message.text, "blocks": list(message.blocks)}
    if message.thread_ts is not None:
        shown["thread_ts"] = message.thread_ts
    if metadata and message.metadata is not None:
        shown["metadata"] = message.metadata
    return shown


def _no(error: str, **more: str) -> Answer:
    return {"ok": False, "error": error, **more}


def _trouble(arguments: Mapping[str, Any], *, most: int) -> str:
    """Slack's word for what is wrong with a message's form, "" for nothing."""
    text, blocks = arguments.get("text") or "", arguments.get("blocks") or []
    if not text and not blocks:
        return "no_text"
    if len(text) > most:
        return "msg_too_long"
    if not isinstance(blocks, list) or len(blocks) > _BLOCKS:
        return "invalid_blocks"
    if not all(isinstance(block, dict) and _block_fits(block) for block in blocks):
        return "invalid_blocks"
    metadata = arguments.get("metadata")
    if metadata is not None and not (
        isinstance(metadata, dict)
        and isinstance(metadata.get("event_type"), str)
        and isinstance(metadata.get("event_payload"), dict)
    ):
        return "invalid_metadata_format"
    return ""


def _block_fits(block: Mapping[str, Any]) -> bool:
    match block.get("type"):
        case "header":
            return _text_fits(block.get("text"), _HEADER, kinds=("plain_text",))
        case "section":
            fields = block.get("fields", [])
            return (
                ("text" in block or bool(fields))
                and ("text" not in block or _text_fits(block["text"], _SECTION))
                and len(fields) <= _FIELDS
                and all(_text_fits(field, _FIELD) for field in fields)
            )
        case "context":
            elements = block.get("elements", [])
            fits = all(_text_fits(element, _SECTION) for element in elements)
            return 0 < len(elements) <= _ELEMENTS and fits
        case "divider":
            return True
        case _:
            return False


def _text_fits(
    text: object, most: int, *, kinds: tuple[str, ...] = ("plain_text", "mrkdwn")
) -> bool:
    return (
        isinstance(text, dict)
        and text.get("type") in kinds
        and isinstance(text.get("text"), str)
        and 0 < len(text["text"]) <= most
    )


def decoded(form: Mapping[str, str]) -> dict[str, Any]:
    """Return a form's arguments as Slack reads them: nested values were sent as JSON."""
    nested = ("blocks", "metadata", "files")
    return {
        name: json.loads(value) if name in nested else value for name, value in form.items()
    }
