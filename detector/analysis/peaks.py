"""Peaks that are mistaken for the right one when work is divided by them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from detector.analysis.ofu import GpuModel, GpuTable, Precision

# How common a mistake is, by our judgement: 1 in many published formulas and scripts, 2 in
# some, 3 seldom. It orders what fits equally well, and two seldom ones are not taken together.
Commonness = Literal[1, 2, 3]

# The precisions that people train in, of those with equal peaks one. Tensor cores do twice as
# much at each as at the one before.
_TRAINED: tuple[Precision, ...] = ("bf16", "fp8", "fp4")
# nanoGPT and its many descendants divide by 312 TFLOP/s, whatever the GPU.
_HARD_CODED = "A100-SXM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A peak that is mistaken for the right one; ``factor``: the right over the mistaken."""

    name: str
    says: str
    factor: float
    common: Commonness


def mistaken(
    table: GpuTable,
    chip: GpuModel | None,
    precision: Precision | None,
    *,
    peak_tflops: float | None,
    clock_ratio: float | None,
) -> tuple[Peak, ...]:
    """Return the peaks that may have been taken for the right one, ``peak_tflops``.

    None contradicts what is known: without FP8 on ``chip`` its peak is none to be mistaken for,
    and work in BF16 is not divided by BF16's peak instead of FP8's.
    """
    found: list[Peak] = []
    if chip is None or _generation(chip) != "V":  # Volta has no sparsity
        says = "divided by the peak with 2:4 sparsity"
        found.append(Peak(name="sparse_peak", says=says, factor=0.5, common=1))
    if clock_ratio is not None:
        says = "divided by the peak at the maximal clock instead of the data sheet's"
        found.append(
            Peak(name="peak_at_max_clock", says=says, factor=1 / clock_ratio, common=2)
        )
    if chip is None or peak_tflops is None or precision is None:
        return (*found, *_unnamed(precision))
    return (
        *found,
        *_precisions(chip, precision, peak_tflops),
        *_models(table, chip, precision, peak_tflops),
    )


def _unnamed(precision: Precision | None) -> Iterator[Peak]:
    """What another precision would do on a GPU that was not named."""
    if precision not in ("fp4", "fp6", "int8"):
        says = "divided by the peak of half the bits (FP8's for BF16 work)"
        yield Peak(name="lower_precision_peak", says=says, factor=0.5, common=1)
    if precision in (None, "fp4", "fp6", "fp8"):
        says = "divided by the peak of twice the bits (BF16's for FP8 work)"
        yield Peak(name="higher_precision_peak", says=says, factor=2.0, common=2)


def _precisions(chip: GpuModel, precision: Precision, peak_tflops: float) -> Iterator[Peak]:
    for other in _TRAINED:
        peak = chip.peak_tflops(other)
        if peak is not None and other != ("bf16" if precision == "fp16" else precision):
            says = f"divided by {chip.name}'s {other} peak"
            yield Peak(name=f"{other}_peak", says=says, factor=peak_tflops / peak, common=1)


def _models(
    table: GpuTable, chip: GpuModel, precision: Precision, peak_tflops: float
) -> Iterator[Peak]:
    """The peaks of the chip's generation, and the one that scripts have hard-coded."""
    names: dict[float, list[str]] = {}
    for model in table.gpu:
        peak = model.peak_tflops(precision)
        near = _generation(model) == _generation(chip) or model.name == _HARD_CODED
        if peak is not None and near and model.name != chip.name:
            names.setdefault(peak, []).append(model.name)
    for peak, models in names.items():
        yield Peak(
            name=f"peak_of_{'_'.join(models)}",
            says=f"divided by the {precision} peak of {' or '.join(models)}",
            factor=peak_tflops / peak,
            common=2,
        )


def _generation(chip: GpuModel) -> str:
    """The letter of a GPU's generation: H for H100, H200 and GH200."""
    return chip.name.removeprefix("G")[0]
