"""A model's blocks, read from the ``config.json`` that model hubs publish beside the weights.

A key that decides FLOPs and is missing is asked for by name, and one that is not understood
refused by name (``modelkeys``). What is taken for granted all the same is in the model's notes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from detector.analysis.mfu import Attention, Block, Experts, Mamba, Mlp, Model, Projection
from detector.analysis.modelkeys import Keys
from detector.analysis.modelkinds import (
    FOURFOLD_KINDS,
    GATED,
    GATED_KINDS,
    OTHER_KINDS,
    OWN_HEADS_KINDS,
    PLAIN,
    PLAIN_KINDS,
    WINDOW_BUT_KINDS,
    WINDOW_IF_SAID_KINDS,
    WINDOW_KINDS,
)

# One layer of a hybrid whose layers are a single block: a letter of its pattern, or its name.
_HYBRID = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe", "O": "moe"}
_MOST_LAYERS = 10_000  # the deepest published decoders have some hundreds
_MIXERS = ("full_attention", "attention", "sliding_attention", "chunked_attention", "mamba")


def model_of(config: Mapping[str, Any]) -> Model:
    """Return the model that ``config`` describes.

    Raises
    ------
    ValueError
        In one line, when a size that decides FLOPs is missing or impossible, or a key that may
        decide them is not understood.
    """
    keys = Keys(config)
    _refuse_others(keys)
    hidden = keys.size("hidden_size")
    padded = keys.size("padded_vocab_size", default=0)
    vocab = keys.size("vocab_size", default=padded or None)
    further = keys.size("num_nextn_predict_layers", default=0, least=0)
    pattern = _pattern(keys)
    last: tuple[Block, ...] = ()
    if pattern:
        blocks = _hybrid(pattern, keys, hidden)
    else:
        blocks, last = _layers(keys, hidden)
    if further and not last:
        msg = "num_nextn_predict_layers of a hybrid is not understood; --set it to 0"
        raise ValueError(msg)
    return Model(
        hidden=hidden,
        vocab=vocab,
        blocks=blocks,
        layers=len(pattern) or keys.size("num_hidden_layers"),
        further=further,
        further_blocks=(*last, Projection(width=2 * hidden)) if further else (),
        notes=tuple(dict.fromkeys((*keys.notes, *_granted(keys, further)))),
    )


def _refuse_others(keys: Keys) -> None:
    """Refuse what is no decoder, or has a key that is not understood."""
    kind = keys.text("model_type")
    if kind in OTHER_KINDS or keys.flag("is_encoder_decoder"):
        msg = f"model_type {kind} is no plain decoder, and is not counted here"
        raise ValueError(msg)
    keys.check()
    hidden = keys.size("hidden_size")
    if keys.size("word_embed_proj_dim", default=hidden) != hidden:  # OPT-350M
        msg = "word_embed_proj_dim other than hidden_size is not understood"
        raise ValueError(msg)


def _granted(keys: Keys, further: int) -> Iterator[str]:
    """What is taken for granted of the model as a whole."""
    kind = keys.text("model_type")
    if kind and kind not in GATED_KINDS | PLAIN_KINDS:
        yield f"model_type {kind[:40]} is not known: counted by its keys as a plain decoder"
    if further:
        yield (
            f"multi-token prediction is counted (num_nextn_predict_layers {further}); "
            "--set num_nextn_predict_layers=0 where it is not trained"
        )
    for other in ("vision_config", "audio_config"):
        if keys.get(other):
            yield f"{other} is not counted: text tokens alone"


def _pattern(keys: Keys) -> list[str]:
    """Return the layers of a hybrid by name, each a single block; none for other models."""
    text = keys.text("hybrid_override_pattern")
    if text is None:
        listed = keys.listed("layers_block_type")
        pattern = ["mlp" if name == "mlp_only" else str(name) for name in listed]
        where = "layers_block_type"
    else:
        pattern = [_HYBRID.get(letter, letter) for letter in text if letter != "|"]
        where = "hybrid pattern"
    unknown = set(pattern) - set(_HYBRID.values())
    if unknown:
        known = " ".join(_HYBRID if text is not None else dict.fromkeys(_HYBRID.values()))
        msg = f"{where}: unknown layer {sorted(unknown)[0][:40]!r}; there are {known}"
        raise ValueError(msg)
    layers = keys.size("num_hidden_layers", default=len(pattern))
    if pattern and layers != len(pattern):
        msg = f"{where} has {len(pattern)} layers, and num_hidden_layers says {layers}"
        raise ValueError(msg)
    return pattern


def _hybrid(pattern: list[str], keys: Keys, hidden: int) -> tuple[tuple[int, Block], ...]:
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


def _layers(keys: Keys, hidden: int) -> tuple[tuple[tuple[int, Block], ...], tuple[Block, ...]]:
    """Layers of a mixer with a feed-forward block each, and what one more layer would be."""
    layers = keys.size("num_hidden_layers")
    if layers > _MOST_LAYERS:
        msg = f"num_hidden_layers {layers} is more than any model has"
        raise ValueError(msg)
    attention = _attention(keys, hidden)
    mixers = _mixers(keys, layers, attention)
    if not keys.size("num_experts", default=0, least=0):
        dense = _mlp(keys, hidden)
        return (*mixers, (layers, dense)), (attention, dense)
    sparse = _sparse(keys, layers)
    experts = _experts(keys)
    blocks: list[tuple[int, Block]] = [*mixers, (sparse, experts)]
    if layers > sparse:
        blocks.append((layers - sparse, _mlp(keys, hidden)))
    return tuple(blocks), (attention, experts)


def _sparse(keys: Keys, layers: int) -> int:
    """How many layers have experts."""
    kinds = keys.names("mlp_layer_types", known=("dense", "sparse"), layers=layers)
    if kinds:
        return kinds.count("sparse")
    named = keys.layers("moe_layers", layers=layers)
    if named:
        return len(named)
    step = keys.size("interleave_moe_layer_step", default=0)
    if step:
        return layers // step
    if isinstance(keys.get("moe_layer_freq"), list):
        return sum(keys.marks("moe_layer_freq", layers=layers))
    first = keys.size("first_k_dense_replace", default=0, least=0)
    every = keys.size("moe_layer_freq", default=1)
    step = keys.size("decoder_sparse_step", default=1)
    dense = keys.layers("mlp_only_layers", layers=layers)
    return sum(
        layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in dense
        for layer in range(layers)
    )


def _mixers(keys: Keys, layers: int, attention: Attention) -> list[tuple[int, Block]]:
    """What mixes tokens in how many layers: attention, of which kinds, or a Mamba block."""
    window = keys.size("sliding_window", default=0, least=0)
    chunk = keys.size("attention_chunk_size", default=0, least=0)
    said = keys.flag("use_sliding_window")
    if said is False or (said is None and keys.text("model_type") in WINDOW_IF_SAID_KINDS):
        window = 0
    kinds = Counter(keys.names("layer_types", known=_MIXERS, layers=layers))
    if not kinds:
        kinds = _kinds(keys, layers, window=window, chunk=chunk)
    elif not window and kinds["sliding_attention"]:
        kinds["full_attention"] += kinds.pop("sliding_attention")
        if said is not False:
            msg = "layer_types has sliding_attention, and sliding_window is missing"
            raise ValueError(msg)
    if kinds["chunked_attention"] and not chunk:
        msg = "layer_types has chunked_attention, and attention_chunk_size is missing"
        raise ValueError(msg)
    if not kinds["mamba"] and keys.has("mamba_n_heads", "mamba_num_heads", "mamba_d_state"):
        msg = (
            "mamba_* keys are there, and nothing that says which layers are Mamba's; "
            'name each in layer_types ("mamba", "attention")'
        )
        raise ValueError(msg)
    made: dict[str, Block] = {
        "sliding_attention": replace(attention, window=window),
        "chunked_attention": replace(attention, chunk=chunk),
    }
    if kinds["mamba"]:
        made["mamba"] = _mamba(keys)
    return [(count, made.get(kind, attention)) for kind, count in kinds.items() if count]


def _kinds(keys: Keys, layers: int, *, window: int, chunk: int) -> Counter[str]:
    """How many layers have which mixer, where no list names each."""
    if keys.has("mamba_d_ssm") or keys.text("model_type") == "falcon_h1":
        # Both, side by side, in each layer.
        return Counter({"attention": layers, "mamba": layers})
    attention = keys.layers("attn_layer_indices", layers=layers)
    if attention:
        return Counter({"attention": len(attention), "mamba": layers - len(attention)})
    if chunk:
        # 0 where a layer has no positions, and no chunks.
        listed = keys.marks("no_rope_layers", layers=layers)
        every = keys.size("no_rope_layer_interval", default=4)  # as Llama 4 leaves it out
        full = listed.count(0) if listed else layers // every
        return Counter({"chunked_attention": layers - full, "full_attention": full})
    full = _unwindowed(keys, layers) if window else layers
    return Counter({"sliding_attention": layers - full, "full_attention": full})


def _unwindowed(keys: Keys, layers: int) -> int:
    """Layers that the window does not hold for."""
    kind = keys.text("model_type") or ""
    every = keys.size("sliding_window_pattern", default=WINDOW_BUT_KINDS.get(kind, 0), least=0)
    if every:
        return layers // every
    if keys.flag("use_sliding_window"):
        return min(layers, keys.size("max_window_layers", least=0))
    if kind in WINDOW_KINDS:
        return 0
    msg = (
        "sliding_window is there, and nothing that says which layers have it: --set "
        "sliding_window=null where none has, use_sliding_window=true and max_window_layers=0 "
        "where all have, or sliding_window_pattern=N where all but each N-th have"
    )
    raise ValueError(msg)


def _attention(keys: Keys, hidden: int) -> Attention:
    heads = keys.size("num_attention_heads")
    kv_rank = keys.size("kv_lora_rank", default=0, least=0)
    if kv_rank:
        rope = keys.size("qk_rope_head_dim")
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=keys.size("qk_nope_head_dim") + rope,
            v_dim=keys.size("v_head_dim"),
            q_rank=keys.size("q_lora_rank", default=0, least=0),
            kv_rank=kv_rank,
            rope_dim=rope,
        )
    own = keys.text("model_type") in OWN_HEADS_KINDS
    size = keys.size("head_dim", default=None if own else 0, least=0)
    if not size and hidden % heads:
        msg = f"head_dim is missing, and hidden_size {hidden} is no multiple of {heads} heads"
        raise ValueError(msg)
    size = size or hidden // heads
    kv_heads = _kv_heads(keys, heads)
    if kv_heads > heads or heads % kv_heads:
        msg = f"num_key_value_heads {kv_heads} must divide num_attention_heads {heads}"
        raise ValueError(msg)
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=size, v_dim=size)


def _kv_heads(keys: Keys, heads: int) -> int:
    one = keys.flag("multi_query")
    groups = keys.size("multi_query_group_num", default=0, least=0)
    if groups:  # ChatGLM: groups where `multi_query_attention` is on
        return heads if one is False else groups
    if one and not keys.flag("new_decoder_architecture"):
        return 1  # Falcon-7B, which states all heads beside it; GPT-BigCode
    own = keys.text("model_type") in OWN_HEADS_KINDS
    return keys.size("num_key_value_heads", default=None if own else heads, least=0) or heads


def _mlp(keys: Keys, hidden: int) -> Mlp:
    """The feed-forward block of the layers without experts."""
    if keys.flag("mamba_use_mlp") is False:
        msg = "mamba_use_mlp=false is not understood"
        raise ValueError(msg)
    shared = keys.size("shared_expert_intermediate_size", default=0, least=0)
    if shared and not keys.size("num_experts", default=0, least=0):
        return Mlp(ffn=shared, gated=_is_gated(keys))  # Granite 4 without experts
    fourfold = keys.has("n_embd") or keys.text("model_type") in FOURFOLD_KINDS
    ffn = keys.size("intermediate_size_mlp", default=0, least=0) or keys.size(
        "intermediate_size", default=4 * hidden if fourfold else None
    )
    return Mlp(ffn=ffn, gated=_is_gated(keys, fourfold=ffn == 4 * hidden))


def _experts(keys: Keys) -> Experts:
    ffn = keys.size("moe_intermediate_size", default=0, least=0) or keys.size(
        "intermediate_size"
    )
    shared = keys.size(
        "shared_expert_intermediate_size", default=0, least=0
    ) or ffn * keys.size("n_shared_experts", default=0, least=0)
    if not shared and keys.has("interleave_moe_layer_step", "intermediate_size_mlp"):
        shared = ffn  # Llama 4 states none and has one
    experts = keys.size("num_experts")
    top_k = keys.size("num_experts_per_tok")
    if top_k > experts:
        msg = f"num_experts_per_tok {top_k} is more than the {experts} experts there are"
        raise ValueError(msg)
    return Experts(
        experts=experts,
        top_k=top_k,
        ffn=ffn,
        gated=_is_gated(keys),
        shared_ffn=shared,
        latent=keys.size("moe_latent_size", default=0, least=0),
    )


def _mamba(keys: Keys) -> Mamba:
    block = Mamba(
        heads=keys.size("mamba_num_heads"),
        head_dim=keys.size("mamba_head_dim"),
        state=keys.size("ssm_state_size"),
        groups=keys.size("n_groups", default=1),
    )
    inner = keys.size("mamba_d_ssm", default=block.heads * block.head_dim)
    if inner != block.heads * block.head_dim:
        msg = f"mamba_d_ssm {inner} is not {block.heads} heads of {block.head_dim}"
        raise ValueError(msg)
    return block


def _is_gated(keys: Keys, *, fourfold: bool = False) -> bool:
    """Whether feed-forward blocks have a gate; ``fourfold``: as large as plain ones are."""
    said = keys.flag("gated")
    if said is not None:
        return said
    kind = keys.text("model_type")
    if kind in GATED_KINDS | PLAIN_KINDS:
        return kind in GATED_KINDS
    form = keys.text("mlp_type")
    if form in ("default", "gated"):
        return form == "gated"
    acts = (
        "mlp_hidden_act",
        "hidden_act",
        "hidden_activation",
        "activation_function",
        "activation",
    )
    said_by, name = next(
        ((act, text) for act in acts if (text := keys.text(act)) is not None), ("", None)
    )
    if name is None:
        if fourfold:
            msg = (
                "no activation is named, and intermediate_size is four times hidden_size, as "
                "blocks without a gate have it; --set gated=true or gated=false"
            )
            raise ValueError(msg)
        keys.notes.append(
            "feed-forward blocks are taken to have a gate (SwiGLU); --set gated=false where not"
        )
        return True
    if name in PLAIN or (name == "gelu_pytorch_tanh" and said_by == "activation_function"):
        return False  # GPT-2's name for the key, and GPT-BigCode's
    if name in GATED or (name == "gelu_pytorch_tanh" and said_by == "hidden_activation"):
        return True  # Gemma's name for the key
    msg = (
        f"{said_by} {name[:40]!r} does not say whether there is a gate; --set gated=true or "
        "gated=false"
    )
    raise ValueError(msg)
