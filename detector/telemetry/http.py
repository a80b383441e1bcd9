"""One request to a server over HTTP, with a bound and a deadline; or one line on why not.

TLS is verified, redirects are not followed (they would carry the credentials along), nothing is
tried again.
"""

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

import urllib3
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from detector.telemetry.access import tls_trouble

_PIECE = 1024 * 1024


class NoReplyError(Exception):
    """There is no whole answer: one line that says why, and never the URL with its secrets.

    Attributes
    ----------
    too_much
        Whether less may be answered: it took too long, was too long or broke off.
    """

    def __init__(self, why: str, *, too_much: bool = False) -> None:
        super().__init__(why)
        self.too_much = too_much


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server answered, whatever its status.

    Attributes
    ----------
    headers
        Names in lower case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


def request(
    pool: urllib3.PoolManager | HTTPConnectionPool,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    timeout_s: float,
    largest: int,
) -> Reply:
    """Return the answer to one request.

    Parameters
    ----------
    timeout_s
        For connecting and the answer's beginning, and from the start to its end.
    largest
        Bound of the answer, bytes.

    Raises
    ------
    NoReplyError
        When there is none, or it is too long or too late.
    """
    deadline = time.monotonic() + timeout_s
    try:
        answer = pool.request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(total=timeout_s),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=True,
        )
    except (HTTPError, ValueError, OSError) as error:
        late = isinstance(error, ReadTimeoutError)
        raise NoReplyError(_why(error, timeout_s), too_much=late) from None
    try:
        read = _bounded(answer, deadline, timeout_s=timeout_s, largest=largest)
    except (HTTPError, OSError):
        answer.close()
        if answer.status == 200:
            msg = "the answer broke off"
            raise NoReplyError(msg, too_much=True) from None
        read = b""  # who refuses may close before all is said
    except NoReplyError:
        answer.close()  # a body cut short would poison the next request
        raise
    answer.release_conn()
    told = {name.lower(): value for name, value in answer.headers.items()}
    return Reply(status=answer.status, headers=told, body=read)


def _bounded(
    answer: urllib3.BaseHTTPResponse, deadline: float, *, timeout_s: float, largest: int
) -> bytes:
    pieces, size = [], 0
    while piece := answer.read1(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > largest:
            msg = f"the answer has more than {largest >> 20} MiB"
            raise NoReplyError(msg, too_much=True)
        if time.monotonic() > deadline:
            msg = f"the answer was not whole within {timeout_s:g} s"
            raise NoReplyError(msg, too_much=True)
    return b"".join(pieces)


def _why(error: Exception, timeout_s: float) -> str:
    """Our own words for an exception: urllib3's may hold the URL with its secrets."""
    match error:
        case NameResolutionError():
            return "there is no such host"
        case NewConnectionError():
            cause = error.__cause__
            detail = cause.strerror if isinstance(cause, OSError) else None
            return f"cannot connect: {detail or 'no route'}; is the server running there?"
        case ConnectTimeoutError():
            return f"cannot connect within {timeout_s:g} s"
        case SSLError():
            return _untrusted(error.args[0] if error.args else error)
        case ReadTimeoutError():
            return f"no answer within {timeout_s:g} s"
        case ValueError():
            return "the URL or a header is not valid"
        case _:
            return "the connection was closed without an answer"


def _untrusted(cause: object) -> str:
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError):
        return f"TLS: ca_file cannot be read: {cause.strerror}"
    return tls_trouble(cause)
