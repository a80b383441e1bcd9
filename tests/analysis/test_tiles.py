"""Tile quantisation: the counted cases, and the laws."""

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.tiles import (
    TiledGemm,
    Weighted,
    executed_over_ideal,
    tile_corrected,
    wave_efficiency,
    waves,
)

_CASES = Path(__file__).parent.parent / "data" / "gemm_tiles" / "cases.csv"


def _rows() -> dict[str, dict[str, str]]:
    with _CASES.open(newline="") as file:
        return {row["case"]: row for row in csv.DictReader(file)}


ROWS = _rows()


def _gemm(row: dict[str, str]) -> TiledGemm:
    return TiledGemm(
        m=int(row["M"]),
        n=int(row["N"]),
        k=int(row["K"]),
        tile_m=int(row["tile_m"]),
        tile_n=int(row["tile_n"]),
        tile_k=int(row["tile_k"]),
        batch=int(row["batch"]),
    )


sizes = st.integers(min_value=1, max_value=100_000)
edges = st.sampled_from([8, 16, 32, 64, 96, 128, 192, 256])
gemms = st.builds(
    TiledGemm,
    m=sizes,
    n=sizes,
    k=sizes,
    tile_m=edges,
    tile_n=edges,
    tile_k=edges,
    batch=st.integers(min_value=1, max_value=64),
)
weighted = st.builds(
    Weighted, gemm=gemms, weight=st.floats(min_value=1e-3, max_value=1e3, allow_nan=False)
)


@pytest.mark.parametrize("case", ROWS)
def test_every_counted_case_comes_out_as_counted(case: str) -> None:
    row = ROWS[case]
    gemm = _gemm(row)
    assert gemm.tiles == (int(row["tiles_m"]), int(row["tiles_n"]), int(row["tiles_k"]))
    assert gemm.ctas == int(row["ctas"])
    assert gemm.ideal_flop == int(row["ideal_flop"])
    assert gemm.executed_flop == int(row["executed_flop"])
    # The file has nine decimals.
    assert gemm.executed_over_ideal == pytest.approx(
        float(row["executed_over_ideal"]), abs=1e-9
    )
    if row["sms"]:
        sms = int(row["sms"])
        assert waves(gemm.ctas, sms) == int(row["waves"])
        efficiency = wave_efficiency(gemm.ctas, sms)
        assert efficiency == pytest.approx(float(row["wave_efficiency"]), abs=1e-9)


def test_one_more_row_executes_half_as_much_again() -> None:
    fits, over = _gemm(ROWS["exact_256"]), _gemm(ROWS["one_row_over"])
    assert (fits.ctas, over.ctas) == (4, 6)
    assert over.executed_flop == 1.5 * fits.executed_flop


def test_padding_a_vocabulary_costs_nothing_that_was_not_already_executed() -> None:
    bare, padded = _gemm(ROWS["vocab_50257"]), _gemm(ROWS["vocab_50304"])
    assert bare.executed_flop == padded.executed_flop
    assert padded.executed_over_ideal == 1.0 < bare.executed_over_ideal


def test_one_token_fewer_executes_the_same() -> None:
    full, fewer = _gemm(ROWS["llama8b_qkv_2048"]), _gemm(ROWS["llama8b_qkv_2047"])
    assert full.executed_flop == fewer.executed_flop


def test_a_matrix_vector_product_wastes_the_whole_tile_but_swapped_operands_do_not() -> None:
    assert _gemm(ROWS["decode_1_row"]).executed_over_ideal == 128.0
    assert _gemm(ROWS["decode_8_swapped"]).executed_over_ideal == 1.0


def test_one_column_more_leaves_the_second_wave_almost_empty_without_padding() -> None:
    gemm = _gemm(ROWS["wave_one_column_more_a100"])
    assert gemm.executed_over_ideal == 1.0
    assert wave_efficiency(gemm.ctas, 108) < 0.55 < wave_efficiency(108, 108)


@given(gemms)
def test_executing_never_takes_less_than_the_product_needs(gemm: TiledGemm) -> None:
    assert gemm.executed_over_ideal >= 1.0


@given(gemms)
def test_sizes_that_divide_waste_nothing(gemm: TiledGemm) -> None:
    tiles_m, tiles_n, tiles_k = gemm.tiles
    whole = TiledGemm(
        m=tiles_m * gemm.tile_m,
        n=tiles_n * gemm.tile_n,
        k=tiles_k * gemm.tile_k,
        tile_m=gemm.tile_m,
        tile_n=gemm.tile_n,
        tile_k=gemm.tile_k,
        batch=gemm.batch,
    )
    assert whole.executed_over_ideal == 1.0
    assert whole.executed_flop == gemm.executed_flop


@given(gemms, st.integers(min_value=1, max_value=50))
def test_scaling_size_and_tile_alike_leaves_the_factor(gemm: TiledGemm, by: int) -> None:
    scaled = TiledGemm(
        m=gemm.m * by,
        n=gemm.n * by,
        k=gemm.k * by,
        tile_m=gemm.tile_m * by,
        tile_n=gemm.tile_n * by,
        tile_k=gemm.tile_k * by,
        batch=gemm.batch,
    )
    assert scaled.executed_over_ideal == pytest.approx(gemm.executed_over_ideal, rel=1e-12)


@given(gemms)
def test_less_than_one_tile_is_wasted_along_each_side(gemm: TiledGemm) -> None:
    most = (1 + gemm.tile_m / gemm.m) * (1 + gemm.tile_n / gemm.n) * (1 + gemm.tile_k / gemm.k)
    assert gemm.executed_over_ideal < most


@given(st.lists(weighted, min_size=1, max_size=8))
def test_a_mix_lies_between_its_best_and_its_worst(products: list[Weighted]) -> None:
    factors = [product.gemm.executed_over_ideal for product in products]
    mixed = executed_over_ideal(products)
    assert min(factors) - 1e-9 <= mixed <= max(factors) + 1e-9 * max(factors)


@given(st.lists(weighted, min_size=1, max_size=8), st.floats(min_value=0.01, max_value=100))
def test_weights_are_relative(products: list[Weighted], by: float) -> None:
    scaled = [Weighted(gemm=item.gemm, weight=item.weight * by) for item in products]
    assert executed_over_ideal(scaled) == pytest.approx(executed_over_ideal(products), rel=1e-9)


@given(weighted, st.integers(min_value=1, max_value=20))
def test_a_weight_is_as_many_runs(product: Weighted, times: int) -> None:
    often = Weighted(gemm=product.gemm, weight=product.weight * times)
    other = Weighted(gemm=_gemm(ROWS["one_row_over"]))
    assert executed_over_ideal([often, other]) == pytest.approx(
        executed_over_ideal([product] * times + [other]), rel=1e-9
    )


def test_a_mix_is_weighted_by_flops_and_not_by_products() -> None:
    large = Weighted(gemm=_gemm(ROWS["square_4096"]))
    tiny = Weighted(gemm=_gemm(ROWS["decode_1_row"]))
    # 128 times the useful work, but of next to no work: the mean of the factors would be 64.5.
    by_hand = (137438953472 + 4294967296) / (137438953472 + 33554432)
    assert executed_over_ideal([large, tiny]) == pytest.approx(by_hand)
    assert by_hand < 1.04


def test_the_correction_divides_the_padding_out() -> None:
    factor = executed_over_ideal([Weighted(gemm=_gemm(ROWS["one_row_over"]))])
    assert tile_corrected(0.6, factor) == pytest.approx(0.6 * 33685504 / 50331648)
    assert tile_corrected(0.6, 1.0) == 0.6


@given(gemms, st.floats(min_value=1e-3, max_value=1e3).map(lambda value: round(value, 3)))
def test_a_product_is_read_back_from_its_text(gemm: TiledGemm, weight: float) -> None:
    text = f"{gemm.m}x{gemm.n}x{gemm.k}@{gemm.tile_m}x{gemm.tile_n}x{gemm.tile_k}"
    read = Weighted.parse(f"{text}*{weight:.3f}")
    assert read.weight == weight
    assert math.prod(read.gemm.tiles[:2]) * gemm.batch == gemm.ctas
    assert Weighted.parse(text.upper()).weight == 1.0


@pytest.mark.parametrize(
    "text",
    ["", "1x2x3", "1x2x3@4x5", "1x2x3@4x5x6*", "1x2x3@4x5x6*-1", "axbxc@1x1x1", "1 x2x3@4x5x6"],
)
def test_a_product_of_another_form_is_refused_with_the_form_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write MxNxK@TMxTNxTK"):
        Weighted.parse(text)


@pytest.mark.parametrize("text", ["0x2x3@4x5x6", "1x2x3@4x0x6", "1x2x3@4x5x6*0"])
def test_a_size_or_weight_of_zero_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        Weighted.parse(text)


def test_no_product_has_no_factor() -> None:
    with pytest.raises(ValueError, match="at least one"):
        executed_over_ideal([])
