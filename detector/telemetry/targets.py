"""Whom to scrape: named one by one, in files, in DNS, or by a Kubernetes service.

What was found stays in use while a place that names targets cannot be read: a DNS server that
is down must not stop the watching of GPUs.
"""

import glob
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from detector.telemetry.http import Reply
from detector.telemetry.kubernetes import ACCOUNT
from detector.telemetry.rest import Rest, json_of, secret
from detector.telemetry.scheduler import SchedulerError
from detector.telemetry.settings import TargetSettings, unmatched, url_of
from detector.telemetry.source import SourceError

_LARGEST = 8 * 1024 * 1024  # bytes of a file or an answer that names targets
# Chosen: some times as many as one collector scrapes; a file of aliases must not fill memory.
_MOST = 10_000
_MOST_TROUBLES = 20

# A round waits so long for a fresh look before it goes on with the targets that it knows.
_PATIENCE_S = 1.0

_API = "https://kubernetes.default.svc"


class Targets:
    """Finds the targets of one source, and finds them anew now and then.

    Attributes
    ----------
    troubles
        Each place that could not be read, or not wholly, and why.

    Parameters
    ----------
    api, account
        The API server, and where the service account's token and CA are; as in a pod.
    """

    def __init__(
        self, settings: TargetSettings, *, api: str = _API, account: Path = ACCOUNT
    ) -> None:
        self._settings, self._api, self._account = settings, api, account
        self._found: dict[str, list[str]] = {}
        self._due_ms = 0
        self._looking: threading.Thread | None = None
        self.troubles: tuple[tuple[str, str], ...] = ()

    def find(self, now_ms: int) -> list[str]:
        """Return the URLs, each once.

        Places that take long, such as a DNS server that is down, hold up the first round alone:
        later ones go on with what is known.

        Raises
        ------
        SourceError
            When there is none, with the reasons.
        """
        if self._looking is None and now_ms >= self._due_ms:
            self._due_ms = now_ms + self._settings.refresh
            self._looking = threading.Thread(target=self._look, name="targets", daemon=True)
            self._looking.start()
        if self._looking is not None:
            self._looking.join(timeout=_PATIENCE_S if self._found else None)
            if not self._looking.is_alive():
                self._looking = None
        urls = list(dict.fromkeys(url for place in self._found.values() for url in place))
        if not urls:
            patterns = filter(glob.has_magic, unmatched(self._settings.files))
            whys = [*map(": ".join, self.troubles)]
            whys += (f"no file matches {pattern}" for pattern in patterns)
            why = "; ".join(whys) or "none is configured or found"
            msg = f"no target to scrape: {why}"
            raise SourceError(msg)
        return urls

    def _look(self) -> None:
        troubles = []
        found: dict[str, list[str]] = {}
        for place, read in self._places().items():
            urls: list[str] = []
            try:
                for target in read():
                    try:
                        urls.append(url_of(target, self._settings))
                    except ValueError as error:  # costs no other target of its place
                        troubles.append((place, str(error)))
                    if len(urls) > _MOST:
                        msg = f"more than {_MOST:,} targets"
                        raise ValueError(msg)
            except (ValueError, OSError) as error:
                troubles.append((place, str(error)))
                urls = self._found.get(place, [])  # as last known
            found[place] = urls
        self._found, self.troubles = found, tuple(troubles[:_MOST_TROUBLES])

    def _places(self) -> dict[str, Callable[[], Iterable[str]]]:
        settings = self._settings
        places: dict[str, Callable[[], Iterable[str]]] = {"targets": lambda: settings.targets}
        for pattern in settings.files:
            found = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
            for path in found:
                places[path] = partial(_in_file, Path(path))
        for record in settings.dns_srv:
            places[f"dns_srv {record}"] = partial(_by_srv, record)
        if service := settings.kubernetes_service:
            places[f"kubernetes_service {service}"] = partial(
                _endpoints, service, api=self._api, account=self._account
            )
        return places


def _in_file(path: Path) -> Iterable[str]:
    """Read a ``file_sd`` file: a list of ``{"targets": [...], "labels": {...}}``."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        msg = f"cannot be read: {error.strerror}"
        raise ValueError(msg) from None
    if len(text) > _LARGEST:
        msg = f"has more than {_LARGEST >> 20} MiB"
        raise ValueError(msg)
    for group in _groups(path, text):
        targets = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
            msg = 'each entry must have "targets", a list of "host:port"'
            raise ValueError(msg)
        labels = group.get("labels") or {}
        scheme = labels.get("__scheme__") if isinstance(labels, Mapping) else None
        where = labels.get("__metrics_path__") if isinstance(labels, Mapping) else None
        for one in targets:
            yield f"{scheme or 'http'}://{one}{where or ''}" if scheme or where else one


def _groups(path: Path, text: bytes) -> list[Any]:
    if not text.strip():
        return []
    form = "YAML" if path.suffix in (".yml", ".yaml") else "JSON"
    try:
        groups = _yaml(text) if form == "YAML" else json.loads(text)
    except Exception as error:  # both libraries have errors of many kinds
        # PyYAML calls what it reads so; which file it is, the place says.
        said = re.sub(r'\s+in "<[\w ]+>",?', "", str(error))
        first = " ".join(said.split())[:200]
        msg = f"is no {form}: {first}"
        raise ValueError(msg) from None
    if not isinstance(groups, list):
        msg = "must hold a list, as file_sd_configs has it"
        raise ValueError(msg)
    return groups


def _yaml(text: bytes) -> Any:
    """Return plain YAML's content: no tags of other types and no merging (``<<``).

    Merges of merges grow without bound; an alias alone is the same value once more.
    """
    import yaml

    class Plain(yaml.CSafeLoader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """Leave ``<<`` as it is: then it is a tag that nothing is made of."""

    return yaml.load(text, Loader=Plain)


def _by_srv(name: str) -> list[str]:
    import dns.exception
    import dns.resolver

    try:
        answer = dns.resolver.resolve(name, "SRV", lifetime=5)
    except dns.exception.DNSException as error:
        msg = f"no SRV record: {str(error).splitlines()[0] or type(error).__name__}"
        raise ValueError(msg) from None
    named = ((str(record.target).rstrip("."), record.port) for record in answer)
    return [f"{host}:{port}" for host, port in named if host]  # "." is no service at all


def _endpoints(service: str, *, api: str, account: Path) -> Iterable[str]:
    """Return the ready endpoints of a service, by its endpoint slices."""
    name, _, port_name = service.partition(":")
    namespace, _, name = name.partition("/")
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    query: dict[str, str | int] = {
        "labelSelector": f"kubernetes.io/service-name={name}",
        "limit": 500,
    }
    slices: list[Any] = []
    ca_file = str(account / "ca.crt") if api.startswith("https") else ""
    rest = Rest(api, ca_file=ca_file, timeout_ms=10_000, longest=_LARGEST)
    try:
        token = secret(file=str(account / "token"), env="", environ={}, what="token")
        while True:
            part = _part(
                rest.get(path, query=query, headers={"Authorization": f"Bearer {token}"})
            )
            slices += part["items"]
            query["continue"] = (part.get("metadata") or {}).get("continue") or ""
            if not query["continue"] or len(slices) > _MOST:
                return _ready(slices, port_name)
    except SchedulerError as error:
        raise ValueError(str(error)) from None
    except (KeyError, TypeError, AttributeError):
        msg = "the API server answered no list of endpoint slices"
        raise ValueError(msg) from None
    finally:
        rest.close()


def _part(answer: Reply) -> Any:
    if answer.status != 200:
        hint = "; apply deploy/kubernetes/rbac.yaml" if answer.status in (401, 403) else ""
        msg = f"the API server answered {answer.status}{hint}"
        raise ValueError(msg)
    return json_of(answer, "the API server")


def _ready(slices: Iterable[Mapping[str, Any]], port_name: str) -> list[str]:
    targets = []
    pods: set[str] = set()
    # A pod with two families of addresses is in two slices, and is scraped once.
    for one in sorted(slices, key=lambda one: one.get("addressType") == "IPv6"):
        ports = one.get("ports") or []
        named = [port for port in ports if not port_name or port.get("name") == port_name]
        if not named or named[0].get("port") is None:
            continue
        port = named[0]["port"]
        for endpoint in one.get("endpoints") or []:
            pod = (endpoint.get("targetRef") or {}).get("uid")
            if (endpoint.get("conditions") or {}).get("ready") is False or pod in pods:
                continue
            for address in (endpoint.get("addresses") or [])[:1]:
                targets.append(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
                pods |= {pod} if pod else set()
    return targets
