"""dcgm-exporters (and ROCm's), scraped over HTTP: hundreds of targets from one thread.

Connections are kept open. A target that is slow, down or no exporter has its error and costs no
other. One event loop in a thread of its own does all of it, so that callers need not be async.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aiohttp
import uvloop
from yarl import URL  # aiohttp's own

from detector.httpdate import http_date_ms
from detector.reading import Scrape
from detector.telemetry.access import (
    Secret,
    basic,
    credential,
    signing,
    tls_context,
    tls_trouble,
    without_secrets,
)
from detector.telemetry.exposition import Remembered, parse
from detector.telemetry.settings import ExporterSettings
from detector.telemetry.source import SourceError
from detector.telemetry.targets import Targets

# A page of 16 GPUs with every counter there is has some 300 kB. Chosen: far above that.
_LARGEST = 16 * 1024 * 1024

# The HTTP date is looked at so seldom: it costs as much as a quarter of the parse.
_DATE_EVERY = 30

_OWN = "the password in its address"


@dataclass(slots=True)
class _Target:
    """What is remembered of one target.

    Attributes
    ----------
    url
        What is asked for: without user and password; None where it is no URL.
    shown
        What people may see of it.
    headers
        Of its own user and password, which go before the source's.
    """

    url: URL | None
    shown: str
    host: str
    headers: dict[str, str]
    layout: Remembered | None = None
    scrapes: int = 0


class Exporter:
    """Scrapes exporters; made by :func:`build`, ended by :meth:`close`."""

    settle_s = 0.0  # a page is whole

    def __init__(
        self,
        settings: ExporterSettings,
        targets: Targets,
        *,
        sign_in: Callable[[], Mapping[str, str]],
        tls: ssl.SSLContext | bool,
    ) -> None:
        self._settings, self._targets = settings, targets
        self._sign_in, self._tls = sign_in, tls
        self._credential = credential(settings)
        self._known: dict[str, _Target] = {}
        self._session: aiohttp.ClientSession | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"scrape:{settings.name}", daemon=True
        )
        self._thread.start()

    @property
    def name(self) -> str:
        """The source's name."""
        return self._settings.name

    @property
    def remembered(self) -> int:
        """How many targets something is remembered of: those of the last round."""
        return len(self._known)

    def scrape(self, now_ms: int) -> Sequence[Scrape]:
        """Ask every target that there is now, all at once.

        Raises
        ------
        SourceError
            When it is not known whom to ask, or the secret cannot be read.
        """
        signed = self._sign_in()
        urls = self._targets.find(now_ms)
        self._known = {url: self._known.get(url) or _target(url) for url in urls}
        asking = asyncio.run_coroutine_threadsafe(self._round(now_ms, signed), self._loop)
        try:
            scrapes = asking.result(timeout=self._settings.timeout / 1000 + 5)
        except FutureTimeoutError:
            asking.cancel()
            msg = f"{self.name}: {len(urls)} targets took longer than {self._settings.timeout}"
            raise SourceError(msg) from None
        # A place that names targets and cannot be read is one that gave no readings.
        scrapes += [
            Scrape(target=place, asked_ms=now_ms, error=why)
            for place, why in self._targets.troubles
        ]
        return scrapes

    async def _round(self, now_ms: int, signed: Mapping[str, str]) -> list[Scrape]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls, keepalive_timeout=120),
                # The round has a deadline for all: a timer for each and a jar for cookies cost
                # a tenth of a request.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Compression saves network and costs both ends more CPU than the parse.
                headers={"Accept-Encoding": "identity", "Accept": "text/plain"},
                trust_env=False,
            )
        targets = list(self._known.values())
        asked = [
            asyncio.create_task(self._one(self._session, one, one.headers or signed, now_ms))
            for one in targets
        ]
        if not asked:
            return []
        _, late = await asyncio.wait(asked, timeout=self._settings.timeout / 1000)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)  # until their connections are shut
        why = _reason(TimeoutError(), self._settings)
        return [
            Scrape(target=one.shown, asked_ms=now_ms, error=why)
            if task in late
            else task.result()
            for one, task in zip(targets, asked, strict=True)
        ]

    async def _one(
        self,
        session: aiohttp.ClientSession,
        target: _Target,
        signed: Mapping[str, str],
        now_ms: int,
    ) -> Scrape:
        if target.url is None:
            return Scrape(target=target.shown, asked_ms=now_ms, error="that is no URL")
        try:
            by = _OWN if target.headers else self._credential
            page, date = await _page(session, target.url, signed, by=by)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # TimeoutError is an OSError.
            reason = _reason(error, self._settings)
            return Scrape(target=target.shown, asked_ms=now_ms, error=reason)
        target.scrapes += 1
        read = parse(page, time_ms=now_ms, host=target.host, layout=target.layout)
        target.layout = read.layout
        return Scrape(
            target=target.shown,
            asked_ms=now_ms,
            time_ms=http_date_ms(date) if target.scrapes % _DATE_EVERY == 1 else None,
            readings=read.readings,
            dropped=read.dropped,
            error="" if read.readings else _no_exporter(page),
        )

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self._session is not None:
            closing = asyncio.run_coroutine_threadsafe(self._session.close(), self._loop)
            closing.result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()


def build(settings: ExporterSettings, *, secret: Secret) -> Exporter:
    """Return the source.

    Raises
    ------
    ContentErrors, SourceError
        When the secret or the certificates cannot be read.
    """
    return Exporter(
        settings,
        Targets(settings),
        sign_in=signing(settings, secret),
        tls=tls_context(settings) or True,
    )


def _target(url: str) -> _Target:
    parts = urlsplit(url)
    headers = {}
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
        headers = basic(user, password)
    asked = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    try:
        # As aiohttp wants it, once for all: it remembers far fewer than a fleet has.
        parsed = URL(asked.geturl())
    except ValueError:
        parsed = None
    return _Target(
        url=parsed,
        shown=without_secrets(url),
        host=parts.hostname or "",
        headers=headers,
    )


async def _page(
    session: aiohttp.ClientSession, url: URL, signed: Mapping[str, str], *, by: str
) -> tuple[bytes, str]:
    """Return a target's page and its HTTP date; ``by`` names what signs in.

    Raises
    ------
    ValueError
        When the answer is no page of metrics.
    """
    async with session.get(url, headers=signed, allow_redirects=False) as answer:
        if answer.status != 200:
            raise ValueError(_refused(answer, by=by))
        if answer.content_type == "text/html":
            msg = "that is a web page, no exporter; is the path right (/metrics)?"
            raise ValueError(msg)
        pieces, size = [], answer.content_length or 0
        if size <= _LARGEST:
            size = 0
            # As it comes: one piece after the other appended to a page would copy it each time.
            while size <= _LARGEST and (piece := await answer.content.readany()):
                pieces.append(piece)
                size += len(piece)
        if size > _LARGEST:
            msg = f"the page has more than {_LARGEST >> 20} MiB"
            raise ValueError(msg)
        return b"".join(pieces), answer.headers.get("Date", "")


def _refused(answer: aiohttp.ClientResponse, *, by: str) -> str:
    match answer.status:
        case 401 | 403 if by:
            return f"HTTP {answer.status}: {by} was refused; put a valid one there"
        case 400:
            return "HTTP 400: it does not understand; does it speak https? name it https://..."
        case 401 | 403:
            return f"HTTP {answer.status}: give username and password_file, or bearer_file"
        case 404:
            return "HTTP 404: is the path right (/metrics)?"
        case status if 300 <= status < 400:
            to = without_secrets(answer.headers.get("Location", "?")[:200])
            return f"HTTP {status}: it sends on to {to!a}; name that as the target"
        case status:
            return f"HTTP {status}: the exporter has a problem of its own; see its log"


def _no_exporter(page: bytes) -> str:
    if not page.strip():
        return "an empty page: the exporter sees no GPU yet, or has just started"
    return (
        "no counter of a GPU is on the page; is that a GPU exporter (dcgm-exporter: port 9400)?"
    )


def _reason(error: Exception, settings: ExporterSettings) -> str:
    """Return one line for a person, without the library's own words where we know better."""
    match error:
        case TimeoutError():
            return f"no answer within {settings.timeout}"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return tls_trouble(getattr(error, "certificate_error", None) or error.os_error)
        case aiohttp.ClientConnectorDNSError():
            return f"there is no host {error.host!a}"
        case aiohttp.ClientConnectorError() if isinstance(
            error.os_error, ConnectionRefusedError
        ):
            return "connection refused: is the exporter running there?"
        case aiohttp.ClientConnectorError():
            return f"cannot connect: {error.os_error.strerror or error.os_error}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() | ConnectionError():
            return "the connection broke off"
        case aiohttp.ClientPayloadError():
            return "the page broke off in the middle"
        case aiohttp.ClientResponseError():
            return "the answer is no HTTP"
        case socket.gaierror():
            return "there is no such host"
        case _:
            return " ".join(str(error).split())[:200] or type(error).__name__


def read_page(path: Path, *, now_ms: int) -> Scrape:
    """Return what a page says that was saved to a file."""
    try:
        page = path.read_bytes()
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        return Scrape(target=str(path), asked_ms=now_ms, error=reason)
    read = parse(page, time_ms=now_ms)
    return Scrape(
        target=str(path),
        asked_ms=now_ms,
        readings=read.readings,
        dropped=read.dropped,
        error="" if read.readings else _no_exporter(page),
    )
