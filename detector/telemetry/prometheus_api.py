"""One question to a Prometheus server over HTTP, and its answer; or one line on why not.

What Prometheus, Thanos, Mimir, VictoriaMetrics and their like answer to ``/api/v1/query``. TLS
is verified, redirects are not followed (they would carry the credentials along), answers are
read up to a bound and a deadline.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from urllib.parse import urlencode

import msgspec
import numpy as np
import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from detector.httpdate import http_date_ms, parse_retry_after
from detector.series import FloatArray, IntArray
from detector.telemetry.access import without_secrets
from detector.telemetry.source import SourceError

# Some 10 million samples. Chosen: questions are cut so that answers have a tenth of it.
_LARGEST = 512 * 1024 * 1024
_PIECE = 1024 * 1024

# A server that says 429 or 503 without saying for how long is left alone for this. Chosen: the
# usual interval of collection.
_WAIT_MS = 10_000
_LONGEST_WAIT_MS = 300_000

_SAID = 200  # characters of what a server says that are shown


class Series(msgspec.Struct, frozen=True):
    """One series of an answer; ``samples`` is what :func:`samples` reads."""

    metric: dict[str, str]
    values: msgspec.Raw = msgspec.Raw(b"[]")
    value: msgspec.Raw = msgspec.Raw(b"")


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server answered.

    Attributes
    ----------
    time_ms
        The server's clock when it did (HTTP ``Date``); None where it says none.
    warnings
        What it answered without: a store of Thanos that did not, a limit that was reached.
    """

    series: tuple[Series, ...]
    time_ms: int | None
    warnings: tuple[str, ...] = ()


_BODY = msgspec.json.Decoder(_Body)
_SERIES = msgspec.json.Decoder(tuple[Series, ...])
_PAIRS = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
_TEXTS = msgspec.json.Decoder(list[tuple[float, str]])


def samples(series: Series) -> tuple[IntArray, FloatArray]:
    """Return times, ms, and values of a series, oldest first; what is no number is NaN.

    Raises
    ------
    SourceError
        When they are not the pairs of time and text that the interface promises.
    """
    raw = series.values if not bytes(series.value) else b"[" + bytes(series.value) + b"]"
    try:
        try:
            pairs = _PAIRS.decode(raw)
        except msgspec.ValidationError:  # "+Inf" for one
            pairs = [(at, _number(text)) for at, text in _TEXTS.decode(raw)]
    except msgspec.DecodeError:
        msg = "the answer holds samples that are none; is that a Prometheus server?"
        raise SourceError(msg) from None
    flat = np.fromiter(chain.from_iterable(pairs), np.float64, 2 * len(pairs))
    return np.rint(flat[::2] * 1e3).astype(np.int64), flat[1::2]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


class Api:
    """Asks one server.

    Parameters
    ----------
    url
        Where the server is, with the path that its API lies under, if any.
    headers
        Sent along: credentials, tenants.
    tls
        What is trusted; None for the system's certificates.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
        timeout_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base, self.shown = url.rstrip("/"), without_secrets(url)
        self._timeout_s, self._clock = timeout_s, clock
        self._headers = {
            "Accept": "application/json",
            # Compression saves network and costs the server more CPU than the whole question.
            "Accept-Encoding": "identity",
            "Content-Type": "application/x-www-form-urlencoded",
            "User-Agent": "ofuwatch",
            **headers,
        }
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=4, retries=False, ssl_context=tls)
        self._not_before_ms = 0

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def query(
        self, promql: str, *, at_ms: int | None = None, timeout_s: float | None = None
    ) -> Answer:
        """Return the answer to an instant query, at the server's own time unless told.

        Raises
        ------
        SourceError
            When there is none: one line that says why, and what to do.
        """
        fields = {"query": promql}
        if at_ms is not None:
            fields["time"] = f"{at_ms / 1e3:.3f}"
        seconds = self._timeout_s if timeout_s is None else timeout_s
        wait_ms = self._not_before_ms - self._clock() * 1e3
        if wait_ms > 0:
            msg = f"it asked to be left alone for another {wait_ms / 1e3:.0f} s"
            raise SourceError(msg)
        status, headers, body = self._post(fields, seconds)
        return self._read(status, headers, body)

    def _post(
        self, fields: Mapping[str, str], timeout_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Ask, by POST since selectors are long; by GET where a proxy wants that."""
        encoded = urlencode(fields)
        url = f"{self._base}/api/v1/query"
        answered = self._request("POST", url, encoded.encode(), timeout_s)
        if answered[0] == 405:
            return self._request("GET", f"{url}?{encoded}", None, timeout_s)
        return answered

    def _request(
        self, method: str, url: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        deadline = time.monotonic() + timeout_s
        try:
            answer = self._pool.request(
                method,
                url,
                body=body,
                headers=self._headers,
                timeout=urllib3.Timeout(total=timeout_s),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=True,
            )
        except (HTTPError, ValueError, OSError) as error:
            raise SourceError(_unreachable(error, timeout_s)) from None
        try:
            read = _bounded(answer, deadline, timeout_s)
        except (HTTPError, OSError):
            answer.close()
            msg = "the answer broke off; ask for less at once or raise timeout"
            raise SourceError(msg) from None
        except SourceError:
            answer.close()  # a body cut short would poison the next request
            raise
        headers = {name.lower(): value for name, value in answer.headers.items()}
        answer.release_conn()
        return answer.status, headers, read

    def _read(self, status: int, headers: Mapping[str, str], body: bytes) -> Answer:
        try:
            said = _BODY.decode(body)
        except msgspec.DecodeError:
            self._heed(status, headers)
            raise SourceError(_no_answer(status, headers, body)) from None
        if said.status != "success" or said.data is None:
            self._heed(status, headers)
            raise SourceError(_refused(status, said))
        if said.data.result_type not in ("matrix", "vector"):
            msg = f"the answer is a {said.data.result_type[:20]}, where series were asked for"
            raise SourceError(msg)
        try:
            series = _SERIES.decode(said.data.result)
        except msgspec.DecodeError:
            msg = "the answer holds series that are none; is that a Prometheus server?"
            raise SourceError(msg) from None
        warnings = tuple(_line(text) for text in said.warnings[:5])
        return Answer(
            series=series, time_ms=http_date_ms(headers.get("date", "")), warnings=warnings
        )

    def _heed(self, status: int, headers: Mapping[str, str]) -> None:
        if status in (429, 503):
            now_ms = int(self._clock() * 1e3)
            asked = parse_retry_after(headers.get("retry-after"), now_ms)
            wait = _WAIT_MS if asked is None else asked
            self._not_before_ms = now_ms + min(wait, _LONGEST_WAIT_MS)


def _bounded(answer: urllib3.BaseHTTPResponse, deadline: float, timeout_s: float) -> bytes:
    pieces, size = [], 0
    while piece := answer.read1(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > _LARGEST:
            msg = f"the answer has more than {_LARGEST >> 20} MiB: narrow it with select"
            raise SourceError(msg)
        if time.monotonic() > deadline:
            msg = f"the answer was not whole within {timeout_s:g} s: raise timeout"
            raise SourceError(msg)
    return b"".join(pieces)


def _refused(status: int, said: _Body) -> str:
    error = _line(said.error) or f"HTTP {status} without a reason"
    match said.error_type:
        case "timeout" | "canceled":
            return f"the query took too long for the server ({error}); narrow it with select"
        case "bad_data":
            return f"the server can't read the query ({error}); is select right?"
        case "execution" if status == 422:
            return f"the server can't answer the query: {error}"
        case _ if status in (401, 403):
            return f"{_credentials(status)} ({error})"
        case kind:
            return f"{kind or 'error'}: {error}"


def _no_answer(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Say what came instead of an answer in JSON."""
    match status:
        case 401 | 403:
            return _credentials(status)
        case 404:
            return "HTTP 404: no Prometheus API there; does url lack a path (/prometheus)?"
        case 200 if "html" in headers.get("content-type", "") or body.lstrip()[:1] == b"<":
            return "a web page came instead of an answer: a login or a proxy? check url"
        case 200:
            return "the answer is no JSON, or was cut off"
        case _ if 300 <= status < 400:
            to = without_secrets(headers.get("location", "?")[:_SAID])
            return f"HTTP {status}: it sends on to {to!a}; name that as url"
        case 429 | 503:
            return f"HTTP {status}: the server has too much to do; asked again later"
        case _:
            said = "" if b"<" in body[:500] else _line(body[:500].decode(errors="replace"))
            return f"HTTP {status}{': ' if said else ''}{said}"


def _credentials(status: int) -> str:
    return (
        f"HTTP {status}: give username and password_file, or bearer_file, "
        "and the tenant's header where there are tenants"
    )


def _line(text: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text[: 4 * _SAID])
    return " ".join(plain.split())[:_SAID]


def _unreachable(error: Exception, timeout_s: float) -> str:
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
            cause = error.args[0] if error.args else error
            detail = getattr(cause, "verify_message", "") or getattr(cause, "reason", "")
            return f"TLS: {detail or type(cause).__name__}; name its CA with ca_file"
        case ReadTimeoutError():
            return f"no answer within {timeout_s:g} s"
        case ValueError():
            return "the URL or a header is not valid"
        case _:
            return "the connection was closed without an answer"
