"""Features are numbers with a unit, or unknown; never a guess."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.change import Confirmed, Estimate
from detector.analysis.features import FEATURES, Evidence, measure, written
from detector.analysis.ofu import Figure, GpuModel, Rates
from detector.fleet import Job
from detector.series import ContextEvent, FloatArray, Interval, Window

STEP_MS = 10_000
H100 = GpuModel(
    name="H100",
    match=("H100",),
    max_clock_mhz=Figure(value=1980, source="s"),
    precision={"bf16": Rates(tensor_clock_mhz=Figure(value=1830, source="s"))},
)


def step(before: float, after: float, *, onset: int = 60, length: int = 90) -> FloatArray:
    return np.where(np.arange(length) < onset, float(before), float(after))


def window_of(*, per_gpu: FloatArray | None = None, **fields: FloatArray) -> Window:
    length = len(next(iter(fields.values())))
    times = 1_700_000_000_000 + STEP_MS * np.arange(length, dtype=np.int64)
    whole = {"ofu": np.full(length, 0.4), **fields}
    return Window(times_ms=times, fields=whole, gpus=per_gpu)


def change_of(window: Window, metric: str = "ofu", *, onset: int = 60) -> Confirmed:
    times, values = window.times_ms, window.fields[metric]
    before, after = float(np.nanmedian(values[:onset])), float(np.nanmedian(values[onset:]))
    onset_ms = int(times[onset - 1])
    return Confirmed(
        metric=metric,
        cause="excursion",
        direction="down" if after < before else "up",
        onset_ms=onset_ms,
        onset=Interval(start_ms=onset_ms, end_ms=onset_ms + STEP_MS),
        detected_ms=int(times[-1]),
        before=Estimate(value=before, low=before, high=before),
        after=Estimate(value=after, low=after, high=after),
        relative_change=after / before - 1 if before else 0.0,
        confidence=1.0,
        before_span=Interval(start_ms=int(times[0]) - STEP_MS, end_ms=onset_ms),
        after_span=Interval(start_ms=onset_ms, end_ms=int(times[-1])),
    )


def evidence_of(window: Window, metric: str = "ofu", *, onset: int = 60) -> Evidence:
    return measure(change_of(window, metric, onset=onset), window, Job(id="j"), None)


def test_every_feature_has_a_unit_and_one_line_of_documentation() -> None:
    for name, feature in FEATURES.items():
        assert feature.name == name
        assert feature.doc.endswith((".", ";")), name
        assert len(feature.doc) > 20, name


def test_the_documentation_lists_every_feature_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    table = page.partition("<!-- features -->\n")[2].partition("<!-- end of features -->")[0]
    told = table.splitlines()[2:]
    assert told == [f"| `{f.name}` | {f.unit} | {f.doc} |" for f in FEATURES.values()]


def test_evidence_has_every_feature() -> None:
    assert evidence_of(window_of(ofu=step(0.4, 0.2))).keys() == FEATURES.keys()


def test_missing_telemetry_is_unknown_not_zero() -> None:
    found = evidence_of(window_of(ofu=step(0.4, 0.2)))
    for name in (
        "clock_change",
        "sm_change",
        "power_change",
        "pcie_change",
        "nvlink_change",
        "throughput_change",
        "mfu_ofu_ratio",
        "clock_explains",
        "gpus_change",
        "odd_gpus",
        "spread_change",
    ):
        assert found[name] is None, name


def test_levels_are_medians_of_the_compared_stretches() -> None:
    sm = step(0.9, 0.45)
    sm[[10, 70]] = 0.0  # single blinks
    found = evidence_of(window_of(ofu=step(0.4, 0.2), sm=sm))
    assert found["sm_before"] == pytest.approx(0.9)
    assert found["sm_after"] == pytest.approx(0.45)
    assert found["sm_change"] == pytest.approx(-0.5)
    assert found["ofu_change"] == pytest.approx(-0.5)


def test_announced_phases_are_left_out() -> None:
    sm = step(0.9, 0.45)
    sm[60:85] = 0.05
    window = window_of(ofu=step(0.4, 0.2), sm=sm)
    times = window.times_ms
    hole = Interval(start_ms=int(times[59]), end_ms=int(times[84]))
    found = measure(replace(change_of(window), excluded=(hole,)), window, Job(id="j"), None)
    assert found["sm_after"] == pytest.approx(0.45)


def test_two_samples_are_too_few_for_a_median() -> None:
    clock = step(1980, 1980)
    clock[62:] = np.nan
    found = evidence_of(window_of(ofu=step(0.4, 0.2), clock=clock))
    assert found["clock_before"] == 1980
    assert found["clock_after"] is None
    assert found["clock_change"] is None


@pytest.mark.parametrize(
    ("ofu_after", "clock_after", "share"),
    [(0.2, 990.0, 1.0), (0.2, 1980.0, 0.0), (0.1, 990.0, 0.5), (0.2, 2100.0, 0.0)],
)
def test_the_clock_explains_its_factor_of_ofu(
    ofu_after: float, clock_after: float, share: float
) -> None:
    window = window_of(ofu=step(0.4, ofu_after), clock=step(1980, clock_after))
    assert evidence_of(window)["clock_explains"] == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize(
    ("ofu_after", "sm_after", "share"), [(0.2, 0.45, 1.0), (0.2, 0.9, 0.0), (0.1, 0.45, 0.5)]
)
def test_idling_sms_explain_their_factor_of_ofu(
    ofu_after: float, sm_after: float, share: float
) -> None:
    window = window_of(ofu=step(0.4, ofu_after), sm=step(0.9, sm_after))
    assert evidence_of(window)["sm_explains"] == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize("ofu_after", [0.0, 0.399, 0.45])
def test_the_clock_explains_nothing_where_nothing_fell(ofu_after: float) -> None:
    window = window_of(ofu=step(0.4, ofu_after), clock=step(1980, 990))
    assert evidence_of(window)["clock_explains"] is None


def test_tokens_go_before_reported_mfu() -> None:
    mfu, tokens = step(0.4, 0.2), step(1000, 1100)
    both = evidence_of(window_of(ofu=step(0.4, 0.3), mfu=mfu, tokens=tokens))
    assert both["throughput_change"] == pytest.approx(0.1)
    alone = evidence_of(window_of(ofu=step(0.4, 0.3), mfu=mfu))
    assert alone["throughput_change"] == pytest.approx(-0.5)


def test_the_mfu_ratio_is_corrected_for_the_clock_where_the_gpu_is_known() -> None:
    window = window_of(ofu=step(0.4, 0.4), mfu=step(0.43, 0.43))
    change = change_of(window)
    raw = measure(change, window, Job(id="j", precision="bf16"), None)
    assert raw["mfu_ofu_ratio"] == pytest.approx(1.075)
    known = measure(change, window, Job(id="j", precision="bf16"), H100)
    assert known["mfu_ofu_ratio"] == pytest.approx(0.43 / (0.4 * 1980 / 1830), rel=1e-5)
    for precision in ("", "fp4", "bfloat16"):
        other = measure(change, window, Job(id="j", precision=precision), H100)
        assert other["mfu_ofu_ratio"] == pytest.approx(1.075), precision


@pytest.mark.parametrize(("after", "still"), [(0.0, 1), (0.019, 1), (0.021, 0), (0.2, 0)])
def test_a_standstill_is_below_a_twentieth(after: float, still: float) -> None:
    assert evidence_of(window_of(ofu=step(0.4, after)))["standstill"] == still


def test_equal_samples_count_at_the_end_and_before() -> None:
    ofu = np.linspace(0.40, 0.43, 90)
    ofu[20:24] = 0.41
    ofu[75:] = 0.38
    found = evidence_of(window_of(ofu=ofu))
    assert found["identical_run"] == 15
    assert found["identical_before"] == 4
    assert found["frozen"] == 1


def test_a_writer_that_rounds_is_not_frozen() -> None:
    ofu = np.linspace(0.40, 0.43, 90).round(2)
    ofu[60:] = 0.38
    found = evidence_of(window_of(ofu=ofu))
    assert found["identical_run"] == 30
    assert found["frozen"] == 0


def test_invalid_entries_since_the_onset_are_a_share() -> None:
    ofu = step(0.4, 0.2)
    ofu[60:75] = np.nan
    ofu[3:9] = np.nan
    assert evidence_of(window_of(ofu=ofu))["invalid_share"] == 0.5


def test_noise_is_told_apart_from_a_slide() -> None:
    random = np.random.default_rng(5)
    quiet, loud = 0.002 * random.standard_normal(60), 0.008 * random.standard_normal(200)
    slide = np.linspace(0, -0.1, 200)
    noisier = evidence_of(window_of(ofu=0.4 + np.concatenate([quiet, loud])))
    assert noisier["noise_change"] == pytest.approx(3.0, abs=1.5)
    sliding = evidence_of(window_of(ofu=0.4 + np.concatenate([quiet, slide + loud / 4])))
    assert sliding["noise_change"] == pytest.approx(0.0, abs=0.6)


def test_odd_gpus_are_counted_even_when_too_many_to_name() -> None:
    gpus = np.tile(np.array([0.40, 0.41, 0.42, 0.43, 0.44, 0.45, 0.46, 0.47]), (90, 1))
    gpus[60:, :3] *= 0.5
    found = evidence_of(window_of(ofu=step(0.435, 0.38), per_gpu=gpus))
    assert found["odd_gpus"] == 3
    assert found["odd_share"] == pytest.approx(0.375)
    assert found["spread_change"] is not None


def _event(kind: str, window: Window, *, at: int) -> ContextEvent:
    time_ms = int(window.times_ms[at])
    return ContextEvent(kind=kind, span=Interval(start_ms=time_ms, end_ms=time_ms))


@pytest.mark.parametrize(("at", "near"), [(20, 0), (35, 1), (59, 1), (60, 1), (75, 0)])
def test_an_announced_restart_counts_for_five_minutes(at: int, near: float) -> None:
    window = window_of(ofu=step(0.4, 0.2))
    window = replace(window, events=(_event("restart", window, at=at),))
    found = evidence_of(window)
    assert found["restart_near"] == near
    assert found["precision_switch_near"] == 0


def test_a_precision_switch_is_no_restart() -> None:
    window = window_of(ofu=step(0.4, 0.2))
    window = replace(window, events=(_event("precision_switch", window, at=58),))
    found = evidence_of(window)
    assert found["restart_near"] == 0
    assert found["precision_switch_near"] == 1


def test_a_gap_or_a_standstill_before_the_onset_is_a_restart() -> None:
    ofu = step(0.4, 0.2)
    ofu[50:56] = 0.0
    assert evidence_of(window_of(ofu=ofu))["restart_near"] == 1
    window = window_of(ofu=step(0.4, 0.2))
    times = window.times_ms.copy()
    times[:55] -= 120_000
    assert evidence_of(replace(window, times_ms=times))["restart_near"] == 1
    times = window.times_ms.copy()
    times[:10] -= 120_000
    assert evidence_of(replace(window, times_ms=times))["restart_near"] == 0


def test_samples_after_are_those_of_the_changed_metric() -> None:
    tokens = step(1000, 700)
    tokens[60:80] = np.nan
    assert evidence_of(window_of(tokens=tokens), "tokens")["samples_after"] == 10


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_feature_is_ever_nan_or_infinite(data: st.DataObject) -> None:
    number = st.one_of(st.just(math.nan), st.just(0.0), st.floats(0, 1))
    length = data.draw(st.integers(4, 14))
    onset = data.draw(st.integers(1, length - 1))
    column = st.lists(number, min_size=length, max_size=length).map(np.array)
    names = ("ofu", "clock", "sm", "power", "mfu", "tokens", "gpus")
    fields = {name: data.draw(column) for name in names}
    fields["ofu"][[0, -1]] = 0.3, 0.2
    gpus = np.stack([data.draw(column) for _ in range(5)]).T
    found = evidence_of(window_of(per_gpu=gpus, **fields), onset=onset)
    assert all(value is None or math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (-0.583, "relative", "−58 %"),
        (0.014, "relative", "+1.4 %"),
        (0.414, "ratio", "0.41"),
        (0.333, "share", "33 %"),
        (1980.0, "MHz", "1980 MHz"),
        (63.0, "count", "63"),
        (12.4, "s", "12 s"),
        (1.0, "flag", "yes"),
        (None, "relative", "unknown"),
    ],
)
def test_values_read_as_people_write_them(value: float | None, unit: str, text: str) -> None:
    assert written(value, unit) == text  # type: ignore[arg-type]  # pytest knows no Literal
