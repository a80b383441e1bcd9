"""The signed webhook: each step of an incident as a CloudEvent, for machines.

CloudEvents 1.0 in structured mode, signed as Standard Webhooks 1.0 asks. A machine gets every
transition, in order, with the same id and the same bytes on each retry, so that repeating is
harmless; docs/webhook.md says what it must do with them.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from urllib.parse import SplitResult, urlsplit

import msgspec

from detector.analysis.rules import Severity
from detector.httpdate import parse_retry_after
from detector.incident.export import payload
from detector.notify.http import Failure, Response, host_of, post
from detector.notify.receiver import Attempt, Outcome, Policy, Refused, Retry, Sent
from detector.series import Duration, refuse

_PREFIX = "whsec_"
# Of a secret, bytes: Standard Webhooks 1.0, "Signature scheme".
_SHORTEST, _LONGEST = 24, 64

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS = ("content-type", "content-length", "host", "transfer-encoding", "user-agent")


class WebhookSettings(
    msgspec.Struct,
    tag_field="type",
    tag="webhook",
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """A ``[[receiver]]`` entry with ``type = "webhook"``.

    Attributes
    ----------
    url
        Where to POST. It is the operator's own, so it may well be inside the network.
    secret_file, secret_env
        Where the signing secret is: ``whsec_`` and base64 of 24 to 64 bytes. While one is
        being replaced write both, one a line: both sign, and the consumer takes either.
    severity
        Incidents below it are not sent here.
    timeout
        For one attempt, all of it.
    headers
        Sent along, for a gateway that sorts by them, say. No place for secrets: the signature
        proves who speaks.
    """

    name: str
    url: str
    secret_file: str = ""
    secret_env: str = ""
    severity: Severity = "warning"
    # Standard Webhooks 1.0: 15 to 30 s
    timeout: Duration = Duration(15_000)
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Refuse what can't work, with what to write instead."""
        refuse(self._wrong())

    def _wrong(self) -> Iterator[str]:
        if bool(self.secret_file) == bool(self.secret_env):
            yield "give exactly one of secret_file, secret_env: unsigned events are not sent"
        parts = _split(self.url)
        if parts is None:
            yield "url must look like https://host/path"
        elif "@" in parts.netloc:
            yield "url must not hold a password; give it in `headers`"
        if not 1_000 <= self.timeout <= 60_000:
            yield "timeout must be 1s to 1m"
        for name, value in self.headers.items():
            ours = name.lower() in _OURS or name.lower().startswith("webhook-")
            if ours or not _HEADER_NAME.fullmatch(name) or not _plain(value):
                yield f"headers: {name!r} can't be set, or not to this value"

    @property
    def problems(self) -> tuple[str, ...]:
        """What works and should not be left like that."""
        parts = urlsplit(self.url)
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            return (f"{self.name}: http:// lets anyone on the way read the incidents",)
        return ()

    def check_secret(self, secret: str) -> None:
        """Raise ValueError when ``secret`` is of no use, in words that do not repeat it."""
        signing_keys(secret)


class Webhook:
    """The receiver: signs, sends once, classifies the answer."""

    policy: Policy = "every"

    def __init__(
        self, settings: WebhookSettings, *, secret: str, source: str, permalink_base: str = ""
    ) -> None:
        """Take the settings and what their secret's file or variable holds.

        Parameters
        ----------
        source, permalink_base
            See :func:`detector.incident.export.payload`.

        Raises
        ------
        ValueError
            When ``secret`` is none, in words that do not repeat it.
        """
        self.name = settings.name
        self._settings = settings
        self._keys = signing_keys(secret)
        self._source, self._permalink_base = source, permalink_base
        self._agent = f"ofuwatch/{version('ofuwatch')}"
        self._gone = False

    def deliver(self, attempt: Attempt) -> Outcome:
        """Send the event once, or refuse when the endpoint has said that it is gone."""
        if self._gone:
            return Refused(reason="the endpoint answered 410 (gone) before; not sent again")
        transition = attempt.notice.transition
        # As of the step, not of the attempt: a retry must send the same bytes.
        event = payload(
            transition,
            now_ms=transition.time_ms,
            source=self._source,
            permalink_base=self._permalink_base,
        )
        body = msgspec.json.encode(event)
        time_s = attempt.now_ms // 1000
        answer = post(
            self._settings.url,
            body=body,
            headers={
                **self._settings.headers,
                "Content-Type": "application/cloudevents+json; charset=utf-8",
                "User-Agent": self._agent,
                "webhook-id": transition.event_id,
                "webhook-timestamp": str(time_s),
                "webhook-signature": signature(
                    self._keys, message_id=transition.event_id, time_s=time_s, body=body
                ),
            },
            timeout_s=self._settings.timeout / 1000,
        )
        if isinstance(answer, Failure):
            return Retry(reason=answer.reason, ambiguous=answer.ambiguous)
        return self._judge(answer, now_ms=attempt.now_ms)

    def _judge(self, answer: Response, *, now_ms: int) -> Outcome:
        """Say what a status means, as CloudEvents' webhook and Standard Webhooks have it."""
        status, host = answer.status, host_of(self._settings.url)
        wait_ms = parse_retry_after(answer.headers.get("retry-after"), now_ms)
        match status:
            case _ if 200 <= status < 300:
                return Sent()
            case 409:
                return Sent(note="the endpoint had it already (409)")
            case 410:
                self._gone = True
                reason = "answered 410 (gone): nothing is sent there until ofuwatch restarts"
                return Refused(reason=f"{host} {reason}")
            case _ if 300 <= status < 400:
                reason = "redirects are not followed; set `url` to where it leads"
                return Refused(reason=f"{host} answered {status}: {reason}")
            case 415:
                reason = "it does not take application/cloudevents+json"
                return Refused(reason=f"{host} answered 415: {reason}")
            case 408 | 425 | 429 | 503:
                return Retry(reason=f"{host} answered {status}", after_ms=wait_ms)
            case _ if status >= 500:
                return Retry(reason=f"{host} answered {status}", ambiguous=True)
            case _:
                # Its text may repeat our headers, so only the status is kept.
                return Refused(reason=f"{host} answered {status}")


def signing_keys(secret: str) -> tuple[bytes, ...]:
    """Return the keys that a secret's text holds, one a line.

    Raises
    ------
    ValueError
        When it holds none or a bad one; the message gives the line, never the secret.
    """
    keys = []
    for number, line in enumerate(secret.splitlines(), start=1):
        text = line.strip().removeprefix(_PREFIX)
        if not text:
            continue
        try:
            key = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not _SHORTEST <= len(key) <= _LONGEST:
            msg = (
                f"line {number} of the webhook's secret is not whsec_ and base64 of "
                f"{_SHORTEST} to {_LONGEST} bytes; make one with "
                '`echo "whsec_$(head -c 32 /dev/urandom | base64)"`'
            )
            raise ValueError(msg)
        keys.append(key)
    if not keys:
        msg = (
            'the webhook\'s secret is empty; `echo "whsec_$(head -c 32 /dev/urandom | base64)"`'
        )
        raise ValueError(msg)
    return tuple(keys)


def signature(keys: Sequence[bytes], *, message_id: str, time_s: int, body: bytes) -> str:
    """Return the header ``webhook-signature``: one signature of each key."""
    signed = f"{message_id}.{time_s}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def _split(url: str) -> SplitResult | None:
    """The parts of an http(s) URL with a host and no blanks, or None when it is none."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if whole and url.isprintable() and " " not in url else None


def _plain(value: str) -> bool:
    """Whether a header may have this value."""
    return value.isascii() and value.isprintable()
