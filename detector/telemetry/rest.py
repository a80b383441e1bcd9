"""One GET of JSON over HTTP, TLS or a unix socket, with a deadline, a bound and no retries."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import (
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    SSLError,
    TimeoutError,
)

from detector.telemetry.access import speaks_http
from detector.telemetry.scheduler import SchedulerError

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the other side answered, whatever its status."""

    status: int
    body: bytes

    def json(self, where: str) -> Any:
        """Return the body as JSON.

        Raises
        ------
        SchedulerError
            When it is none.
        """
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError as error:
            start = self.body[:40].decode("utf-8", "replace")
            msg = f"{where} answered no JSON ({error}): {start!r}"
            raise SchedulerError(msg) from None


class Rest:
    """A server that is asked for JSON.

    Parameters
    ----------
    url
        ``http://``, ``https://`` or ``unix:///path`` of its socket.
    ca_file
        Certificates to trust instead of the system's; "" for the system's.
    longest
        Bound of an answer, bytes.
    """

    def __init__(
        self, url: str, *, ca_file: str = "", timeout_ms: int, longest: int = 1 << 28
    ) -> None:
        self.where = url.rstrip("/")
        self._timeout_s = timeout_ms / 1000
        self._longest = longest
        self._pool: HTTPConnectionPool
        self._prefix = ""
        if url.startswith("unix://"):
            self._pool = _UnixPool(url.removeprefix("unix://"))
            return
        parsed = urllib3.util.parse_url(self.where)
        self._prefix = parsed.path or ""
        options: dict[str, Any] = {"maxsize": 1, "retries": False}
        if parsed.scheme == "https" and ca_file:
            options["ca_certs"] = ca_file
        self._pool = urllib3.connection_from_url(self.where, **options)

    def get(
        self,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str],
    ) -> Answer:
        """Return the answer to one GET.

        Raises
        ------
        SchedulerError
            When there is none within the deadline, or it is longer than the bound.
        """
        target = self._prefix + quote(path) + (f"?{urlencode(query)}" if query else "")
        deadline = time.monotonic() + self._timeout_s
        try:
            reply = self._pool.urlopen(
                "GET",
                target,
                headers={"Accept": "application/json", **headers},
                timeout=urllib3.Timeout(total=self._timeout_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                return Answer(status=reply.status, body=self._body(reply, deadline))
            finally:
                reply.close()
        except (HTTPError, OSError, ValueError) as error:
            raise SchedulerError(self._why(error)) from None

    def close(self) -> None:
        """Close what is open."""
        self._pool.close()

    def _body(self, reply: Any, deadline: float) -> bytes:
        pieces, size = [], 0
        for piece in reply.stream(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > self._longest:
                msg = f"{self.where} answers more than {self._longest >> 20} MiB"
                raise SchedulerError(msg)
            if time.monotonic() > deadline:
                msg = f"{self.where} did not finish its answer in {self._timeout_s:g} s"
                raise SchedulerError(msg)
        return b"".join(pieces)

    def _why(self, error: Exception) -> str:
        inner = error.reason if isinstance(error, MaxRetryError) else error
        if isinstance(inner, SSLError) and speaks_http(inner.args[0]):
            return f"{self.where}: what answers there speaks http, no https; write http://"
        if isinstance(inner, SSLError):
            return f"{self.where}: its certificate is not trusted; set ca_file ({inner})"
        refused = isinstance(inner, NewConnectionError)  # which urllib3 derives from a timeout
        if isinstance(inner, TimeoutError) and not refused:
            return f"{self.where} did not answer in {self._timeout_s:g} s"
        return f"{self.where} cannot be reached: {_short(inner)}"


def secret(*, file: str, env: str, environ: Mapping[str, str], what: str) -> str:
    """Return a secret from its file, read anew each time since it may be rotated.

    Raises
    ------
    SchedulerError
        When it is not there or empty.
    """
    if file:
        try:
            text = Path(file).read_text("utf-8").strip()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            msg = f"{what} {file} cannot be read: {reason}"
            raise SchedulerError(msg) from None
        if not text:
            msg = f"{what} {file} is empty"
            raise SchedulerError(msg)
        return text
    text = environ.get(env, "").strip() if env else ""
    if env and not text:
        msg = f"${env} is not set or empty"
        raise SchedulerError(msg)
    return text


def _short(error: object) -> str:
    text = str(error).replace("\n", " ")
    _, mark, reason = text.rpartition(": ")
    return (reason if mark else text)[:200]


class _UnixConnection(HTTPConnection):
    """A connection to a socket of this machine."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__("localhost", **options)
        self._path = path

    def _new_conn(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(self.timeout if isinstance(self.timeout, int | float) else None)
        try:
            link.connect(self._path)
        except OSError:
            link.close()
            raise
        return link


class _UnixPool(HTTPConnectionPool):
    """Connections to one socket of this machine."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", maxsize=1, retries=False)
        self._path = path

    def _new_conn(self) -> HTTPConnection:
        return _UnixConnection(self._path)
