import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import msgspec
import pytest

from detector.analysis.aggregate import Part
from detector.analysis.maxclock import MaxClocks
from detector.content import load_gpus, shipped
from detector.fleet import Placement, Placements
from detector.reading import Reading
from detector.telemetry.backfill import backfill
from detector.telemetry.prometheus import (
    LIVE,
    Origins,
    Prometheus,
    build,
    names_of,
    readings,
    selector,
)
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.whose import Whose
from tests.telemetry import plans
from tests.telemetry.real_prometheus import Served


class Planned(Protocol):
    """A server, by where its planned past ends."""

    @property
    def until_ms(self) -> int: ...


_LABELS = Whose()  # what labels say, and no scheduler


@cache
def max_clocks() -> MaxClocks:
    return MaxClocks(table=load_gpus(shipped() / "models"))


def past_of(
    server: Served,
    *jobs: str,
    whose: Whose = _LABELS,
    now: str = "",
) -> dict[str, list[Part]]:
    """Return the parts of jobs, as if they were first seen where the planned past ends.

    Parameters
    ----------
    now
        The GPU that they have then, where it is not all that they ever had.
    """
    source = build(PrometheusSettings(url=server.url), secret=lambda settings, key: "")
    try:
        wanted = [
            one for one in _now(source, server.until_ms, whose)
            if set(one.jobs) & set(jobs) and now in one.uuid
        ]  # fmt: skip
        assert wanted
        return parts_of(source, wanted, server.until_ms, whose)
    finally:
        source.close()


def _now(source: Prometheus, until_ms: int, whose: Whose) -> list[Reading]:
    """Return what GPUs read last under each set of labels, at whatever time."""
    query = f"{selector(names_of(LIVE), '{}')}[{plans.SPAN_MS}ms]"
    series = source.api.query(query, at_ms=until_ms).series
    found = Origins(source.settings.replica_labels).tracks(series)
    source.learn(found)
    known: dict[tuple[str, tuple[str, ...]], Reading] = {}
    for track in found:
        (one,), _ = readings([track])
        owners = (
            whose.named(one) or whose.held(one, start_ms=until_ms - 1, end_ms=until_ms).jobs
        )
        known[one.entity, owners] = msgspec.structs.replace(one, jobs=owners)
    return list(known.values())


def parts_of(
    source: Prometheus, now: Sequence[Reading], until_ms: int, whose: Whose
) -> dict[str, list[Part]]:
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    for part in backfill(
        source, now, whose, start_ms=until_ms - plans.SPAN_MS, end_ms=until_ms,
        every_ms=plans.STEP_MS, max_clocks=max_clocks(),
    ):  # fmt: skip
        parts[part.job].append(part)
    return parts


def sample(server: Planned, part: Part) -> int:
    """Return which sample of the plan a part is of."""
    return (part.time_ms - (server.until_ms - plans.SPAN_MS)) // plans.STEP_MS


def test_a_job_has_its_whole_past_oldest_first_with_each_gpu(prometheus: Served) -> None:
    parts = past_of(prometheus, "plain")["plain"]
    assert [sample(prometheus, part) for part in parts] == list(range(360))
    for k, part in enumerate(parts):
        assert part.ofu == pytest.approx(plans.ofu(k))
        assert part.gpus == 2
        assert [gpu.uuid for gpu in part.roster] == ["GPU-plain0", "GPU-plain1"]
        assert part.gpu_ofu == pytest.approx([plans.ofu(k)] * 2)
        assert part.fields["tensor"] == pytest.approx(plans.tensor(k))
        assert part.fields["clock"] == 1485.0
        assert part.fields["nvlink"] == 3e9


def test_traffic_is_asked_for_as_far_back_as_evidence_needs_it(
    prometheus: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detector.telemetry.backfill._SAMPLES", 1_000)
    monkeypatch.setattr("detector.telemetry.backfill._TRAFFIC_MS", plans.SPAN_MS // 2)
    parts = past_of(prometheus, "plain")["plain"]
    assert all("nvlink" in part.fields for part in parts[180:])
    assert not any("nvlink" in part.fields for part in parts[:90])


def test_a_gpu_that_is_handed_on_belongs_to_each_job_in_its_own_time(
    prometheus: Served,
) -> None:
    found = past_of(prometheus, "before", "after")
    assert [sample(prometheus, part) for part in found["before"]] == list(range(180))
    # What is collected at a pace of its own may be of both jobs up to its second reading.
    assert [sample(prometheus, part) for part in found["after"]] == list(range(182, 270))


def test_a_job_has_the_past_of_gpus_that_it_has_no_longer(prometheus: Served) -> None:
    parts = past_of(prometheus, "moved", now="moved1")["moved"]
    assert [sample(prometheus, part) for part in parts] == [*range(180), *range(182, 360)]
    for part in parts:
        k = sample(prometheus, part)
        assert part.gpus == 1
        assert part.ofu == pytest.approx(plans.ofu(k))
        assert [math.isnan(one) for one in part.gpu_ofu] == [k >= 180, k < 180]
    assert [gpu.host for gpu in parts[0].roster] == ["node-a", "node-b"]


def test_hosts_that_are_scraped_once_a_minute_come_together_at_the_last_ones_time(
    prometheus: Served,
) -> None:
    parts = past_of(prometheus, "minute")["minute"]
    start_ms = prometheus.until_ms - plans.SPAN_MS
    whole = [part for part in parts if part.gpus == 2]
    assert len(whole) >= len(parts) - 1
    assert 59 <= len(parts) <= 61
    for part in whole:
        assert (part.time_ms - start_ms) % 60_000 in (20_000, 45_000)
        newest = (part.time_ms - start_ms) // 60_000
        assert newest >= 0
        each = {plans.ofu(newest), plans.ofu(newest - 1)}
        assert all(any(math.isclose(one, ofu) for ofu in each) for one in part.gpu_ofu)


def test_names_and_units_may_change_midway(prometheus: Served) -> None:
    parts = past_of(prometheus, "renamed")["renamed"]
    assert [part.ofu for part in parts] == pytest.approx([plans.ofu(k) for k in range(360)])
    assert {part.fields["clock"] for part in parts} == {1485.0}


def test_a_pod_keeps_its_past_when_its_labels_are_renamed(prometheus: Served) -> None:
    parts = past_of(prometheus, "team/llm-7")["team/llm-7"]
    assert [part.ofu for part in parts] == pytest.approx([plans.ofu(k) for k in range(360)])


def test_a_mig_instance_has_the_clock_of_its_gpu(prometheus: Served) -> None:
    parts = past_of(prometheus, "mig")["mig"]
    assert [part.ofu for part in parts] == pytest.approx([plans.ofu(k) for k in range(360)])
    assert {gpu.uuid for part in parts for gpu in part.roster} == {"GPU-mig0/1"}


def test_a_past_begins_where_a_scheduler_says_that_its_job_did(prometheus: Served) -> None:
    start_ms = prometheus.until_ms - plans.SPAN_MS + 100 * plans.STEP_MS + 4_000
    hold = Placement(job="9", host="node-c", start_ms=start_ms)
    whose = Whose(placements=Placements([hold]))
    parts = past_of(prometheus, "9", whose=whose)["9"]
    # The reading in whose interval it began is of two tenants, and so may the next one be.
    assert [sample(prometheus, part) for part in parts] == list(range(103, 360))


def test_a_past_has_the_job_that_owns_its_pods(prometheus: Served) -> None:
    whose = Whose(aliases={"team/llm-worker-0": "team/llm"})
    parts = past_of(prometheus, "team/llm", whose=whose)
    assert list(parts) == ["team/llm"]
    assert len(parts["team/llm"]) == 360


def test_two_servers_of_a_pair_count_once_and_fill_each_others_gaps(
    prometheus: Served,
) -> None:
    parts = past_of(prometheus, "twice")["twice"]
    assert {part.gpus for part in parts} == {1}
    times = [sample(prometheus, part) for part in parts]
    assert times == sorted(set(times))
    assert len(set(range(360)) - set(times)) <= 1


def test_blanks_leave_their_gpu_out_and_no_other(prometheus: Served) -> None:
    parts = past_of(prometheus, "blank")["blank"]
    for part in parts:
        k = sample(prometheus, part)
        assert part.gpus == (1 if 100 <= k < 200 else 2)
        assert part.ofu == pytest.approx(plans.ofu(k))


def test_a_dead_collector_is_no_drop_and_an_idle_gpu_is_one(prometheus: Served) -> None:
    found = past_of(prometheus, "dead", "idle")
    for part in found["dead"]:
        dead = 100 <= sample(prometheus, part) < 200
        assert (part.gpus, part.faults) == ((0, {"zero_mismatch": 1}) if dead else (1, {}))
    assert len(found["dead"]) == 360
    idle = {sample(prometheus, part): part.ofu for part in found["idle"]}
    assert idle.keys() == set(range(360))
    assert {idle[k] for k in range(100, 200)} == {0.0}


def test_names_of_all_generations_give_the_same(prometheus: Served) -> None:
    parts = past_of(prometheus, "new")["new"]
    assert [part.ofu for part in parts] == pytest.approx([plans.ofu(k) for k in range(360)])
    assert {part.fields["clock"] for part in parts} == {1485.0}


def test_a_gpu_that_two_jobs_share_counts_for_both(prometheus: Served) -> None:
    found = past_of(prometheus, "share1", "share2")
    for job in ("share1", "share2"):
        assert [part.ofu for part in found[job]] == pytest.approx(
            [plans.ofu(k) for k in range(360)]
        )
        assert {part.gpus for part in found[job]} == {1}


def test_what_was_not_scraped_is_not_made_up_by_the_look_back(prometheus: Served) -> None:
    parts = past_of(prometheus, "gap")["gap"]
    times = [sample(prometheus, part) for part in parts]
    assert times == [*range(100), *range(112, 360)]


def test_a_collection_that_was_scraped_three_times_is_one_sample(prometheus: Served) -> None:
    parts = past_of(prometheus, "slow")["slow"]
    assert [sample(prometheus, part) for part in parts] == list(range(0, 360, 3))


def test_a_pod_is_known_where_its_labels_are_not_honoured(prometheus: Served) -> None:
    parts = past_of(prometheus, "team/llm-worker-0")["team/llm-worker-0"]
    assert len(parts) == 360


def test_jobs_of_many_queries_have_the_same_past(
    prometheus: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = past_of(prometheus, "plain", "dead", "slow", "blank")
    monkeypatch.setattr("detector.telemetry.backfill._SAMPLES", 1_000)
    cut = past_of(prometheus, "plain", "dead", "slow", "blank")
    # By their texts, since NaN is no equal of itself.
    assert list(map(str, sorted(cut.items()))) == list(map(str, sorted(whole.items())))


def test_where_there_are_very_many_gpus_all_jobs_have_a_shorter_past(
    prometheus: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = 3 * 5  # of three GPUs
    monkeypatch.setattr("detector.telemetry.backfill._MOST", 100 * series)
    found = past_of(prometheus, "plain", "slow")
    assert [sample(prometheus, part) for part in found["plain"]] == list(range(260, 360))
    assert (
        sample(prometheus, found["slow"][0]) == 261
    )  # at 260 it repeats what was collected before
