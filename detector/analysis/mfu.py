"""Model FLOPs of a transformer, a mixture of experts or a Mamba hybrid; MFU and HFU from them.

A framework's MFU is as right as its formula. Here the formula is written out block by block,
per token and forward pass, so that it can be held against what the hardware did (OFU), and
so that the usual mistakes can be made on purpose (``mistakes``).

Counted are matrix products, two FLOPs a multiplication and addition. Norms, activations,
rotary embeddings and the softmax are not: 0.2 % of a transformer's FLOPs (``ofu``). Training
takes three forward passes: its own and two in the backward pass.

References
----------
Narayanan et al. (2021), arXiv 2104.04473, the formula of dense models; Korthikanti et al.
(2022), arXiv 2205.05198, MFU against HFU; Chowdhery et al. (2022), arXiv 2204.02311, the
definition of MFU. Latent experts and the scan of Mamba: as Megatron-Bridge counts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

Recompute = Literal["none", "selective", "full"]

# Forward passes of a training step: one forward, two backward (gradients of inputs, weights).
PASSES = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention, or multi-head latent attention where ranks are given.

    Attributes
    ----------
    heads, kv_heads
        Query heads, and the groups that share keys and values.
    head_dim, v_dim
        Size of a head of queries and keys, and of values.
    q_rank, kv_rank
        Ranks of the latent projections of queries and of keys with values; 0 for none.
    rope_dim
        Part of ``head_dim`` that all heads share under ``kv_rank``.
    window
        Tokens that a token looks back at most; 0 for all.
    chunk
        Tokens of the chunks between which no token looks; 0 for none.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    window: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A feed-forward block; ``gated`` ones (SwiGLU) have three products instead of two."""

    ffn: int
    gated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts.

    Attributes
    ----------
    latent
        Size that tokens are projected down to for the routed experts; 0: the full hidden size.
    shared_ffn
        Size of the experts that see every token, at the full hidden size, taken together.
    """

    experts: int
    top_k: int
    ffn: int
    gated: bool
    shared_ffn: int = 0
    latent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """A Mamba-2 block: projections in and out, and the scan over its state."""

    heads: int
    head_dim: int
    state: int
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One product from ``width`` numbers to the hidden size."""

    width: int


Block = Attention | Mlp | Experts | Mamba | Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder: how often it has which block.

    Attributes
    ----------
    layers
        Layers as people count them; of a hybrid of single blocks each block is one.
    further, further_blocks
        Layers that predict the tokens after the next (multi-token prediction), and what each is
        made of, beside the logits once more.
    notes
        What was taken for granted when the model was read, for people.
    """

    hidden: int
    vocab: int
    blocks: tuple[tuple[int, Block], ...]
    layers: int
    further: int = 0
    further_blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()


def forward(model: Model, *, seq: int, causal: bool = True) -> dict[str, float]:
    """Return FLOPs per token of one forward pass, by part.

    Parameters
    ----------
    seq
        Tokens of a sequence.
    causal
        Count the half of the scores that a causal mask leaves, as kernels that skip the other
        half execute it. Older formulas count all.
    """
    parts: dict[str, float] = {}
    further = ((model.further, block) for block in model.further_blocks)
    for count, block in (*model.blocks, *further):
        for part, flop in _block(block, model.hidden, seq=seq, causal=causal).items():
            parts[part] = parts.get(part, 0.0) + count * flop
    parts["logits"] = 2.0 * model.hidden * model.vocab * (1 + model.further)
    return parts


def _block(block: Block, h: int, *, seq: int, causal: bool) -> dict[str, float]:
    match block:
        case Attention():
            return _attention(block, h, seq=seq, causal=causal)
        case Mlp():
            return {"mlp": 2.0 * h * block.ffn * _products(gated=block.gated)}
        case Experts():
            return _experts(block, h)
        case Mamba():
            inner = block.heads * block.head_dim
            into = 2 * inner + 2 * block.groups * block.state + block.heads
            # 7: as Megatron counts the scan; some percent of the block at most.
            scan = 7.0 * inner * block.state
            return {"mamba": 2.0 * h * into + scan + 2.0 * inner * h}
        case Projection():
            return {"further_token_projections": 2.0 * h * block.width}
        case _:
            assert_never(block)


def _attention(block: Attention, h: int, *, seq: int, causal: bool) -> dict[str, float]:
    query = block.heads * block.head_dim
    values = block.heads * block.v_dim
    into = block.q_rank * (h + query) if block.q_rank else h * query
    if block.kv_rank:
        expanded = block.heads * (block.head_dim - block.rope_dim + block.v_dim)
        into += h * (block.kv_rank + block.rope_dim) + block.kv_rank * expanded
    else:
        into += h * block.kv_heads * (block.head_dim + block.v_dim)
    return {
        "attention_projections": 2.0 * (into + values * h),
        "attention_scores": 2.0 * _seen(block, seq=seq, causal=causal) * (query + values),
    }


def _seen(block: Attention, *, seq: int, causal: bool) -> float:
    """Tokens that a token attends to, on the mean over the sequence."""
    if not causal:
        return float(seq)
    if block.chunk and block.chunk < seq:
        chunks, rest = divmod(seq, block.chunk)
        return (chunks * block.chunk**2 + rest**2) / (2 * seq)
    if block.window and block.window < seq:
        return block.window - block.window**2 / (2 * seq)
    return seq / 2


def _experts(block: Experts, h: int) -> dict[str, float]:
    width = block.latent or h
    products = _products(gated=block.gated)
    parts = {
        "experts": 2.0 * width * block.ffn * products * block.top_k,
        "router": 2.0 * h * block.experts,
    }
    if block.latent:
        parts["latent_projections"] = 2.0 * 2 * h * block.latent
    if block.shared_ffn:
        parts["shared_experts"] = 2.0 * h * block.shared_ffn * products
    return parts


def _products(*, gated: bool) -> int:
    return 3 if gated else 2


def training(forward_parts: Mapping[str, float]) -> float:
    """Return model FLOPs per token of a training step: what MFU counts."""
    return PASSES * sum(forward_parts.values())


def recomputed(forward_parts: Mapping[str, float], recompute: Recompute) -> float:
    """Return FLOPs per token that the backward pass computes again.

    ``full`` runs every layer's forward pass once more, the logits excepted; ``selective`` only
    the attention scores, once. (arXiv 2205.05198 counts the scores of ``selective`` three times
    more, which is more than is executed.)
    """
    match recompute:
        case "full":
            return sum(flop for part, flop in forward_parts.items() if part != "logits")
        case "selective":
            return forward_parts.get("attention_scores", 0.0)
        case _:
            return 0.0


def executed(forward_parts: Mapping[str, float], recompute: Recompute) -> float:
    """Return FLOPs per token that the hardware executes: what HFU, and OFU, count."""
    return training(forward_parts) + recomputed(forward_parts, recompute)


def utilisation(flop_per_token: float, *, tokens_per_s: float, peak_tflops: float) -> float:
    """Return the share of ``peak_tflops`` (of one GPU) at ``tokens_per_s`` of one GPU."""
    return flop_per_token * tokens_per_s / (peak_tflops * 1e12)
