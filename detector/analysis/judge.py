"""The judge: a confirmed change and its window become a finding that people can read."""

from dataclasses import dataclass

from detector.analysis.baselines import Model
from detector.analysis.change import Confirmed
from detector.analysis.features import Evidence, measured
from detector.analysis.ofu import GpuModel, GpuTable
from detector.analysis.peers import gone, inside
from detector.analysis.rules import Rule, Verdict, evaluate, summarise
from detector.analysis.view import View
from detector.fleet import Earlier, Gpu, Job
from detector.series import Interval, Window, iso

# Metrics that say how many GPUs report: theirs is the change that report no more.
_COUNTS = ("gpus", "usable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What an operator may edit: how metrics are held to their past, and what changes mean."""

    models: tuple[Model, ...]
    rules: tuple[Rule, ...]
    gpus: GpuTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A confirmed change, what it is, and on which GPUs.

    Attributes
    ----------
    gpus, gpu_places
        The GPUs that fell by themselves, worst first, and their places in the roster's order;
        empty when it is the whole job.
    attribution_confidence, gpus_total
        None when too few GPUs report to tell.
    before_samples, after_samples
        How many samples of the changed metric were compared.
    earlier
        The run that the level before is of; None where it is the job's own.
    """

    change: Confirmed
    verdict: Verdict
    evidence: Evidence
    gpus: tuple[Gpu, ...]
    gpu_places: tuple[int, ...]
    attribution_confidence: float | None
    gpus_total: int | None
    before_samples: int
    after_samples: int
    summary: str
    earlier: Earlier | None = None


def judge(
    change: Confirmed,
    window: Window,
    job: Job,
    gpu: GpuModel | None,
    rules: tuple[Rule, ...],
    *,
    family: str,
    earlier: Earlier | None = None,
) -> Finding:
    """Return what a confirmed change means: evidence, verdict, and whose it is.

    Parameters
    ----------
    window
        The job's history about the change, as verification saw it.
    family
        The family of the model whose metric changed.
    earlier
        The run that the level before is of, where it is not the job's own.
    """
    view = View(change=change, window=window, gpu=gpu, precision=job.precision)
    evidence = measured(view)
    verdict = evaluate(rules, evidence, metric=change.metric, family=family)
    whose = gone(change, window) if change.metric in _COUNTS else view.attribution
    return Finding(
        change=change,
        verdict=verdict,
        evidence=evidence,
        gpus=tuple(_gpu(job, place) for place in whose.gpus) if whose else (),
        gpu_places=whose.gpus if whose else (),
        attribution_confidence=whose.confidence if whose and whose.gpus else None,
        gpus_total=whose.total if whose else None,
        before_samples=_samples(change, window, change.before_span),
        after_samples=_samples(change, window, change.after_span),
        summary=summarise(verdict.rule, evidence) + _compared(earlier),
        earlier=earlier,
    )


def _compared(earlier: Earlier | None) -> str:
    """Return which run the level before is of, and what is otherwise in this one."""
    if earlier is None:
        return ""
    told = f"; compared with the earlier run {earlier.title} up to {iso(earlier.until_ms)}"
    if not earlier.differs:
        return told
    changes = (
        f"{name} {there or 'not given'} -> {here or 'not given'}"
        for name, (there, here) in earlier.differs.items()
    )
    return f"{told}; otherwise now: {', '.join(changes)}"


def _gpu(job: Job, place: int) -> Gpu:
    """The roster's GPU, or one known by its place alone where the job has no roster."""
    return job.roster[place] if place < len(job.roster) else Gpu(uuid="", index=place)


def _samples(change: Confirmed, window: Window, span: Interval) -> int:
    """How many usable samples of the changed metric a span holds."""
    # What single GPUs did is read beside the job's own OFU, entry by entry.
    series = window.series("ofu" if change.gpus else change.metric)
    if series is None:
        return 0
    return int(inside(series.times_ms, span, change.excluded).sum())
