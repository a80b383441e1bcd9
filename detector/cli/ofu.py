"""``ofuwatch ofu``: OFU, data-sheet MFU and the tile correction, from given counters."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from detector.analysis import ofu, tiles
from detector.analysis.clock import Clock
from detector.analysis.ofu import Absent, ClockRatio, GpuModel, GpuTable, Precision
from detector.cli import fail
from detector.cli.gpus import gpu_named, gpu_table, precision_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What was given, and OFU.

    ``reported`` is the maximal clock that was given; without one, ``max_clock`` is the model's.
    """

    tensor: float
    clock: Clock
    reported: Clock | None
    max_clock: Clock
    ofu: float
    gpu: GpuModel | None
    products: tuple[tiles.Weighted, ...]
    factor: float | None

    def without_padding(self, value: float) -> float | None:
        """Return ``value`` with the padding of tiles divided out, if products were given."""
        return None if self.factor is None else tiles.tile_corrected(value, self.factor)

    def interval(self, value: float) -> tuple[float, float]:
        """Return where MFU lies by ``value``, which still has the padding in it."""
        useful = self.without_padding(value)
        return ofu.mfu_interval(
            value if useful is None else useful, tile_corrected=useful is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Converted:
    """OFU as a share of the data sheet's peak at one precision."""

    precision: Precision
    ratio: ClockRatio
    mfu: float
    peak: ofu.Figure | None

    def tflops(self, mfu: float) -> float | None:
        """Return the rate, 1e12 FLOP/s, at ``mfu`` of the peak."""
        return None if self.peak is None else mfu * self.peak.value


@click.command(name="ofu")
@click.option("--tensor", metavar="RATIO", help="Tensor pipe active, 0..1 (DCGM field 1004).")
@click.option("--clock", metavar="CLOCK", help='Mean SM clock, for example "1710 MHz".')
@click.option(
    "--max-clock",
    metavar="CLOCK",
    help="Maximal SM clock that the GPU reports (DCGM field 113). Default: the model's.",
)
@click.option("--gpu", metavar="MODEL", help='Such as "H100-SXM", or as the driver calls it.')
@click.option("--precision", help="Such as bf16. Default: each one known of the model.")
@click.option(
    "--gemm",
    "gemms",
    multiple=True,
    metavar="MxNxK@TMxTNxTK[*W]",
    help="A matrix product, its kernel's tile, how often it runs. Repeatable.",
)
@click.option(
    "--list-gpus", is_flag=True, help="List the GPU models and what is known of each."
)
@click.option(
    "--table", type=click.Path(path_type=Path), help="File of GPU models. Default: the shipped."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    tensor: str | None,
    clock: str | None,
    max_clock: str | None,
    gpu: str | None,
    precision: str | None,
    gemms: tuple[str, ...],
    list_gpus: bool,
    table: Path | None,
    as_json: bool,
) -> None:
    """Compute OFU and data-sheet MFU from given counters; docs/metric.md explains them."""
    gpus = gpu_table(table)
    if list_gpus:
        click.echo(_json(gpus) if as_json else _listing(gpus))
        return
    if tensor is None or clock is None:
        fail('give --tensor and --clock, for example --tensor 0.52 --clock "1710 MHz"')
    model = None if gpu is None else gpu_named(gpus, gpu)
    if precision is not None and model is None:
        fail("--precision needs --gpu: the peak depends on the model")
    reading = _reading(
        tensor=_ratio(tensor),
        clock=_clock("--clock", clock),
        reported=None if max_clock is None else _clock("--max-clock", max_clock),
        gpu=model,
        products=tuple(map(_product, gemms)),
    )
    converted, absent = _converted(reading, _precisions(precision, model))
    if as_json:
        click.echo(_json(_record(reading, converted, absent, gpus)))
    else:
        click.echo("\n".join(_lines(reading, converted, absent, gpus)))


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        fail(f"--tensor {text!r} is no number; write a ratio, for example 0.52")
    if not 0.0 <= value <= ofu.MAX_RATIO:
        fail(f"--tensor {text} is outside 0..{ofu.MAX_RATIO:g}; give a ratio, not percent")
    return value


def _clock(option: str, text: str) -> Clock:
    try:
        return Clock.parse(text)
    except ValueError as error:
        fail(f"{option} {error}")


def _top(reported: Clock | None, model: GpuModel | None) -> Clock:
    if reported is not None:
        return reported
    if model is None:
        fail("give --max-clock, or --gpu to take the model's")
    if model.max_clock is None:
        fail(
            f"no source gives the maximal clock of {model.name}; give --max-clock "
            "(nvidia-smi -q -d CLOCK shows it)"
        )
    return model.max_clock


def _product(text: str) -> tiles.Weighted:
    try:
        return tiles.Weighted.parse(text)
    except ValueError as error:
        fail(f"--gemm {error}")


def _precisions(text: str | None, model: GpuModel | None) -> tuple[Precision, ...]:
    if model is None:
        return ()
    return tuple(model.precision) if text is None else (precision_of(text),)


def _reading(
    *,
    tensor: float,
    clock: Clock,
    reported: Clock | None,
    gpu: GpuModel | None,
    products: tuple[tiles.Weighted, ...],
) -> _Reading:
    max_clock = _top(reported, gpu)
    try:
        value = ofu.ofu_at(tensor, clock=clock, max_clock=max_clock)
    except ValueError as error:
        fail(str(error))
    return _Reading(
        tensor=tensor,
        clock=clock,
        reported=reported,
        max_clock=max_clock,
        ofu=value,
        gpu=gpu,
        products=products,
        factor=tiles.executed_over_ideal(products) if products else None,
    )


def _converted(
    reading: _Reading, precisions: Iterable[Precision]
) -> tuple[list[_Converted], list[str]]:
    """Return what can be said per precision, and why the rest can't."""
    converted: list[_Converted] = []
    absent: list[str] = []
    model = reading.gpu
    if model is None:
        return converted, absent
    for precision in precisions:
        ratio = ofu.clock_ratio(model, precision, max_clock=reading.reported)
        if isinstance(ratio, Absent):
            absent.append(ratio.reason)
            continue
        converted.append(
            _Converted(
                precision=precision,
                ratio=ratio,
                mfu=reading.ofu * ratio.value,
                peak=model.precision[precision].peak_tflops,
            )
        )
    return converted, absent


def _lines(
    reading: _Reading, converted: list[_Converted], absent: list[str], gpus: GpuTable
) -> Iterable[str]:
    counters = f"tensor {reading.tensor:g} x {reading.clock} / {reading.max_clock}"
    yield f"OFU             {reading.ofu:.4f}  = {counters}"
    useful = reading.without_padding(reading.ofu)
    if useful is not None:
        yield f"tile-corrected  {useful:.4f}  = OFU / {reading.factor:.4f}, executed/ideal FLOP"
    low, high = reading.interval(reading.ofu)
    yield f"MFU lies in     {low:.4f}..{high:.4f} of the peak at the maximal clock"
    for product in reading.products:
        yield f"  {_product_line(product, reading.gpu)}"
    if reading.gpu is not None and converted:
        yield ""
        yield f"Against {reading.gpu.name}'s data sheet (dense), MFU = OFU x f_max / f_tensor:"
        yield from _columns(_datasheet_rows(reading, converted))
        if any(row.ratio.implied for row in converted):
            yield "  * stated by no source; it follows from the peak, SMs and FLOP per cycle"
    if absent:
        yield ""
        yield from absent
    yield ""
    yield from _bounds()
    used = _sources(converted, gpus)
    if used:
        yield ""
        yield "Sources:"
        yield from (f"  {source.title}\n    {source.url}" for source in used.values())


def _product_line(product: tiles.Weighted, model: GpuModel | None) -> str:
    gemm = product.gemm
    text = (
        f"{gemm.m}x{gemm.n}x{gemm.k} in tiles of {gemm.tile_m}x{gemm.tile_n}x{gemm.tile_k}, "
        f"weight {product.weight:g}: executed/ideal {gemm.executed_over_ideal:.4f}"
    )
    if model is None or model.sms is None:
        return text
    sms = round(model.sms.value)
    return (
        f"{text}, {gemm.ctas} tiles in {tiles.waves(gemm.ctas, sms)} waves of {sms} SMs, "
        f"{tiles.wave_efficiency(gemm.ctas, sms):.3f} full"
    )


def _datasheet_rows(reading: _Reading, converted: list[_Converted]) -> Iterable[list[str]]:
    corrected = "tile-corrected"
    yield [
        "precision",
        "peak",
        "f_tensor",
        "factor",
        "MFU",
        corrected,
        "MFU lies in",
        "TFLOP/s",
    ]
    for row in converted:
        useful = reading.without_padding(row.mfu)
        low, high = reading.interval(row.mfu)
        tflops = row.tflops(row.mfu if useful is None else useful)
        yield [
            row.precision,
            _figure(row.peak),
            f"{row.ratio.tensor_clock}{'*' if row.ratio.implied else ''}",
            f"{row.ratio.value:.4f}",
            f"{row.mfu:.4f}",
            "-" if useful is None else f"{useful:.4f}",
            f"{low:.4f}..{high:.4f}",
            "-" if tflops is None else f"{tflops:.1f}",
        ]


def _bounds() -> Iterable[str]:
    low, high = ofu.RAW_ABOVE_MFU_POINTS
    yield f"Bounds, measured ({ofu.BOUNDS_SOURCE}), in points of 0.01:"
    yield f"  raw OFU reads {low:g} to {high:g} points above MFU: kernels pad to whole tiles"
    yield f"  tile-corrected it lies within {ofu.CORRECTED_WITHIN_POINTS:g} points of MFU"
    yield f"  of which below {ofu.CLOCK_NOISE_POINTS:g} from a clock sampled every 5 to 30 s"
    yield f"  about {ofu.NON_TENSOR_SHARE:.1%} of a transformer's FLOPs are not seen at all"
    yield "OFU is utilisation of whichever precision ran; it does not show which one did."


def _listing(gpus: GpuTable) -> str:
    rows = [
        ["model", "f_max MHz", "SMs", "precision", "f_tensor MHz", "FLOP/cycle/SM", "TFLOP/s"]
    ]
    for model in gpus.gpu:
        head = [model.name, _figure(model.max_clock_mhz), _figure(model.sms)]
        for precision, rates in model.precision.items():
            cells = (rates.tensor_clock_mhz, rates.flop_per_cycle_per_sm, rates.peak_tflops)
            rows.append([*head, precision, *map(_figure, cells)])
            head = ["", "", ""]
    figures = sum(len(model.figures()) for model in gpus.gpu)
    note = f"{figures} figures from {len(gpus.sources)} sources (--json); -: no source gives it"
    return "\n".join([*_columns(rows), note])


def _figure(figure: ofu.Figure | None) -> str:
    return "-" if figure is None else f"{figure.value:g}"


def _columns(rows: Iterable[list[str]]) -> Iterable[str]:
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells).rstrip()}"


def _sources(converted: list[_Converted], gpus: GpuTable) -> dict[str, ofu.Source]:
    keys = [key for row in converted for key in row.ratio.sources]
    keys += [row.peak.source for row in converted if row.peak]
    return {key: gpus.sources[key] for key in dict.fromkeys(keys)}


def _record(
    reading: _Reading, converted: list[_Converted], absent: list[str], gpus: GpuTable
) -> dict[str, Any]:
    low, high = reading.interval(reading.ofu)
    return {
        "ofu": reading.ofu,
        "tensor": reading.tensor,
        "clock_mhz": reading.clock.in_mhz,
        "max_clock_mhz": reading.max_clock.in_mhz,
        "executed_over_ideal": reading.factor,
        "ofu_tile_corrected": reading.without_padding(reading.ofu),
        "mfu_interval": [low, high],
        "gpu": reading.gpu and reading.gpu.name,
        "datasheet": [_datasheet_record(reading, row) for row in converted],
        "absent": absent,
        "bounds": {
            "raw_above_mfu_points": ofu.RAW_ABOVE_MFU_POINTS,
            "corrected_within_points": ofu.CORRECTED_WITHIN_POINTS,
            "clock_noise_points": ofu.CLOCK_NOISE_POINTS,
            "non_tensor_share": ofu.NON_TENSOR_SHARE,
            "source": ofu.BOUNDS_SOURCE,
        },
        "sources": _sources(converted, gpus),
    }


def _datasheet_record(reading: _Reading, row: _Converted) -> dict[str, Any]:
    useful = reading.without_padding(row.mfu)
    return {
        "precision": row.precision,
        "peak_tflops": row.peak and row.peak.value,
        "tensor_clock_mhz": row.ratio.tensor_clock.in_mhz,
        "tensor_clock_implied": row.ratio.implied,
        "clock_ratio": row.ratio.value,
        "mfu": row.mfu,
        "mfu_tile_corrected": useful,
        "mfu_interval": reading.interval(row.mfu),
        "tflops": row.tflops(row.mfu if useful is None else useful),
    }


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
