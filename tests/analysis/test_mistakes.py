"""Mistakes in MFU, held against what they do."""

from dataclasses import replace

import pytest

from detector.analysis import mfu, mistakes
from tests.analysis.decoders import HYBRID, LATENT, dense


def test_experts_counted_at_the_full_hidden_size_explain_their_own_ratio_first() -> None:
    """The kind of mistake by which a mixture of experts reported twice its OFU."""
    known = mistakes.mistakes(HYBRID, seq=8192, clock_ratio=1.082)
    wrong = next(one for one in known if one.name == "experts_at_full_hidden_size")
    assert wrong.factor > 1.3
    found = mistakes.explanations(wrong.factor, known, tolerance=0.05)
    assert found[0].mistakes == (wrong,)
    assert found[0].off == pytest.approx(1.0)


def test_every_mistake_names_the_ratio_of_the_formula_that_makes_it() -> None:
    known = {one.name: one.factor for one in mistakes.mistakes(HYBRID, seq=8192)}
    true = mfu.training(mfu.forward(HYBRID, seq=8192))
    all_experts = replace(LATENT, top_k=64)
    wrong = replace(HYBRID, blocks=(*HYBRID.blocks[:2], (24, all_experts)))
    made = mfu.training(mfu.forward(wrong, seq=8192)) / true
    assert known["all_experts"] == pytest.approx(made)
    assert known["all_scores"] > 1.0
    assert known["every_layer_a_transformer"] != 1.0
    assert known["sparse_peak"] == 0.5


def test_a_dense_model_is_not_told_of_experts() -> None:
    model = dense(layers=4, hidden=1024, vocab=1000, ffn=4096)
    names = {one.name for one in mistakes.mistakes(model, seq=128)}
    assert not any("expert" in name or "transformer" in name for name in names)
    assert "keys_and_values_of_every_head" not in names


def test_agreement_needs_no_explanation_and_an_odd_ratio_finds_none() -> None:
    known = mistakes.mistakes(None, seq=0)
    assert mistakes.explanations(1.04, known, tolerance=0.05) == ()
    assert mistakes.explanations(7.3, known, tolerance=0.05) == ()
