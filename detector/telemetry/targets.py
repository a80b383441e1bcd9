"""Whom to scrape: named one by one, in files, in DNS, or by a Kubernetes service.

What was found stays in use while a place that names targets cannot be read: a DNS server that
is down must not stop the watching of GPUs.
"""

import glob
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from detector.telemetry.settings import TargetSettings, url_of
from detector.telemetry.source import SourceError

_LARGEST = 8 * 1024 * 1024  # bytes of a file or an answer that names targets
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Targets:
    """Finds the targets of one source, and finds them anew now and then."""

    def __init__(self, settings: TargetSettings) -> None:
        self._settings = settings
        self._found: dict[str, list[str]] = {}
        self._due_ms = 0
        self.troubles: tuple[str, ...] = ()

    def find(self, now_ms: int) -> list[str]:
        """Return the URLs, each once.

        Raises
        ------
        SourceError
            When there is none, with the reasons.
        """
        if now_ms >= self._due_ms:
            self._look()
            self._due_ms = now_ms + self._settings.refresh
        urls = list(dict.fromkeys(url for place in self._found.values() for url in place))
        if not urls:
            why = "; ".join(self.troubles) or "none is configured or found"
            msg = f"no target to scrape: {why}"
            raise SourceError(msg)
        return urls

    def _look(self) -> None:
        settings = self._settings
        troubles = []
        found: dict[str, list[str]] = {}
        places: dict[str, Any] = {"targets": lambda: settings.targets}
        for pattern in settings.files:
            places[f"files {pattern}"] = lambda pattern=pattern: _in_files(pattern)
        for record in settings.dns_srv:
            places[f"dns_srv {record}"] = lambda record=record: _by_srv(record)
        if service := settings.kubernetes_service:
            places[f"kubernetes_service {service}"] = lambda: _endpoints(service)
        for place, read in places.items():
            try:
                found[place] = [url_of(target, settings) for target in read()]
            except (ValueError, OSError) as error:
                troubles.append(f"{place}: {error}")
                found[place] = self._found.get(place, [])  # as last known
        self._found, self.troubles = found, tuple(troubles)


def _in_files(pattern: str) -> list[str]:
    """Read ``file_sd`` files: lists of ``{"targets": [...], "labels": {...}}``."""
    paths = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
    targets: list[str] = []
    for path in paths:
        targets += _in_file(Path(path))
    return targets


def _in_file(path: Path) -> Iterable[str]:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise ValueError(msg) from None
    if len(text) > _LARGEST:
        msg = f"{path} has more than {_LARGEST >> 20} MiB"
        raise ValueError(msg)
    groups = _groups(path, text)
    for group in groups:
        targets = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
            msg = f'{path}: each entry must have "targets", a list of "host:port"'
            raise ValueError(msg)
        labels = group.get("labels") or {}
        scheme = labels.get("__scheme__") if isinstance(labels, Mapping) else None
        where = labels.get("__metrics_path__") if isinstance(labels, Mapping) else None
        for one in targets:
            yield f"{scheme or 'http'}://{one}{where or ''}" if scheme or where else one


def _groups(path: Path, text: bytes) -> list[Any]:
    if not text.strip():
        return []
    try:
        if path.suffix in (".yml", ".yaml"):
            import yaml

            groups = yaml.safe_load(text)
        else:
            groups = json.loads(text)
    except Exception as error:  # both libraries have errors of many kinds
        first = str(error).splitlines()[0]
        msg = f"{path} is no {'YAML' if path.suffix in ('.yml', '.yaml') else 'JSON'}: {first}"
        raise ValueError(msg) from None
    if not isinstance(groups, list):
        msg = f"{path} must hold a list, as file_sd_configs has it"
        raise ValueError(msg)
    return groups


def _by_srv(name: str) -> list[str]:
    import dns.exception
    import dns.resolver

    try:
        answer = dns.resolver.resolve(name, "SRV", lifetime=5)
    except dns.exception.DNSException as error:
        msg = f"no SRV record: {str(error).splitlines()[0] or type(error).__name__}"
        raise ValueError(msg) from None
    return [f"{str(record.target).rstrip('.')}:{record.port}" for record in answer]


def _endpoints(service: str, *, account: Path = _ACCOUNT, server: str = "") -> list[str]:
    """Return the ready endpoints of a service, by its endpoint slices."""
    name, _, port_name = service.partition(":")
    namespace, _, name = name.partition("/")
    server = server or "https://kubernetes.default.svc"
    query = f"labelSelector=kubernetes.io/service-name%3D{name}&limit=500"
    url = f"{server}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}"
    try:
        token = (account / "token").read_text().strip()
    except OSError as error:
        msg = f"{account / 'token'} cannot be read: {error.strerror}; does this run in a pod?"
        raise ValueError(msg) from None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = None
    if server.startswith("https"):
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as reply:
            slices = json.loads(reply.read(_LARGEST))["items"]
    except urllib.error.HTTPError as error:
        hint = "; its role must let it list endpointslices" if error.code in (401, 403) else ""
        msg = f"the API server answered {error.code}{hint}"
        raise ValueError(msg) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"the API server cannot be asked: {error}"
        raise ValueError(msg) from None
    return _ready(slices, port_name)


def _ready(slices: Iterable[Mapping[str, Any]], port_name: str) -> list[str]:
    targets = []
    for one in slices:
        ports = one.get("ports") or []
        named = [port for port in ports if not port_name or port.get("name") == port_name]
        if not named or named[0].get("port") is None:
            continue
        port = named[0]["port"]
        for endpoint in one.get("endpoints") or []:
            if (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in (endpoint.get("addresses") or [])[:1]:
                targets.append(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
    return targets
