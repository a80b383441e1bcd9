"""``config.toml``: the wiring, composed of each part's own settings.

Secrets never stand in it: it names files or environment variables that hold them. So it can be
committed, printed and mailed, and :func:`effective` has nothing to hide but what somebody put
into a URL all the same.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from detector.incident.lifecycle import Policy
from detector.log import LogSettings
from detector.notify.dispatch import DispatchSettings
from detector.notify.slack_settings import SlackSettings
from detector.notify.webhook import WebhookSettings
from detector.secrecy import inline_secrets, masked, secret_of
from detector.series import Duration, below, refuse
from detector.store.connection import RedisSettings
from detector.store.settings import HistorySettings, InboxSettings
from detector.tables import ContentErrors, Problem, Table, read, shipped
from detector.telemetry.dcgm import DcgmSettings
from detector.telemetry.nvml import NvmlSettings
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.scheduler_settings import KubernetesSettings, SlurmSettings
from detector.telemetry.settings import CollectSettings, ExporterSettings
from detector.web.settings import WebSettings

__all__ = [
    "Config", "ContentErrors", "ContentSettings", "Examined", "Problem", "ReceiverSettings",
    "TickSettings", "effective", "examine", "load", "secret",
]  # fmt: skip

ReceiverSettings = SlackSettings | WebhookSettings
SourceSettings = ExporterSettings | PrometheusSettings | DcgmSettings | NvmlSettings

S = TypeVar("S", bound=msgspec.Struct)


class ContentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[content]``: where models and rules are. Absolute once loaded."""

    models: Path = Path("models")
    rules: Path = Path("rules")


class TickSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[tick]``.

    Attributes
    ----------
    interval
        Time between two passes over the fleet.
    checkpoint
        How often the detector's state is saved although nothing happened; a restart reads
        histories again from there.
    silent
        A job without entries for this long (and 20 of its own steps) has ended.
    """

    # chosen: the usual scrape interval; a pass over 10,000 jobs takes a second
    interval: Duration = Duration.parse("10s")
    # chosen: reading 5 minutes of 10,000 jobs again takes a few seconds
    checkpoint: Duration = Duration.parse("5m")
    # chosen: longer than a restart with its checkpoint usually takes
    silent: Duration = Duration.parse("15m")

    def __post_init__(self) -> None:
        """Refuse a pace that no pass can keep."""
        refuse(below("interval", self.interval, Duration(1_000)))


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration.

    Attributes
    ----------
    cluster
        Part of every incident's identity and of every message.
    permalink_base
        Where people reach this service, ``https://ofu.example.com``; "" gives no links.
    sources
        ``[[source]]`` in TOML. Without one, nothing is collected; others write histories.
    receivers
        ``[[receiver]]`` in TOML. Without one, incidents are printed and logged.
    """

    cluster: str = "local"
    permalink_base: str = ""
    redis: RedisSettings = RedisSettings()
    history: HistorySettings = HistorySettings()
    inbox: InboxSettings = InboxSettings()
    content: ContentSettings = ContentSettings()
    tick: TickSettings = TickSettings()
    incidents: Policy = Policy()
    delivery: DispatchSettings = DispatchSettings()
    collect: CollectSettings = CollectSettings()
    slurm: SlurmSettings = SlurmSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    web: WebSettings = WebSettings()
    log: LogSettings = LogSettings()
    sources: tuple[SourceSettings, ...] = msgspec.field(default=(), name="source")
    receivers: tuple[ReceiverSettings, ...] = msgspec.field(default=(), name="receiver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A file, read as far as it can be.

    Attributes
    ----------
    table
        The file as it is written.
    readable
        The parts that are in order, the others as if they were not there; paths are absolute.
    whole
        The same when nothing is wrong, else None.
    """

    table: Table
    readable: Config
    whole: Config | None
    problems: tuple[Problem, ...]


def load(path: Path | None = None) -> Config:
    """Return the configuration of a file, of the shipped one if none is given.

    Relative paths in it are relative to the file; in what is returned they are absolute.

    Raises
    ------
    ContentErrors
        With everything that is wrong in it.
    """
    file = shipped() / "config.toml" if path is None else path
    examined = examine(file)
    if examined.whole is None:
        raise ContentErrors(examined.problems)
    return examined.whole


def examine(file: Path) -> Examined:
    """Return all that can be read of a file, and all that is wrong with it.

    Raises
    ------
    ContentErrors
        When it cannot be read at all.
    """
    table = read(file)
    refused = list(inline_secrets(table.content))
    for at, message in refused:
        table.complain(at, message)
    whole = table.convert(Config)
    # Its owner lacks a secret only because it was refused: that is no second mistake. A source
    # may have none.
    owners = {at.rpartition(".")[0] for at, _ in refused if not at.startswith("source")}
    table.problems = [problem for problem in table.problems if problem.path not in owners]
    _check(table)
    readable = _absolute(whole or _readable(table), file.absolute().parent)
    return Examined(
        table=table,
        readable=readable,
        whole=None if whole is None or table.problems else readable,
        problems=table.errors().problems,
    )


def secret(
    settings: ReceiverSettings | WebSettings, *, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the secret that some settings point to; "" when they point to none.

    Raises
    ------
    ContentErrors
        When the file can't be read, or the file or the variable is empty.
    """
    owner = "web" if isinstance(settings, WebSettings) else f"receiver {settings.name!r}"
    kinds = [
        key.rpartition("_")[0]
        for key in settings.__struct_fields__
        if key.endswith(("_file", "_env")) and getattr(settings, key)
    ]
    return secret_of(settings, kinds[0], owner=owner, environ=environ) if kinds else ""


def effective(config: Config) -> str:
    """Return the whole configuration as TOML that :func:`load` reads back, without secrets."""
    lines: list[str] = []
    tables: list[str] = []
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            tables += ["", f"[{field.encode_name}]", *_pairs(value)]
        elif isinstance(value, tuple):
            for entry in value:
                tables += ["", f"[[{field.encode_name}]]", *_pairs(entry)]
        else:
            lines.append(f"{field.encode_name} = {_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def _check(table: Table) -> None:
    """Complain of what the parts can't see for themselves, whatever else is wrong."""
    for kind in ("receiver", "source"):
        _check_names(table, kind)
    cluster, base = (table.content.get(key) for key in ("cluster", "permalink_base"))
    if isinstance(cluster, str) and not cluster.strip():
        table.complain("cluster", "must not be empty: it is part of each incident's identity")
    if isinstance(base, str) and base and not base.startswith(("https://", "http://")):
        table.complain("permalink_base", f"must look like https://host/path, not {base!r}")


def _check_names(table: Table, kind: str) -> None:
    names = [
        # A source's name may be left out: it is then that of its type.
        entry.get("name", entry.get("type") if kind == "source" else None)
        if isinstance(entry, dict)
        else None
        for entry in _entries(table, kind)
    ]
    often = Counter(name for name in names if isinstance(name, str))
    for k, name in enumerate(names):
        if not isinstance(name, str):
            continue  # complained of already
        if often[name] > 1 and "name" not in _entries(table, kind)[k]:
            message = f'there are {often[name]} "{name}": give each a name of its own'
            table.complain(f"{kind}[{k}].name", message)
        elif often[name] > 1:
            table.complain(f"{kind}[{k}].name", f'"{name}" is there twice')
        elif not _NAME.fullmatch(name):
            message = f'"{name}" may hold letters, digits and _ . - only'
            table.complain(f"{kind}[{k}].name", message)


def _entries(table: Table, kind: str) -> list[Any]:
    entries = table.content.get(kind)
    return entries if isinstance(entries, list) else []


def _readable(table: Table) -> Config:
    """The parts of a broken file that are whole; the others as if they were not there."""
    parts: dict[str, Any] = {}
    for field in msgspec.structs.fields(Config):
        value = table.content.get(field.encode_name)
        if field.name not in ("receivers", "sources") and value is not None:
            part = table.part(value, field.type)
            parts |= {} if part is None else {field.name: part}
    receivers = [table.part(entry, ReceiverSettings) for entry in _entries(table, "receiver")]
    sources = [table.part(entry, SourceSettings) for entry in _entries(table, "source")]
    return Config(
        receivers=tuple(entry for entry in receivers if entry is not None),
        sources=tuple(entry for entry in sources if entry is not None),
        **parts,
    )


def _absolute(config: Config, folder: Path) -> Config:
    """Resolve every path against the folder of the file."""
    content = ContentSettings(
        models=folder / config.content.models.expanduser(),
        rules=folder / config.content.rules.expanduser(),
    )
    receivers = tuple(_files(receiver, folder) for receiver in config.receivers)
    redis = _files(config.redis, folder)
    if redis.state:
        state = str(folder / Path(redis.state).expanduser())
        redis = msgspec.structs.replace(redis, state=state)
    return msgspec.structs.replace(
        config,
        content=content,
        receivers=receivers,
        redis=redis,
        collect=_files(config.collect, folder),
        web=_files(config.web, folder),
        slurm=_files(config.slurm, folder),
        kubernetes=_files(config.kubernetes, folder),
        sources=tuple(_files(source, folder) for source in config.sources),
    )


_FOLDERS = ("hpc_directory", "bindings")


def _files(settings: S, folder: Path) -> S:
    paths: dict[str, Any] = {
        key: str(folder / Path(getattr(settings, key)).expanduser())
        for key in settings.__struct_fields__
        if (key.endswith("_file") or key in _FOLDERS) and getattr(settings, key)
    }
    for key in ("files",):  # globs of files that name targets
        if found := getattr(settings, key, ()):
            paths[key] = tuple(str(folder / Path(one).expanduser()) for one in found)
    return msgspec.structs.replace(settings, **paths)


def _pairs(settings: msgspec.Struct) -> list[str]:
    tag_field = settings.__struct_config__.tag_field
    pairs = [f"{tag_field} = {_toml(settings.__struct_config__.tag)}"] if tag_field else []
    for field in msgspec.structs.fields(settings):
        pairs.append(f"{field.encode_name} = {_toml(getattr(settings, field.name))}")
    return pairs


def _toml(value: object) -> str:
    """A value as TOML writes it; JSON's strings and numbers are TOML's."""
    if isinstance(value, Duration | Path):
        value = str(value)
    if isinstance(value, str):
        value = masked(value)
    if isinstance(value, dict):  # headers: whatever a gateway wants there may be a secret
        shown = {key: "***" if isinstance(one, str) else one for key, one in value.items()}
        pairs = (f"{_toml(key)} = {_toml(one)}" for key, one in shown.items())
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    return msgspec.json.encode(value).decode()
