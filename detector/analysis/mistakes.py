"""Ways to get MFU wrong, made on purpose on a model: which would give the ratio that is seen.

A framework that reports another MFU than OFU implies has most often one thing wrong in its
formula or in the peak that it divides by. Each is made here on the model at hand, and what
comes to the observed ratio explains it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from detector.analysis.mfu import (
    PASSES,
    Attention,
    Block,
    Experts,
    Mamba,
    Mlp,
    Model,
    Recompute,
    executed,
    forward,
    training,
)

B = TypeVar("B", Attention, Mlp, Experts)


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
    without = true - PASSES * parts["logits"]
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
    further = tuple(
        change(block) if isinstance(block, kind) else block for block in model.further_blocks
    )
    return replace(model, blocks=blocks, further_blocks=further)


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
