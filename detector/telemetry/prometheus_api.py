"""One question to a Prometheus server over HTTP, and its answer; or one line on why not.

What Prometheus, Thanos, Mimir, VictoriaMetrics and their like answer to ``/api/v1/query`` and
``/api/v1/series``.
"""

import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
import numpy as np
import urllib3

from detector.httpdate import http_date_ms, parse_retry_after
from detector.series import FloatArray, IntArray
from detector.telemetry.access import without_secrets
from detector.telemetry.http import NoReplyError, Reply, request
from detector.telemetry.source import SourceError, TooMuch

# Some 10 million samples. Chosen: questions are cut so that answers have a tenth of it.
_LARGEST = 512 * 1024 * 1024

# A server that says 429 or 503 without saying for how long is left alone for this. Chosen: the
# usual interval of collection.
_WAIT_MS = 10_000
_LONGEST_WAIT_MS = 300_000

T = TypeVar("T")

_SAID = 200  # characters of what a server says that are shown


class Series(msgspec.Struct, frozen=True):
    """One series of an answer: :func:`labels` and :func:`samples` read it."""

    metric: msgspec.Raw
    values: msgspec.Raw = msgspec.Raw(b"[]")
    value: msgspec.Raw = msgspec.Raw(b"")


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: msgspec.Raw = msgspec.Raw(b"")
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
_DATA = msgspec.json.Decoder(_Data)
_LABELS = msgspec.json.Decoder(dict[str, str])
_LABEL_SETS = msgspec.json.Decoder(list[dict[str, str]])
_SERIES = msgspec.json.Decoder(tuple[Series, ...])
_PAIRS = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
_TEXTS = msgspec.json.Decoder(list[tuple[float, str]])


def labels(metric: bytes) -> dict[str, str]:
    """Return the labels of a series' ``metric``, its name among them.

    Raises
    ------
    SourceError
        When they are none.
    """
    return _decoded(_LABELS, metric)


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
        Sent along, such as tenants.
    sign_in
        Gives the header with the credentials, as they are now.
    credential
        What they are and where they come from, for people.
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
        sign_in: Callable[[], Mapping[str, str]] = dict,
        credential: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base, self.shown = url.rstrip("/"), without_secrets(url)
        self._timeout_s, self._sign_in, self._clock = timeout_s, sign_in, clock
        self._credential = credential
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
        fields = [("query", promql)]
        if at_ms is not None:
            fields.append(("time", _seconds(at_ms)))
        said, time_ms = self._ask("query", fields, timeout_s)
        data = _decoded(_DATA, said.data)
        if data.result_type not in ("matrix", "vector"):
            msg = f"the answer is a {data.result_type[:20]}, where series were asked for"
            raise SourceError(msg)
        warnings = tuple(_line(text) for text in said.warnings[:5])
        series = _decoded(_SERIES, data.result)
        return Answer(series=series, time_ms=time_ms, warnings=warnings)

    def series(
        self, selectors: Iterable[str], *, start_ms: int, end_ms: int
    ) -> list[dict[str, str]]:
        """Return the labels of all series that had samples within a time, without these.

        Raises
        ------
        SourceError
            When there is no answer.
        """
        fields = [("match[]", selector) for selector in selectors]
        fields += [("start", _seconds(start_ms)), ("end", _seconds(end_ms))]
        said, _ = self._ask("series", fields, None)
        return _decoded(_LABEL_SETS, said.data)

    def _ask(
        self, what: str, fields: Sequence[tuple[str, str]], timeout_s: float | None
    ) -> tuple[_Body, int | None]:
        """Return an answer, and the server's time."""
        wait_ms = self._not_before_ms - self._clock() * 1e3
        if wait_ms > 0:
            msg = f"it asked to be left alone for another {wait_ms / 1e3:.0f} s"
            raise SourceError(msg)
        seconds = self._timeout_s if timeout_s is None else timeout_s
        # By POST since selectors are long; by GET where a proxy wants that.
        encoded, url = urlencode(fields), f"{self._base}/api/v1/{what}"
        reply = self._request("POST", url, encoded.encode(), seconds)
        if reply.status == 405:
            reply = self._request("GET", f"{url}?{encoded}", None, seconds)
        return self._said(reply), http_date_ms(reply.headers.get("date", ""))

    def _request(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Reply:
        try:
            return request(
                self._pool,
                method,
                url,
                headers={**self._headers, **self._sign_in()},
                body=body,
                timeout_s=timeout_s,
                largest=_LARGEST,
            )
        except NoReplyError as why:
            if why.too_much:
                msg = f"{why}; narrow it with select or raise timeout"
                raise TooMuch(msg) from None
            raise SourceError(str(why)) from None

    def _said(self, reply: Reply) -> _Body:
        status = reply.status
        try:
            said = _BODY.decode(reply.body)
        except msgspec.DecodeError:
            self._heed(reply)
            if status in (401, 403):
                told = _not_let_in(status, self._credential, _text(reply.body))
                raise SourceError(told) from None
            raise _no_answer(reply) from None
        if said.status != "success" or not bytes(said.data):
            if said.error_type != "timeout":  # that is of one query, and 503 all the same
                self._heed(reply)
            if status in (401, 403):
                raise SourceError(_not_let_in(status, self._credential, _line(said.error)))
            raise _refused(status, said)
        return said

    def _heed(self, reply: Reply) -> None:
        if reply.status in (429, 503):
            now_ms = int(self._clock() * 1e3)
            asked = parse_retry_after(reply.headers.get("retry-after"), now_ms)
            wait = _WAIT_MS if asked is None else asked
            self._not_before_ms = now_ms + min(wait, _LONGEST_WAIT_MS)


def _refused(status: int, said: _Body) -> SourceError:
    error = _line(said.error) or f"HTTP {status} without a reason"
    match said.error_type:
        case "timeout" | "canceled":
            msg = f"the query took too long for the server ({error}); narrow it with select"
            return TooMuch(msg)
        case "bad_data":
            return SourceError(f"the server can't read the query ({error}); is select right?")
        case "execution" if status == 422:  # among these are all limits of all servers
            msg = f"the server can't answer the query ({error}); narrow it with select"
            return TooMuch(msg)
        case kind:
            return SourceError(f"{kind or 'error'}: {error}")


def _no_answer(reply: Reply) -> SourceError:
    """Say what came instead of an answer in JSON."""
    kind = TooMuch if reply.status in (413, 422, 504) else SourceError
    return kind(_instead(reply.status, reply.headers, reply.body))


def _instead(status: int, headers: Mapping[str, str], body: bytes) -> str:
    said = _text(body)
    match status:
        case 400:
            return "HTTP 400: the question is not understood; does url lack https?"
        case 404:
            return "HTTP 404: no Prometheus API there; is the path of url right (/prometheus)?"
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
            return f"HTTP {status}{': ' if said else ''}{said}"


def _not_let_in(status: int, credential: str, said: str) -> str:
    why = f" ({said})" if said else ""
    do = (
        "put a valid one there"
        if credential
        else "give username and password_file, or bearer_file"
    )
    refused = f"{credential} was refused" if credential else "not let in"
    return f"HTTP {status}{why}: {refused}; {do}, and a tenant's header where there are tenants"


def _text(body: bytes) -> str:
    """Return the beginning of a body that is no web page."""
    return "" if b"<" in body[:500] else _line(body[:500].decode(errors="replace"))


def _seconds(time_ms: int) -> str:
    return f"{time_ms / 1e3:.3f}"


def _decoded(decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        msg = "the answer holds series that are none; is that a Prometheus server?"
        raise SourceError(msg) from None


def _line(text: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text[: 4 * _SAID])
    return " ".join(plain.split())[:_SAID]
