"""A broken collector is told from a slow job, reading by reading."""

import gc
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from detector.analysis.judge import Content
from detector.analysis.maxclock import MaxClocks
from detector.analysis.quality import NOTHING, Judged, Memory, judge
from detector.reading import Reading, Scrape
from detector.telemetry.exposition import parse

START = 1_764_000_000_000
ROUND = 10_000
BUSY = {
    "tensor_active": 0.4, "sm_clock_mhz": 1755.0, "max_sm_clock_mhz": 1980.0,
    "gr_engine_active": 0.98, "gpu_util_pct": 99.0, "power_w": 650.0,
}  # fmt: skip
PAGES = Path(__file__).parent.parent / "data" / "dcgm"
NAMES = sorted(path.stem for path in PAGES.glob("*.prom"))
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(name="clocks")
def max_clocks(content: Content) -> MaxClocks:
    """The shipped table, and nothing configured."""
    return MaxClocks(table=content.gpus)


def busy(at: int, **values: float) -> Reading:
    """A reading of a busy GPU in round ``at``, other than that of every other round."""
    moving = {"gr_engine_active": 0.9 + at % 97 / 1000, "tensor_active": 0.4 + at % 89 / 1000}
    return Reading(
        uuid="GPU-1", host="n1", time_ms=START + at * ROUND, jobs=("7",),
        values={**BUSY, **moving, **values},
    )  # fmt: skip


def rounds(
    clocks: MaxClocks,
    readings: Iterable[Reading | None],
    *,
    memory: Memory = NOTHING,
    first: int = 0,
    failing: str = "",
) -> tuple[list[Judged], Memory]:
    """One reading a round; None is a round without an answer."""
    found: list[Judged] = []
    for at, reading in enumerate(readings, first):
        now_ms = START + at * ROUND
        here = () if reading is None else (reading,)
        scrape = Scrape(target="n1:9400", asked_ms=now_ms, readings=here, failing=failing)
        judged, memory = judge(memory, [scrape], now_ms=now_ms, max_clocks=clocks)
        found += judged
    return found, memory


def words(judged: Iterable[Judged]) -> list[str]:
    return [one.quality for one in judged]


@pytest.mark.parametrize("name", NAMES)
def test_sample_pages_are_judged_as_written_down(name: str, clocks: MaxClocks) -> None:
    wanted = json.loads((PAGES / f"{name}.expected.json").read_text())["gpus"]
    page = parse((PAGES / f"{name}.prom").read_bytes(), time_ms=START)
    scrape = Scrape(target=name, asked_ms=START, readings=tuple(page.readings))
    judged, _ = judge(NOTHING, [scrape], now_ms=START, max_clocks=clocks)
    assert [(one.reading.uuid, one.quality) for one in judged] == [
        (gpu["uuid"], gpu["quality"]) for gpu in wanted
    ]
    for one, gpu in zip(judged, wanted, strict=True):
        if_table = gpu.get("ofu_if_max_from_table")
        ofu = gpu["ofu"] if if_table is None else if_table["ofu"]
        if ofu is None:
            assert math.isnan(one.ofu)
            assert one.reason
        else:
            assert one.ofu == pytest.approx(ofu, abs=1e-6)
            assert one.max_clock_source == ("dcgm" if if_table is None else "table")


def test_a_repeat_under_a_slower_collection_is_good_and_no_new_evidence(
    clocks: MaxClocks,
) -> None:
    judged, _ = rounds(clocks, [busy(at // 3) for at in range(12)])
    assert words(judged) == ["ok"] * 12
    assert [not one.repeat for one in judged] == [True, False, False] * 4


def test_a_reading_that_is_repeated_for_longer_than_collections_take_is_stale(
    clocks: MaxClocks,
) -> None:
    judged, _ = rounds(clocks, [busy(0)] * 10)
    assert words(judged) == ["ok"] * 8 + ["stale"] * 2
    assert "80 s" in judged[8].reason
    assert math.isnan(judged[8].ofu)


def test_a_time_that_stands_still_is_stale_whatever_its_values(clocks: MaxClocks) -> None:
    own = [replace(busy(at), time_ms=START, own_clock=True) for at in range(10)]
    judged, _ = rounds(clocks, own)
    assert words(judged) == ["ok"] * 8 + ["stale"] * 2


def test_equal_values_at_advancing_times_are_new_readings(clocks: MaxClocks) -> None:
    own = [replace(busy(0), time_ms=START + at * ROUND, own_clock=True) for at in range(20)]
    judged, _ = rounds(clocks, own)
    assert words(judged) == ["ok"] * 20
    assert not any(one.repeat for one in judged)


def test_a_host_whose_clock_is_two_minutes_slow_is_not_stale(clocks: MaxClocks) -> None:
    slow = [
        replace(busy(at), time_ms=START + at * ROUND - 120_000, own_clock=True)
        for at in range(20)
    ]
    judged, _ = rounds(clocks, slow)
    # Of the first nothing tells it from a reading that is two minutes old.
    assert words(judged) == ["stale"] + ["ok"] * 19


def test_a_clock_that_was_set_back_costs_one_reading(clocks: MaxClocks) -> None:
    times = [0, 1, 2, -360, -359, -358]
    own = [
        replace(busy(at), time_ms=START + time * ROUND, own_clock=True)
        for at, time in enumerate(times)
    ]
    assert words(rounds(clocks, own)[0]) == ["ok", "ok", "ok", "stale", "ok", "ok"]


def test_an_idle_gpu_may_read_the_same_for_ever(clocks: MaxClocks) -> None:
    idle = {"tensor_active": 0.0, "gr_engine_active": 0.0, "gpu_util_pct": 0.0,
            "power_w": 70.0}  # fmt: skip
    judged, _ = rounds(clocks, [busy(0, **idle)] * 200)
    assert words(judged) == ["ok"] * 200
    assert judged[-1].ofu == 0.0
    assert not any(one.repeat for one in judged)


def test_energy_that_does_not_grow_is_a_repeat_of_an_idle_gpu(clocks: MaxClocks) -> None:
    idle = {"tensor_active": 0.0, "gr_engine_active": 0.0, "gpu_util_pct": 0.0}
    judged, _ = rounds(clocks, [busy(0, **idle, energy_j=81_234.5)] * 10)
    assert judged[1].repeat
    assert judged[9].quality == "stale"


def test_ratios_that_stay_bit_for_bit_while_the_power_moves_are_frozen(
    clocks: MaxClocks,
) -> None:
    judged, _ = rounds(clocks, [busy(0, power_w=600.0 + at) for at in range(40)])
    assert words(judged) == ["ok"] * 31 + ["frozen"] * 9
    assert not any(one.repeat for one in judged)


def test_a_hang_that_spins_evenly_is_not_frozen(clocks: MaxClocks) -> None:
    spin = {"tensor_active": 0.0, "gr_engine_active": 1.0, "sm_active": 0.984848}
    judged, _ = rounds(clocks, [busy(0, **spin, power_w=210.0 + at % 3) for at in range(60)])
    assert words(judged) == ["ok"] * 60
    assert judged[-1].ofu == 0.0


def test_counters_that_came_before_and_are_missing_now_are_blank(clocks: MaxClocks) -> None:
    without = {name: value for name, value in BUSY.items() if name != "tensor_active"}
    blank = replace(busy(1), values=without)
    judged, _ = rounds(clocks, [busy(0), blank, busy(2)])
    assert words(judged) == ["ok", "blank", "ok"]
    assert "tensor_active" in judged[1].reason


def test_counters_that_never_came_make_no_ofu_and_say_which(clocks: MaxClocks) -> None:
    without = {"sm_clock_mhz": 1755.0, "max_sm_clock_mhz": 1980.0}
    judged, _ = rounds(clocks, [replace(busy(0), values=without)])
    assert (judged[0].quality, judged[0].reason) == ("ok", "missing: tensor_active")
    assert not judged[0].usable


def test_counters_that_another_profiler_holds_are_contention(clocks: MaxClocks) -> None:
    without = {"sm_clock_mhz": 1755.0, "max_sm_clock_mhz": 1980.0, "gpu_util_pct": 99.0}
    judged, _ = rounds(clocks, [replace(busy(0), values=without)], failing="contention")
    assert words(judged) == ["contention"]


ZERO = {"gr_engine_active": 0.0, "sm_active": 0.0, "tensor_active": 0.0, "dram_active": 0.0}


@pytest.mark.parametrize(
    ("values", "quality"),
    [
        ({"gpu_util_pct": 100.0}, "zero_mismatch"),
        ({"gpu_util_pct": 50.0}, "zero_mismatch"),
        ({"gpu_util_pct": 49.0}, "ok"),
        ({"gpu_util_pct": 100.0, "gr_engine_active": 0.99}, "ok"),
        # On an engine that never ran no tensor pipe did: one of the counters is stuck.
        ({"gpu_util_pct": 100.0, "tensor_active": 0.2}, "zero_mismatch"),
        ({"gpu_util_pct": 100.0, "gr_engine_active": 0.9, "sm_active": 0.0}, "ok"),
        ({"power_w": 690.0}, "zero_mismatch"),
        ({"power_w": 120.0}, "ok"),
        ({"power_w": 60.0, "power_limit_w": 72.0}, "zero_mismatch"),
        ({"power_w": 300.0, "power_limit_w": 1000.0}, "ok"),
        ({}, "ok"),
    ],
)
def test_zeros_are_believed_of_an_idle_gpu_only(
    clocks: MaxClocks, values: Mapping[str, float], quality: str
) -> None:
    all_of_it = {"sm_clock_mhz": 1755.0, "max_sm_clock_mhz": 1980.0, **ZERO, **values}
    judged, _ = rounds(clocks, [replace(busy(0), values=all_of_it)])
    assert words(judged) == [quality]


def test_the_power_of_a_board_says_nothing_about_one_of_its_instances(
    clocks: MaxClocks,
) -> None:
    idle = {"sm_clock_mhz": 1755.0, "max_sm_clock_mhz": 1980.0, "power_w": 650.0, **ZERO}
    judged, _ = rounds(clocks, [replace(busy(0), values=idle, instance="3")])
    assert words(judged) == ["ok"]


def test_an_instance_may_read_a_little_above_one(clocks: MaxClocks) -> None:
    judged, _ = rounds(
        clocks, [replace(busy(0, tensor_active=1.012, sm_clock_mhz=1980.0), instance="2")]
    )
    assert (judged[0].quality, judged[0].ofu) == ("ok", 1.0)


def test_an_instance_before_hopper_says_that_its_scale_is_uncertain(clocks: MaxClocks) -> None:
    models = ("NVIDIA A100-SXM4-80GB", "NVIDIA A30", H100, "NVIDIA RTX A3000")
    found = [
        rounds(clocks, [replace(busy(0), model=model, instance=instance)])[0][0]
        for model in models
        for instance in ("", "2")
    ]
    marked = [one.reason.startswith("mig_scaling_uncertain: ") for one in found]
    assert marked == [False, True] * 2 + [False] * 4
    assert all(one.usable for one in found)


def test_a_clock_above_its_maximum_is_out_of_bounds(clocks: MaxClocks) -> None:
    judged, _ = rounds(clocks, [busy(0, sm_clock_mhz=2100.0), busy(1, sm_clock_mhz=1985.0)])
    assert words(judged) == ["out_of_bounds", "ok"]


def test_the_maximal_clock_is_the_best_that_is_known(content: Content) -> None:
    told = {name: value for name, value in BUSY.items() if name != "max_sm_clock_mhz"}
    known, unknown = (
        replace(busy(0), values=told, model=model) for model in (H100, "NVIDIA X1")
    )
    table = MaxClocks(table=content.gpus)
    override = MaxClocks(table=content.gpus, configured={"NVIDIA X1": 2000.0})
    reported = rounds(table, [replace(busy(0), model=H100)])[0][0]
    assert (reported.max_clock_mhz, reported.max_clock_source) == (1980.0, "dcgm")
    driver = rounds(table, [replace(busy(0), reporter="nvml")])[0][0]
    assert (driver.max_clock_mhz, driver.max_clock_source) == (1980.0, "nvml")
    listed = rounds(table, [known])[0][0]
    assert (listed.max_clock_mhz, listed.max_clock_source) == (1980.0, "table")
    said = rounds(override, [unknown])[0][0]
    assert (said.max_clock_mhz, said.max_clock_source) == (2000.0, "config")
    assert rounds(table, [unknown])[0][0].max_clock_source == ""


def test_a_clock_that_was_only_observed_needs_many_readings_and_is_marked(
    clocks: MaxClocks,
) -> None:
    def told(at: int) -> Reading:
        reading = busy(at, sm_clock_mhz=1500.0 + at % 2)
        values = {k: v for k, v in reading.values.items() if k != "max_sm_clock_mhz"}
        return replace(reading, values=values)

    judged, _ = rounds(clocks, [told(at) for at in range(120)])
    assert not judged[98].usable
    assert judged[99].max_clock_source == "observed"
    assert judged[99].max_clock_mhz == 1501.0
    assert judged[-1].usable


def test_another_maximal_clock_costs_one_reading(clocks: MaxClocks) -> None:
    readings = [busy(0), busy(1, max_sm_clock_mhz=1830.0), busy(2, max_sm_clock_mhz=1830.0)]
    judged, _ = rounds(clocks, readings)
    assert words(judged) == ["ok", "clock_source_changed", "ok"]
    assert "1830 MHz (dcgm)" in judged[1].reason


def test_a_maximum_that_is_told_seldom_is_remembered(clocks: MaxClocks) -> None:
    values = {name: value for name, value in BUSY.items() if name != "max_sm_clock_mhz"}
    later = replace(busy(1), values={**values, "tensor_active": 0.5}, model=H100)
    judged, _ = rounds(clocks, [busy(0, max_sm_clock_mhz=1830.0), later])
    assert words(judged) == ["ok", "ok"]
    assert judged[1].max_clock_mhz == 1830.0


def of(job: str | None, at: int, collected: int) -> Reading:
    return replace(busy(collected), jobs=() if job is None else (job,), time_ms=START + at)


def test_a_gpu_that_changes_hands_counts_for_neither_until_a_collection_surely_began_after_it(
    clocks: MaxClocks,
) -> None:
    # Collected every third round, and the label comes with a collection: that one was made
    # since the round before, so the next one may have begun before the label came.
    readings = [of("a" if at < 3 else "b", at, at // 3) for at in range(12)]
    judged, _ = rounds(clocks, readings)
    assert words(judged) == ["ok"] * 3 + ["handover"] * 6 + ["ok"] * 3
    assert [one.jobs for one in judged[3:9]] == [()] * 6
    assert judged[9].jobs == ("b",)


def test_a_label_that_comes_between_two_collections_spoils_the_next_one(
    clocks: MaxClocks,
) -> None:
    # The scheduler says "b" from round 4; what is collected in round 6 is a mean over both.
    readings = [of("a" if at < 4 else "b", at, at // 3) for at in range(12)]
    judged, _ = rounds(clocks, readings)
    assert words(judged) == ["ok"] * 4 + ["handover"] * 5 + ["ok"] * 3


def test_a_job_that_begins_on_an_idle_gpu_begins_with_a_handover(clocks: MaxClocks) -> None:
    judged, _ = rounds(clocks, [of(None, 0, 0), *(of("a", at, at) for at in (1, 2, 3))])
    assert words(judged) == ["ok", "handover", "handover", "ok"]


def test_a_handover_that_the_scheduler_tells_costs_two_readings(clocks: MaxClocks) -> None:
    told = replace(busy(1), jobs=(), handover=("a", "b"))
    judged, _ = rounds(clocks, [of("a", 0, 0), told, of("b", 2, 2), of("b", 3, 3)])
    assert words(judged) == ["ok", "handover", "handover", "ok"]


def test_the_same_gpu_at_two_targets_is_judged_at_each_by_itself(clocks: MaxClocks) -> None:
    memory = NOTHING
    for at in range(12):
        now_ms = START + at * ROUND
        scrapes = [
            Scrape(target="one", asked_ms=now_ms, readings=(busy(at // 3),)),
            Scrape(target="other", asked_ms=now_ms, readings=(busy((at + 1) // 3),)),
        ]
        judged, memory = judge(memory, scrapes, now_ms=now_ms, max_clocks=clocks)
        assert words(judged) == ["ok", "ok"]
        assert judged[0].repeat == (at % 3 != 0)


def test_what_one_target_tells_twice_of_a_gpu_is_one_reading(clocks: MaxClocks) -> None:
    one = busy(0)
    other = replace(one, values={"sm_active": 0.9}, jobs=("8",))
    scrape = Scrape(target="n1", asked_ms=START, readings=(one, other, one))
    judged, _ = judge(NOTHING, [scrape], now_ms=START, max_clocks=clocks)
    assert [item.jobs for item in judged] == [("7", "8")]
    assert judged[0].reading.values["sm_active"] == 0.9
    assert judged[0].reading.values["tensor_active"] == one.values["tensor_active"]


def test_gpus_that_are_gone_are_forgotten(clocks: MaxClocks) -> None:
    _, memory = rounds(clocks, [busy(0)])
    assert len(memory.known) == 1
    _, memory = rounds(clocks, [None], memory=memory, first=361)
    assert not memory.known


def test_collections_of_garbage_need_not_walk_through_what_is_remembered(
    clocks: MaxClocks,
) -> None:
    judged, memory = rounds(clocks, map(busy, range(3)))
    assert not any(map(gc.is_tracked, (*judged, *memory.known.values())))


kinds = st.sampled_from(["next", "same", "job", "blank", "zero", "none", "clock"])


@given(told=st.lists(kinds, max_size=20), cut=st.integers(0, 20))
def test_rounds_in_one_go_are_the_rounds_of_any_cut(
    content: Content, told: list[str], cut: int
) -> None:
    clocks = MaxClocks(table=content.gpus)
    readings: list[Reading | None] = []
    at, job = 0, 0
    for kind in told:
        at += kind != "same"
        job += kind == "job"
        reading = replace(busy(at), jobs=(str(job),))
        if kind == "blank":
            reading = replace(reading, values={"sm_clock_mhz": 1700.0})
        if kind == "zero":
            reading = replace(reading, values={**reading.values, **ZERO})
        if kind == "clock":
            reading = replace(reading, values={**reading.values, "max_sm_clock_mhz": 1990.0})
        readings.append(None if kind == "none" else reading)
    whole, end = rounds(clocks, readings)
    first, memory = rounds(clocks, readings[:cut])
    rest, again = rounds(clocks, readings[cut:], memory=memory, first=len(readings[:cut]))
    shown = [(one.quality, one.jobs, one.repeat, one.reason) for one in whole]
    assert shown == [(one.quality, one.jobs, one.repeat, one.reason) for one in first + rest]
    assert repr(end) == repr(again)  # NaN is not equal to itself
