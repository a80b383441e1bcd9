"""Mistakes in MFU, held against what they do."""

from dataclasses import replace
from typing import Any

import pytest

from detector.analysis import mfu
from detector.analysis.account import Compared, Work, compared, contradictions, excess
from detector.analysis.architecture import model_of
from detector.analysis.explanation import explanations
from detector.analysis.mfu import Block, Experts, Mlp, Model, Recompute
from detector.analysis.mistakes import Mistake, mistakes, together
from detector.analysis.ofu import GpuTable
from detector.analysis.peaks import Peak, mistaken
from detector.cli.gpus import gpu_named, gpu_table
from tests.analysis.decoders import HYBRID, LATENT, dense
from tests.analysis.test_architecture_of_models import DEEPSEEK, GEMMA_3, GRANITE_4, LLAMA

PEAK, CLOCK_RATIO = 989.4, 1980 / 1830
QWEN = {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "hidden_act": "silu",
}  # fmt: skip
MODELS = {"llama": LLAMA, "deepseek": DEEPSEEK, "qwen": QWEN}


@pytest.fixture(scope="module")
def table() -> GpuTable:
    return gpu_table(None)


def peaks(table: GpuTable, gpu: str = "H100-SXM", precision: Any = "bf16") -> tuple[Peak, ...]:
    chip = gpu_named(table, gpu)
    stated = chip.peak_tflops(precision)
    assert stated is not None
    return mistaken(table, chip, precision, peak_tflops=stated, clock_ratio=CLOCK_RATIO)


def work(model: Model | None, table: GpuTable, recompute: Recompute = "none") -> Work:
    return Work(
        model=model,
        seq=8192,
        causal=True,
        recompute=recompute,
        peak_tflops=PEAK,
        clock_ratio=CLOCK_RATIO,
        peaks=peaks(table),
    )


def by_throughput(work: Work, *, true: float, reported: float) -> Compared:
    assert work.model_flop is not None
    rate = true * PEAK * 1e12 / work.model_flop
    found = compared(work, reported, measured=None, rate=rate)
    assert found is not None
    return found


def by_ofu(work: Work, *, executed: float, reported: float) -> Compared:
    """``executed``: FLOPs that the hardware did, of the data sheet's peak."""
    found = compared(work, reported, measured=executed / CLOCK_RATIO, rate=None)
    assert found is not None
    return found


def first(held: Compared) -> set[str]:
    """The single mistakes that are tied for the first place."""
    return {one.mistakes[0].name for one in held.explanations if one.tied}


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_each_mistake_that_is_made_is_first_or_tied_first(
    config: dict[str, Any], recompute: Recompute, table: GpuTable
) -> None:
    model = model_of(config)
    held = work(model, table, recompute)
    for one in mistakes(model, seq=8192, recompute=recompute, peaks=held.peaks):
        rounded = by_throughput(held, true=0.4, reported=round(0.4 * one.factor, 4))
        assert rounded.agree or one.name in first(rounded), one.name
        implied = by_ofu(held, executed=0.4 * held.again, reported=0.4 * one.factor)
        assert implied.agree or one.name in first(implied), one.name


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_recomputation_that_nobody_told_is_asked_about(
    config: dict[str, Any], table: GpuTable
) -> None:
    told, untold = (work(model_of(config), table, kind) for kind in ("full", "none"))
    ran = 0.4 * told.again
    held = by_ofu(untold, executed=ran, reported=0.4)
    assert first(held) >= {"full_recomputation_untold"}
    assert "was full recomputation on?" in held.explanations[0].mistakes[0].says
    assert by_ofu(told, executed=ran, reported=0.4).agree


def test_scores_that_the_backward_pass_computes_anew_explain_a_right_mfu(
    table: GpuTable,
) -> None:
    """At 131,072 tokens the hardware executes 1.116 times the FLOPs that MFU counts."""
    model = model_of(LLAMA)
    parts = mfu.forward(model, seq=131072)
    held = replace(work(model, table), seq=131072)
    ran = 1 + 0.5 * parts["attention_scores"] / mfu.training(parts)
    assert ran == pytest.approx(1.116, abs=0.001)
    assert first(by_ofu(held, executed=0.4 * ran, reported=0.4)) == {"flash_attention"}
    # OFU has no part in an MFU that comes from throughput.
    assert first(by_throughput(held, true=0.4 * ran, reported=0.4)) != {"flash_attention"}


def test_six_times_the_parameters_leaves_the_scores_out_and_may_count_the_embedding() -> None:
    known = {one.name: one.factor for one in mistakes(model_of(LLAMA), seq=8192)}
    layer = 4096 * (32 + 8) * 128 * 2 + 3 * 4096 * 14336
    without = 32 * layer + 4096 * 128256
    true = 6 * without + 6 * 32 * 8192 * 4096
    assert known["six_n"] == pytest.approx(6 * without / true)
    every = 6 * (without + 4096 * 128256)
    assert known["six_n_with_embedding"] == pytest.approx(every / true)
    assert known["forward_only"] == pytest.approx(1 / 3)


def test_experts_counted_at_the_full_hidden_size_explain_their_own_ratio_first() -> None:
    """The kind of mistake by which a mixture of experts reported twice its OFU."""
    known = mistakes(HYBRID, seq=8192)
    wrong = next(one for one in known if one.name == "experts_at_full_hidden_size")
    assert wrong.factor > 1.3
    found = explanations(wrong.factor, known, tolerance=0.05)
    assert found[0].mistakes == (wrong,)
    assert found[0].off == pytest.approx(1.0)


def test_every_mistake_names_the_ratio_of_the_formula_that_makes_it() -> None:
    known = {one.name: one.factor for one in mistakes(HYBRID, seq=8192)}
    true = mfu.training(mfu.forward(HYBRID, seq=8192))
    all_experts = replace(LATENT, top_k=64)
    wrong = replace(HYBRID, blocks=(*HYBRID.blocks[:2], (24, all_experts)))
    made = mfu.training(mfu.forward(wrong, seq=8192)) / true
    assert known["all_experts"] == pytest.approx(made)
    assert known["all_scores"] > 1.0
    assert known["every_layer_a_transformer"] != 1.0
    sharper = {one.name: one.factor for one in mistakes(model_of(GEMMA_3), seq=8192)}
    assert sharper["windows_ignored"] > 1.04


def test_two_mistakes_are_made_on_the_model_and_not_multiplied() -> None:
    """Of all 256 experts with two products each, 10.7 times the FLOPs; multiplied, 12.8."""
    model = model_of(DEEPSEEK)
    known = mistakes(model, seq=4096)
    chosen = [one for one in known if one.name in ("all_experts", "gated_as_plain")]

    def wrong(block: Block) -> Block:
        if isinstance(block, Experts):
            return replace(block, top_k=block.experts, gated=False)
        return replace(block, gated=False) if isinstance(block, Mlp) else block

    counted = replace(
        model,
        blocks=tuple((count, wrong(block)) for count, block in model.blocks),
        further_blocks=tuple(wrong(block) for block in model.further_blocks),
    )
    flop, true = (sum(mfu.forward(each, seq=4096).values()) for each in (counted, model))
    assert together(tuple(chosen)) == pytest.approx(flop / true)
    assert chosen[0].factor * chosen[1].factor > 1.15 * flop / true
    (best, *_) = explanations(flop / true, known, tolerance=0.02)
    assert set(best.mistakes) == set(chosen)


def test_two_mistakes_about_one_thing_are_not_taken_together(table: GpuTable) -> None:
    """As two peaks that one number was divided by, or all experts and one."""
    known = mistakes(model_of(DEEPSEEK), seq=4096, peaks=peaks(table))
    factors = {one.name: one.factor for one in known}
    for one, other in (("sparse_peak", "peak_at_max_clock"), ("all_experts", "one_expert")):
        found = explanations(factors[one] * factors[other], known, tolerance=0.05)
        pairs = [each.mistakes for each in found if len(each.mistakes) == 2]
        assert pairs
        assert not any(first.about & second.about for first, second in pairs)


def test_two_seldom_mistakes_at_once_are_not_told() -> None:
    """A forward pass alone on four times the GPUs: a twelfth, and nobody does both."""
    known = mistakes(None, seq=0)
    assert not explanations(1 / 3 / 4, known, tolerance=0.02)
    assert explanations(4 / 3 / 8, known, tolerance=0.02)


def test_a_hybrid_of_whole_layers_taken_for_a_transformer_keeps_its_number_of_layers() -> None:
    """Granite 4: 40 layers, each a mixer with experts; four of the mixers are attention."""
    model = model_of(GRANITE_4)
    plain = {**GRANITE_4, "layer_types": ["attention"] * 40}
    as_transformer = model_of({key: plain[key] for key in plain if "mamba" not in key})
    flop, true = (sum(mfu.forward(each, seq=8192).values()) for each in (as_transformer, model))
    known = {one.name: one.factor for one in mistakes(model, seq=8192)}
    assert known["every_layer_a_transformer"] == pytest.approx(flop / true)


def test_the_commoner_of_two_that_fit_equally_comes_first_and_both_are_tied() -> None:
    known = mistakes(model_of(LLAMA), seq=8192, peaks=mistaken_of_none())
    half = explanations(0.5, known, tolerance=0.02)
    assert [one.mistakes[0].name for one in half] == [
        "sparse_peak", "lower_precision_peak", "gpus_2_times_too_many", "multiply_adds"
    ]  # fmt: skip
    assert all(one.tied for one in half)
    (near, *far) = explanations(0.88, known, tolerance=0.08)
    assert (near.mistakes[0].name, near.tied) == ("six_n", True)
    assert far
    assert not any(one.tied for one in far)


def mistaken_of_none() -> tuple[Peak, ...]:
    return mistaken(gpu_table(None), None, None, peak_tflops=None, clock_ratio=None)


def test_peaks_that_contradict_the_gpu_or_the_precision_are_not_offered(
    table: GpuTable,
) -> None:
    hopper = {one.name: one.factor for one in peaks(table)}
    assert hopper["fp8_peak"] == pytest.approx(0.5, rel=1e-3)
    assert hopper["peak_of_H100-PCIe"] == pytest.approx(989.4 / 756.5)
    assert hopper["peak_of_A100-SXM"] == pytest.approx(989.4 / 312)
    assert not any("B200" in name or "bf16" in name for name in hopper)
    ampere = {one.name for one in peaks(table, "A100-SXM")}
    assert "fp8_peak" not in ampere
    assert "sparse_peak" not in {one.name for one in peaks(table, "V100-SXM2", "fp16")}
    fp8 = {one.name: one.factor for one in peaks(table, precision="fp8")}
    assert fp8["bf16_peak"] == pytest.approx(2.0, rel=1e-3)


def test_a_dense_model_is_not_told_of_experts() -> None:
    model = dense(layers=4, hidden=1024, vocab=1000, ffn=4096)
    names = {one.name for one in mistakes(model, seq=128)}
    assert not any("expert" in name or "transformer" in name for name in names)
    assert "keys_and_values_of_every_head" not in names


def test_agreement_needs_no_explanation_and_an_odd_ratio_finds_none() -> None:
    known: tuple[Mistake, ...] = mistakes(None, seq=0)
    assert explanations(1.04, known, tolerance=0.05) == ()
    assert explanations(37.0, known, tolerance=0.05) == ()


def test_the_verdict_and_the_search_share_one_bound(table: GpuTable) -> None:
    """At 3 points of 0.4 the doubt is 7.5 %: 1.0775 lies within it, as ln 1.0775 does."""
    held = replace(work(None, table), clock_ratio=None)
    for reported, agree in ((0.431, True), (0.432, False), (0.371, False), (0.372, True)):
        found = compared(held, reported, measured=0.4, rate=None)
        assert found is not None
        assert found.agree == agree
        assert agree <= (not found.explanations)


def test_work_above_what_the_pipe_did_is_a_contradiction(table: GpuTable) -> None:
    model = model_of(LLAMA)
    held = work(model, table)
    assert held.model_flop is not None

    def said(mfu_: float, measured: float | None, *, work: Work = held) -> list[str]:
        rate = mfu_ * PEAK * 1e12 / (held.model_flop or 1)
        return list(contradictions(work, reported=None, measured=measured, rate=rate))

    assert "MFU 0.4000 is above OFU, 0.2164" in said(0.4, 0.2)[0]
    assert said(0.4, 0.39) == []
    assert said(0.4, 0.37) == []  # 0.4003 against the data sheet
    assert said(0.4, None) == []
    assert said(1.05, None) == []  # at its boost clock an H100 exceeds its data sheet
    assert "above what the GPU can do, 1.082" in said(1.1, None)[0]
    recomputing = work(model, table, "full")
    assert "HFU" in said(0.4, 0.4, work=recomputing)[0]
    unknown = replace(held, clock_ratio=None)
    assert said(0.4, 0.36, work=unknown) == []
    assert "at most" in said(0.4, 0.3, work=unknown)[0]
    (above,) = contradictions(held, reported=1.2, measured=0.4, rate=None)
    assert "above what any GPU does" in above


def test_much_more_executed_than_told_is_asked_about(table: GpuTable) -> None:
    held = work(model_of(LLAMA), table)
    rate = 0.3 * PEAK * 1e12 / (held.model_flop or 1)
    asked = excess(held, measured=0.4, rate=rate)
    assert asked is not None
    assert "is 1.44 times MFU: was recomputation on" in asked
    assert excess(held, measured=0.28, rate=rate) is None
