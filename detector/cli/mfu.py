"""``ofuwatch mfu``: MFU from a model's own FLOPs, and what is wrong with a reported one."""

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from detector.analysis import mfu, mistakes, ofu
from detector.analysis.architecture import model_of
from detector.analysis.mfu import Model, Recompute
from detector.analysis.mistakes import Explanation
from detector.analysis.modelkeys import unread
from detector.analysis.ofu import Absent, GpuModel, GpuTable
from detector.cli import fail
from detector.cli.gpus import gpu_named, gpu_table, precision_of

# Points of 0.01 by which OFU and MFU may differ for reasons that are no mistake: the padding of
# tiles above, the clock's sampling below (analysis/ofu.py has the source).
_DOUBT_POINTS = ofu.RAW_ABOVE_MFU_POINTS[1]
_LARGEST = 16_000_000  # bytes of a config.json; real ones have some kilobytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What one token costs, and the peak that it is held against."""

    model: Model | None
    seq: int
    causal: bool
    recompute: Recompute
    parts: dict[str, float]
    peak_tflops: float | None
    clock_ratio: float | None

    @property
    def model_flop(self) -> float | None:
        """Model FLOPs of a token, None without a model."""
        return mfu.training(self.parts) if self.parts else None

    @property
    def executed_flop(self) -> float | None:
        """FLOPs that a token makes the hardware execute, None without a model."""
        return mfu.executed(self.parts, self.recompute) if self.parts else None

    def share(self, flop: float | None, tokens_per_s: float | None) -> float | None:
        """Return utilisation at a throughput, None when something is missing."""
        if flop is None or tokens_per_s is None or self.peak_tflops is None:
            return None
        return mfu.utilisation(flop, tokens_per_s=tokens_per_s, peak_tflops=self.peak_tflops)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
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


@click.command(name="mfu")
@click.option(
    "--model",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The model's config.json, as model hubs publish it.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of it, or one more; without --model, the whole model. Repeatable.",
)
@click.option("--seq", type=int, metavar="TOKENS", help="Tokens of a sequence.")
@click.option("--tokens-per-s", type=float, metavar="RATE", help="Throughput of the whole job.")
@click.option("--gpus", type=int, default=1, help="GPUs that share it. Default: 1.")
@click.option("--gpu", metavar="MODEL", help='Such as "H100-SXM", for the data sheet\'s peak.')
@click.option("--precision", help="Such as bf16: which of its peaks.")
@click.option("--peak", type=float, metavar="TFLOPS", help="The peak, where no table has it.")
@click.option(
    "--recompute",
    type=click.Choice(get_args(Recompute)),
    default="none",
    help="Activations that the backward pass computes again.",
)
@click.option(
    "--all-scores",
    is_flag=True,
    help="Count all attention scores, also the half that a causal mask hides.",
)
@click.option("--reported", type=float, metavar="MFU", help="What the framework reports, 0..1.")
@click.option("--ofu", "measured", type=float, metavar="OFU", help="OFU of that time, 0..1.")
@click.option(
    "--table", type=click.Path(path_type=Path), help="File of GPU models. Default: the shipped."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    file: Path | None,
    settings: tuple[str, ...],
    seq: int | None,
    tokens_per_s: float | None,
    gpus: int,
    gpu: str | None,
    precision: str | None,
    peak: float | None,
    recompute: Recompute,
    all_scores: bool,
    reported: float | None,
    measured: float | None,
    table: Path | None,
    as_json: bool,
) -> None:
    """Compute MFU and HFU from a model's FLOPs; explain why a reported MFU and OFU disagree.

    FLOPs are those of full training: with frozen weights (LoRA) a job does up to a third less.
    """
    _above_zero(tokens_per_s=tokens_per_s, peak=peak, gpus=gpus, seq=seq)
    _ratios(reported=reported, ofu=measured)
    model = _model(file, settings)
    if model is not None and seq is None:
        fail("--seq is missing: attention costs FLOPs by the length of the sequence")
    if model is None and reported is None:
        fail("give --model config.json (or --set), or --reported with --ofu to explain them")
    work = _work(
        model,
        seq=seq or 0,
        causal=not all_scores,
        recompute=recompute,
        chip=_chip(gpu_table(table), gpu),
        precision=precision,
        peak=peak,
    )
    rate = None if tokens_per_s is None else tokens_per_s / gpus
    compared = None if reported is None else _compared(work, reported, measured, rate)
    if as_json:
        click.echo(_json(_record(work, rate, measured, compared)))
    else:
        click.echo("\n".join(_lines(work, rate, measured, compared)))


def _above_zero(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not 0 < value < 1e18:  # NaN fails as well
            fail(f"--{name.replace('_', '-')} must be above 0, not {value:g}")


def _ratios(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not 0 < value <= 3:
            fail(f"--{name} {value:g} is outside 0..1; give a ratio, not percent")


def _model(file: Path | None, settings: tuple[str, ...]) -> Model | None:
    if file is None and not settings:
        return None
    config: dict[str, Any] = {}
    if file is not None:
        config = _config(file)
    for text in settings:
        key, equals, value = text.partition("=")
        if not key or not equals:
            fail(f"--set {text!r} is no KEY=VALUE, such as hidden_size=8192")
        unknown = unread(key.strip())
        if unknown:
            fail(f"--set {unknown}")
        try:
            config[key.strip()] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            config[key.strip()] = value
    try:
        return model_of(config)
    except ValueError as error:
        fail(f"{file}: {error}" if file else str(error))


def _config(file: Path) -> dict[str, Any]:
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe or a device may never end
            fail(f"{file} is no regular file")
        with file.open("rb") as opened:
            text = opened.read(_LARGEST + 1)
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}")
    if len(text) > _LARGEST:
        fail(f"{file} has more than {_LARGEST} bytes: that is no model's config.json")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        fail(f"{file} is no JSON object: {error}")


def _chip(table: GpuTable, name: str | None) -> GpuModel | None:
    return None if name is None else gpu_named(table, name)


def _work(
    model: Model | None,
    *,
    seq: int,
    causal: bool,
    recompute: Recompute,
    chip: GpuModel | None,
    precision: str | None,
    peak: float | None,
) -> _Work:
    ratio = None
    if chip is not None:
        if precision is None:
            fail(f"--precision is missing: {chip.name} has a peak for each")
        kind = precision_of(precision)
        found = ofu.clock_ratio(chip, kind)
        ratio = None if isinstance(found, Absent) else found.value
        rates = chip.precision.get(kind)
        stated = None if rates is None else rates.peak_tflops
        if peak is None and stated is None:
            fail(f"no source gives the {kind} peak of {chip.name}; give --peak")
        peak = peak if peak is not None or stated is None else stated.value
    parts = {} if model is None else mfu.forward(model, seq=seq, causal=causal)
    return _Work(
        model=model,
        seq=seq,
        causal=causal,
        recompute=recompute,
        parts=parts,
        peak_tflops=peak,
        clock_ratio=ratio,
    )


def _compared(
    work: _Work, reported: float, measured: float | None, rate: float | None
) -> _Compared:
    computed = work.share(work.model_flop, rate)
    if computed is not None:
        # Exact but for rounding: tokens per second and the peak are both known.
        true, by, tolerance = computed, "throughput", 0.02
    elif measured is not None:
        again = 1.0
        if work.model_flop and work.executed_flop:
            again = work.executed_flop / work.model_flop
        true = measured * (work.clock_ratio or 1.0) / again
        by, tolerance = "OFU", min(0.25, _DOUBT_POINTS / 100 / measured)
    else:
        fail("--reported needs --ofu, or --tokens-per-s and a peak, to be held against")
    known = mistakes.mistakes(
        work.model,
        seq=work.seq,
        causal=work.causal,
        recompute=work.recompute,
        clock_ratio=work.clock_ratio,
    )
    found = mistakes.explanations(reported / true, known, tolerance=tolerance)
    return _Compared(
        reported=reported, true=true, by=by, tolerance=tolerance, explanations=found
    )


def _lines(
    work: _Work, rate: float | None, measured: float | None, compared: _Compared | None
) -> Iterable[str]:
    if work.model_flop is not None and work.executed_flop is not None:
        yield f"model FLOPs     {work.model_flop:.4g} a token, 3 forward passes, of which"
        total = sum(work.parts.values())
        for part, flop in sorted(work.parts.items(), key=lambda item: -item[1]):
            yield f"  {part.replace('_', ' '):<22}{flop / total:7.1%}"
        scores = "half of the scores (causal)" if work.causal else "all scores"
        yield f"  attention counts {scores} of {work.seq} tokens"
        for note in work.model.notes if work.model else ():
            yield f"  note: {note}"
        if work.recompute != "none":
            again = work.executed_flop / work.model_flop
            yield f"executed FLOPs  {again:.4f} times that: {work.recompute} recomputation"
    yield from _shares(work, rate)
    if measured is not None:
        yield f"OFU             {measured:.4f}"
        if work.clock_ratio is not None:
            times = f"x f_max / f_tensor {work.clock_ratio:.4f}"
            yield f"  against the data sheet {measured * work.clock_ratio:.4f}, {times}"
    if compared is not None:
        yield from _verdict(compared)


def _shares(work: _Work, rate: float | None) -> Iterable[str]:
    shown = {"MFU": work.model_flop}
    if work.recompute != "none":
        shown["HFU"] = work.executed_flop
    for name, flop in shown.items():
        share = work.share(flop, rate)
        if share is not None and rate is not None:
            throughput = f"{rate:.6g} tokens/s a GPU, peak {work.peak_tflops:g} TFLOP/s"
            yield f"{name}             {share:.4f}  at {throughput}"


def _verdict(compared: _Compared) -> Iterable[str]:
    yield (
        f"reported MFU    {compared.reported:.4f}  is {compared.ratio:.3f} times the "
        f"{compared.true:.4f} that {compared.by} implies (doubt {compared.tolerance:.0%})"
    )
    if abs(compared.ratio - 1) <= compared.tolerance:
        yield "They agree within the doubt: nothing to explain."
    elif not compared.explanations:
        yield "No single mistake, nor two, of those known gives that ratio."
    else:
        yield "What would explain it, the likeliest first:"
        for one in compared.explanations[:5]:
            says = ", and ".join(mistake.says for mistake in one.mistakes)
            yield f"  x {one.factor:.3f}  {says}"


def _record(
    work: _Work, rate: float | None, measured: float | None, compared: _Compared | None
) -> dict[str, Any]:
    return {
        "model_flop_per_token": work.model_flop,
        "executed_flop_per_token": work.executed_flop,
        "forward_flop_per_token": work.parts,
        "notes": work.model.notes if work.model else (),
        "peak_tflops": work.peak_tflops,
        "clock_ratio": work.clock_ratio,
        "mfu": work.share(work.model_flop, rate),
        "hfu": work.share(work.executed_flop, rate),
        "ofu": measured,
        "reported": compared
        and {
            "mfu": compared.reported,
            "true": compared.true,
            "true_by": compared.by,
            "ratio": compared.ratio,
            "tolerance": compared.tolerance,
            "explanations": [
                {
                    "mistakes": [mistake.name for mistake in one.mistakes],
                    "says": [mistake.says for mistake in one.mistakes],
                    "factor": one.factor,
                    "left": one.off,
                }
                for one in compared.explanations
            ],
        },
    }


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
