"""A job's FLOPs held against a throughput, OFU and the MFU that is reported."""

from collections.abc import Iterator
from dataclasses import dataclass

from detector.analysis import mfu, mistakes, ofu
from detector.analysis.explanation import Explanation, agrees, explanations
from detector.analysis.mfu import Model, Recompute
from detector.analysis.peaks import Peak

# Points of 0.01 by which OFU and MFU may differ for reasons that are no mistake: the padding of
# tiles above, the clock's sampling below (analysis/ofu.py has the source).
_DOUBT_POINTS = ofu.RAW_ABOVE_MFU_POINTS[1]
# The relative doubt in that is never told to be larger.
_DOUBT_MOST = 0.25
# And where throughput and peak are known: numbers are reported rounded.
_DOUBT_ROUNDED = 0.02
# f_max / f_tensor where it is not known: the largest of models/gpus.toml, 1.083, rounded up.
_CLOCK_RATIO_MOST = 1.1
_SUSPECTS = "the throughput, the GPU count, the precision, the peak or the model is wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one token costs, and the peak that it is held against.

    Attributes
    ----------
    clock_ratio
        ``f_max / f_tensor`` of the GPU; None when it is not known.
    peaks
        Peaks that may be mistaken for ``peak_tflops``.
    """

    model: Model | None
    seq: int
    causal: bool
    recompute: Recompute
    peak_tflops: float | None
    clock_ratio: float | None
    peaks: tuple[Peak, ...]

    @property
    def parts(self) -> dict[str, float]:
        """FLOPs of a token's forward pass by part, none without a model."""
        if self.model is None:
            return {}
        return mfu.forward(self.model, seq=self.seq, causal=self.causal)

    @property
    def model_flop(self) -> float | None:
        """Model FLOPs of a token, None without a model."""
        return None if self.model is None else mfu.training(self.parts)

    @property
    def executed_flop(self) -> float | None:
        """FLOPs that a token makes the hardware execute, None without a model."""
        return None if self.model is None else mfu.executed(self.parts, self.recompute)

    @property
    def again(self) -> float:
        """Executed FLOPs over the model's; as of a plain model where it is not known."""
        parts = self.parts or {"model": 1.0}
        return mfu.executed(parts, self.recompute) / mfu.training(parts)

    @property
    def name(self) -> str:
        """What the share of executed FLOPs is called."""
        return "MFU" if self.recompute == "none" else "HFU"

    def share(self, flop: float | None, tokens_per_s: float | None) -> float | None:
        """Return utilisation at one GPU's throughput, None when something is missing."""
        if flop is None or tokens_per_s is None or self.peak_tflops is None:
            return None
        return mfu.utilisation(flop, tokens_per_s=tokens_per_s, peak_tflops=self.peak_tflops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A reported MFU beside what the hardware says.

    ``true`` is the MFU that was computed from throughput where there is one, else the one that
    OFU implies; ``by`` says which.
    """

    reported: float
    true: float
    by: str
    tolerance: float
    explanations: tuple[Explanation, ...]

    @property
    def ratio(self) -> float:
        """Reported over true."""
        return self.reported / self.true

    @property
    def agree(self) -> bool:
        """Whether they do, within the doubt."""
        return agrees(self.ratio, tolerance=self.tolerance)


def compared(
    work: Work, reported: float, *, measured: float | None, rate: float | None
) -> Compared | None:
    """Return what a reported MFU is beside the true one; None where nothing implies that.

    Parameters
    ----------
    measured
        OFU, 0..1.
    rate
        Tokens per second of one GPU.
    """
    computed = work.share(work.model_flop, rate)
    if computed is not None:
        true, by, tolerance = computed, "throughput", _DOUBT_ROUNDED
    elif measured is not None:
        true, by = measured * (work.clock_ratio or 1.0) / work.again, "OFU"
        tolerance = _doubt(measured)
    else:
        return None
    known = mistakes.mistakes(
        work.model,
        seq=work.seq,
        causal=work.causal,
        recompute=work.recompute,
        peaks=work.peaks,
        by_ofu=by == "OFU",
    )
    found = explanations(reported / true, known, tolerance=tolerance)
    return Compared(
        reported=reported, true=true, by=by, tolerance=tolerance, explanations=found
    )


def _doubt(measured: float) -> float:
    return min(_DOUBT_MOST, _DOUBT_POINTS / 100 / measured)


def contradictions(
    work: Work, *, reported: float | None, measured: float | None, rate: float | None
) -> Iterator[str]:
    """Yield what cannot be so, whatever explains the rest: each a clause for people."""
    most = max(1.0, work.clock_ratio or 1.0)
    if reported is not None and reported > most:
        yield f"a reported MFU of {reported:.4g} is above what any GPU does"
    ran = work.share(work.executed_flop, rate)
    if ran is None:
        return
    if ran > most:
        yield f"{work.name} {ran:.4f} is above what the GPU can do, {most:.4g}: {_SUSPECTS}"
    if measured is None:
        return
    pipe = measured * (work.clock_ratio or _CLOCK_RATIO_MOST)
    if ran > pipe + ofu.CORRECTED_WITHIN_POINTS / 100:
        yield (
            f"{work.name} {ran:.4f} is above OFU, {'' if work.clock_ratio else 'at most '}"
            f"{pipe:.4f} of the same peak, and no more is done than the tensor pipe does: "
            f"{_SUSPECTS}"
        )


def excess(work: Work, *, measured: float | None, rate: float | None) -> str | None:
    """Return a question where the hardware did much more than was told; else None."""
    ran = work.share(work.executed_flop, rate)
    if ran is None or measured is None or work.clock_ratio is None:
        return None
    pipe = measured * work.clock_ratio
    if ran >= pipe or agrees(ran / pipe, tolerance=_doubt(measured)):
        return None
    recomputed = "was recomputation on (--recompute), " if work.recompute == "none" else ""
    return (
        f"OFU, {pipe:.4f} of the same peak, is {pipe / ran:.3g} times {work.name}: {recomputed}"
        "is much of a batch padding, or is the throughput, the GPU count or the model wrong?"
    )
