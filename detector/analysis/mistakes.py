"""Ways to come to a wrong MFU, or to misread OFU, made on purpose on a model.

A framework that reports another MFU than OFU implies has most often one thing wrong in its
formula or in the peak that it divides by. Each is made here on the model at hand; which of them
come to an observed ratio says ``explanation``.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

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
    recomputed,
)
from detector.analysis.peaks import Commonness, Peak

B = TypeVar("B", Attention, Mlp, Experts)

# FlashAttention's backward pass computes the scores anew: five products for the forward pass's
# two (arXiv 2307.08691, section 2.3), so 3.5 forward passes of the scores where MFU counts 3.
_FLASH_PASSES = 3.5

# Factors by which GPUs, or the throughput of a node for a GPU's, are miscounted.
_MISCOUNTS: dict[int, Commonness] = {2: 3, 4: 3, 8: 2}

# A ratio nearer to 1 is no mistake to tell: rounding makes as much.
_LEAST = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """How an MFU is come to.

    Attributes
    ----------
    model
        None where it is not known: recomputation and passes can be told all the same.
    passes
        Forward passes that a training step is counted as.
    left_out
        Parts of the forward pass that are not counted.
    embedding
        Whether the embedding table is counted as a product.
    again
        Recomputation that is counted as work.
    times
        By what GPUs, peak or throughput enlarge it.
    beyond
        What the hardware executed beyond what was told, as a share of that: by so much is the
        MFU that OFU implies too high.
    """

    model: Model | None
    seq: int
    causal: bool = True
    passes: float = PASSES
    left_out: frozenset[str] = frozenset()
    embedding: bool = False
    again: Recompute = "none"
    times: float = 1.0
    beyond: float = 0.0

    def parts(self) -> dict[str, float]:
        """Return FLOPs of a forward pass by part; all of it as one unit without a model."""
        if self.model is None:
            return {"model": 1.0}
        return forward(self.model, seq=self.seq, causal=self.causal)

    def value(self) -> float:
        """Return what is proportional to the MFU that is come to."""
        kept = {part: flop for part, flop in self.parts().items() if part not in self.left_out}
        if self.embedding and self.model is not None:
            kept["embedding"] = 2.0 * self.model.hidden * self.model.vocab
        flop = self.passes * sum(kept.values()) + recomputed(kept, self.again)
        return flop * self.times / (1 + self.beyond)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A way to get MFU wrong, and by how much: ``reported = factor x true``.

    Attributes
    ----------
    about
        What it is about; two mistakes about one thing exclude each other.
    change
        Makes the mistake; ``right`` is what ``factor`` was made on.
    """

    name: str
    says: str
    about: frozenset[str]
    common: Commonness
    change: Callable[[Claim], Claim]
    right: Claim

    @property
    def factor(self) -> float:
        """By what it enlarges the MFU."""
        return together((self,))


def together(chosen: tuple[Mistake, ...]) -> float:
    """Return by what mistakes enlarge the MFU when all are made on one model."""
    right = wrong = chosen[0].right
    for one in chosen:
        wrong = one.change(wrong)
    return wrong.value() / right.value()


def mistakes(
    model: Model | None,
    *,
    seq: int,
    causal: bool = True,
    recompute: Recompute = "none",
    peaks: tuple[Peak, ...] = (),
    by_ofu: bool = False,
) -> tuple[Mistake, ...]:
    """Return the mistakes that this model and GPU leave room for.

    Parameters
    ----------
    recompute
        What was told to be recomputed.
    peaks
        Peaks that may be mistaken for the right one (``peaks``).
    by_ofu
        The true MFU is the one that OFU implies, so that what the hardware executed beyond what
        was told counts as well.
    """
    right = Claim(model=model, seq=seq, causal=causal)
    ways = [*_of_passes(recompute), *_of_numbers(), *map(_of_a_peak, peaks)]
    if model is not None:
        ways = [*_of_counts(causal=causal), *_of_blocks(model), *ways]
    if by_ofu:
        ways = [*_of_execution(right, recompute), *ways]
    found = (
        Mistake(
            name=way.name,
            says=way.says,
            about=frozenset(way.about.split()),
            common=way.common,
            change=way.change,
            right=right,
        )
        for way in ways
    )
    return tuple(one for one in found if abs(math.log(one.factor)) > _LEAST)


class _Way(NamedTuple):
    """A mistake before it is made; ``about`` has one word a thing that it is about."""

    name: str
    about: str
    common: Commonness
    says: str
    change: Callable[[Claim], Claim]


def _times(by: float) -> Callable[[Claim], Claim]:
    return lambda claim: replace(claim, times=claim.times * by)


def _of_a_peak(peak: Peak) -> _Way:
    return _Way(peak.name, "peak", peak.common, peak.says, _times(peak.factor))


def _of_numbers() -> Iterator[_Way]:
    for by, common in _MISCOUNTS.items():
        few, many = f"{by} times too few GPUs counted", f"{by} times too many GPUs counted"
        yield _Way(f"gpus_{by}_times_too_few", "gpus", common, few, _times(by))
        yield _Way(f"gpus_{by}_times_too_many", "gpus", common, many, _times(1 / by))
    says = "a multiplication and an addition counted as one FLOP"
    yield _Way("multiply_adds", "flop", 3, says, _times(0.5))


def _of_passes(recompute: Recompute) -> Iterator[_Way]:
    kind: Recompute = "full" if recompute == "none" else recompute
    says = f"{kind} recomputation counted as work"
    yield _Way("hfu_as_mfu", "passes", 1, says, lambda claim: replace(claim, again=kind))
    says = "the forward pass alone counted, not the backward pass"
    yield _Way("forward_only", "passes", 3, says, lambda claim: replace(claim, passes=1.0))


def _of_execution(right: Claim, recompute: Recompute) -> Iterator[_Way]:
    """What the hardware may have executed that nobody told."""
    parts = right.parts()
    told = executed(parts, recompute)

    def more(flop: float) -> Callable[[Claim], Claim]:
        return lambda claim: replace(claim, beyond=claim.beyond + flop / told)

    kinds: tuple[Recompute, ...] = ("full", "selective") if recompute == "none" else ()
    for kind in kinds:
        says = f"was {kind} recomputation on? Then add --recompute {kind}: OFU counts it"
        again = more(recomputed(parts, kind))
        yield _Way(f"{kind}_recomputation_untold", "executed", 1, says, again)
    says = (
        "FlashAttention's backward pass, which computes the scores anew (3.5 forward passes of "
        "them, not 3): OFU counts it, and nothing is wrong"
    )
    scores = parts.get("attention_scores", 0.0)
    yield _Way("flash_attention", "flash", 1, says, more((_FLASH_PASSES - PASSES) * scores))


def _of_counts(*, causal: bool) -> Iterator[_Way]:
    """What formulas leave out of a model, or count of it that is no product."""

    def without(*parts: str, embedding: bool = False) -> Callable[[Claim], Claim]:
        return lambda claim: replace(
            claim,
            left_out=claim.left_out.union(parts),
            embedding=claim.embedding or embedding,
        )

    says = "attention scores counted without the causal mask"
    if not causal:
        says = "attention scores counted as if a causal mask were skipped"
    name = "all_scores" if causal else "half_scores"
    yield _Way(name, "scores", 1, says, lambda claim: replace(claim, causal=not causal))
    says = "6 x parameters: attention scores left out"
    yield _Way("six_n", "scores", 1, says, without("attention_scores"))
    says = "6 x all parameters, with the embedding table: attention scores left out"
    all_parameters = without("attention_scores", embedding=True)
    yield _Way("six_n_with_embedding", "scores embedding", 1, says, all_parameters)
    says = "the embedding table counted as a product"
    yield _Way("embedding", "embedding", 2, says, without(embedding=True))
    yield _Way("no_logits", "logits", 2, "the output layer was left out", without("logits"))


def _of_blocks(model: Model) -> Iterator[_Way]:
    """The model as wrong formulas see it; those that change nothing are left out."""
    for name, about, common, says, wrong in _WRONG_MODELS:
        if wrong(model) != model:
            yield _Way(name, about, common, says, _seen_as(wrong))


def _seen_as(wrong: Callable[[Model], Model]) -> Callable[[Claim], Claim]:
    return lambda claim: replace(claim, model=claim.model and wrong(claim.model))


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
    attention = next((block for block in blocks if isinstance(block, Attention)), None)
    feed = next((block for block in blocks if isinstance(block, Mlp | Experts)), None)
    if attention is None or feed is None:
        return model
    return replace(model, blocks=((model.layers, attention), (model.layers, feed)))


_WRONG_MODELS: tuple[tuple[str, str, Commonness, str, Callable[[Model], Model]], ...] = (
    (
        "experts_at_full_hidden_size", "width", 1,
        "routed experts counted at the hidden size, not at their latent one",
        lambda model: _mapped(model, Experts, lambda block: replace(block, latent=0)),
    ),
    (
        "all_experts", "experts", 1, "all experts counted, not the top k that a token visits",
        lambda model: _mapped(
            model, Experts, lambda block: replace(block, top_k=block.experts)
        ),
    ),
    (
        "one_expert", "experts", 2, "one expert counted, not the top k",
        lambda model: _mapped(model, Experts, lambda block: replace(block, top_k=1)),
    ),
    (
        "no_shared_experts", "shared", 2, "shared experts left out",
        lambda model: _mapped(model, Experts, lambda block: replace(block, shared_ffn=0)),
    ),
    (
        "keys_and_values_of_every_head", "kv", 2,
        "grouped-query attention counted as multi-head attention",
        lambda model: _mapped(
            model, Attention, lambda block: replace(block, kv_heads=block.heads)
        ),
    ),
    (
        "windows_ignored", "scores", 2,
        "attention in windows counted as attention to all tokens",
        lambda model: _mapped(
            model, Attention, lambda block: replace(block, window=0, chunk=0)
        ),
    ),
    (
        "gated_as_plain", "gate", 2,
        "a gated feed-forward block counted with two products instead of three",
        lambda model: _gated(model, gated=False),
    ),
    (
        "plain_as_gated", "gate", 2,
        "a plain feed-forward block counted with three products instead of two",
        lambda model: _gated(model, gated=True),
    ),
    (
        "no_further_tokens", "further", 1, "multi-token prediction left out",
        lambda model: replace(model, further=0),
    ),
    (
        "every_layer_a_transformer", "layers", 1,
        "each layer of the hybrid counted as attention with a feed-forward block",
        _all_transformer,
    ),
)  # fmt: skip
