"""A server on this machine that plays Slack and the consumer of signed webhooks.

The demo shows what it received; the tests send real HTTP to it and make it fail in the ways
that providers do. It binds the loopback address only.
"""

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl

from detector.demo.workspace import Workspace, decoded

# None of these opens anything: they are only ever compared with themselves.
TOKEN = "xoxb-loopback"
CHANNEL = "C0LOOPBACK"
SECRET = "whsec_" + base64.b64encode(b"loopback-consumer-of-events").decode()
_SERVICE = "/services/T0LOOP/B0LOOP/loopback"

# Standard Webhooks: a timestamp further away than this is refused as a replay.
_TOLERANCE_S = 300
_LARGEST = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A CloudEvent whose signature was good. ``copies`` counts how often it came."""

    id: str
    type: str
    body: Mapping[str, Any]
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    path: str
    reply: Reply | None = None
    acts: bool = False
    delay_s: float = 0.0


class Loopback:
    """Slack's Web API, an incoming webhook and an event consumer, on 127.0.0.1.

    Use as a context manager. ``slack`` is what the workspace holds; ``events`` what the
    consumer took; ``requests`` every path that was called, with the status it got.

    Parameters
    ----------
    save_to
        Folder for the pictures that are uploaded.
    """

    def __init__(self, *, save_to: Path | None = None, secret: str = SECRET) -> None:
        self.slack = Workspace(token=TOKEN, channel=CHANNEL, start_s=int(time.time()))
        self._save_to = save_to
        self._key = base64.b64decode(secret.removeprefix("whsec_"))
        self._events: dict[str, Event] = {}
        self._requests: list[tuple[str, int]] = []
        self._faults: list[_Fault] = []
        self._changed = threading.Condition()
        self._server = _Server(self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop serving; what was received stays readable."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where the server is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def api_url(self) -> str:
        """What to give as Slack's ``api_url``."""
        return f"{self.url}/api"

    @property
    def incoming_url(self) -> str:
        """The incoming webhook's URL."""
        return f"{self.url}{_SERVICE}"

    @property
    def webhook_url(self) -> str:
        """Where signed events go."""
        return f"{self.url}/webhook"

    @property
    def events(self) -> tuple[Event, ...]:
        """Events with a good signature, in the order of their first coming."""
        with self._changed:
            return tuple(self._events.values())

    @property
    def requests(self) -> tuple[tuple[str, int], ...]:
        """Every request so far: path and status, 0 where the connection was dropped."""
        with self._changed:
            return tuple(self._requests)

    def fail_next(
        self,
        path: str,
        *,
        status: int = 500,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        times: int = 1,
    ) -> None:
        """Answer the next requests to ``path`` with an HTTP error instead of acting."""
        reply = Reply(status=status, body=body, headers=headers or {})
        self._plan(_Fault(path=path, reply=reply), times)

    def refuse_next(self, path: str, error: str, *, times: int = 1) -> None:
        """Answer the next calls with Slack's HTTP 200 and ``ok: false``."""
        body = json.dumps({"ok": False, "error": error}).encode()
        self._plan(_Fault(path=path, reply=Reply(status=200, body=body)), times)

    def drop_next(self, path: str, *, acts: bool = True, times: int = 1) -> None:
        """Close the connection without an answer, after acting on the request or before."""
        self._plan(_Fault(path=path, acts=acts), times)

    def delay_next(self, path: str, seconds: float, *, times: int = 1) -> None:
        """Act and answer, but late."""
        self._plan(_Fault(path=path, acts=True, delay_s=seconds), times)

    def wait(self, holds: Callable[[], bool], *, timeout_s: float) -> bool:
        """Wait until ``holds()``, looking after each request; whether it came true in time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not holds():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def _plan(self, fault: _Fault, times: int) -> None:
        with self._changed:
            self._faults.extend([fault] * times)

    def _answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply | None:
        """Act on a request as planned; None is a connection closed without an answer."""
        with self._changed:
            fault = next((fault for fault in self._faults if path.startswith(fault.path)), None)
            if fault is not None:
                self._faults.remove(fault)
        reply = fault.reply if fault is not None else None
        if fault is None or fault.acts:
            reply = self._act(path, headers, body)
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        elif fault is not None and fault.reply is None:
            reply = None
        with self._changed:
            self._requests.append((path, reply.status if reply else 0))
            self._changed.notify_all()
        return reply

    def _act(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        match path.split("/")[1:]:
            case ["api", method]:
                return self._call(method, headers, body)
            case ["upload", file_id]:
                taken = self.slack.upload(file_id, body)
                return _text(200, f"OK - {len(body)}") if taken else _text(400, "failed")
            case ["services", *_]:
                return self._post(path, body)
            case ["webhook"]:
                return self._take_event(headers, body)
            case _:
                return _text(404, "not found")

    def _call(self, method: str, headers: Mapping[str, str], body: bytes) -> Reply:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        try:
            if headers.get("content-type", "").startswith("application/json"):
                arguments = json.loads(body)
            else:
                arguments = decoded(dict(parse_qsl(body.decode(), keep_blank_values=True)))
        except ValueError:
            return _json({"ok": False, "error": "invalid_form_data"})
        answer = self.slack.call(method, token, arguments)
        if "upload_url" in answer:
            answer["upload_url"] = self.url + answer["upload_url"]
        if method == "files.completeUploadExternal" and answer["ok"]:
            self._save(len(answer["files"]))
        return _json(answer)

    def _post(self, path: str, body: bytes) -> Reply:
        if path != _SERVICE:
            return _text(404, "no_service")
        try:
            payload = json.loads(body)
        except ValueError:
            return _text(400, "invalid_payload")
        said = self.slack.webhook(payload)
        return _text(200 if said == "ok" else 400, said)

    def _take_event(self, headers: Mapping[str, str], body: bytes) -> Reply:
        """Verify and keep a Standard Webhooks request with a structured CloudEvent."""
        name, sent = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        signed = f"{name}.{sent}.".encode() + body
        mac = hmac.new(self._key, signed, hashlib.sha256).digest()
        expected = f"v1,{base64.b64encode(mac).decode()}"
        given = headers.get("webhook-signature", "").split()
        if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in given):
            return _text(401, "bad signature")
        if not sent.isdigit() or abs(time.time() - int(sent)) > _TOLERANCE_S:
            return _text(401, "timestamp too far away")
        if not headers.get("content-type", "").startswith("application/cloudevents+json"):
            return _text(415, "send application/cloudevents+json")
        try:
            event = json.loads(body)
        except ValueError:
            return _text(400, "not JSON")
        required = ("id", "source", "type")
        if event.get("specversion") != "1.0" or not all(event.get(key) for key in required):
            return _text(400, "not a CloudEvent 1.0")
        if event["id"] != name:
            return _text(400, "webhook-id is not the event's id")
        with self._changed:
            known = self._events.get(name)
            copies = known.copies + 1 if known else 1
            self._events[name] = Event(id=name, type=event["type"], body=event, copies=copies)
        return Reply(status=204)

    def _save(self, newest: int) -> None:
        if self._save_to is None:
            return
        self._save_to.mkdir(parents=True, exist_ok=True)
        for file in self.slack.files[-newest:]:
            # The name came over the wire: it must not leave the folder.
            name = re.sub(r"[^\w.-]", "_", file.name).lstrip(".") or "picture"
            (self._save_to / name).write_bytes(file.content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Callable[[str, Mapping[str, str], bytes], Reply | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.answer = answer

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that went away is what the tests make happen."""


class _Request(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    # One packet an answer: head and body apart would wait 40 ms for each other (Nagle).
    wbufsize = -1

    def do_POST(self) -> None:
        """Read the body, let the server act, answer; or hang up."""
        length = min(int(self.headers.get("Content-Length", 0)), _LARGEST)
        # Slack reads a method's arguments from the query as well as from the body.
        path, _, query = self.path.partition("?")
        body = self.rfile.read(length) or query.encode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.answer(path, headers, body)
        if reply is None:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status != 204:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing; ``Loopback.requests`` has it."""


def _text(status: int, text: str) -> Reply:
    return Reply(status=status, body=text.encode(), headers={"Content-Type": "text/plain"})


def _json(answer: Mapping[str, Any]) -> Reply:
    body = json.dumps(answer).encode()
    return Reply(status=200, body=body, headers={"Content-Type": "application/json"})
