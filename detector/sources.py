"""The configured sources of readings, each with its secrets."""

from functools import partial

import msgspec

from detector.config import Config, SourceSettings, secret_of
from detector.telemetry.dcgm import DcgmSettings
from detector.telemetry.nvml import NvmlSettings
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.register import Register, schedulers
from detector.telemetry.settings import ExporterSettings
from detector.telemetry.source import Source

# The share of an interval that a round waits for a source.
PATIENCE = 0.9


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
    """Return what of the sources works and should not be left as it is."""
    interval = config.collect.interval
    found = []
    for one in config.sources:
        if isinstance(one, ExporterSettings | PrometheusSettings):
            if one.timeout >= interval:
                found.append(
                    f"source {one.name!r}: timeout {one.timeout} is not below [collect] "
                    f"interval {interval}: one slow target costs whole rounds"
                )
        elif one.deadline > PATIENCE * interval:
            found.append(
                f"source {one.name!r}: deadline {one.deadline} is above nine tenths of "
                f"[collect] interval {interval}: a round does not wait so long, and when it "
                "hangs nobody is told why"
            )
    return found


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
