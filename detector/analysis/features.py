"""Features: what is measured about a confirmed change, and all that a rule may ask for.

Every feature is a number with a unit, or None where the telemetry for it is missing. None is
never replaced by a guess: a rule that needs the feature is then unknown, not false. Levels
are medians over the stretches that verification compared, announced phases left out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from detector.analysis import quantile
from detector.analysis.change import Confirmed
from detector.analysis.derived import clock_correction, derived
from detector.analysis.ofu import GpuModel
from detector.analysis.peers import spread_over_gpus, stayed
from detector.analysis.view import View, median, relative_change
from detector.fleet import Job
from detector.metric import METRICS
from detector.series import FloatArray, IntArray, Interval, Window

Evidence = dict[str, float | None]

# relative  after / before - 1: -0.25 is a loss of a quarter
# share     a part of a whole, 0..1
# ratio     one quantity over another of the same unit
# flag      1 it is so, 0 it is not
# The others are the catalogue's units, written out where a person reads them.
Unit = Literal["relative", "share", "ratio", "flag", "count", "s", "MHz"]

# Below this part of the level before, a job stands still. Chosen: the least efficient job
# that still works does more, and a mean over one busy host of 32 would be 3 %.
_STANDSTILL = 0.05
# A restart shows in the samples this long before the onset: loading a checkpoint and
# compiling take minutes. With coarse samples, three of them.
_NEAR_MS = 300_000
_NEAR_SAMPLES = 3
# A silence of this many sample intervals, and a minute at least, is a gap.
_GAP_SAMPLES = 5
_GAP_MS = 60_000
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One thing that can be measured about a change."""

    name: str
    unit: Unit
    doc: str
    measure: Callable[[View], float | None]


def measure(change: Confirmed, window: Window, job: Job, gpu: GpuModel | None) -> Evidence:
    """Return every feature of a change, None where the window does not tell.

    Parameters
    ----------
    window
        The job's history about the change, as verification saw it.
    gpu
        The job's GPU model, which gives the clock correction of ``mfu_ofu_ratio``.
    """
    return measured(View(change=change, window=window, gpu=gpu, precision=job.precision))


def measured(view: View) -> Evidence:
    """Return every feature of a view; see :func:`measure`."""
    evidence: Evidence = {}
    for name, feature in FEATURES.items():
        value = feature.measure(view)
        known = value is not None and math.isfinite(value)
        evidence[name] = float(f"{value:.6g}") if known else None
    return evidence


def written(value: float | None, unit: Unit) -> str:
    """Return a feature's value as people read it: ``−58 %``, ``0.41``, ``1980 MHz``."""
    if value is None:
        return "unknown"
    if unit == "relative":
        digits = 0 if abs(value) >= 0.1 else 1
        number = f"{100 * value:+.{digits}f}".replace("-", "−").removesuffix(".0")
        return "0 %" if number in ("+0", "−0") else f"{number} %"
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "flag":
        return "yes" if value > 0.5 else "no"
    if unit == "ratio":
        return f"{value:.2f}".replace("-", "−")
    return f"{value:.0f}" if unit == "count" else f"{value:.0f} {unit}"


_entries: dict[str, Feature] = {}


def _feature(
    unit: Unit,
) -> Callable[[Callable[[View], float | None]], Callable[[View], float | None]]:
    """Enter a function under its own name; its docstring's first line is its doc."""

    def enter(function: Callable[[View], float | None]) -> Callable[[View], float | None]:
        name = function.__name__.removeprefix("_")
        doc = (function.__doc__ or "").partition("\n")[0]
        _entries[name] = Feature(name=name, unit=unit, doc=doc, measure=function)
        return function

    return enter


def _enter_metric(metric: str, *, levels: Unit | None) -> None:
    """Enter ``<metric>_change``; with a unit given, ``_before`` and ``_after`` too."""
    title = METRICS[metric].title

    def before(view: View) -> float | None:
        return view.level_before(metric)

    def after(view: View) -> float | None:
        return view.level_after(metric)

    def change(view: View) -> float | None:
        return view.relative(metric)

    if levels is not None:
        for suffix, function in (("before", before), ("after", after)):
            name = f"{metric}_{suffix}"
            doc = f"{title}: level {suffix} the onset."
            _entries[name] = Feature(name=name, unit=levels, doc=doc, measure=function)
    name = f"{metric}_change"
    doc = f"{title}: after over before, less 1."
    _entries[name] = Feature(name=name, unit="relative", doc=doc, measure=change)


# Metric -> the unit its levels are shown in; None for those of which the change alone tells.
_BY_METRIC: dict[str, Unit | None] = {
    "ofu": "ratio",
    "gpus": "count",
    "unusable": "count",
    "clock": "MHz",
    "sm": "ratio",
    "tensor": None,
    "dram": None,
    "power": None,
    "pcie": None,
    "nvlink": None,
    "mfu": None,
}
for _metric, _levels in _BY_METRIC.items():
    _enter_metric(_metric, levels=_levels)


@_feature("relative")
def _throughput_change(view: View) -> float | None:
    """Work done per second: tokens/s where the job reports it, else its reported MFU.

    A framework's MFU is its throughput times a constant, so its change is the throughput's.
    """
    tokens = view.relative("tokens")
    return view.relative("mfu") if tokens is None else tokens


@_feature("ratio")
def _mfu_ofu_ratio(view: View) -> float | None:
    """Reported MFU over the MFU that OFU implies after the onset; 1 is full agreement.

    OFU is corrected for the clock that the data sheet's peak assumes where the GPU model and
    the precision are known, and taken as it is otherwise (8 % too small a ratio on an H100).
    """
    values = derived(view.window.fields, clock_ratio=clock_correction(view.gpu, view.precision))
    if "mfu_ratio" not in values:
        return None
    chosen = values["mfu_ratio"][view.after]
    return median(chosen[np.isfinite(chosen)])


@_feature("share")
def _clock_explains(view: View) -> float | None:
    """Share of OFU's fall that the SM clock's fall explains, on a log scale; may exceed 1.

    OFU is a product of which the clock is one factor, so logarithms add up. None at a
    standstill and where OFU did not fall by at least 1 % (a quotient of noise).
    """
    return _explained(view, "clock")


@_feature("share")
def _sm_explains(view: View) -> float | None:
    """Share of OFU's fall that idling SMs explain, on a log scale; may exceed 1.

    Near 1 when the GPU does the same work and waits between; near 0 when the SMs are busy
    with other work, such as an evaluation, or spin. None as for ``clock_explains``.
    """
    return _explained(view, "sm")


@_feature("s")
def _onset_width_s(view: View) -> float | None:
    """Width of the interval in which the change began, seconds."""
    return view.change.onset.length_ms / 1000


@_feature("flag")
def _standstill(view: View) -> float | None:
    """Whether OFU is below 5 % of what it was before."""
    before, after = view.level_before("ofu"), view.level_after("ofu")
    if before is None or after is None or before <= 0:
        return None
    return float(after < _STANDSTILL * before)


@_feature("relative")
def _noise_change(view: View) -> float | None:
    """How the scatter from sample to sample changed; +1 is twice as noisy.

    From first differences, so that a slide is not taken for noise.
    """
    before, after = (_noise(view.values("ofu", where)) for where in (view.before, view.after))
    return relative_change(before, after)


@_feature("count")
def _identical_run(view: View) -> float | None:
    """How many OFU samples at the window's end are equal bit for bit."""
    values = view.window.fields["ofu"]
    values = values[np.isfinite(values)]
    return float(_runs(values)[-1]) if len(values) else None


@_feature("count")
def _identical_before(view: View) -> float | None:
    """The longest run of equal OFU samples before the onset: what coarse rounding explains."""
    values = view.values("ofu", view.before)
    return float(_runs(values).max()) if len(values) else None


@_feature("flag")
def _frozen(view: View) -> float | None:
    """Whether OFU has repeated itself bit for bit far longer than it did before the onset.

    Ten times at least and three times its longest earlier run: a mean of measured ratios does
    not repeat itself, and a writer that rounds to two digits does so all the time. A change
    that was found as such is one whatever the window holds: the same exporter may have frozen
    shortly before.
    """
    if view.change.cause == "frozen":
        return 1.0
    run, before = _identical_run(view), _identical_before(view)
    return None if run is None or before is None else float(run >= max(10, 3 * before))


@_feature("share")
def _invalid_share(view: View) -> float | None:
    """Share of the entries since the onset that carry no usable OFU."""
    since = derived(view.window.fields)["valid"][view.window.times_ms > view.change.onset_ms]
    since = since[np.isfinite(since)]  # what the job reports of itself is no scrape
    return float(np.mean(since == 0)) if len(since) else None


@_feature("share")
def _unusable_share(view: View) -> float | None:
    """Share of the GPUs that answered since the onset whose counters could not be used."""
    usable = view.window.fields.get("usable")
    if usable is None:
        return None
    since = usable[(view.window.times_ms > view.change.onset_ms) & np.isfinite(usable)]
    return float(1 - np.mean(since)) if len(since) else None


@_feature("share")
def _unusable_explains(view: View) -> float | None:
    """Share of OFU's fall that comes of GPUs that are left out of the mean; 1 is all of it.

    By the GPUs that are in it before and after, where entries carry them; else by how far the
    mean can move at the most when those left out did twice as much as the others.
    """
    change = view.relative("ofu")
    before, after = view.level_before("usable"), view.level_after("usable")
    if change is None or before is None or after is None or change > -0.01:
        return None
    lost = before - after
    if lost <= 0 or after <= 0:
        return 0.0
    left = None
    if view.window.gpus is not None:
        left = stayed(view.window.gpus[view.before], view.window.gpus[view.after])
    if left is None:
        return min(1.0, lost / (1 - lost) / -change)
    return min(1.0, max(0.0, 1 - left / change))


@_feature("relative")
def _spread_change(view: View) -> float | None:
    """How the relative spread over the job's GPUs changed; +1 is twice as uneven."""
    if view.window.gpus is None:
        return None
    before, after = (
        spread_over_gpus(view.window.gpus[where]) for where in (view.before, view.after)
    )
    return relative_change(before, after)


@_feature("count")
def _odd_gpus(view: View) -> float | None:
    """How many GPUs fell clearly more than the job's median GPU."""
    return None if view.attribution is None else float(view.attribution.fallen)


@_feature("relative")
def _odd_change(view: View) -> float | None:
    """How those GPUs changed against the median GPU; None when there are none."""
    return None if view.attribution is None else view.attribution.fall


@_feature("share")
def _odd_share(view: View) -> float | None:
    """Share of the judged GPUs that fell clearly more than the median GPU."""
    known = view.attribution
    return None if known is None else known.fallen / known.total


@_feature("flag")
def _restart_near(view: View) -> float | None:
    """Whether a restart was announced, or a gap or standstill ended, just before the onset."""
    return float(_announced(view, "restart") or _gap_before(view) or _standstill_before(view))


@_feature("flag")
def _from_start(view: View) -> float | None:
    """Whether the level before is that of an earlier run, since this one never had it."""
    return float(view.change.cause == "lineage")


@_feature("flag")
def _precision_switch_near(view: View) -> float | None:
    """Whether a switch of the number format was announced just before the onset."""
    return float(_announced(view, "precision_switch"))


@_feature("count")
def _samples_after(view: View) -> float | None:
    """How many samples of the changed metric the stretch after holds."""
    metric = view.change.metric if view.change.metric in view.window.fields else "ofu"
    return float(len(view.values(metric, view.after)))


FEATURES: Mapping[str, Feature] = MappingProxyType(_entries)


def _explained(view: View, factor: str) -> float | None:
    """The share of OFU's fall, on a log scale, that the fall of ``factor`` makes up."""
    ofu, other = view.relative("ofu"), view.relative(factor)
    if ofu is None or other is None or not -1 < ofu <= -0.01 or other <= -1:
        return None
    return max(0.0, math.log1p(other) / math.log1p(ofu))


def _noise(values: FloatArray) -> float | None:
    """Robust standard deviation of a sample about its neighbours; None for fewer than 5."""
    if len(values) < 5:  # four differences: below that the median of them is one of them
        return None
    return _MAD_TO_SIGMA * quantile.median(np.abs(np.diff(values))) / math.sqrt(2)


def _runs(values: FloatArray) -> IntArray:
    """For each sample, how many up to it are equal without a break."""
    index = np.arange(len(values))
    new = np.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return index - np.maximum.accumulate(np.where(new, index, 0)) + 1


def _just_before(view: View) -> Interval:
    """The time that counts as just before the onset, up to the latest that it may be."""
    length_ms = max(_NEAR_MS, _NEAR_SAMPLES * int(view.step_ms or 0))
    onset = view.change.onset
    return Interval(
        start_ms=min(onset.start_ms, view.change.onset_ms) - length_ms,
        end_ms=max(onset.end_ms, view.change.onset_ms),
    )


def _announced(view: View, kind: str) -> bool:
    near = _just_before(view)
    return any(
        event.kind == kind
        and event.span.end_ms >= near.start_ms
        and event.span.start_ms <= near.end_ms
        for event in view.window.events
    )


def _gap_before(view: View) -> bool:
    """Whether the first entry after a silence lies just before the onset."""
    if view.step_ms is None:
        return False
    times = view.window.times_ms
    silent = np.diff(times) > max(_GAP_SAMPLES * view.step_ms, _GAP_MS)
    ends = times[1:][silent]
    near = _just_before(view)
    return bool(((ends >= near.start_ms) & (ends <= near.end_ms)).any())


def _standstill_before(view: View) -> bool:
    """Whether OFU was near zero for two samples or more until just before the onset."""
    level, times = view.level_before("ofu"), view.window.times_ms
    if level is None or level <= 0:
        return False
    still = view.window.fields["ofu"] < _STANDSTILL * level
    ends = times[2:][still[:-2] & still[1:-1] & ~still[2:]]
    near = _just_before(view)
    return bool(((ends >= near.start_ms) & (ends <= near.end_ms)).any())
