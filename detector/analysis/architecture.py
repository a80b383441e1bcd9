"""A model's blocks, read from the ``config.json`` that model hubs publish beside the weights.

The keys are those of Hugging Face's configurations, in the spellings that Llama, Qwen,
Mixtral, DeepSeek, GPT-2 and Nemotron-H use. A key that decides FLOPs and is missing is asked
for by name; nothing is guessed from the model's.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from detector.analysis.mfu import Attention, Block, Experts, Mamba, Mlp, Model

# Activations of feed-forward blocks that have a gate (three products), and that have none.
_GATED = {"silu", "swish", "swiglu", "geglu", "gelu_pytorch_tanh_gated"}
_PLAIN = {"relu", "relu2", "gelu", "gelu_new", "gelu_fast", "squared_relu"}

# One layer of a hybrid: a letter of its pattern, or its name in a list.
_HYBRID = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe", "O": "moe"}


def model_of(config: Mapping[str, Any]) -> Model:
    """Return the model that ``config`` describes.

    Raises
    ------
    ValueError
        In one line, when a size that decides FLOPs is missing or impossible.
    """
    keys = _Keys({**config, **(config.get("text_config") or {})})
    hidden = keys.size("hidden_size", "n_embd", "d_model")
    vocab = keys.size("vocab_size", "padded_vocab_size")
    pattern = _pattern(keys)
    blocks = _hybrid(pattern, keys, hidden) if pattern else _layers(keys, hidden)
    return Model(hidden=hidden, vocab=vocab, blocks=blocks)


class _Keys:
    """Looks a size up under its spellings."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def get(self, *names: str) -> Any:
        """Return the first spelling's value that is there, else None."""
        found = (self._config.get(name) for name in names)
        return next((value for value in found if value is not None), None)

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a positive whole number, ``default`` when it is not there."""
        value = self.get(*names)
        if value is None:
            if default is None:
                msg = f"the model's {names[0]} is missing; add it, or --set {names[0]}=..."
                raise ValueError(msg)
            return default
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        if not whole or value != int(value) or not 0 <= value < 1e12:
            msg = f"{names[0]} must be a whole number, not {str(value)[:40]!r}"
            raise ValueError(msg)
        if value == 0 and default is None:
            msg = f"{names[0]} must be above 0"
            raise ValueError(msg)
        return int(value)


def _pattern(keys: _Keys) -> list[str]:
    """Return the layers of a hybrid by name; none for a model of equal layers."""
    text = keys.get("hybrid_override_pattern", "hybrid_layer_pattern")
    if isinstance(text, str):
        unknown = set(text) - _HYBRID.keys() - {"|"}
        if unknown:
            known = " ".join(_HYBRID)
            msg = f"hybrid pattern: unknown layer {sorted(unknown)[0]!r}; there are {known}"
            raise ValueError(msg)
        return [_HYBRID[letter] for letter in text if letter != "|"]
    listed = keys.get("layers_block_type")
    if isinstance(listed, list):
        names = ["mlp" if name == "mlp_only" else str(name) for name in listed]
        unknown = set(names) - set(_HYBRID.values())
        if unknown:
            msg = f"layers_block_type: unknown layer {sorted(unknown)[0]!r}"
            raise ValueError(msg)
        return names
    return []


def _hybrid(pattern: list[str], keys: _Keys, hidden: int) -> tuple[tuple[int, Block], ...]:
    made: dict[str, Block] = {}
    for name in dict.fromkeys(pattern):
        match name:
            case "mamba":
                made[name] = _mamba(keys)
            case "attention":
                made[name] = _attention(keys, hidden)
            case "mlp":
                made[name] = _mlp(keys, hidden)
            case _:
                made[name] = _experts(keys)
    return tuple((count, made[name]) for name, count in Counter(pattern).items())


def _layers(keys: _Keys, hidden: int) -> tuple[tuple[int, Block], ...]:
    """Layers of attention with a feed-forward block each, of which some may be experts."""
    layers = keys.size("num_hidden_layers", "n_layer", "num_layers")
    attention = _windowed(keys, layers, _attention(keys, hidden))
    if not keys.size("n_routed_experts", "num_local_experts", "num_experts", default=0):
        return (*attention, (layers, _mlp(keys, hidden)))
    every = keys.size("moe_layer_freq", "decoder_sparse_step", default=1) or 1
    dense = min(layers, keys.size("first_k_dense_replace", default=0))
    sparse = (layers - dense) // every
    blocks: list[tuple[int, Block]] = [*attention, (sparse, _experts(keys))]
    if layers > sparse:
        blocks.append((layers - sparse, _mlp(keys, hidden)))
    return tuple(blocks)


def _windowed(keys: _Keys, layers: int, block: Attention) -> list[tuple[int, Block]]:
    """Attention of all layers; where ``layer_types`` says so, some with a window."""
    window = keys.size("sliding_window", default=0)
    types = keys.get("layer_types")
    if not window or not isinstance(types, list):
        whole = 0 if keys.get("use_sliding_window") is False else window
        return [(layers, replace(block, window=whole))]
    sliding = sum(1 for one in types if one == "sliding_attention")
    counted = [(sliding, window), (layers - sliding, 0)]
    return [(count, replace(block, window=size)) for count, size in counted if count > 0]


def _attention(keys: _Keys, hidden: int) -> Attention:
    heads = keys.size("num_attention_heads", "n_head")
    kv_rank = keys.size("kv_lora_rank", default=0)
    if kv_rank:
        rope = keys.size("qk_rope_head_dim")
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=keys.size("qk_nope_head_dim") + rope,
            v_dim=keys.size("v_head_dim"),
            q_rank=keys.size("q_lora_rank", default=0),
            kv_rank=kv_rank,
            rope_dim=rope,
        )
    size = keys.size("head_dim", "attention_head_dim", "kv_channels", default=0)
    if not size and hidden % heads:
        msg = f"head_dim is missing, and hidden_size {hidden} is no multiple of {heads} heads"
        raise ValueError(msg)
    size = size or hidden // heads
    kv_heads = keys.size("num_key_value_heads", "num_query_groups", default=heads) or heads
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=size, v_dim=size)


def _mlp(keys: _Keys, hidden: int) -> Mlp:
    plain = keys.get("n_inner") is None and keys.get("n_embd") is not None
    ffn = keys.size(
        "intermediate_size", "ffn_hidden_size", "n_inner",
        default=4 * hidden if plain else None,
    )  # fmt: skip
    return Mlp(ffn=ffn, gated=_is_gated(keys))


def _experts(keys: _Keys) -> Experts:
    ffn = keys.size("moe_intermediate_size", "moe_ffn_hidden_size", "intermediate_size")
    shared = keys.size(
        "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", default=0
    ) or ffn * keys.size("n_shared_experts", default=0)
    experts = keys.size("n_routed_experts", "num_local_experts", "num_experts")
    top_k = keys.size("num_experts_per_tok", "moe_topk", "moe_router_topk")
    if top_k > experts:
        msg = f"num_experts_per_tok {top_k} is more than the {experts} experts there are"
        raise ValueError(msg)
    return Experts(
        experts=experts,
        top_k=top_k,
        ffn=ffn,
        gated=_is_gated(keys),
        shared_ffn=shared,
        latent=keys.size("moe_latent_size", default=0),
    )


def _mamba(keys: _Keys) -> Mamba:
    return Mamba(
        heads=keys.size("mamba_num_heads", "mamba_n_heads"),
        head_dim=keys.size("mamba_head_dim", "mamba_d_head"),
        state=keys.size("ssm_state_size", "mamba_d_state", "mamba_state_dim"),
        groups=keys.size("n_groups", "mamba_n_groups", "mamba_num_groups", default=1),
    )


def _is_gated(keys: _Keys) -> bool:
    said = keys.get("swiglu", "gated")
    if isinstance(said, bool):
        return said
    name = keys.get("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function")
    if name is None:
        return True  # the models that leave it out are Llama's descendants
    if str(name) in _PLAIN:
        return False
    if str(name) in _GATED or str(name).startswith("gelu_pytorch"):
        return True  # Gemma's GeGLU is called gelu_pytorch_tanh
    msg = f"hidden_act {str(name)[:40]!r} is not known; --set gated=true or gated=false"
    raise ValueError(msg)
