"""``ofuwatch mfu``: MFU from a model's own FLOPs, and what is wrong with a reported one."""

import stat
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from detector.analysis import ofu
from detector.analysis.account import Work, compared
from detector.analysis.architecture import model_of
from detector.analysis.mfu import Model, Recompute
from detector.analysis.modelkeys import unread
from detector.analysis.ofu import Absent, GpuTable
from detector.analysis.peaks import mistaken
from detector.cli import fail
from detector.cli.gpus import gpu_named, gpu_table, precision_of
from detector.cli.mfu_text import lines, record

# Frameworks that count too many FLOPs report more than 1; what is above this is percent.
_MOST_REPORTED = 3.0
_LARGEST = 16_000_000  # bytes of a config.json; real ones have some kilobytes


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
    _ratio("reported", reported, most=_MOST_REPORTED)
    _ratio("ofu", measured, most=1.0)
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
        table=gpu_table(table),
        gpu=gpu,
        precision=precision,
        peak=peak,
    )
    rate = None if tokens_per_s is None else tokens_per_s / gpus
    if rate is not None and (model is None or work.peak_tflops is None):
        fail("--tokens-per-s needs a model, and a peak: --gpu with --precision, or --peak")
    held = None
    if reported is not None:
        held = compared(work, reported, measured=measured, rate=rate)
        if held is None:
            fail("--reported needs --ofu, or --tokens-per-s and a peak, to be held against")
    if as_json:
        found = record(work, rate, measured, held)
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        click.echo("\n".join(lines(work, rate, measured, held)))


def _above_zero(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not 0 < value < 1e18:  # NaN fails as well
            fail(f"--{name.replace('_', '-')} must be above 0, not {value:g}")


def _ratio(name: str, value: float | None, *, most: float) -> None:
    if value is not None and not 0 < value <= most:
        fail(f"--{name} {value:g} is outside 0..1; give a ratio, not percent")


def _model(file: Path | None, settings: tuple[str, ...]) -> Model | None:
    if file is None and not settings:
        return None
    config = {} if file is None else _config(file)
    given = dict(map(_setting, settings))
    text = config.get("text_config")
    if isinstance(text, dict):  # a model of several kinds of input; its text's keys go before
        config["text_config"] = {**text, **given}
    else:
        config.update(given)
    try:
        return model_of(config)
    except ValueError as error:
        fail(f"{file}: {error}" if file else str(error))


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not key or not equals:
        fail(f"--set {text!r} is no KEY=VALUE, such as hidden_size=8192")
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.DecodeError:
        decoded = value
    unknown = unread(key)
    if unknown and decoded is not None:  # null leaves any key out
        fail(f"--set {unknown}")
    return key, decoded


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


def _work(
    model: Model | None,
    *,
    seq: int,
    causal: bool,
    recompute: Recompute,
    table: GpuTable,
    gpu: str | None,
    precision: str | None,
    peak: float | None,
) -> Work:
    kind = None if precision is None else precision_of(precision)
    chip = None if gpu is None else gpu_named(table, gpu)
    ratio = None
    if chip is not None:
        if kind is None:
            fail(f"--precision is missing: {chip.name} has a peak for each")
        found = ofu.clock_ratio(chip, kind)
        ratio = None if isinstance(found, Absent) else found.value
        peak = chip.peak_tflops(kind) if peak is None else peak
        if peak is None:
            fail(f"no source gives the {kind} peak of {chip.name}; give --peak")
    return Work(
        model=model,
        seq=seq,
        causal=causal,
        recompute=recompute,
        peak_tflops=peak,
        clock_ratio=ratio,
        peaks=mistaken(table, chip, kind, peak_tflops=peak, clock_ratio=ratio),
    )
