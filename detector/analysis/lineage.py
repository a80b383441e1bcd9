"""Runs that continue one another: what a job takes over from which, and how the two compare.

Only a job's own description says what it continues. Names are no identities: two jobs of one
name may run side by side, on other data or other GPUs, and neither is the other's past.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from detector.analysis.baselines import Taught
from detector.fleet import Job
from detector.series import Window

# What is remembered of a run whose history is gone stands for so many samples.
_STAND_IN = 60
# Labels that are told where they differ; a description with more is cut.
_MOST_LABELS = 8
# Characters of each that are told: as many as an image with its tag and digest has.
_LONGEST = 128


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Whose level one series of a job stands on: run, until when its history shows it, what."""

    run: str
    until_ms: int
    level: float
    scale: float
    step_ms: float


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a job's lineage when it began.

    Attributes
    ----------
    run
        The earlier run that it took over from; empty when there was none to take over from.
    why
        Why nothing, or no level, was taken over; empty when all was.
    levels
        Model -> whose level its series stands on.
    """

    began_ms: int
    run: str = ""
    why: str = ""
    levels: dict[str, Source] = {}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a job beside its baselines, for as long as its histories.

    Attributes
    ----------
    ended_ms
        Its latest entry when this was written.
    origin
        None where its description names no earlier run.
    taught
        Model -> what it leaves to later runs; empty while its baselines are there.
    """

    ended_ms: int
    origin: Origin | None = None
    taught: dict[str, Taught] = {}


def obstacle(job: Job, earlier: Job, *, models: tuple[str, str]) -> str:
    """Return why the earlier run's level says nothing about this one; empty when it does.

    OFU is a share of one GPU model's peak in one precision, and a job spread over more GPUs
    waits more: with any of them changed, another level is no fault. What is not known of
    either run is taken to be the same.

    Parameters
    ----------
    models
        GPU models of the earlier run and of this one, by the table's names; "" is unknown.
    """
    facts = (
        ("GPUs", str(len(earlier.roster) or ""), str(len(job.roster) or "")),
        ("GPU model", *models),
        ("precision", earlier.precision.lower(), job.precision.lower()),
    )
    for what, there, here in facts:
        if there and here and there != here:
            return f"another level is expected: {what} {here}, was {there}"
    return ""


def differences(job: Job, earlier: Job) -> dict[str, tuple[str, str]]:
    """Return what the descriptions of two runs say otherwise: name -> there, here."""
    there, here = _facts(earlier), _facts(job)
    names = [name for name in {**there, **here} if name not in job.labels]
    labels = sorted({**earlier.labels, **job.labels})[:_MOST_LABELS]
    return {
        name: (there.get(name, ""), here.get(name, ""))
        for name in dict.fromkeys([*names, *labels])
        if there.get(name, "") != here.get(name, "")
    }


def _facts(job: Job) -> dict[str, str]:
    hosts = {gpu.host for gpu in job.roster if gpu.host}
    facts = {
        "gpu_model": job.gpu_model,
        "precision": job.precision,
        "gpus": str(len(job.roster) or ""),
        "hosts": str(len(hosts) or ""),
        **job.labels,
    }
    return {name: text[:_LONGEST] for name, text in facts.items() if text}


def stand_in(source: Source, metric: str) -> Window:
    """Return samples that alternate about a remembered level by its noise."""
    step_ms = max(1, round(source.step_ms))
    times_ms = source.until_ms - step_ms * np.arange(_STAND_IN - 1, -1, -1, dtype=np.int64)
    sides = np.where(np.arange(_STAND_IN) % 2, 1.0, -1.0)
    values = source.level + source.scale * sides
    return Window(times_ms=times_ms, fields={metric: values})


def joined(earlier: Window, own: Window, *, own_ms: int) -> Window:
    """Return a job's history behind that of an earlier run.

    GPUs of the earlier run are left out: places in one roster are none in another. So is what
    was announced about it.
    """
    before = earlier.times_ms < own_ms
    fields: dict[str, np.ndarray] = {}
    blank_before = np.full(int(before.sum()), np.nan)
    blank_after = np.full(len(own.times_ms), np.nan)
    for name in {**earlier.fields, **own.fields}:
        there = earlier.fields.get(name)
        fields[name] = np.concatenate(
            [
                blank_before if there is None else there[before],
                own.fields.get(name, blank_after),
            ]
        )
    gpus = own.gpus
    if gpus is not None:
        gpus = np.vstack([np.full((len(blank_before), gpus.shape[1]), np.nan), gpus])
    return Window(
        times_ms=np.concatenate([earlier.times_ms[before], own.times_ms]),
        fields=fields,
        gpus=gpus,
        events=own.events,
        own_ms=own_ms,
    )


def sources(origins: Mapping[str, Kept], job: str) -> Mapping[str, Source]:
    """Return whose level each series of a job stands on; empty for most jobs."""
    kept = origins.get(job)
    return {} if kept is None or kept.origin is None else kept.origin.levels
