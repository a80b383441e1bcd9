"""Published configurations, each against its FLOPs by hand."""

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis import mfu
from detector.analysis.architecture import model_of
from detector.analysis.modelkeys import READ

SEQ = 8192


def attention(hidden: int, heads: int, kv_heads: int, size: int) -> int:
    return 4 * hidden * size * (heads + kv_heads)


def scores(heads: int, size: int, seen: float = SEQ / 2) -> float:
    return 4 * heads * size * seen


def mlp(hidden: int, ffn: int, products: int = 3) -> int:
    return 2 * products * hidden * ffn


def mamba(hidden: int, heads: int, size: int, state: int, groups: int) -> int:
    inner = heads * size
    into = 2 * inner + 2 * groups * state + heads
    return 2 * hidden * into + 7 * inner * state + 2 * inner * hidden


def within(window: int) -> float:
    return window - window**2 / (2 * SEQ)


FALCON_40B = {
    "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60,
    "num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True,
    "new_decoder_architecture": True, "vocab_size": 65024, "parallel_attn": True,
    "attention_dropout": 0.0, "bias": False,
}  # fmt: skip
FALCON_7B = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
    "num_attention_heads": 71, "num_kv_heads": 71, "multi_query": True,
    "new_decoder_architecture": False, "vocab_size": 65024, "activation": "gelu",
}  # fmt: skip
STARCODER = {
    "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576, "multi_query": True,
    "vocab_size": 49152, "activation_function": "gelu_pytorch_tanh", "attn_pdrop": 0.1,
}  # fmt: skip
STARCODER2 = {
    "model_type": "starcoder2", "hidden_size": 6144, "num_hidden_layers": 40,
    "num_attention_heads": 48, "num_key_value_heads": 4, "intermediate_size": 24576,
    "sliding_window": 4096, "mlp_type": "default", "vocab_size": 49152,
    "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
BLOOM = {
    "model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "num_attention_heads": 112,
    "vocab_size": 250880,
}  # fmt: skip
CHATGLM3 = {
    "model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32,
    "ffn_hidden_size": 13696, "multi_query_attention": True, "multi_query_group_num": 2,
    "kv_channels": 128, "padded_vocab_size": 65024, "add_bias_linear": False,
    "interleaved_qkv": False, "apply_query_key_layer_scaling": True,
}  # fmt: skip
MAVERICK = {
    "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "num_local_experts": 128, "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2, "attention_chunk_size": 2048, "vocab_size": 202048,
    "hidden_act": "silu", "no_rope_layers": [], "model_type": "llama4_text",
}  # fmt: skip
GRANITE_4 = {
    "model_type": "granitemoehybrid", "hidden_size": 4096, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 768,
    "shared_intermediate_size": 1536, "num_local_experts": 72, "num_experts_per_tok": 10,
    "layer_types": (["mamba"] * 9 + ["attention"]) * 4, "mamba_n_heads": 128,
    "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 256, "vocab_size": 100352, "hidden_act": "silu",
    "embedding_multiplier": 12, "logits_scaling": 16,
}  # fmt: skip
BAMBA = {
    "model_type": "bamba", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": 64,
    "mamba_d_state": 128, "mamba_n_groups": 1, "vocab_size": 128256,
}  # fmt: skip
FALCON_H1 = {
    "model_type": "falcon_h1", "hidden_size": 5120, "num_hidden_layers": 72,
    "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 21504, "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_use_mlp": True,
    "mamba_d_ssm": 4096, "mamba_d_state": 256, "mamba_n_groups": 2, "vocab_size": 261120,
}  # fmt: skip
GEMMA_2 = {
    "model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "intermediate_size": 14336, "sliding_window": 4096, "vocab_size": 256000,
    "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
}  # fmt: skip
GEMMA_3 = {
    "model_type": "gemma3", "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "intermediate_size": 21504, "sliding_window": 1024, "vocab_size": 262208,
    },
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "vocab_size": 129280,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
    "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "ep_size": 1,
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 2, "mlp_only_layers": [1, 3],
    "vocab_size": 151936, "use_sliding_window": False, "sliding_window": 4096,
}  # fmt: skip
LATENT = (  # DeepSeek's attention: its five products, and scores of 192 and 128 numbers
    2 * (7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168)
    + 2 * 128 * (192 + 128) * SEQ / 2
)
SPARSE = 9 * mlp(7168, 2048) + 2 * 7168 * 256


IDS = (
    "falcon-40b", "falcon-7b", "starcoder", "starcoder2", "bloom", "chatglm3",
    "llama-4-maverick", "granite-4", "bamba", "falcon-h1", "gemma-2", "gemma-3", "deepseek-v3",
    "deepseek-v3-alone", "qwen3-moe",
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "flop"),
    [
        (
            FALCON_40B,
            60 * (attention(8192, 128, 8, 64) + scores(128, 64) + mlp(8192, 32768, 2))
            + 2 * 8192 * 65024,
        ),
        (
            FALCON_7B,
            32 * (attention(4544, 71, 1, 64) + scores(71, 64) + mlp(4544, 18176, 2))
            + 2 * 4544 * 65024,
        ),
        (
            STARCODER,
            40 * (attention(6144, 48, 1, 128) + scores(48, 128) + mlp(6144, 24576, 2))
            + 2 * 6144 * 49152,
        ),
        (
            STARCODER2,
            40
            * (
                attention(6144, 48, 4, 128)
                + scores(48, 128, within(4096))
                + mlp(6144, 24576, 2)
            )
            + 2 * 6144 * 49152,
        ),
        (
            BLOOM,
            70 * (attention(14336, 112, 112, 128) + scores(112, 128) + mlp(14336, 57344, 2))
            + 2 * 14336 * 250880,
        ),
        (
            CHATGLM3,
            28 * (attention(4096, 32, 2, 128) + scores(32, 128) + mlp(4096, 13696))
            + 2 * 4096 * 65024,
        ),
        (
            MAVERICK,
            48 * attention(5120, 40, 8, 128)
            + 36 * scores(40, 128, 1024)
            + 12 * scores(40, 128)
            + 24 * (2 * mlp(5120, 8192) + 2 * 5120 * 128)
            + 24 * mlp(5120, 16384)
            + 2 * 5120 * 202048,
        ),
        (
            GRANITE_4,
            4 * (attention(4096, 32, 8, 128) + scores(32, 128))
            + 36 * mamba(4096, 128, 64, 128, 1)
            + 40 * (10 * mlp(4096, 768) + mlp(4096, 1536) + 2 * 4096 * 72)
            + 2 * 4096 * 100352,
        ),
        (
            BAMBA,
            3 * (attention(4096, 32, 8, 128) + scores(32, 128))
            + 29 * mamba(4096, 128, 64, 128, 1)
            + 32 * mlp(4096, 14336)
            + 2 * 4096 * 128256,
        ),
        (
            FALCON_H1,
            72 * (attention(5120, 20, 4, 128) + scores(20, 128) + mlp(5120, 21504))
            + 72 * mamba(5120, 32, 128, 256, 2)
            + 2 * 5120 * 261120,
        ),
        (
            GEMMA_2,
            42 * (attention(3584, 16, 8, 256) + mlp(3584, 14336))
            + 21 * (scores(16, 256, within(4096)) + scores(16, 256))
            + 2 * 3584 * 256000,
        ),
        (
            GEMMA_3,
            62 * (attention(5376, 32, 16, 128) + mlp(5376, 21504))
            + 52 * scores(32, 128, within(1024))
            + 10 * scores(32, 128)
            + 2 * 5376 * 262208,
        ),
        (
            DEEPSEEK,
            62 * LATENT
            + 3 * mlp(7168, 18432)
            + 59 * SPARSE
            + 2 * (2 * 7168 * 129280)
            + 2 * 7168 * 2 * 7168,
        ),
        (
            {**DEEPSEEK, "num_nextn_predict_layers": 0},
            61 * LATENT + 3 * mlp(7168, 18432) + 58 * SPARSE + 2 * 7168 * 129280,
        ),
        (
            QWEN_MOE,
            48 * (attention(2048, 32, 4, 128) + scores(32, 128))
            + 22 * (8 * mlp(2048, 768) + 2 * 2048 * 128)
            + 26 * mlp(2048, 6144)
            + 2 * 2048 * 151936,
        ),
    ],
    ids=IDS,
)
def test_a_published_configuration_comes_to_its_flops_by_hand(
    config: dict[str, Any], flop: float
) -> None:
    parts = mfu.forward(model_of(config), seq=SEQ)
    assert sum(parts.values()) == pytest.approx(flop, rel=1e-9)


LLAMA = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"full_attention_interval": 4}, "full_attention_interval is not understood"),
        ({"linear_num_key_heads": 16}, "linear_num_key_heads is not understood"),
        ({"attn_layer_period": 8}, "attn_layer_period is not understood"),
        ({"mamba_dt_rank": 256}, "mamba_dt_rank is not understood"),
        ({"num_key_value_head": 8}, "did you mean num_key_value_heads?"),
        ({"attn_layer_indices": [32]}, "names layer 32, and the last of 32 is 31"),
        ({"num_hidden_layers": 1e9}, "more than any model has"),
        ({**FALCON_H1, "mamba_d_ssm": 2048}, "mamba_d_ssm 2048 is not 32 heads of 128"),
        (
            {"hybrid_override_pattern": "*-" * 16, "num_nextn_predict_layers": 1},
            "num_nextn_predict_layers of a hybrid is not understood",
        ),
        ({"word_embed_proj_dim": 512}, "word_embed_proj_dim other than hidden_size"),
        ({"mamba_use_mlp": False}, "mamba_use_mlp=false is not understood"),
        ({"mamba_n_heads": 128}, "nothing that says which layers are Mamba's"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types: 'linear_attention' is not"),
        ({"layer_types": ["x"]}, "layer_types: 'x' is not understood"),
        ({"layer_types": [5] * 32}, "layer_types: 5 is not understood"),
        ({"layer_types": "mamba"}, "layer_types must be a list"),
        ({"layer_types": ["attention"] * 31}, "names 31 layers, and the model has 32"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
        ({"sliding_window": 4096}, "nothing that says which layers have it"),
        ({"num_key_value_heads": 64}, "64 must divide num_attention_heads 32"),
        ({"num_key_value_heads": 7}, "7 must divide num_attention_heads 32"),
        ({"num_kv_heads": 4}, "num_key_value_heads 8 and num_kv_heads 4 contradict"),
        ({"gated": "maybe"}, "gated must be true or false, not 'maybe'"),
        ({"intermediate_size": 16384}, "no activation is named"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "does not say whether there is a gate"),
        ({"model_type": "bert"}, "bert is no plain decoder"),
        ({"type_vocab_size": 2}, "type_vocab_size is not understood"),
        ({"model_type": "gemma", "head_dim": None}, "head_dim is missing"),
        ({"text_config": 5}, "text_config must be an object"),
        ({"moe_layer_freq": [0, 1], "num_experts": 4}, "a 0 or 1 for each of 32 layers"),
    ],
)
def test_what_decides_flops_and_is_not_understood_is_refused_by_name(
    more: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        model_of({**LLAMA, **more})


def test_a_window_of_unknown_layers_is_given_to_those_that_are_told() -> None:
    def seen(**keys: object) -> float:
        parts = mfu.forward(model_of({**LLAMA, "sliding_window": 4096, **keys}), seq=SEQ)
        return parts["attention_scores"] / (4 * 32 * 128)

    every = seen(use_sliding_window=True, max_window_layers=0)
    assert every == 32 * within(4096) == seen(model_type="mistral")
    some = 20 * within(4096) + 12 * SEQ / 2
    assert seen(use_sliding_window=True, max_window_layers=12) == some
    assert seen(use_sliding_window=False) == seen(model_type="qwen3", head_dim=128)
    assert seen(sliding_window_pattern=4) == 24 * within(4096) + 8 * SEQ / 2


def test_a_key_that_is_off_or_decides_nothing_is_passed_over() -> None:
    plain = model_of(LLAMA)
    more = {
        "attn_layer_period": None,
        "use_cla": False,
        "rope_theta": 1e6,
        "torch_dtype": "bf16",
    }
    assert model_of({**LLAMA, **more}) == plain


def test_what_was_taken_for_granted_is_noted() -> None:
    assert "gate" in model_of(LLAMA).notes[0]
    assert model_of({**LLAMA, "hidden_act": "silu"}).notes == ()
    (unknown,) = model_of({**LLAMA, "hidden_act": "silu", "model_type": "brand_new"}).notes
    assert "brand_new is not known" in unknown
    assert "multi-token prediction is counted" in model_of(DEEPSEEK).notes[0]


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats() | st.sampled_from(
        ["", "x", "mamba", "attention", "llama", "falcon_h1", "full_attention", "M*-E"]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(sorted(READ)), junk, max_size=8))
def test_whatever_stands_under_a_key_is_counted_or_refused_in_one_line(
    config: dict[str, Any],
) -> None:
    with suppress(ValueError):
        parts = mfu.forward(model_of({**LLAMA, **config}), seq=64)
        assert all(0 <= flop < float("inf") for flop in parts.values())
