"""The metric: OFU from two counters, and what it says about MFU on a GPU model's data sheet.

    OFU = tensor pipe active x SM clock / maximal SM clock                 0..1

A single clock is a :class:`~detector.analysis.clock.Clock`, which knows its unit; arrays have
the unit in their name.

The table of GPU models (``models/gpus.toml``) says at which clock a data sheet states its
peak. A figure that no source gives is absent there, and asking for it gives
:class:`Absent` with the reason; nothing here guesses one. Tiles are in ``tiles``.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from detector.analysis.clock import MAX_CLOCK, MIN_CLOCK, Clock
from detector.metric import METRICS
from detector.series import FloatArray

# DCGM averages the ratio and samples the clock: a product may read a little above 1.
MAX_RATIO = METRICS["tensor"].high

# Between OFU and the MFU that an application reports. Measured by the authors of the metric
# on H100 and GB200 with matrix products (arXiv 2605.20799); in points of 0.01.
RAW_ABOVE_MFU_POINTS = (1.0, 3.0)  # raw OFU reads this much above MFU: kernels pad to tiles
CORRECTED_WITHIN_POINTS = 2.0  # and lies this near to it once the padding is divided out
CLOCK_NOISE_POINTS = 0.22  # of which from a clock that is sampled every 5 to 30 s: below this
NON_TENSOR_SHARE = 0.002  # of a transformer's FLOPs, done outside the tensor pipe, not counted
BOUNDS_SOURCE = "arXiv 2605.20799"

Precision = Literal["fp64", "tf32", "fp16", "bf16", "fp8", "int8", "fp6", "fp4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

# The data sheets' FP4 peak is that of the block-scaled formats; block-scaled FP8 and FP6 run at
# the rate of the plain ones (CUTLASS documentation, table of tcgen05.mma).
_ALIASES: dict[str, Precision] = {
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "mxfp8": "fp8",
    "mxfp6": "fp6",
}


def precision_named(text: str) -> Precision | None:
    """Return the precision that ``text`` names in any case, ``nvfp4`` as ``fp4``; else None."""
    name = text.strip().lower()
    return next((known for known in PRECISIONS if known == name), _ALIASES.get(name))


def ofu_at(tensor: float, *, clock: Clock, max_clock: Clock) -> float:
    """Return OFU, 0..1, of one reading.

    Parameters
    ----------
    tensor
        Share of cycles in which the tensor pipe was active (DCGM 1004), 0..1.02.
    clock
        SM clock, averaged over the interval that ``tensor`` stands for.
    max_clock
        Maximal boost clock of the SM as the driver reports it, whatever limit is set.

    Raises
    ------
    ValueError
        When ``tensor`` is NaN or outside 0..1.02, or the clock lies above its maximum.
    """
    if not 0.0 <= tensor <= MAX_RATIO:
        msg = (
            f"tensor activity {tensor:g} is outside 0..{MAX_RATIO:g}; give a ratio, not percent"
        )
        raise ValueError(msg)
    if clock.in_hertz > MAX_RATIO * max_clock.in_hertz:
        msg = f"the clock {clock} is above the maximal clock {max_clock}; are they swapped?"
        raise ValueError(msg)
    return min(1.0, tensor * clock.in_hertz / max_clock.in_hertz)


def ofu(
    tensor: npt.ArrayLike, clock_mhz: npt.ArrayLike, max_clock_mhz: npt.ArrayLike
) -> FloatArray:
    """Return OFU, 0..1, of many readings; the arguments broadcast.

    NaN where a reading is missing or impossible: a ratio outside 0..1.02, a clock that is none
    (a number of Hz among MHz, a zero, a blank), or a clock above its maximum by more than
    rounding. Nothing is raised: one bad GPU must not hide the others.

    Parameters
    ----------
    tensor
        Share of cycles in which the tensor pipe was active.
    clock_mhz, max_clock_mhz
        SM clock and its maximum, both in MHz.
    """
    ratio = np.asarray(tensor, dtype=np.float64)
    clock = np.asarray(clock_mhz, dtype=np.float64)
    top = np.asarray(max_clock_mhz, dtype=np.float64)
    low, high = MIN_CLOCK.in_mhz, MAX_CLOCK.in_mhz
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        valid = (ratio >= 0.0) & (ratio <= MAX_RATIO)
        valid &= (clock >= low) & (top >= low) & (top <= high) & (clock <= MAX_RATIO * top)
        return np.where(valid, np.minimum(1.0, ratio * (clock / top)), np.nan)


def mfu_interval(value: float, *, tile_corrected: bool) -> tuple[float, float]:
    """Return where MFU lies for ``value``: OFU, or OFU as a share of the data sheet's peak.

    Raw, the padding of tiles is still in it, so MFU lies below; corrected, on either side.
    Against a data sheet that is stated below the boost clock it may lie above 1.
    """
    if tile_corrected:
        low, high = -CORRECTED_WITHIN_POINTS, CORRECTED_WITHIN_POINTS
    else:
        low, high = -RAW_ABOVE_MFU_POINTS[1], -RAW_ABOVE_MFU_POINTS[0]
    return max(0.0, value + low / 100), max(0.0, value + high / 100)


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a figure was read: a title, a URL, and how it says what it says."""

    title: str
    url: str
    says: str


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number and the key of the source that gives it."""

    value: float
    source: str


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU model does at one precision, dense (no sparsity). None: no source gives it.

    Attributes
    ----------
    tensor_clock_mhz
        The clock at which the data sheet states the peak.
    flop_per_cycle_per_sm
        A multiplication and an addition are two.
    peak_tflops
        The data sheet's peak, 1e12 FLOP/s (operations for int8).
    """

    tensor_clock_mhz: Figure | None = None
    flop_per_cycle_per_sm: Figure | None = None
    peak_tflops: Figure | None = None


class GpuModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU model; of a board with two GPUs (GB200, GB300) it is one of the two.

    Attributes
    ----------
    name
        What we call it.
    match
        Names under which drivers report it, without the vendor; see :meth:`GpuTable.find`.
    max_clock_mhz
        Maximal SM clock as the driver reports it. The GPU's own report goes before it.
    sms
        Streaming multiprocessors that a program sees.
    precision
        Rates by precision; a precision that the tensor cores lack is not there.
    """

    name: str
    match: tuple[str, ...]
    max_clock_mhz: Figure | None = None
    sms: Figure | None = None
    precision: dict[Precision, Rates] = {}

    @property
    def max_clock(self) -> Clock | None:
        """The maximal clock with its unit, or None when no source gives it."""
        return None if self.max_clock_mhz is None else Clock.mhz(self.max_clock_mhz.value)

    def peak_tflops(self, precision: Precision) -> float | None:
        """Return the data sheet's peak at a precision, or None when no source gives it."""
        rates = self.precision.get(precision)
        return None if rates is None or rates.peak_tflops is None else rates.peak_tflops.value

    def figures(self) -> dict[str, Figure]:
        """Return every figure that is there, by its path within the model."""
        found = {"max_clock_mhz": self.max_clock_mhz, "sms": self.sms}
        for precision, rates in self.precision.items():
            for field in rates.__struct_fields__:
                found[f"precision.{precision}.{field}"] = getattr(rates, field)
        return {path: figure for path, figure in found.items() if figure is not None}


class GpuTable(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True
):  # dict: room for the finder, which remembers
    """All GPU models of ``models/gpus.toml`` and the sources of their figures."""

    sources: dict[str, Source]
    gpu: tuple[GpuModel, ...]

    def __post_init__(self) -> None:
        names = [model.name for model in self.gpu]
        for name in names:
            if names.count(name) > 1:
                msg = f"GPU {name} is there twice"
                raise ValueError(msg)
        for model in self.gpu:
            for path, figure in model.figures().items():
                if figure.source not in self.sources:
                    msg = f"GPU {model.name}: {path} names the unknown source {figure.source!r}"
                    raise ValueError(msg)
                if not 0 < figure.value < math.inf:
                    msg = f"GPU {model.name}: {path} must be above 0, not {figure.value:g}"
                    raise ValueError(msg)
            try:
                _ = model.max_clock
                for rates in model.precision.values():
                    _tensor_clock(model, rates)
            except ValueError as error:
                msg = f"GPU {model.name}: {error}"
                raise ValueError(msg) from None

    def find(self, model_name: str) -> GpuModel | None:
        """Return the one model that ``model_name`` can only be, else None.

        A pattern fits when its words stand together in the name and the other words tell only
        the memory ("NVIDIA A100-SXM4-40GB" is "A100 SXM4"). The longest pattern decides. A name
        that leaves it open ("NVIDIA H100": SXM, PCIe or NVL?), that has a word more than we
        know, or that is a MIG slice, finds nothing: a wrong peak is worse than none.
        """
        return self._finder(model_name)

    @cached_property
    def _finder(self) -> Callable[[str], GpuModel | None]:
        # A tick asks for every job, and thousands of jobs share a few names.
        return lru_cache(maxsize=1024)(self._find)

    def _find(self, model_name: str) -> GpuModel | None:
        words = _words(model_name)
        fits: list[tuple[int, GpuModel]] = []
        for model in self.gpu:
            patterns = [_words(pattern) for pattern in (model.name, *model.match)]
            lengths = [len(pattern) for pattern in patterns if _fits(pattern, words)]
            if lengths:
                fits.append((max(lengths), model))
        best = max((length for length, _ in fits), default=0)
        models = [model for length, model in fits if length == best]
        return models[0] if len(models) == 1 else None


_VENDOR = {"nvidia", "tesla"}
_MEMORY = re.compile(r"\d+gb?|hbm\d+e?")


def _words(name: str) -> tuple[str, ...]:
    words = re.split(r"[^a-z0-9]+", name.lower())
    return tuple(word for word in words if word and word not in _VENDOR)


def _fits(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    for start in range(len(words) - len(pattern) + 1):
        end = start + len(pattern)
        if pattern and words[start:end] == pattern:
            return all(_MEMORY.fullmatch(word) for word in words[:start] + words[end:])
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """No figure, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRatio:
    """By what OFU is multiplied to be MFU against the data sheet: ``f_max / f_tensor``.

    Attributes
    ----------
    value
        The factor; above 1 where the data sheet is stated at a lower clock than the SM reaches.
    max_clock, tensor_clock
        The two clocks.
    implied
        True when no source states the tensor clock and it follows from the stated peak,
        SMs and FLOP per cycle.
    sources
        Keys of the sources that went into it.
    """

    value: float
    max_clock: Clock
    tensor_clock: Clock
    implied: bool
    sources: tuple[str, ...]


def clock_ratio(
    gpu: GpuModel, precision: Precision, *, max_clock: Clock | None = None
) -> ClockRatio | Absent:
    """Return the clock-domain correction of ``gpu`` at ``precision``.

    Parameters
    ----------
    max_clock
        The maximum that OFU was computed with, when it is not the table's: both must be the
        same clock, since ``OFU x f_max`` is what the hardware did.
    """
    rates = gpu.precision.get(precision)
    if rates is None:
        known = ", ".join(gpu.precision) or "none"
        return Absent(reason=f"no source gives {precision} on {gpu.name} (there are: {known})")
    sources: list[str] = []
    if max_clock is None:
        if gpu.max_clock_mhz is None:
            return Absent(reason=f"no source gives the maximal clock of {gpu.name}")
        max_clock = Clock.mhz(gpu.max_clock_mhz.value)
        sources.append(gpu.max_clock_mhz.source)
    found = _tensor_clock(gpu, rates)
    if found is None:
        return Absent(
            reason=f"no source gives the clock of {gpu.name}'s {precision} peak, "
            "or what it would follow from (SMs, FLOP per cycle, peak)"
        )
    tensor_clock, parts = found
    return ClockRatio(
        value=max_clock.in_hertz / tensor_clock.in_hertz,
        max_clock=max_clock,
        tensor_clock=tensor_clock,
        implied=rates.tensor_clock_mhz is None,
        sources=tuple(dict.fromkeys([*sources, *(part.source for part in parts)])),
    )


def _tensor_clock(gpu: GpuModel, rates: Rates) -> tuple[Clock, tuple[Figure, ...]] | None:
    """Return the clock of the stated peak and the figures it comes from, if there are any."""
    stated, per_cycle, peak = (
        rates.tensor_clock_mhz,
        rates.flop_per_cycle_per_sm,
        rates.peak_tflops,
    )
    if stated is not None:
        return Clock.mhz(stated.value), (stated,)
    if gpu.sms is None or per_cycle is None or peak is None:
        return None
    hertz = peak.value * 1e12 / (gpu.sms.value * per_cycle.value)
    return Clock.hertz(hertz), (gpu.sms, per_cycle, peak)
