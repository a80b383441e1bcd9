"""Model FLOPs of a transformer, a mixture of experts or a Mamba hybrid; MFU and HFU from them.

A framework's MFU is as right as its formula. Here the formula is written out block by block,
per token and forward pass, so that it can be held against what the hardware did (OFU), and
the usual mistakes can be made on purpose: :func:`explanations` says which of them would give
the ratio of the two.

Counted are matrix products, two FLOPs a multiplication and addition. Norms, activations,
rotary embeddings and the softmax are not: 0.2 % of a transformer's FLOPs (``ofu``). Training
takes three forward passes: its own and two in the backward pass.

References
----------
Narayanan et al. (2021), arXiv 2104.04473, the formula of dense models; Korthikanti et al.
(2022), arXiv 2205.05198, MFU against HFU; Chowdhery et al. (2022), arXiv 2204.02311, the
definition of MFU. Latent experts and the scan of Mamba: as Megatron-Bridge counts them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeVar, assert_never

Recompute = Literal["none", "selective", "full"]

# Forward passes of a training step: one forward, two backward (gradients of inputs, weights).
_PASSES = 3.0


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
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    window: int = 0


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


Block = Attention | Mlp | Experts | Mamba
B = TypeVar("B", Attention, Mlp, Experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder: how often it has which block."""

    hidden: int
    vocab: int
    blocks: tuple[tuple[int, Block], ...]


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
    for count, block in model.blocks:
        for part, flop in _block(block, model.hidden, seq=seq, causal=causal).items():
            parts[part] = parts.get(part, 0.0) + count * flop
    parts["logits"] = 2.0 * model.hidden * model.vocab
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
    if not block.window or block.window >= seq:
        return seq / 2
    return block.window - block.window**2 / (2 * seq)


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
    return _PASSES * sum(forward_parts.values())


def executed(forward_parts: Mapping[str, float], recompute: Recompute) -> float:
    """Return FLOPs per token that the hardware executes: what HFU, and OFU, count.

    ``full`` runs every layer's forward pass once more, the logits excepted; ``selective`` only
    the attention scores (arXiv 2205.05198).
    """
    again = 0.0
    if recompute == "full":
        again = sum(flop for part, flop in forward_parts.items() if part != "logits")
    elif recompute == "selective":
        again = forward_parts.get("attention_scores", 0.0)
    return training(forward_parts) + again


def by_parameters(
    parameters: float, *, layers: int, width: int, seq: int, causal: bool = False
) -> float:
    """Return training FLOPs per token by the shorthand ``6 N + 12 L d T``, causal ``6 L d T``.

    It counts the embedding table as a product and every score, so it is a few percent high.
    """
    return 6.0 * parameters + (6.0 if causal else 12.0) * layers * width * seq


def utilisation(flop_per_token: float, *, tokens_per_s: float, peak_tflops: float) -> float:
    """Return the share of ``peak_tflops`` (of one GPU) at ``tokens_per_s`` of one GPU."""
    return flop_per_token * tokens_per_s / (peak_tflops * 1e12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A way to get MFU wrong, and by how much: ``reported = factor x true``."""

    name: str
    factor: float
    says: str


def mistakes(
    model: Model | None,
    *,
    seq: int,
    causal: bool = True,
    recompute: Recompute = "none",
    clock_ratio: float | None = None,
) -> tuple[Mistake, ...]:
    """Return the mistakes that this model and GPU leave room for, by what each would do.

    Parameters
    ----------
    clock_ratio
        ``f_max / f_tensor`` of the GPU; None when it is not known.
    """
    found = list(_of_the_peak(clock_ratio))
    if model is None:
        return tuple(found)
    true = training(parts := forward(model, seq=seq, causal=causal))
    for name, says, wrong in _wrong_models(model):
        found.append(
            _mistake(name, training(forward(wrong, seq=seq, causal=causal)), true, says)
        )
    other = training(forward(model, seq=seq, causal=not causal))
    found.append(
        _mistake(
            "all_scores" if causal else "half_scores",
            other,
            true,
            "attention scores counted without the causal mask"
            if causal
            else "attention scores counted as if a causal mask were skipped",
        )
    )
    without = true - _PASSES * parts["logits"]
    found.append(_mistake("no_logits", without, true, "the output layer was left out"))
    kind: Recompute = "full" if recompute == "none" else recompute
    found.append(
        _mistake(
            "hfu_as_mfu", executed(parts, kind), true, f"{kind} recomputation counted as work"
        )
    )
    return tuple(one for one in found if abs(math.log(one.factor)) > 0.005)


def _mistake(name: str, wrong: float, true: float, says: str) -> Mistake:
    return Mistake(name=name, factor=wrong / true, says=says)


def _of_the_peak(clock_ratio: float | None) -> tuple[Mistake, ...]:
    """Mistakes in the peak that the work is divided by."""
    found = [
        Mistake(name="sparse_peak", factor=0.5, says="divided by the peak with 2:4 sparsity"),
        Mistake(
            name="lower_precision_peak",
            factor=0.5,
            says="divided by the peak of half the bits (FP8's for BF16 work)",
        ),
        Mistake(
            name="higher_precision_peak",
            factor=2.0,
            says="divided by the peak of twice the bits (BF16's for FP8 work)",
        ),
    ]
    if clock_ratio is not None and clock_ratio != 1.0:
        says = "divided by the peak at the maximal clock instead of the data sheet's"
        found.append(Mistake(name="peak_at_max_clock", factor=1 / clock_ratio, says=says))
    return tuple(found)


def _wrong_models(model: Model) -> tuple[tuple[str, str, Model], ...]:
    """The model as wrong formulas see it; those that change nothing are left out."""
    wrong = [
        (
            "experts_at_full_hidden_size",
            "routed experts counted at the hidden size, not at their latent one",
            _mapped(model, Experts, lambda block: replace(block, latent=0)),
        ),
        (
            "all_experts",
            "all experts counted, not the top k that a token visits",
            _mapped(model, Experts, lambda block: replace(block, top_k=block.experts)),
        ),
        (
            "one_expert",
            "one expert counted, not the top k",
            _mapped(model, Experts, lambda block: replace(block, top_k=1)),
        ),
        (
            "no_shared_experts",
            "shared experts left out",
            _mapped(model, Experts, lambda block: replace(block, shared_ffn=0)),
        ),
        (
            "keys_and_values_of_every_head",
            "grouped-query attention counted as multi-head attention",
            _mapped(model, Attention, lambda block: replace(block, kv_heads=block.heads)),
        ),
        (
            "gated_as_plain",
            "a gated feed-forward block counted with two products instead of three",
            _gated(model, gated=False),
        ),
        (
            "plain_as_gated",
            "a plain feed-forward block counted with three products instead of two",
            _gated(model, gated=True),
        ),
        (
            "every_layer_a_transformer",
            "each layer of the hybrid counted as attention with a feed-forward block",
            _all_transformer(model),
        ),
    ]
    return tuple((name, says, other) for name, says, other in wrong if other != model)


def _mapped(model: Model, kind: type[B], change: Callable[[B], Block]) -> Model:
    blocks = tuple(
        (count, change(block) if isinstance(block, kind) else block)
        for count, block in model.blocks
    )
    return replace(model, blocks=blocks)


def _gated(model: Model, *, gated: bool) -> Model:
    changed = _mapped(model, Mlp, lambda block: replace(block, gated=gated))
    return _mapped(changed, Experts, lambda block: replace(block, gated=gated))


def _all_transformer(model: Model) -> Model:
    """Each single-mixer layer of a hybrid as a whole transformer layer of the model's own."""
    blocks = [block for _, block in model.blocks]
    if not any(isinstance(block, Mamba) for block in blocks):
        return model
    layers = sum(count for count, _ in model.blocks)
    attention = next((block for block in blocks if isinstance(block, Attention)), None)
    feed = next((block for block in blocks if isinstance(block, Mlp | Experts)), None)
    if attention is None or feed is None:
        return model
    return replace(model, blocks=((layers, attention), (layers, feed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Mistakes that together give ``factor``; ``off`` is what is left, as a ratio above 0."""

    mistakes: tuple[Mistake, ...]
    factor: float
    off: float


def explanations(
    observed: float, known: tuple[Mistake, ...], *, tolerance: float
) -> tuple[Explanation, ...]:
    """Return what would explain ``observed = reported / true``, the likeliest first.

    One mistake comes before two. ``tolerance`` is the relative doubt in ``observed``; what
    leaves more than that unexplained is not returned, and neither is anything when
    ``observed`` lies within it of 1.
    """
    if observed <= 0 or abs(math.log(observed)) <= tolerance:
        return ()
    found = []
    for size in (1, 2):
        for chosen in combinations(known, size):
            if len({one.name.rpartition("_")[2] for one in chosen}) < size:
                continue  # two mistakes about one thing exclude each other
            factor = math.prod(one.factor for one in chosen)
            off = observed / factor
            if abs(math.log(off)) <= tolerance:
                found.append(Explanation(mistakes=chosen, factor=factor, off=off))
        if found:
            break
    return tuple(sorted(found, key=lambda one: abs(math.log(one.off))))
