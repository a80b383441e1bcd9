"""``[[source]]`` with ``type = "prometheus"``, apart from what is slow to load."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from detector.series import Duration, below
from detector.telemetry.sign_in import SignIn

_SELECT = re.compile(r'\{\s*(?:[A-Za-z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"\s*,?\s*)*\}')
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_API = re.compile(r"/api/v1(/.*)?$")
_OURS = ("authorization", "content-type", "content-length", "host", "accept", "user-agent")


class PrometheusSettings(
    SignIn,
    tag_field="type",
    tag="prometheus",
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """``[[source]]`` with ``type = "prometheus"``.

    Attributes
    ----------
    url
        Of the server, with the path that its API lies under, if any.
    select
        Matchers that every series must meet, ``{cluster="a"}``.
    window
        A GPU whose last sample is older than this is gone. Above twice the longest scrape
        interval.
    replica_labels
        Labels that tell the servers of a highly available pair from each other.
    timeout
        Of one query.
    past
        How much of the past is asked for when a job is seen for the first time; "0s" for none.
    headers
        Sent along, such as ``X-Scope-OrgID``. No place for secrets.
    """

    url: str
    name: str = "prometheus"
    select: str = "{}"
    window: Duration = Duration.parse("2m")
    replica_labels: tuple[str, ...] = ("replica", "prometheus_replica", "__replica__")
    timeout: Duration = Duration.parse("8s")
    past: Duration = Duration.parse("6h")
    headers: dict[str, str] = msgspec.field(default_factory=dict)

    def _wrong(self) -> Iterator[str]:
        yield from super()._wrong()
        yield from self._wrong_url()
        if not _SELECT.fullmatch(self.select.strip()):
            yield f'select must look like {{cluster="a", job=~"dcgm.*"}}, not {self.select!r}'
        yield from below("window", self.window, Duration(2_000))
        yield from below("timeout", self.timeout, Duration(1_000))
        for name, value in self.headers.items():
            if name.lower() in _OURS or not _HEADER_NAME.fullmatch(name):
                yield f"headers: {name!r} can't be set here; credentials go into bearer_file"
            elif not value.isprintable() or not value.isascii():
                yield f"headers: the value of {name!r} can't be sent"

    def _wrong_url(self) -> Iterator[str]:
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            yield "url must look like https://host:9090 or https://host/path"
        elif "@" in parts.netloc:
            yield "url must not hold a password: give username and password_file"
        elif too_much := _API.search(parts.path):
            right = self.url.removesuffix(too_much[0])
            yield f'url is asked for {too_much[0]} anyway: leave that out, url = "{right}"'
