"""The configured sources of readings, each with its secrets."""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from detector.config import Config, SourceSettings
from detector.secrecy import secret_of
from detector.series import Duration
from detector.telemetry.access import without_secrets
from detector.telemetry.dcgm import DcgmSettings
from detector.telemetry.nvml import NvmlSettings
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.register import Register, schedulers
from detector.telemetry.settings import ExporterSettings, unmatched, url_of
from detector.telemetry.source import Source

# The share of an interval that a round waits for a source.
PATIENCE = 0.9

# Rounds further apart are doubted: detection gathers samples by the minute (block_cap in
# models/ofu.toml), and beyond that waits for each.
_USUAL = Duration.parse("1m")


def sources(config: Config) -> tuple[Source, ...]:
    """Return the sources of a configuration.

    Raises
    ------
    ContentErrors
        When a secret cannot be read.
    SourceError
        When one cannot work at all.
    """
    return tuple(map(source, config.sources))


def doubts(config: Config) -> list[str]:
    """Return what of collection works, or may on another host, and should not be left so."""
    told = (_late(config), _not_here(config), _twice(config))
    return [doubt for doubts in told for doubt in doubts]


def _late(config: Config) -> Iterator[str]:
    interval = config.collect.interval
    if interval > _USUAL:
        yield (
            f"[collect] interval {interval} is above {_USUAL}: whatever falls is told several "
            "rounds later"
        )
    for one in config.sources:
        if isinstance(one, ExporterSettings | PrometheusSettings):
            if one.timeout >= interval:
                yield (
                    f"source {one.name!r}: timeout {one.timeout} is not below [collect] "
                    f"interval {interval}: one slow target costs whole rounds"
                )
        elif one.deadline > PATIENCE * interval:
            yield (
                f"source {one.name!r}: deadline {one.deadline} is above nine tenths of "
                f"[collect] interval {interval}: a round does not wait so long, and when it "
                "hangs nobody is told why"
            )


def _not_here(config: Config) -> Iterator[str]:
    """Yield what is named and not on this host; collection may run on another."""
    directory, slurm = config.collect.hpc_directory, config.slurm
    if directory and not Path(directory).is_dir():
        yield f"[collect] hpc_directory: {directory} is no directory here; the prolog makes it"
    for key in ("squeue", "sacct") if slurm.via == "squeue" else ():
        command = getattr(slurm, key)
        if command and shutil.which(command) is None:
            yield f"[slurm] {key}: there is no command {command!r} on PATH here"
    for one in config.sources:
        for pattern in unmatched(one.files) if isinstance(one, ExporterSettings) else ():
            yield f"source {one.name!r}: no file here matches {pattern}"
        folder = one.bindings if isinstance(one, DcgmSettings) else ""
        if folder and not (Path(folder) / "pydcgm.py").is_file():
            yield f"source {one.name!r}: there is no pydcgm.py in bindings {folder}"


def _twice(config: Config) -> Iterator[str]:
    named: defaultdict[str, list[str]] = defaultdict(list)
    for one in config.sources:
        if not isinstance(one, ExporterSettings):
            continue
        for target in one.targets:
            named[without_secrets(url_of(target, one))].append(repr(one.name))
    for url, names in named.items():
        if len(names) > 1:
            who = " and ".join(dict.fromkeys(names))
            yield f"source {who}: {url} is a target {len(names)} times; its GPUs count once"


def source(settings: SourceSettings) -> Source:
    """Return one source; what it is made of is loaded when there is one."""
    secret = partial(_secret, settings.name)
    match settings:
        case ExporterSettings():
            from detector.telemetry import exporter

            return exporter.build(settings, secret=secret)
        case PrometheusSettings():
            from detector.telemetry import prometheus

            return prometheus.build(settings, secret=secret)
        case DcgmSettings():
            from detector.telemetry import dcgm

            return dcgm.build(settings)
        case NvmlSettings():
            from detector.telemetry import nvml

            return nvml.build(settings)


def register_of(config: Config) -> Register:
    """Return who says whose each reading is."""
    named = (one.host for one in config.sources if isinstance(one, DcgmSettings | NvmlSettings))
    asked = schedulers(
        config.slurm, config.kubernetes, config.collect, cluster=config.cluster,
        host=next(filter(None, named), ""),
    )  # fmt: skip
    return Register(asked, config.collect, cluster=config.cluster)


def _secret(name: str, settings: msgspec.Struct, key: str) -> str:
    return secret_of(settings, key, owner=f"source {name!r}")
