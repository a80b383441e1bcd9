from collections import defaultdict
from collections.abc import Sequence
from functools import cache

import msgspec
import pytest

from detector.analysis.aggregate import Part
from detector.analysis.quality import MaxClocks
from detector.content import load_gpus, shipped
from detector.reading import Reading
from detector.telemetry.backfill import backfill
from detector.telemetry.identity import job_of
from detector.telemetry.prometheus import (
    LIVE,
    Prometheus,
    build,
    names_of,
    readings,
    selector,
    tracks,
)
from detector.telemetry.prometheus_settings import PrometheusSettings
from tests.telemetry import plans
from tests.telemetry.real_prometheus import Served


def jobs_of(reading: Reading) -> tuple[str, ...]:
    found = [job_of(labels) for labels in (reading.labels, *reading.sharing)]
    return tuple(dict.fromkeys(job for job in found if job))


@cache
def max_clocks() -> MaxClocks:
    return MaxClocks(table=load_gpus(shipped() / "models"))


def past_of(server: Served, *jobs: str) -> dict[str, list[Part]]:
    """Return the parts of jobs, as if they were first seen where the planned past ends."""
    source = build(PrometheusSettings(url=server.url), secret=lambda settings, key: "")
    try:
        return _past_of(source, server.until_ms, jobs)
    finally:
        source.close()


def _past_of(source: Prometheus, until_ms: int, jobs: Sequence[str]) -> dict[str, list[Part]]:
    # The GPUs of a job are known by readings of it, at whatever time.
    query = f"{selector(names_of(LIVE), '{}')}[{plans.SPAN_MS}ms]"
    series = source.api.query(query, at_ms=until_ms).series
    found = tracks(series, source.settings.replica_labels)
    source.learn(found)
    known: dict[tuple[str, tuple[str, ...]], Reading] = {}
    for track in found:
        (one,), _ = readings([track])
        owners = jobs_of(one)
        known[one.entity, owners] = msgspec.structs.replace(one, jobs=owners)
    wanted = [one for one in known.values() if set(one.jobs) & set(jobs)]
    assert wanted
    parts: defaultdict[str, list[Part]] = defaultdict(list)
    for part in backfill(
        source, wanted, jobs_of, start_ms=until_ms - plans.SPAN_MS, end_ms=until_ms,
        max_clocks=max_clocks(),
    ):  # fmt: skip
        parts[part.job].append(part)
    return parts


def sample(server: Served, part: Part) -> int:
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


def test_a_gpu_that_is_handed_on_belongs_to_each_job_in_its_own_time(
    prometheus: Served,
) -> None:
    found = past_of(prometheus, "before", "after")
    assert [sample(prometheus, part) for part in found["before"]] == list(range(180))
    # Its first reading is of an interval that both jobs may have had.
    assert [sample(prometheus, part) for part in found["after"]] == list(range(181, 270))


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
    dead = {sample(prometheus, part) for part in found["dead"]}
    assert dead == set(range(100)) | set(range(200, 360))
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
