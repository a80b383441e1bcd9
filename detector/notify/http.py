"""One POST over HTTP, and what came of it: the only way notify talks to the outside.

TLS is verified, redirects are not followed (a redirect would carry a signed body and its
headers to a place that nobody configured), answers are read up to a bound and a deadline, and
an error names the host alone, since a URL may itself be the secret (Slack's incoming webhooks).
Nothing is retried here: the outbox does that, and a hidden second try could deliver twice.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

# 64 KiB: what CloudEvents obliges an intermediary to carry; no provider's answer is longer.
BODY_LIMIT = 64 * 1024

# Threads share it; 4 connections a host are more than one dispatcher a receiver can use.
_POOL = urllib3.PoolManager(num_pools=32, maxsize=4, retries=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What the other side answered.

    Attributes
    ----------
    headers
        Names in lower case.
    body
        At most ``BODY_LIMIT`` bytes of it; the rest was not read.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """No answer, and why; names the host, never the rest of the URL.

    ``ambiguous`` says that the request may have arrived and been acted on all the same.
    """

    reason: str
    ambiguous: bool


def post(
    url: str, *, body: bytes, headers: Mapping[str, str], timeout_s: float
) -> Response | Failure:
    """Send ``body`` once and return the answer, whatever its status, or why there is none.

    Parameters
    ----------
    timeout_s
        For connecting and sending, for each wait for more of the answer's head, and in all
        for reading the answer's body.
    """
    deadline = time.monotonic() + timeout_s
    host = host_of(url)
    try:
        answer = _POOL.request(
            "POST",
            url,
            body=body,
            headers=dict(headers),
            timeout=urllib3.Timeout(total=timeout_s),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
    except (HTTPError, ValueError, OSError) as error:
        return _failure(error, host=host, timeout_s=timeout_s)
    try:
        return Response(
            status=answer.status,
            headers={name.lower(): value for name, value in answer.headers.items()},
            body=_bounded(answer, deadline=deadline),
        )
    except (HTTPError, OSError):
        # The status line had come: what it says holds, whatever became of the body.
        return Response(
            status=answer.status,
            headers={name.lower(): value for name, value in answer.headers.items()},
            body=b"",
        )
    finally:
        answer.close()  # a body cut short would poison the next request on this connection


def host_of(url: str) -> str:
    """Return host and port of ``url``: the only part of it that may be shown."""
    try:
        parsed = urllib3.util.parse_url(url)
    except HTTPError:
        return "(not a URL)"
    if not parsed.host:
        return "(not a URL)"
    return f"{parsed.host}:{parsed.port}" if parsed.port else parsed.host


def _bounded(answer: urllib3.BaseHTTPResponse, *, deadline: float) -> bytes:
    """The body's beginning: a server that drips bytes for ever does not hold us for ever."""
    body = b""
    while len(body) < BODY_LIMIT and time.monotonic() < deadline:
        piece = answer.read1(BODY_LIMIT - len(body))
        if not piece:
            break
        body += piece
    return body


def _failure(error: Exception, *, host: str, timeout_s: float) -> Failure:
    """Our own words for an exception: urllib3's may hold the URL's path."""
    match error:
        case NameResolutionError():
            reason, ambiguous = "name not found", False
        case NewConnectionError():
            cause = error.__cause__
            detail = cause.strerror if isinstance(cause, OSError) else None
            reason, ambiguous = f"cannot connect: {detail or 'no route'}", False
        case ConnectTimeoutError():
            reason, ambiguous = f"cannot connect within {timeout_s:g} s", False
        case SSLError():
            cause = error.args[0] if error.args else error
            detail = getattr(cause, "verify_message", "") or getattr(cause, "reason", "")
            reason, ambiguous = f"TLS failed: {detail or type(cause).__name__}", False
        case ReadTimeoutError():
            reason, ambiguous = f"no answer within {timeout_s:g} s", True
        case ValueError():  # LocationParseError and header values that HTTP forbids
            reason, ambiguous = "the URL or a header is not valid", False
        case _:
            reason, ambiguous = "connection closed without an answer", True
    return Failure(reason=f"{host}: {reason}", ambiguous=ambiguous)
