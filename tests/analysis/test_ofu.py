"""OFU, its units, and the table of GPU models."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.clock import Clock
from detector.analysis.ofu import (
    Absent,
    ClockRatio,
    GpuModel,
    GpuTable,
    Precision,
    clock_ratio,
    mfu_interval,
    ofu,
    ofu_at,
    precision_named,
)

_FILE = Path(__file__).parent.parent.parent / "models" / "gpus.toml"
TABLE = msgspec.convert(tomllib.loads(_FILE.read_text()), type=GpuTable)

ratios = st.floats(min_value=0.0, max_value=1.0)
mhz = st.floats(min_value=100.0, max_value=3000.0)


def _model(name: str) -> GpuModel:
    model = TABLE.find(name)
    assert model is not None
    return model


def _ratio(name: str, precision: Precision) -> ClockRatio:
    ratio = clock_ratio(_model(name), precision)
    assert isinstance(ratio, ClockRatio)
    return ratio


# --- clocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["1830 MHz", "1830MHz", " 1830 mhz ", "1.83 GHz", "1830000000 Hz", "1.83e9 Hz"]
)
def test_a_clock_is_the_same_whatever_unit_it_is_written_in(text: str) -> None:
    assert Clock.parse(text).in_mhz == pytest.approx(1830)
    assert Clock.parse(text).in_hertz == pytest.approx(1.83e9)


def test_a_clock_without_unit_is_refused_and_told_what_to_write() -> None:
    with pytest.raises(ValueError, match="'1830' has no unit; write '1830 MHz'"):
        Clock.parse("1830")


@pytest.mark.parametrize("text", ["1830 furlong", "MHz", "-1830 MHz", "nan MHz", ""])
def test_what_is_no_clock_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        Clock.parse(text)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Clock.mhz(1.83e9),
        lambda: Clock.hertz(1830),
        lambda: Clock.mhz(0),
        lambda: Clock.mhz(float("nan")),
        lambda: Clock.hertz(9223372036854775794),
    ],
)
def test_hertz_as_megahertz_the_reverse_and_blanks_are_no_clocks(wrong: Any) -> None:
    with pytest.raises(ValueError, match="no SM clock"):
        wrong()


def test_a_clock_that_no_sm_idles_at_is_most_likely_in_another_unit() -> None:
    with pytest.raises(ValueError, match="is the unit another one"):
        Clock.parse("1.71 MHz")
    assert Clock.parse("120 MHz").in_mhz == 120


@given(mhz)
def test_a_clock_reads_back_what_it_writes(value: float) -> None:
    clock = Clock.mhz(round(value))
    assert Clock.parse(str(clock)).in_hertz == pytest.approx(clock.in_hertz)


def test_a_raw_number_is_no_clock() -> None:
    with pytest.raises(AttributeError):
        ofu_at(0.5, clock=1710, max_clock=Clock.mhz(1980))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Clock(1710)  # type: ignore[call-arg]


# --- OFU --------------------------------------------------------------------------------------


def test_ofu_is_activity_times_the_share_of_the_maximal_clock() -> None:
    value = ofu_at(0.52, clock=Clock.mhz(1710), max_clock=Clock.mhz(1980))
    assert value == pytest.approx(0.52 * 1710 / 1980)


@given(ratios, mhz, mhz)
def test_mixed_units_are_converted_and_not_mixed(
    tensor: float, low: float, high: float
) -> None:
    low, high = sorted((low, high))
    same = ofu_at(tensor, clock=Clock.mhz(low), max_clock=Clock.mhz(high))
    mixed = ofu_at(tensor, clock=Clock.hertz(low * 1e6), max_clock=Clock.mhz(high))
    assert mixed == same
    assert 0.0 <= same <= 1.0


@given(st.lists(st.tuples(ratios, mhz, mhz), min_size=1, max_size=20))
def test_many_readings_give_what_each_gives_alone(
    readings: list[tuple[float, float, float]],
) -> None:
    tensor, a, b = np.array(readings).T
    low, high = np.minimum(a, b), np.maximum(a, b)
    alone = [
        ofu_at(t, clock=Clock.mhz(c), max_clock=Clock.mhz(m))
        for t, c, m in zip(tensor, low, high, strict=True)
    ]
    assert ofu(tensor, low, high) == pytest.approx(alone)


def test_an_impossible_reading_is_nan_and_hides_no_other() -> None:
    nan = np.nan
    tensor = [0.5, nan, -0.1, 1.1, 52, 0.5, 0.5, 0.5, 0.5, 0.5]
    clock = [1710, 1710, 1710, 1710, 1710, nan, 0, 1.71e9, 1710, 1980]
    top = [1980, 1980, 1980, 1980, 1980, 1980, 1980, 1980, 1.98e9, 1710]
    values = ofu(tensor, clock, top)
    assert values[0] == pytest.approx(0.5 * 1710 / 1980)
    assert np.isnan(values[1:]).all()


def test_an_average_just_above_one_is_one() -> None:
    assert ofu(1.015, 1980, 1980) == 1.0
    assert ofu_at(1.015, clock=Clock.mhz(1980), max_clock=Clock.mhz(1980)) == 1.0


def test_one_maximal_clock_serves_a_whole_panel() -> None:
    assert ofu(np.full((3, 2), 0.5), np.full((3, 2), 990.0), 1980).tolist() == [[0.25] * 2] * 3


@pytest.mark.parametrize("tensor", [float("nan"), -0.01, 1.03, 52.0])
def test_activity_that_is_no_ratio_is_refused(tensor: float) -> None:
    with pytest.raises(ValueError, match="outside 0"):
        ofu_at(tensor, clock=Clock.mhz(1710), max_clock=Clock.mhz(1980))


def test_swapped_clocks_are_refused() -> None:
    with pytest.raises(ValueError, match="swapped"):
        ofu_at(0.5, clock=Clock.mhz(1980), max_clock=Clock.mhz(1710))


def test_raw_ofu_reads_above_mfu_and_corrected_on_either_side() -> None:
    assert mfu_interval(0.5, tile_corrected=False) == pytest.approx((0.47, 0.49))
    assert mfu_interval(0.5, tile_corrected=True) == pytest.approx((0.48, 0.52))


@given(st.floats(min_value=0.0, max_value=1.2), st.booleans())
def test_where_mfu_lies_is_a_span_that_no_bound_of_1_cuts_off(
    value: float, corrected: bool
) -> None:
    low, high = mfu_interval(value, tile_corrected=corrected)
    assert 0.0 <= low <= high
    # A GPU at 1980 MHz does more than a data sheet that is stated at 1830 MHz.
    assert high >= value - 0.01 - 1e-12


# --- the table --------------------------------------------------------------------------------

_ASKED_FOR = [
    "V100-SXM2", "V100-PCIe", "A100-SXM", "A100-PCIe", "H100-SXM", "H100-PCIe", "H100-NVL",
    "H200", "GH200", "B200", "GB200", "B300", "GB300", "L40S",
]  # fmt: skip


@pytest.mark.parametrize("name", _ASKED_FOR)
def test_the_table_has_the_model(name: str) -> None:
    assert _model(name).name == name


def test_each_figure_has_a_source_that_says_where_and_what() -> None:
    used = set()
    for model in TABLE.gpu:
        assert model.figures()
        for path, figure in model.figures().items():
            source = TABLE.sources[figure.source]
            assert source.url.startswith("https://"), (model.name, path)
            assert source.title, (model.name, path)
            assert source.says, (model.name, path)
            used.add(figure.source)
    assert used == set(TABLE.sources), "a source that no figure names"


def _complete() -> list[tuple[str, Precision]]:
    return [
        (model.name, precision)
        for model in TABLE.gpu
        for precision, rates in model.precision.items()
        if model.sms
        and rates.tensor_clock_mhz
        and rates.flop_per_cycle_per_sm
        and rates.peak_tflops
    ]


@pytest.mark.parametrize(("name", "precision"), _complete())
def test_a_peak_is_what_sms_rate_and_clock_make_it(name: str, precision: Precision) -> None:
    model = _model(name)
    rates = model.precision[precision]
    assert model.sms
    assert rates.tensor_clock_mhz
    assert rates.flop_per_cycle_per_sm
    assert rates.peak_tflops
    made = model.sms.value * rates.flop_per_cycle_per_sm.value * rates.tensor_clock_mhz.value
    # Data sheets state three digits or more: half of the third is 0.5 % at most.
    assert made / 1e6 == pytest.approx(rates.peak_tflops.value, rel=0.005)


def test_the_h100s_peak_is_132_sms_times_4096_flop_at_1830_mhz() -> None:
    assert ("H100-SXM", "bf16") in _complete()
    rates = _model("H100-SXM").precision["bf16"]
    assert rates.peak_tflops
    assert rates.peak_tflops.value == pytest.approx(132 * 4096 * 1830 / 1e6, rel=1e-4)


@pytest.mark.parametrize("model", TABLE.gpu, ids=lambda model: model.name)
def test_the_clocks_that_follow_from_one_models_16_and_8_bit_peaks_agree(
    model: GpuModel,
) -> None:
    low = [p for p in ("fp16", "bf16", "fp8", "fp6", "fp4") if p in model.precision]
    ratios = [ratio for p in low if isinstance(ratio := clock_ratio(model, p), ClockRatio)]
    clocks = [ratio.tensor_clock.in_mhz for ratio in ratios]
    assert clocks == pytest.approx(clocks[:1] * len(clocks), rel=0.002)


@pytest.mark.parametrize("model", TABLE.gpu, ids=lambda model: model.name)
def test_no_peak_is_stated_above_the_maximal_clock(model: GpuModel) -> None:
    for precision in model.precision:
        ratio = clock_ratio(model, precision)
        if isinstance(ratio, ClockRatio):
            assert ratio.value > 0.995, precision  # rounding of the peak


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GH200 144G HBM3e", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe"),
        ("h100-sxm", "H100-SXM"),
    ],
)
def test_a_driver_s_name_finds_its_model(reported: str, name: str) -> None:
    assert _model(reported).name == name


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "NVIDIA",
        "NVIDIA H100",  # SXM, PCIe or NVL?
        "NVIDIA A100",
        "Tesla V100S-PCIE-32GB",  # another clock than the V100
        "NVIDIA L40",
        "NVIDIA H200 Super",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a slice has a slice's peak
        "AMD Instinct MI300X",
        "80GB HBM3",
    ],
)
def test_a_name_that_leaves_it_open_finds_nothing(reported: str) -> None:
    assert TABLE.find(reported) is None


def test_two_models_that_fit_alike_are_ambiguous() -> None:
    source = {"title": "t", "url": "https://example.org", "says": "s"}
    gpus = [
        {"name": "X1-SXM", "match": ["X1"]},
        {"name": "X1-PCIe", "match": ["X1", "X1 card"]},
    ]
    table = msgspec.convert({"sources": {"s": source}, "gpu": gpus}, type=GpuTable)
    assert table.find("NVIDIA X1") is None
    found = table.find("NVIDIA X1 Card")
    assert found is not None
    assert found.name == "X1-PCIe"


@given(st.text(max_size=60))
def test_any_text_may_be_asked_for(text: str) -> None:
    TABLE.find(text)


# --- the correction ---------------------------------------------------------------------------


def test_the_h100_does_a_twelfth_more_than_its_data_sheet_at_full_clock() -> None:
    ratio = _ratio("H100-SXM", "bf16")
    assert ratio.value == pytest.approx(1980 / 1830)
    assert not ratio.implied


def test_the_a100_s_data_sheet_is_stated_at_its_boost_clock() -> None:
    assert _ratio("A100-SXM", "bf16").value == 1.0


def test_the_clock_of_a_peak_follows_where_no_source_states_it() -> None:
    ratio = _ratio("B200", "bf16")
    assert ratio.implied
    assert ratio.tensor_clock.in_mhz == pytest.approx(2250e6 / (148 * 8192))
    assert set(ratio.sources) <= set(TABLE.sources)


@given(ratios, mhz, st.sampled_from([1755, 1980]))
def test_data_sheet_mfu_does_not_depend_on_what_maximum_is_reported(
    tensor: float, clock: float, reported: float
) -> None:
    clock = min(clock, 1700.0)
    model, top = _model("H100-SXM"), Clock.mhz(reported)
    value = ofu_at(tensor, clock=Clock.mhz(clock), max_clock=top)
    # What the hardware did is activity times clock; the data sheet's is at 1830 MHz.
    ratio = clock_ratio(model, "bf16", max_clock=top)
    assert isinstance(ratio, ClockRatio)
    assert value * ratio.value == pytest.approx(tensor * clock / 1830)


@pytest.mark.parametrize(
    ("name", "precision", "reason"),
    [
        ("V100-SXM2", "bf16", "no source gives bf16 on V100-SXM2 .there are: fp16."),
        ("H100-NVL", "bf16", "no source gives the maximal clock of H100-NVL"),
        ("L40S", "bf16", "no source gives the clock of L40S's bf16 peak"),
    ],
)
def test_what_no_source_gives_is_said_and_not_guessed(
    name: str, precision: Precision, reason: str
) -> None:
    said = clock_ratio(_model(name), precision)
    assert isinstance(said, Absent)
    assert re.match(reason, said.reason)


def test_a_reported_maximum_fills_in_for_one_that_no_source_gives() -> None:
    ratio = clock_ratio(_model("H100-NVL"), "bf16", max_clock=Clock.mhz(1785))
    assert isinstance(ratio, ClockRatio)
    assert ratio.value == pytest.approx(1785 / (835.5e6 / (132 * 4096)))


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("BF16", "bf16"),
        (" fp8 ", "fp8"),
        ("NVFP4", "fp4"),
        ("mxfp4", "fp4"),
        ("int4", None),
        ("", None),
    ],
)
def test_a_precision_is_known_by_the_words_people_use(
    text: str, precision: Precision | None
) -> None:
    assert precision_named(text) == precision


# --- the file ---------------------------------------------------------------------------------


def _edited(**changes: Any) -> dict[str, Any]:
    gpu = {"name": "X1", "match": ["X1"], "max_clock_mhz": {"value": 1980, "source": "s"}}
    return {
        "sources": {"s": {"title": "t", "url": "https://example.org", "says": "s"}},
        "gpu": [gpu | changes],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_clock_mhz": {"value": 1980}}, "source"),
        ({"max_clock_mhz": 1980}, "Expected `object"),
        ({"max_clock_mhz": {"value": 1980, "source": "z"}}, "unknown source 'z'"),
        ({"max_clock_mhz": {"value": 1.98e9, "source": "s"}}, "X1: .* is no SM clock"),
        ({"sms": {"value": 0, "source": "s"}}, "X1: sms must be above 0"),
        ({"peak": 1}, "unknown field `peak`"),
        ({"precision": {"fp12": {}}}, "Invalid enum value 'fp12'"),
    ],
)
def test_a_table_that_can_not_be_meant_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(_edited(**changes), type=GpuTable)


def test_a_peak_that_implies_an_impossible_clock_is_refused() -> None:
    rates = {"flop_per_cycle_per_sm": 1, "peak_tflops": 989}
    figures = {key: {"value": value, "source": "s"} for key, value in rates.items()}
    edited = _edited(sms={"value": 132, "source": "s"}, precision={"bf16": figures})
    with pytest.raises(msgspec.ValidationError, match=r"X1: .* is no SM clock"):
        msgspec.convert(edited, type=GpuTable)


def test_a_model_that_is_there_twice_is_refused() -> None:
    twice = _edited()
    twice["gpu"] *= 2
    with pytest.raises(msgspec.ValidationError, match="X1 is there twice"):
        msgspec.convert(twice, type=GpuTable)
