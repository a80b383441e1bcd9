"""``[collect]`` and ``[[source]]`` of ``config.toml``, apart from what is slow to load."""

import glob
import re
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

import msgspec

from detector.series import Duration, below
from detector.telemetry.identity import IdentitySettings
from detector.telemetry.sign_in import SignIn

_SERVICE = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[-a-z0-9]+)?"
)


class CollectSettings(IdentitySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[collect]``; how jobs are told is in :class:`IdentitySettings`.

    Attributes
    ----------
    interval
        Time between two rounds. Exporters that collect more seldom repeat themselves; a
        repeat is known as one.
    max_clock_mhz
        Maximal SM clock by the GPU model's name, before anything that is read.
    """

    interval: Duration = Duration.parse("10s")  # the slot of the inbox
    max_clock_mhz: dict[str, float] = msgspec.field(default_factory=dict)

    def _wrong(self) -> Iterator[str]:
        yield from super()._wrong()
        yield from below("interval", self.interval, Duration(1_000))
        for model, clock in self.max_clock_mhz.items():
            if not 100 <= clock <= 5000:
                yield f"max_clock_mhz of {model!r} must be 100 to 5000 MHz, not {clock:g}"


class TargetSettings(SignIn, frozen=True, kw_only=True, tag_field="type"):
    """How targets are found; several ways add up.

    Attributes
    ----------
    targets
        ``host:port`` or URLs.
    files
        Files in the form of Prometheus' ``file_sd_configs`` (JSON or YAML); ``*`` in the name
        stands for anything. Read anew at each ``refresh``.
    dns_srv
        Names of SRV records.
    kubernetes_service
        ``namespace/service``, or ``namespace/service:port-name``, whose endpoints are scraped.
        Within a cluster, with a service account that may list endpoint slices.
    scheme, path, port
        Of targets that are not URLs, or name no port.
    refresh
        How often DNS and Kubernetes are asked, and files read.
    """

    name: str = "exporter"
    targets: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    dns_srv: tuple[str, ...] = ()
    kubernetes_service: str = ""
    scheme: str = "http"
    path: str = "/metrics"
    port: int = 9400
    refresh: Duration = Duration.parse("30s")

    def _wrong(self) -> Iterator[str]:
        yield from super()._wrong()
        if self.scheme not in ("http", "https"):
            yield f'scheme must be "http" or "https", not {self.scheme!r}'
        if not 0 < self.port < 65536:
            yield f"port must be 1 to 65535, not {self.port}"
        if self.kubernetes_service and not _SERVICE.fullmatch(self.kubernetes_service):
            said = self.kubernetes_service
            yield f'kubernetes_service must be "namespace/service", not {said!r}'
        for k, target in enumerate(self.targets):
            try:
                url_of(target, self)
            except ValueError as error:
                yield f"targets[{k}]: {error}"
        if not (self.targets or self.files or self.dns_srv or self.kubernetes_service):
            yield "targets: none; name some here, or with files, dns_srv or kubernetes_service"


def unmatched(patterns: Iterable[str]) -> list[str]:
    """Return which of the patterns, or names, of files no file has."""
    return [pattern for pattern in patterns if not glob.glob(pattern)]


def url_of(target: str, settings: TargetSettings) -> str:
    """Return the URL to scrape.

    Raises
    ------
    ValueError
        When ``target`` is neither ``host:port`` nor a URL.
    """
    text = target.strip()
    full = text if "://" in text else f"{settings.scheme}://{text}"
    try:
        parts = urlsplit(full)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https") or re.search(r"\s", text):
        msg = f"target {target[:100]!r} is neither host:port nor an http(s) URL"
        raise ValueError(msg)
    netloc = parts.netloc
    if port is None and "://" not in text:
        netloc = f"{netloc.rstrip(':')}:{settings.port}"
    path = parts.path if parts.path not in ("", "/") else settings.path
    return parts._replace(netloc=netloc, path=path, fragment="").geturl()


class ExporterSettings(
    TargetSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="exporter"
):
    """``[[source]]`` with ``type = "exporter"``.

    Attributes
    ----------
    timeout
        How long a target may take; shorter than the interval of collection.
    """

    timeout: Duration = Duration.parse("5s")

    def _wrong(self) -> Iterator[str]:
        yield from super()._wrong()
        yield from below("timeout", self.timeout, Duration(100))
