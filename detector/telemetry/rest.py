"""Questions to a server that answers JSON, over HTTP, TLS or a unix socket."""

import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import NewConnectionError

from detector.secrecy import pointed_to
from detector.telemetry.http import NoReplyError, Reply, request
from detector.telemetry.scheduler import SchedulerError


def json_of(reply: Reply, where: str) -> Any:
    """Return an answer's body as JSON.

    Raises
    ------
    SchedulerError
        When it is none.
    """
    try:
        return msgspec.json.decode(reply.body)
    except msgspec.DecodeError as error:
        start = reply.body[:40].decode("utf-8", "replace")
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
    ) -> Reply:
        """Return the answer to one GET.

        Raises
        ------
        SchedulerError
            When there is none within the deadline, or it is longer than the bound.
        """
        try:
            return request(
                self._pool,
                "GET",
                self._prefix + quote(path) + (f"?{urlencode(query)}" if query else ""),
                headers={"Accept": "application/json", **headers},
                timeout_s=self._timeout_s,
                largest=self._longest,
            )
        except NoReplyError as why:
            msg = f"{self.where}: {why}"
            raise SchedulerError(msg) from None

    def close(self) -> None:
        """Close what is open."""
        self._pool.close()


def secret(*, file: str, env: str, environ: Mapping[str, str], what: str) -> str:
    """Return a secret from its file, read anew each time since it may be rotated.

    Raises
    ------
    SchedulerError
        When it is not there or empty.
    """
    key, place = ("token_file", file) if file else ("token_env", env)
    if not place:
        return ""
    text, why = pointed_to(key, place, environ)
    if why:
        msg = f"{what} {why}" if file else why
        raise SchedulerError(msg)
    return text


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
        except OSError as error:
            link.close()
            raise NewConnectionError(self, str(error)) from error
        return link


class _UnixPool(HTTPConnectionPool):
    """Connections to one socket of this machine."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", maxsize=1, retries=False)
        self._path = path

    def _new_conn(self) -> HTTPConnection:
        return _UnixConnection(self._path)
