"""Keys of a model's ``config.json``: their spellings, and which of them decide FLOPs.

A key that may decide FLOPs and is not understood refuses the model by its name: a plain
transformer must never be printed for what is none. The keys are those of Hugging Face's
configurations; they were held against the defaults of every decoder of transformers 5.24.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

# What is read, under its first name, with its other spellings.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "word_embed_proj_dim": (),
    "vocab_size": (),
    "padded_vocab_size": (),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "num_query_groups"),
    "multi_query_group_num": (),
    "multi_query": ("multi_query_attention",),
    "new_decoder_architecture": (),
    "head_dim": ("attention_head_dim", "kv_channels"),
    "kv_lora_rank": (),
    "q_lora_rank": (),
    "qk_rope_head_dim": (),
    "qk_nope_head_dim": (),
    "v_head_dim": (),
    "intermediate_size": ("ffn_hidden_size", "n_inner", "ffn_dim"),
    "intermediate_size_mlp": (),
    "hidden_act": (),
    "hidden_activation": (),
    "mlp_hidden_act": (),
    "activation_function": (),
    "activation": (),
    "gated": ("swiglu",),
    "mlp_type": (),
    "num_experts": ("n_routed_experts", "num_local_experts", "num_moe_experts"),
    "num_experts_per_tok": ("moe_topk", "moe_router_topk", "experts_per_token"),
    "moe_intermediate_size": ("moe_ffn_hidden_size",),
    "n_shared_experts": ("num_shared_experts",),
    "shared_expert_intermediate_size": (
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "moe_latent_size": (),
    "first_k_dense_replace": (),
    "moe_layer_freq": (),
    "decoder_sparse_step": (),
    "mlp_only_layers": (),
    "mlp_layer_types": (),
    "interleave_moe_layer_step": (),
    "moe_layers": (),
    "num_nextn_predict_layers": ("mtp_num_layers",),
    "mamba_num_heads": ("mamba_n_heads",),
    "mamba_head_dim": ("mamba_d_head",),
    "ssm_state_size": ("mamba_d_state", "mamba_state_dim"),
    "n_groups": ("mamba_n_groups", "mamba_num_groups"),
    "mamba_d_ssm": (),
    "mamba_use_mlp": (),
    "attn_layer_indices": (),
    "hybrid_override_pattern": ("hybrid_layer_pattern",),
    "layers_block_type": (),
    "layer_types": (),
    "sliding_window": (),
    "sliding_window_pattern": ("_sliding_window_pattern",),
    "use_sliding_window": (),
    "max_window_layers": (),
    "attention_chunk_size": (),
    "no_rope_layers": (),
    "no_rope_layer_interval": (),
    "model_type": (),
    "is_encoder_decoder": (),
    "text_config": (),
    "vision_config": (),
    "audio_config": (),
}
READ = {name for first, others in _SPELLINGS.items() for name in (first, *others)}

# Parts of names of which a key has one when it sizes, places or replaces a matrix product.
_DECIDES = re.compile(
    r"mamba|ssm|state_size|conv|linear|lru|rwkv|recurr|hybrid|attn|attention|window|chunk|layer"
    r"|block|pattern|head|kv|rank|lora|expert|moe|ffn|ffd|mlp|intermediate|multiple|expan|group"
    r"|every|interval|period|index|sparse|dense|encoder|cross|mtp|nextn|loop|cycle|cla_|share"
    r"|latent|compress|gate|gating|_size$|_dim$|^dim|^d_|width|^n_|^num_"
)

# Keys with such a part that change no matrix product, or by less than a tenth of a percent.
_HARMLESS = re.compile(
    # what a key ends in
    r".*(_token_id|_token_index|bias|dropout|dropout_prob|_pdrop|layerdrop|_eps|_epsilon|_softcap"
    r"|_softcapping|loss_coef|_norm|layernorm|_fp32|_kernels|_dtype|_theta|_noise|_scaling)"
    # norms, positions, scales, losses, initial values
    r"|(embedding|residual|attention|attention_in|attention_out|key|lm_head|mlp|ssm|ssm_in|ssm_out)"
    r"_multipliers?|scale_attn_.*|attn_scale|attn_temperature_tuning|query_pre_attn_scalar"
    r"|dim_model_base|apply_residual_connection_.*|use_parallel_residual|parallel_attn"
    r"|num_ln_in_parallel_attn|do_layer_norm_before|use_qk_norm|qk_norm|post_layer_norm"
    r"|residual_in_fp32|rescale_prenorm_residual|layer_norm_elementwise_affine|rope_.*|rotary_.*"
    r"|interleaved_qkv|add_bias_linear|n_positions|n_ctx|chunk_size_feed_forward|.*aux_loss.*"
    # routing of tokens to experts
    r"|n_group|topk_group|num_expert_group|norm_topk_prob|moe_router_(?!topk).*|moe_renormalize"
    r"|router_scaling_factor|.*routed_scaling_factor|moe_shared_expert_overlap|ep_size"
    # the convolution and the steps of a Mamba block, and its size over again
    r"|mamba_(d_conv|expand|chunk_size|hidden_act|rms_norm|norm_before_gate|outproj_bias)|expand"
    r"|conv_kernel|chunk_size|use_associative_scan|time_step_(min|max|floor|limit)"
    # the size of a head over again, of what is read and of what is generated
    r"|qk_head_dim|mm_tokens_per_image|num_labels|num_logits_to_keep"
    r"|mtp_layers_block_type|num_(beams|beam_groups|return_sequences)|(encoder_)?no_repeat_ngram_size"
    r"|_?attn_implementation.*|reorder_and_upcast_attn|cache_.*|quantization_config"
    # and what has none of the parts, but may be named on a command line
    r"|tie_word_embeddings|max_position_embeddings|architectures|torch_dtype|alibi|use_cache"
    r"|initializer_range|topk_method|scoring_func|seq_aux|floor_scale|hidden_dropout"
)


class Keys:
    """Looks keys up under their spellings, and keeps what was taken for granted."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = config.get("text_config") or {}
        if not isinstance(text, Mapping):
            msg = f"text_config must be an object, not {_short(text)}"
            raise ValueError(msg)
        self._config = {**config, **text}
        self.notes: list[str] = []

    def check(self) -> None:
        """Refuse a key that is on, may decide FLOPs and is not understood."""
        for key, value in self._config.items():
            if key in READ or not value or _HARMLESS.fullmatch(key):
                continue
            if _DECIDES.search(key):
                msg = (
                    f"{key} is not understood, and may decide FLOPs; {_near(key)}"
                    f"where it decides none, --set {key}=null leaves it out"
                )
                raise ValueError(msg)

    def get(self, name: str) -> Any:
        """Return the value under the first spelling that is there, else None."""
        found = (self._config.get(key) for key in (name, *_SPELLINGS[name]))
        return next((value for value in found if value is not None), None)

    def has(self, *spellings: str) -> bool:
        """Return whether a key is there under just one of these spellings."""
        return any(self._config.get(key) is not None for key in spellings)

    def size(self, name: str, *, default: int | None = None, least: int = 1) -> int:
        """Return a whole number of ``least`` or more, ``default`` when it is not there."""
        there = [key for key in (name, *_SPELLINGS[name]) if self._config.get(key) is not None]
        if not there:
            if default is None:
                msg = f"the model's {name} is missing; add it, or --set {name}=..."
                raise ValueError(msg)
            return default
        sizes = {key: _whole(key, self._config[key], least=least) for key in there}
        if len(set(sizes.values())) > 1:
            said = " and ".join(f"{key} {size}" for key, size in sizes.items())
            msg = f"{said} contradict each other; --set one of them to null"
            raise ValueError(msg)
        return sizes[there[0]]

    def flag(self, name: str) -> bool | None:
        """Return true or false, None when it is not there."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            msg = f"{name} must be true or false, not {_short(value)}"
            raise ValueError(msg)
        return value

    def names(self, name: str, *, known: tuple[str, ...], layers: int) -> list[str]:
        """Return a list of a name out of ``known`` for each layer, empty when not there."""
        listed = self.listed(name)
        for one in listed:
            if one not in known:
                msg = f"{name}: {_short(one)} is not understood; there are {', '.join(known)}"
                raise ValueError(msg)
        if listed and len(listed) != layers:
            msg = f"{name} names {len(listed)} layers, and the model has {layers}"
            raise ValueError(msg)
        return listed

    def listed(self, name: str) -> list[Any]:
        """Return a list, empty when it is not there."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            msg = f"{name} must be a list, not {_short(value)}"
            raise ValueError(msg)
        return value or []

    def layers(self, name: str, *, layers: int) -> set[int]:
        """Return the layers that a list names by number, none when it is not there."""
        named = {_whole(name, one, least=0) for one in self.listed(name)}
        if named and max(named) >= layers:
            msg = f"{name} names layer {max(named)}, and the last of {layers} is {layers - 1}"
            raise ValueError(msg)
        return named

    def marks(self, name: str, *, layers: int) -> list[int]:
        """Return a list of a 0 or 1 for each layer, empty when it is not there."""
        marked = [_whole(name, one, least=0) for one in self.listed(name)]
        if marked and (len(marked) != layers or max(marked) > 1):
            msg = f"{name} must have a 0 or 1 for each of {layers} layers"
            raise ValueError(msg)
        return marked

    def text(self, name: str) -> str | None:
        """Return a text, None when it is not there."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            msg = f"{name} must be a text, not {_short(value)}"
            raise ValueError(msg)
        return value


def _whole(name: str, value: object, *, least: int) -> int:
    """Return ``value`` as a whole number of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        msg = f"{name} must be a whole number, not {_short(value)}"
        raise ValueError(msg)
    if value != int(value):
        msg = f"{name} must be a whole number, not {value:g}"
        raise ValueError(msg)
    if value < least:
        msg = f"{name} must be above 0"
        raise ValueError(msg)
    return int(value)


def unread(key: str) -> str | None:
    """Return why a key that a user named would change nothing; None for one that is read."""
    if key in READ or _HARMLESS.fullmatch(key):
        return None
    return f"{key} is no key that is understood; {_near(key)}".rstrip("; ")


def _near(key: str) -> str:
    near = difflib.get_close_matches(key, READ, n=1, cutoff=0.87)
    return f"did you mean {near[0]}? " if near else ""


def _short(value: object) -> str:
    return repr(value)[:40]
