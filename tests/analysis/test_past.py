import dataclasses
import math

import hypothesis.strategies as st
import msgspec
import numpy as np
from hypothesis import given

from detector.analysis.aggregate import merge, parts
from detector.analysis.maxclock import MaxClocks
from detector.analysis.ofu import GpuTable
from detector.analysis.past import Past, bring_together, observed_clocks, verdicts
from detector.analysis.quality import HELD_MS, Judged, Memory, is_busy, judge
from detector.reading import Reading, Scrape

STEP_MS = 10_000
CLOCKS = MaxClocks(table=GpuTable(sources={}, gpu=()), configured={"H100": 1980.0})

# Few values each, so that repeats, zeros and blanks come often and in runs.
values = st.fixed_dictionaries(
    {
        "tensor_active": st.sampled_from([0.0, 0.4, 0.41, 1.0, math.nan]),
        "sm_clock_mhz": st.sampled_from([1500.0, 1980.0, 4000.0, math.nan]),
        "gr_engine_active": st.sampled_from([0.0, 0.9, math.nan]),
        "gpu_util_pct": st.sampled_from([0.0, 100.0, math.nan]),
    }
)
jobs = st.sampled_from([("a",), ("b",), ("a", "b"), ()])
runs = st.lists(st.tuples(values, jobs, st.integers(1, 40)), min_size=1, max_size=8)


def past_of(found: list[tuple[dict[str, float], tuple[str, ...], int]], uuid: str) -> Past:
    rows = [(row, owners) for row, owners, often in found for _ in range(often)]
    sets = tuple(dict.fromkeys(owners for _, owners in rows))
    return Past(
        who=Reading(uuid=uuid, host=f"host-{uuid}", model="H100", time_ms=0),
        times_ms=np.arange(len(rows), dtype=np.int64) * STEP_MS,
        values={name: np.array([row[name] for row, _ in rows]) for name in rows[0][0]},
        jobs=sets,
        whose=np.array([sets.index(owners) for _, owners in rows]),
    )


def judged_one_by_one(past: Past, observed: dict[str, tuple[float, int]]) -> list[Judged]:
    """Judge as the collector does, round by round, with times as the source gives them."""
    memory = Memory(observed=observed)
    found = []
    last: Reading | None = None
    since = 0
    for i, time_ms in enumerate(past.times_ms.tolist()):
        reading = past.reading(i, time_ms)
        same = last is not None and (reading.values, reading.jobs) == (last.values, last.jobs)
        if not (same and is_busy(reading.values)):
            since = time_ms
        if time_ms - since <= HELD_MS:
            reading = past.reading(i, since)
        scrape = Scrape(target="", asked_ms=time_ms, readings=(reading,))
        judged, memory = judge(memory, [scrape], now_ms=time_ms, max_clocks=CLOCKS)
        found.append(judged[0])
        last = reading
    return found


@given(runs)
def test_a_past_is_judged_at_once_as_it_would_be_one_by_one(
    found: list[tuple[dict[str, float], tuple[str, ...], int]],
) -> None:
    past = past_of(found, "GPU-1")
    observed = observed_clocks([past])
    at_once = verdicts(past, CLOCKS, observed)
    one_by_one = judged_one_by_one(past, observed)
    expected = [one.ofu if one.usable else math.nan for one in one_by_one]
    np.testing.assert_array_equal(at_once.ofu, expected)
    fresh = [not one.repeat for one in one_by_one]
    usable = ~np.isnan(at_once.ofu)
    np.testing.assert_array_equal(at_once.fresh[usable], np.array(fresh)[usable])


@given(runs, runs)
def test_gpus_come_together_as_their_hosts_parts_would(
    first: list[tuple[dict[str, float], tuple[str, ...], int]],
    second: list[tuple[dict[str, float], tuple[str, ...], int]],
) -> None:
    pasts = [past_of(first, "GPU-1"), past_of(second, "GPU-2")]
    n = min(len(past.times_ms) for past in pasts)
    found = {
        (part.job, part.time_ms): part
        for part in bring_together(
            pasts, CLOCKS, start_ms=0, end_ms=n * STEP_MS, slot_ms=STEP_MS,
            jobs=frozenset({"a", "b"}),
        )
    }  # fmt: skip
    observed = observed_clocks(pasts)
    rounds = [judged_one_by_one(past, observed) for past in pasts]
    for k in range(n):
        made = parts([one[k] for one in rounds], time_ms=k * STEP_MS)
        for job in ("a", "b"):
            own = [part for part in made if part.job == job]
            merged = merge(own)
            part = found.get((job, k * STEP_MS))
            if merged is None:
                assert part is None
                continue
            assert part is not None
            assert math.isclose(part.ofu, merged.ofu, abs_tol=1e-12) or not part.gpus
            assert part.gpus == merged.gpus
            assert sum(part.faults.values()) == merged.unusable
            assert part.fields.keys() == merged.fields.keys()


def test_instances_before_hopper_are_not_held_to_each_other_in_the_past_either() -> None:
    row = {"tensor_active": 0.5, "sm_clock_mhz": 1980.0}
    past = past_of([(row, ("a",), 3)], "GPU-1")
    for model, compared in (("NVIDIA H100", True), ("NVIDIA A100-SXM4-80GB", False)):
        who = msgspec.structs.replace(
            past.who, model=model, instance="2", values={"max_sm_clock_mhz": 1980.0}
        )
        made = bring_together(
            [dataclasses.replace(past, who=who)], CLOCKS, start_ms=0, end_ms=3 * STEP_MS,
            slot_ms=STEP_MS, jobs=frozenset({"a"}),
        )  # fmt: skip
        values = [(part.ofu, math.isnan(part.gpu_ofu[0])) for part in made]
        assert values == [(0.5, not compared)]  # and two repeats
