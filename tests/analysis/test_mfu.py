"""Model FLOPs, held against published tables."""

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis import mfu
from detector.analysis.architecture import model_of
from detector.analysis.mfu import Attention, Experts, Mlp, Model
from tests.analysis.decoders import HYBRID, dense
from tests.analysis.test_architecture_of_models import DEEPSEEK

DATA = Path(__file__).parents[1] / "data" / "mfu"


def rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        yield from csv.DictReader(file)


def test_every_published_row_of_grouped_query_llamas_is_recomputed() -> None:
    """Within 0.51 %: tokens a second were published rounded, as few as 200 of them."""
    read = 0
    for row in rows("megatron_bridge_llama.csv"):
        model = model_of(
            {
                "hidden_size": int(row["hidden"]),
                "num_hidden_layers": int(row["layers"]),
                "num_attention_heads": int(row["heads"]),
                "num_key_value_heads": int(row["kv_heads"]),
                "intermediate_size": int(row["ffn_hidden"]),
                "vocab_size": int(row["vocab"]),
                "hidden_act": "silu",
            }
        )
        flop = mfu.training(mfu.forward(model, seq=int(row["seq_len"])))
        tflops = flop * float(row["tokens_per_s_per_gpu"]) / 1e12
        assert tflops == pytest.approx(float(row["model_tflops_per_gpu_published"]), rel=0.0051)
        read += 1
    assert read == 52


def by_parameters(parameters: float, *, layers: int, width: int, seq: int) -> float:
    """Training FLOPs per token by the shorthand that these publications use."""
    return 6.0 * parameters + 12.0 * layers * width * seq


def test_every_published_row_of_the_shorthand_by_parameters_is_recomputed() -> None:
    """Within 0.11 points of MFU and 0.15 of HFU, as the rows were published rounded."""
    read = 0
    for row in rows("llm_foundry_mfu.csv"):
        flop = by_parameters(
            float(row["n_params"]),
            layers=int(row["n_layers"]),
            width=int(row["d_model"]),
            seq=int(row["seq_len"]),
        )
        share = 100 * mfu.utilisation(
            flop,
            tokens_per_s=float(row["tokens_per_s_per_gpu"]),
            peak_tflops=float(row["peak_tflops_used"]),
        )
        assert share == pytest.approx(float(row["mfu_published_pct"]), abs=0.11)
        again = 4 / 3 if row["act_checkpointing"] == "True" else 1.0
        assert share * again == pytest.approx(float(row["hfu_published_pct"]), abs=0.151)
        read += 1
    assert read == 216


def test_the_megatron_formula_of_dense_models_comes_out_of_the_blocks() -> None:
    for row in rows("single_cases.csv"):
        if not row["formula"].startswith("72 B L s h^2"):
            continue
        layers, h, s, vocab = (
            int(row[key]) for key in ("layers", "hidden", "seq_len", "vocab")
        )
        model = dense(layers=layers, hidden=h, vocab=vocab, ffn=4 * h)
        flop = mfu.training(mfu.forward(model, seq=s, causal=False))
        published = 72 * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers))
        assert flop == pytest.approx(published, rel=1e-12)
        rate = float(row["tokens_per_s_total"]) / int(row["chips"])
        peak = float(row["peak_tflops"])
        share = 100 * mfu.utilisation(flop, tokens_per_s=rate, peak_tflops=peak)
        assert share == pytest.approx(float(row["mfu_published_pct"]), abs=0.2)


def test_published_selective_recomputation_counts_the_scores_thrice_and_ours_once() -> None:
    for row in rows("single_cases.csv"):
        if not row["formula"].startswith("72 B L s h^2"):
            continue
        layers, h, vocab = (int(row[key]) for key in ("layers", "hidden", "vocab"))
        model = dense(layers=layers, hidden=h, vocab=vocab, ffn=4 * h)
        parts = mfu.forward(model, seq=int(row["seq_len"]), causal=False)
        rate = float(row["tokens_per_s_total"]) / int(row["chips"])
        once = mfu.executed(parts, "selective")
        thrice = once + 2 * parts["attention_scores"]
        published = float(row["hfu_published_pct"]) / 100
        peak = float(row["peak_tflops"])
        share = mfu.utilisation(thrice, tokens_per_s=rate, peak_tflops=peak)
        assert share == pytest.approx(published, abs=0.002)
        assert once < thrice


def test_palms_formula_by_parameters_is_recomputed() -> None:
    (row,) = (row for row in rows("single_cases.csv") if row["formula"].startswith("(6 N"))
    flop = by_parameters(
        float(row["n_params"]), layers=int(row["layers"]), width=48 * 256, seq=2048
    )
    rate = float(row["tokens_per_s_total"]) / int(row["chips"])
    share = 100 * mfu.utilisation(
        flop, tokens_per_s=rate, peak_tflops=float(row["peak_tflops"])
    )
    assert share == pytest.approx(float(row["mfu_published_pct"]), abs=0.1)


def test_logged_hardware_flops_are_full_recomputation_and_a_third_above_the_models() -> None:
    model = dense(layers=70, hidden=14336, vocab=250880, ffn=4 * 14336)
    parts = mfu.forward(model, seq=2048, causal=False)
    for row in rows("bloom176b_log_lines.csv"):
        tokens_per_s = 2048 * 2048 / float(row["iteration_s"]) / 384
        hardware = mfu.executed(parts, "full") * tokens_per_s / 1e12
        assert hardware == pytest.approx(float(row["hardware_tflops_published"]), rel=1e-3)
        works = mfu.training(parts) * tokens_per_s / 1e12
        assert works == pytest.approx(float(row["model_tflops_recomputed"]), rel=0.01)


def test_latent_experts_cost_their_latent_size_and_two_projections() -> None:
    parts = mfu.forward(HYBRID, seq=4096)
    assert parts["experts"] == 24 * 6 * 2 * 2 * 1024 * 2048
    assert parts["latent_projections"] == 24 * 2 * 2 * 4096 * 1024
    assert parts["shared_experts"] == 24 * 2 * 2 * 4096 * 4096
    assert parts["router"] == 24 * 2 * 4096 * 64


def test_a_mamba_layer_costs_its_projections_and_its_scan() -> None:
    inner = 128 * 64
    into = 2 * 4096 * (2 * inner + 2 * 8 * 128 + 128)
    scan = 7 * inner * 128
    assert mfu.forward(HYBRID, seq=4096)["mamba"] == 24 * (into + scan + 2 * inner * 4096)


def test_latent_attention_costs_its_low_ranks() -> None:
    """DeepSeek-V3: 61 layers, 37 billion parameters active, of them 11 in attention."""
    model = model_of(
        {
            "hidden_size": 7168, "vocab_size": 129280, "num_hidden_layers": 61,
            "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
            "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
        }
    )  # fmt: skip
    parts = mfu.forward(model, seq=4096)
    active = (sum(parts.values()) - parts["attention_scores"]) / 2
    assert active == pytest.approx(36.6e9, rel=0.01)  # 37 billion with the embedding table


def test_deepseeks_own_figures_come_out_without_multi_token_prediction() -> None:
    """Table 4 of arXiv 2505.09343: 272.80e9 tokens a day on 2,048 GPUs."""
    model = model_of({**DEEPSEEK, "num_nextn_predict_layers": 0})
    rate = 272.80e9 / 86400 / 2048
    for causal, tflops in ((True, 385), (False, 432)):
        flop = mfu.training(mfu.forward(model, seq=4096, causal=causal))
        assert flop * rate / 1e12 == pytest.approx(tflops, rel=0.005)


def test_chunks_bound_the_scores_and_a_window_does_not_reach_across_them() -> None:
    def seen(chunk: int, seq: int) -> float:
        block = Attention(heads=1, kv_heads=1, head_dim=1, v_dim=1, chunk=chunk)
        model = Model(hidden=1, vocab=1, blocks=((1, block),), layers=1)
        return mfu.forward(model, seq=seq)["attention_scores"] / 4

    assert seen(100, 100) == seen(0, 100) == 50
    assert seen(100, 400) == 50
    assert seen(100, 150) == (100 * 50 + 50 * 25) / 150


def test_a_window_bounds_the_scores_and_a_long_one_changes_nothing() -> None:
    block = Attention(heads=8, kv_heads=8, head_dim=128, v_dim=128)
    models = (
        Model(hidden=1024, vocab=1, blocks=((1, replace(block, window=w)),), layers=1)
        for w in (0, 1000, 5000, 100)
    )
    seen = [mfu.forward(model, seq=1000)["attention_scores"] for model in models]
    assert seen[0] == seen[1] == seen[2]
    # Token i sees min(i, w): the mean over a sequence of n is w - w^2 / 2n.
    assert seen[3] / seen[0] == pytest.approx((100 - 100**2 / 2000) / 500)


def test_recomputation_raises_hfu_alone() -> None:
    parts = mfu.forward(HYBRID, seq=8192)
    assert mfu.executed(parts, "none") == mfu.training(parts)
    assert mfu.executed(parts, "selective") == mfu.training(parts) + parts["attention_scores"]
    full = mfu.executed(parts, "full")
    assert full == mfu.training(parts) + sum(parts.values()) - parts["logits"]


@given(
    layers=st.integers(1, 200),
    hidden=st.integers(1, 200).map(lambda n: n * 128),
    seq=st.integers(1, 1 << 20),
)
def test_flops_grow_with_layers_in_proportion_but_for_the_logits(
    layers: int, hidden: int, seq: int
) -> None:
    one = mfu.forward(dense(layers=1, hidden=hidden, vocab=7, ffn=hidden), seq=seq)
    many = mfu.forward(dense(layers=layers, hidden=hidden, vocab=7, ffn=hidden), seq=seq)
    assert many["logits"] == one["logits"]
    assert math.isclose(
        sum(many.values()) - many["logits"], layers * (sum(one.values()) - one["logits"])
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "hidden_size is missing"),
        ({"hidden_size": "x", "vocab_size": 1}, "must be a whole number"),
        ({"hidden_size": -1, "vocab_size": 1}, "must be a whole number"),
        ({"hidden_size": 8, "vocab_size": 1, "num_hidden_layers": 1}, "num_attention_heads"),
        (
            {"hidden_size": 10, "vocab_size": 1, "n_layer": 1, "num_attention_heads": 3},
            "no multiple of 3 heads",
        ),
        (
            {"hidden_size": 8, "vocab_size": 1, "hybrid_override_pattern": "MX"},
            "unknown layer 'X'",
        ),
        (
            {
                "hidden_size": 8, "vocab_size": 1, "num_hidden_layers": 1,
                "num_attention_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 8,
                "moe_intermediate_size": 4,
            },
            "more than the 4 experts",
        ),
        (
            {
                "hidden_size": 8, "vocab_size": 1, "num_hidden_layers": 1,
                "num_attention_heads": 1, "intermediate_size": 4, "hidden_act": "new",
            },
            "hidden_act 'new' does not say whether there is a gate",
        ),
    ],
)  # fmt: skip
def test_a_model_that_lacks_a_size_is_refused_by_name(
    config: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        model_of(config)


def test_dense_and_sparse_layers_are_counted_apart() -> None:
    model = model_of(
        {
            "hidden_size": 64, "vocab_size": 10, "num_hidden_layers": 10,
            "num_attention_heads": 4, "intermediate_size": 256, "moe_intermediate_size": 32,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 2,
            "n_shared_experts": 2, "hidden_act": "silu",
        }
    )  # fmt: skip
    counts = [(count, type(block)) for count, block in model.blocks]
    assert counts == [(10, Attention), (8, Experts), (2, Mlp)]
    assert model.blocks[1][1].shared_ffn == 64  # type: ignore[union-attr]
