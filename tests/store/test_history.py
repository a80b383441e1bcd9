import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detector.metric import FIELDS
from detector.series import Batch, ContextEvent, Duration, Interval, Wanted
from detector.store.entries import REASONS, pack_gpus
from detector.store.errors import StoreError, Trouble
from detector.store.history import History, HistorySettings, Sample
from detector.store.keys import Keys
from detector.store.server import Server

NOW = 1_764_000_000_000
HOUR = 3_600_000
KEYS = Keys()
JOB_KEYS = (KEYS.samples, KEYS.about, KEYS.events, KEYS.chunks, KEYS.rejects)


@pytest.fixture
def history(redis_client: redis.Redis) -> History:
    return fresh(redis_client)


def fresh(client: redis.Redis, **changes: Any) -> History:
    return History(client, KEYS, HistorySettings(**changes))


def third_party(
    client: redis.Redis, job: str, time_ms: int | str, **fields: bytes | str
) -> None:
    entry = f"{time_ms}-0" if isinstance(time_ms, int) else time_ms
    flat = [text for pair in fields.items() for text in pair]
    assert isinstance(Server(client).run("XADD", KEYS.samples(job), entry, *flat), bytes)


def follow(
    history: History, cursors: Mapping[str, int] | None = None, now_ms: int = NOW
) -> tuple[dict[str, list[tuple[int, float]]], list[Batch]]:
    """Read until there is no more; each job's entries in the order they came."""
    known = dict(cursors or {})
    seen: dict[str, list[tuple[int, float]]] = {}
    batches = []
    for _ in range(200):
        batch = history.increments(known, now_ms=now_ms)
        batches.append(batch)
        for at, time, value in zip(
            batch.job, batch.times_ms.tolist(), batch.fields["ofu"].tolist(), strict=True
        ):
            job = batch.jobs[at]
            seen.setdefault(job, []).append((time, value))
            known[job] = time
        if not batch.more:
            return seen, batches
    raise AssertionError("there is always more")


def reasons(batches: list[Batch]) -> list[tuple[str, str]]:
    return [(reject.job, reject.reason) for batch in batches for reject in batch.rejects]


def only(history: History) -> list[tuple[str, str]]:
    return reasons(follow(history)[1])


# Reading and writing


def test_a_bare_xadd_by_a_third_party_is_found_and_read(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "job 1", NOW - 10_000, v="0.5")
    seen, batches = follow(history)
    assert seen == {"job 1": [(NOW - 10_000, 0.5)]}
    assert batches[0].rejects == ()
    assert history.jobs() == ("job 1",)
    assert history.last_seen("job 1") == NOW - 10_000


def test_what_is_written_reads_back_with_all_its_metrics(history: History) -> None:
    gpus = np.array([0.25, np.nan])
    sample = {"gpus": 2.0, "clock": 1755.5, "tokens": 1.5e6, "sm": float("nan")}
    assert history.write("a", time_ms=NOW, ofu=0.5, fields=sample, gpus=gpus)
    batch = history.increments({}, now_ms=NOW)
    assert {name: values.tolist() for name, values in batch.fields.items()} == {
        "ofu": [0.5],
        "gpus": [2.0],
        "clock": [1755.5],
        "tokens": [1.5e6],
    }
    window = history.window("a", start_ms=NOW, end_ms=NOW + 1)
    assert window.gpus is not None
    assert window.gpus.tolist() == [
        [pytest.approx(0.25, abs=1e-5), pytest.approx(np.nan, nan_ok=True)]
    ]


def test_a_cursor_leaves_out_what_was_read(history: History) -> None:
    for step in range(3):
        history.write("a", time_ms=NOW - 20_000 + step * 10_000, ofu=0.5)
    batch = history.increments({"a": NOW - 10_000}, now_ms=NOW)
    assert batch.times_ms.tolist() == [NOW]


def test_nothing_new_is_an_empty_batch_that_has_ofu(history: History) -> None:
    history.write("a", time_ms=NOW, ofu=0.5)
    batch = history.increments({"a": NOW}, now_ms=NOW)
    assert (batch.jobs, batch.times_ms.size, batch.fields["ofu"].size) == ((), 0, 0)
    assert not batch.more


def test_a_fleet_is_read_in_slices_and_nothing_twice(redis_client: redis.Redis) -> None:
    history = fresh(redis_client, slice=16)
    jobs = [f"j{n}" for n in range(2100)]
    history.write_many([Sample(job=job, time_ms=NOW - 1000, ofu=0.5) for job in jobs])
    for step in range(40):
        history.write("j7", time_ms=NOW - 900 + step, ofu=0.25)
    seen, batches = follow(history)
    assert set(seen) == set(jobs)
    assert [time for time, _ in seen["j7"]] == [NOW - 1000, *range(NOW - 900, NOW - 860)]
    assert len(batches) == 3
    assert all((np.diff(batch.job) >= 0).all() for batch in batches)


def test_a_job_that_is_older_than_the_first_look_starts_there(
    redis_client: redis.Redis, history: History
) -> None:
    for hours in (8, 7, 5, 1):
        third_party(redis_client, "a", NOW - hours * HOUR, v="0.4")
    assert [time for time, _ in follow(history)[0]["a"]] == [NOW - 5 * HOUR, NOW - HOUR]


def test_new_jobs_are_looked_for_now_and_then(
    redis_client: redis.Redis, history: History
) -> None:
    history.increments({}, now_ms=NOW)
    third_party(redis_client, "b", NOW, v="0.4")
    assert history.increments({}, now_ms=NOW + 10_000).jobs == ()
    assert history.increments({}, now_ms=NOW + 30_000).jobs == ("b",)


def test_discovery_goes_on_when_the_clock_was_set_back(
    redis_client: redis.Redis, history: History
) -> None:
    history.increments({}, now_ms=NOW + 10 * HOUR)
    third_party(redis_client, "b", NOW, v="0.4")
    assert history.increments({}, now_ms=NOW).jobs == ("b",)


def test_a_job_whose_key_is_gone_is_forgotten(
    redis_client: redis.Redis, history: History
) -> None:
    history.write("a", time_ms=NOW, ofu=0.5)
    history.increments({}, now_ms=NOW)
    redis_client.flushall()
    history.increments({"a": NOW}, now_ms=NOW + 30_000)
    assert history.jobs() == ()
    assert history.last_seen("a") is None


def test_reading_again_with_an_old_cursor_gives_the_same(
    redis_client: redis.Redis, history: History
) -> None:
    for minute in range(300):
        third_party(redis_client, "a", NOW - (300 - minute) * 60_000, v=f"0.{minute:03d}")
    first, _ = follow(history)
    history.roll(["a"], now_ms=NOW)
    again, _ = follow(history)
    other, _ = follow(fresh(redis_client))
    assert first == again == other
    assert len(first["a"]) == 300


def test_a_written_entry_may_be_written_again_but_time_never_goes_back(
    history: History,
) -> None:
    assert history.write("a", time_ms=NOW, ofu=0.5)
    assert history.write("a", time_ms=NOW + 10_000, ofu=0.5)
    assert history.write("a", time_ms=NOW, ofu=0.5)
    assert not history.write("a", time_ms=NOW + 5_000, ofu=0.5)
    assert only(history) == [("a", "went_back")]


@pytest.mark.parametrize(
    ("poor", "told"),
    [
        ({"ofu": float("nan")}, ("a", "not_a_number")),
        ({"ofu": -0.1}, ("a", "out_of_range")),
        ({"ofu": 41.0}, ("a", "out_of_range")),
        ({"time_ms": NOW // 1000}, ("a", "not_milliseconds")),
        ({"job": ""}, ("", "no_job")),
        ({"job": "x" * 600}, ("", "no_job")),
    ],
)
def test_an_impossible_sample_is_set_aside_and_costs_the_others_nothing(
    history: History, poor: dict[str, Any], told: tuple[str, str]
) -> None:
    good: dict[str, Any] = {"job": "a", "time_ms": NOW, "ofu": 0.5}
    samples = [Sample(**(good | poor), gpus=np.ones(3)), Sample(**good, gpus=np.zeros(2))]
    assert history.write_many(samples) == [False, True]
    assert only(history) == [told]
    gpus = history.window("a", start_ms=0, end_ms=NOW + 1).gpus
    assert gpus is not None
    assert gpus.tolist() == [[0.0, 0.0]]


def test_a_metric_outside_the_catalogue_is_the_callers_mistake(history: History) -> None:
    with pytest.raises(ValueError, match="catalogue"):
        history.write("a", time_ms=NOW, ofu=0.5, fields={"speed": 1.0})


# What third parties may get wrong


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"value": "0.4"}, "no_value"),
        ({"v": "fast"}, "not_a_number"),
        ({"v": ""}, "not_a_number"),
        ({"v": "nan"}, "not_a_number"),
        ({"v": "inf"}, "not_a_number"),
        ({"v": "41"}, "out_of_range"),
        ({"v": "-0.01"}, "out_of_range"),
        ({"v": "1e400"}, "not_a_number"),
        ({"v": b"\xff\x00"}, "not_a_number"),
    ],
)
def test_an_entry_without_a_usable_value_is_nan_and_told_once(
    redis_client: redis.Redis, history: History, fields: dict[str, Any], reason: str
) -> None:
    third_party(redis_client, "a", NOW - 20_000, v="0.4")
    third_party(redis_client, "a", NOW - 10_000, **fields)
    third_party(redis_client, "a", NOW, v="0.5")
    seen, batches = follow(history)
    assert [value for _, value in seen["a"]] == pytest.approx([0.4, np.nan, 0.5], nan_ok=True)
    (reject,) = batches[0].rejects
    assert (reject.entry, reject.reason) == (f"{NOW - 10_000}-0", reason)
    assert reject.detail.isascii()
    assert reject.detail.isprintable()


def test_another_bad_field_costs_that_field_alone(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "a", NOW, v="0.4", clock="1.7e9", n="8", color="red")
    batch = history.increments({}, now_ms=NOW)
    assert batch.fields["ofu"].tolist() == [pytest.approx(0.4)]
    assert batch.fields["gpus"].tolist() == [8.0]
    assert np.isnan(batch.fields["clock"]).all()
    assert [(r.reason, r.detail) for r in batch.rejects] == [("out_of_range", "clock=1.7e9")]


def test_an_entry_ahead_of_the_clock_waits_and_blocks_nothing(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "a", NOW, v="0.25")
    third_party(redis_client, "a", NOW + 90_000, v="0.5")
    third_party(redis_client, "b", NOW * 1000, v="0.5")
    third_party(redis_client, "b", f"{2**64 - 1}-0", v="0.5")
    seen, batches = follow(history)
    assert seen == {"a": [(NOW, 0.25)]}
    assert sorted(reasons(batches)) == [("a", "from_the_future")] + 2 * [
        ("b", "from_the_future")
    ]
    later, batches = follow(history, {"a": NOW}, NOW + 31_000)
    assert later == {"a": [(NOW + 90_000, 0.5)]}
    assert reasons(batches) == []


def test_ids_in_seconds_and_small_ids_are_told(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "s", NOW // 1000, v="0.4")
    third_party(redis_client, "z", "0-1", v="0.4")
    seen, batches = follow(history)
    assert seen == {}
    assert sorted(reasons(batches)) == [("s", "not_milliseconds"), ("z", "not_milliseconds")]
    assert reasons(follow(history, now_ms=NOW + 30_000)[1]) == []


def test_a_stream_made_again_with_older_ids_is_told_and_not_folded(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "a", NOW, v="0.4")
    follow(history)
    redis_client.delete(KEYS.samples("a"))
    third_party(redis_client, "a", NOW - 60_000, v="0.3")
    third_party(redis_client, "a", NOW - 50_000, v="0.3")
    seen, batches = follow(history, {"a": NOW}, NOW + 30_000)
    assert seen == {}
    assert reasons(batches) == 2 * [("a", "went_back")]
    third_party(redis_client, "a", NOW + 40_000, v="0.3")
    assert "a" in follow(history, {"a": NOW}, NOW + 60_000)[0]
    assert reasons(follow(fresh(redis_client), {"a": NOW + 90_000}, NOW + 90_000)[1])


def test_two_entries_in_one_millisecond_count_once(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "a", f"{NOW}-0", v="0.25")
    third_party(redis_client, "a", f"{NOW}-1", v="0.5")
    seen, batches = follow(history)
    assert seen == {"a": [(NOW, 0.25)]}
    assert reasons(batches) == [("a", "duplicate")]


def test_a_field_that_an_entry_repeats_counts_with_its_last_text(
    redis_client: redis.Redis, history: History
) -> None:
    Server(redis_client).run("XADD", KEYS.samples("a"), f"{NOW}-0", "v", "0.1", "v", "0.25")
    assert follow(history)[0] == {"a": [(NOW, 0.25)]}


def test_packed_gpus_of_a_wrong_length_are_told_and_the_mean_is_used(
    redis_client: redis.Redis, history: History
) -> None:
    redis_client.hset(KEYS.about("a"), "gpus", "GPU-1,GPU-2")
    history.describe("a")
    good = pack_gpus(np.array([0.5, 0.25]))
    for at, packed in enumerate([b"abc", b"abcdef", b"", good]):
        third_party(redis_client, "a", NOW - 50_000 + at * 10_000, v="0.4", g=packed)
    seen, batches = follow(history)
    assert len(seen["a"]) == 4
    assert [r.detail for b in batches for r in b.rejects] == ["g has 3 bytes", "g has 6 bytes"]
    window = history.window("a", start_ms=0, end_ms=NOW)
    assert window.gpus is not None
    assert window.gpus.shape == (4, 3)
    assert np.isnan(window.gpus[[0, 2]]).all()
    assert window.gpus[3, :2].tolist() == pytest.approx([0.5, 0.25], abs=1e-5)


def test_keys_of_another_type_and_bad_names_cost_the_others_nothing(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "good", NOW, v="0.4")
    redis_client.set("ofu:{text}:s", "x")
    redis_client.xadd("ofu:{a b}:s", {"v": "0.4"})
    redis_client.set("ofu:{}:s", "x")
    seen, batches = follow(history)
    assert set(seen) == {"good"}
    assert sorted(reasons(batches)) == [
        ("", "bad_key"),
        ("", "bad_key"),
        ("text", "wrong_type"),
    ]
    assert reasons(follow(history, now_ms=NOW + 30_000)[1]) == []


def test_a_key_that_changes_its_type_between_two_reads_costs_the_others_nothing(
    redis_client: redis.Redis, history: History
) -> None:
    for job in ("a", "b"):
        third_party(redis_client, job, NOW - 5 * HOUR, v="0.4")
        third_party(redis_client, job, NOW, v="0.4")
    follow(history)
    redis_client.set(KEYS.samples("a"), "x")
    third_party(redis_client, "b", NOW + 10_000, v="0.5")
    seen, batches = follow(history, {"b": NOW}, NOW + 10_000)
    assert seen == {"b": [(NOW + 10_000, 0.5)]}
    assert reasons(batches) == [("a", "wrong_type")]
    redis_client.delete(KEYS.samples("a"))
    third_party(redis_client, "a", NOW + 20_000, v="0.5")
    seen, batches = follow(history, {"b": NOW + 10_000}, NOW + 30_000)
    assert seen == {"a": [(NOW + 20_000, 0.5)]}
    assert reasons(batches) == []


def test_hashes_and_streams_of_another_type_beside_a_history_are_survived(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "a", NOW - 3 * HOUR, v="0.4")
    for key in (KEYS.about("a"), KEYS.events("a"), KEYS.chunks("a"), KEYS.rejects("a")):
        redis_client.set(key, "x")
    history.roll(["a"], now_ms=NOW)
    assert redis_client.xlen(KEYS.samples("a")) == 1
    assert history.describe("a").id == "a"
    assert history.window("a", start_ms=0, end_ms=NOW).times_ms.size == 1
    seen, batches = follow(history)
    assert "a" in seen
    history.set_aside(batches[0].rejects)
    assert history.rejected("a") == {}


junk = st.dictionaries(
    st.sampled_from(["v", "n", "g", "clock", "x"]),
    st.binary(max_size=6) | st.sampled_from([b"0.4", b"nan", b"-1", b"2e99"]),
    min_size=1,
)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(junk, min_size=1, max_size=6))
def test_whatever_is_in_the_entries_all_are_read_rolled_and_shown(
    redis_client: redis.Redis, entries: list[dict[str, bytes]]
) -> None:
    redis_client.flushall()
    history = fresh(redis_client)
    times = [NOW - 2 * HOUR + 60_000 * at for at in range(len(entries))]
    for time, entry in zip(times, entries, strict=True):
        third_party(redis_client, "a", time, **entry)
    before, _ = follow(history)
    window = history.window("a", start_ms=0, end_ms=NOW)
    history.roll(["a"], now_ms=NOW)
    after, _ = follow(fresh(redis_client))
    rolled = history.window("a", start_ms=0, end_ms=NOW)
    assert [time for time, _ in before["a"]] == times
    assert repr(before) == repr(after)
    assert window.fields.keys() == rolled.fields.keys()
    assert all(
        np.array_equal(window.fields[name], rolled.fields[name], equal_nan=True)
        for name in window.fields
    )


# What was set aside is counted


def test_rejects_are_counted_by_reason_with_the_last_of_each(
    redis_client: redis.Redis, history: History
) -> None:
    for at in range(3):
        third_party(redis_client, "a", NOW - 30_000 + at * 10_000, v="x")
    batch = history.increments({}, now_ms=NOW)
    history.set_aside(batch.rejects)
    history.set_aside(batch.rejects)  # the same tick again
    (found,) = history.rejected("a").items()
    assert (found[0], found[1].count, found[1].last) == (
        "not_a_number",
        3,
        f"{NOW - 10_000}-0 v=x",
    )
    assert 0 < redis_client.ttl(KEYS.rejects("a")) <= 8 * 86_400
    assert history.rejected("nobody") == {}


def test_more_rejects_than_are_told_are_counted_all_the_same(
    redis_client: redis.Redis, history: History
) -> None:
    jobs = [f"j{n}" for n in range(1200)]
    with redis_client.pipeline() as pipe:
        for job in jobs:
            pipe.xadd(KEYS.samples(job), {"v": "x"}, id=f"{NOW}-0")
        pipe.execute()
    batch = history.increments({}, now_ms=NOW)
    assert len(batch.rejects) == 1000
    history.set_aside(batch.rejects)
    assert all(history.rejected(job)["not_a_number"].count == 1 for job in jobs)


def test_every_reason_says_in_one_sentence_what_to_do() -> None:
    for sentence in REASONS.values():
        assert sentence == sentence.strip()
        assert "\n" not in sentence
        assert len(sentence) > 30


def test_the_guide_names_every_reason_key_and_field() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    names = [*REASONS, *FIELDS, *(key("<job>") for key in JOB_KEYS)]
    assert [name for name in names if f"`{name}`" not in guide] == []


def test_the_guides_way_to_pack_gpus_is_the_one_that_is_read() -> None:
    ofu = [0.41, 0.40, None, 0.42]
    codes = [65535 if x is None else round(x * 65534) for x in ofu]
    assert struct.pack("<4H", *codes) == pack_gpus(np.array(ofu, float))


# Rolling up


def filled(
    client: redis.Redis, history: History, *, hours: float, step_ms: int = 10_000
) -> int:
    count = int(hours * HOUR) // step_ms
    rng = np.random.default_rng(1)
    samples = [
        Sample(
            job="a",
            time_ms=NOW - (count - at) * step_ms,
            ofu=float(rng.random()),
            fields={"gpus": 2.0},
            gpus=rng.random(2),
        )
        for at in range(count)
    ]
    assert all(history.write_many(samples))
    return count


def test_rolling_up_moves_old_entries_and_no_window_sees_a_difference(
    redis_client: redis.Redis, history: History
) -> None:
    count = filled(redis_client, history, hours=3)
    follow(history)
    whole = {"start_ms": NOW - 2 * HOUR - 7, "end_ms": NOW - 5_000}
    before = history.window("a", **whole)
    for _ in range(2):  # the second finds nothing to do
        history.roll(["a"], now_ms=NOW)
        assert redis_client.xlen(KEYS.samples("a")) == pytest.approx(count / 3, abs=30)
    after = history.window("a", **whole)
    assert before.times_ms.tolist() == after.times_ms.tolist()
    assert all(
        np.array_equal(before.fields[name], after.fields[name]) for name in before.fields
    )
    assert before.gpus is not None
    assert np.array_equal(before.gpus, after.gpus)  # type: ignore[arg-type]
    assert history.window("a", start_ms=0, end_ms=2**60).times_ms.size == count


@pytest.mark.parametrize("gpus", [False, True])
def test_windows_read_together_are_those_read_alone(
    redis_client: redis.Redis, *, gpus: bool
) -> None:
    history = fresh(redis_client)
    rng = np.random.default_rng(5)
    for job, width in (("a", 3), ("b", 0), ("c", 8)):
        fields = {"mfu": 0.4} if job == "a" else {"sm": 0.7}
        history.write_many(
            [
                Sample(
                    job=job,
                    time_ms=NOW - (900 - k) * 10_000,
                    ofu=float(rng.random()),
                    fields=fields,
                    gpus=rng.random(width + (k > 400)) if width else None,
                )
                for k in range(900)
            ]
        )
    follow(history)
    history.roll(["a", "c"], now_ms=NOW)
    edges = [NOW - 9_000_000, NOW - 5_003_000, NOW - 3_600_000, NOW - 40_000, NOW + 1]
    wanted = [
        Wanted(job=job, span=Interval(start_ms=start, end_ms=end), gpus=gpus)
        for job in ("a", "b", "c", "unknown")
        for start in edges
        for end in edges
    ]
    for item, found in zip(wanted, history.windows(wanted), strict=True):
        (alone,) = history.windows([item])
        assert found.fields.keys() == alone.fields.keys()
        np.testing.assert_array_equal(found.times_ms, alone.times_ms)
        for name, values in alone.fields.items():
            np.testing.assert_array_equal(found.fields[name], values)
        assert (found.gpus is None) == (alone.gpus is None)
        if found.gpus is not None and alone.gpus is not None:
            assert gpus
            np.testing.assert_array_equal(found.gpus, alone.gpus)
    counts = [len(found.times_ms) for found in history.windows(wanted[:5])]
    assert counts == [0, 400, 540, 896, 900]


def test_a_cold_start_reads_chunks_first_and_then_the_stream(
    redis_client: redis.Redis, history: History
) -> None:
    count = filled(redis_client, history, hours=5.5)
    expected, _ = follow(history)
    history.roll(["a"], now_ms=NOW)
    seen, _ = follow(fresh(redis_client))
    assert len(seen["a"]) == count
    assert seen == expected


def test_a_reader_that_was_away_goes_on_where_it_was(
    redis_client: redis.Redis, history: History
) -> None:
    filled(redis_client, history, hours=5)
    everything, _ = follow(history)
    history.roll(["a"], now_ms=NOW)
    cursor = NOW - 4 * HOUR
    seen, _ = follow(fresh(redis_client), {"a": cursor})
    assert seen["a"] == [(time, value) for time, value in everything["a"] if time > cursor]


def test_a_gap_of_hours_in_the_chunks_is_stepped_over(
    redis_client: redis.Redis, history: History
) -> None:
    times = [NOW - 23 * HOUR // 4, NOW - 2 * HOUR, NOW - 60_000]
    for time in times:
        third_party(redis_client, "a", time, v="0.5")
    follow(history)
    history.roll(["a"], now_ms=NOW)
    assert [time for time, _ in follow(fresh(redis_client, slice=16))[0]["a"]] == times


def test_what_has_not_been_read_is_not_rolled_up(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "a", NOW - 3 * HOUR, v="0.5")
    follow(history)
    third_party(redis_client, "a", NOW - 2 * HOUR, v="0.5")
    history.roll(["a"], now_ms=NOW)
    seen, _ = follow(history, {"a": NOW - 3 * HOUR}, NOW + 30_000)
    assert seen == {"a": [(NOW - 2 * HOUR, 0.5)]}


def test_late_entries_are_merged_into_their_chunk(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "a", NOW - 3 * HOUR, v="0.5")
    history.roll(["a"], now_ms=NOW)
    third_party(redis_client, "a", NOW - 3 * HOUR + 1, v="0.25", clock="1700")
    history.roll(["a"], now_ms=NOW)
    assert redis_client.xlen(KEYS.samples("a")) == 0
    window = history.window("a", start_ms=NOW - 4 * HOUR, end_ms=NOW)
    assert window.fields["ofu"].tolist() == [0.5, 0.25]
    assert window.fields["clock"].tolist() == pytest.approx([np.nan, 1700], nan_ok=True)


def test_a_broken_chunk_is_told_and_the_rest_is_read(
    redis_client: redis.Redis, history: History
) -> None:
    filled(redis_client, history, hours=3)
    follow(history)
    history.roll(["a"], now_ms=NOW)
    field = sorted(redis_client.hkeys(KEYS.chunks("a")))[3]
    redis_client.hset(KEYS.chunks("a"), field, b"junk")
    seen, batches = follow(fresh(redis_client))
    assert len(seen["a"]) == 3 * 360 - 30
    assert reasons(batches) == [("a", "bad_chunk")]
    assert history.window("a", start_ms=0, end_ms=NOW).times_ms.size == 3 * 360 - 30


def test_chunks_past_their_time_are_deleted_and_all_keys_expire(
    redis_client: redis.Redis,
) -> None:
    history = fresh(redis_client, keep=Duration.parse("2h"), first_look=Duration.parse("1h"))
    filled(redis_client, history, hours=4)
    history.announce("a", ContextEvent(kind="restart", span=Interval(start_ms=NOW, end_ms=NOW)))
    redis_client.hset(KEYS.about("a"), "name", "x")
    history.roll(["a"], now_ms=NOW)
    assert len(redis_client.hkeys(KEYS.chunks("a"))) == 12
    history.roll(["a"], now_ms=NOW + 600_000)
    starts = [int(name) * 1000 for name in redis_client.hkeys(KEYS.chunks("a"))]
    assert min(starts) > NOW + 600_000 - 2 * HOUR - 300_000
    for key in (KEYS.samples, KEYS.about, KEYS.events, KEYS.chunks):
        assert 25 * 3600 < redis_client.ttl(key("a")) <= 26 * 3600


def test_a_clock_that_jumps_ahead_deletes_nothing(
    redis_client: redis.Redis, history: History
) -> None:
    count = filled(redis_client, history, hours=3)
    follow(history)
    history.roll(["a"], now_ms=NOW + 30 * 24 * HOUR)
    history.roll_some(NOW + 31 * 24 * HOUR)
    assert history.window("a", start_ms=0, end_ms=NOW).times_ms.size == count
    assert redis_client.ttl(KEYS.samples("a")) > 2 * 86_400


def test_a_dead_job_is_not_kept_alive_by_rolling(
    redis_client: redis.Redis, history: History
) -> None:
    third_party(redis_client, "a", NOW - 40 * HOUR, v="0.5")
    history.roll(["a"], now_ms=NOW)
    assert redis_client.ttl(KEYS.chunks("a")) == pytest.approx((72 - 40) * 3600, abs=5)


def test_rolling_some_meets_every_job_within_five_minutes(
    redis_client: redis.Redis, history: History
) -> None:
    jobs = [f"j{n}" for n in range(90)]
    history.write_many([Sample(job=job, time_ms=NOW - 3 * HOUR, ofu=0.5) for job in jobs])
    follow(history)
    visited = [history.roll_some(NOW)]
    visited += [history.roll_some(NOW + tick * 10_000) for tick in range(1, 31)]
    assert max(visited[1:]) <= 4
    assert sum(visited[1:]) >= 90
    assert all(redis_client.xlen(KEYS.samples(job)) == 0 for job in jobs)


# Who a job is


def test_a_job_is_described_as_far_as_its_hash_can_be_read(
    redis_client: redis.Redis, history: History
) -> None:
    redis_client.hset(
        KEYS.about("a"),
        mapping={
            "name": "llama",
            "owner": "ann",
            "start": "2025-11-24T16:00:00Z",
            "gpus": '[{"uuid":"GPU-1","host":"n1","index":0},"GPU-2"]',
            "lineage": "j1, j2",
            "queue": "big",
            "team": "x" * 2000,
        },
    )
    job = history.describe("a")
    assert (job.name, job.owner, job.team, job.start_ms) == ("llama", "ann", "", NOW)
    assert [(gpu.uuid, gpu.host, gpu.index) for gpu in job.roster] == [
        ("GPU-1", "n1", 0),
        ("GPU-2", "", None),
    ]
    assert (job.lineage, job.labels) == (("j1", "j2"), {"queue": "big"})
    assert only(history) == [("a", "bad_description")]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("gpus", "[{"),
        ("gpus", "64"),
        ("gpus", "{not json"),
        ("gpus", "'GPU-1'"),
        ("gpus", '[{"host":1}]'),
        ("start", "yesterday"),
        ("start", "9" * 400),
    ],
)
def test_a_field_that_cannot_be_read_is_noted(
    redis_client: redis.Redis, history: History, field: str, text: str
) -> None:
    redis_client.hset(KEYS.about("a"), mapping={field: text, "name": b"\xff"})
    job = history.describe_many(["a", "nobody"])["a"]
    assert (job.name, job.roster, job.start_ms) == ("\ufffd", (), None)
    assert only(history) == [("a", "bad_description")]
    (told,) = history.undescribed("a")
    assert told.startswith(f"{field}: ")
    assert field != "gpus" or "write the UUIDs" in told


@pytest.mark.parametrize(
    "start", ["1764000000", "1764000000000", "1764000000.0", "2025-11-24T16:00"]
)
def test_a_start_may_be_seconds_milliseconds_or_iso(
    redis_client: redis.Redis, history: History, start: str
) -> None:
    redis_client.hset(KEYS.about("a"), "start", start)
    assert history.describe("a").start_ms == NOW


def test_announced_events_show_in_the_windows_they_touch(
    redis_client: redis.Redis, history: History
) -> None:
    def event(kind: str, start: int, end: int) -> ContextEvent:
        span = Interval(start_ms=NOW + start, end_ms=NOW + end)
        return ContextEvent(kind=kind, span=span, note="why")

    evaluation, restart = event("evaluation", -100, 50), event("restart", 0, 0)
    for item in (restart, evaluation, evaluation, event("deploy", 100, 100)):
        history.announce("a", item)
    window = history.window("a", start_ms=NOW, end_ms=NOW + 100)
    assert window.events == (evaluation, restart)
    assert redis_client.ttl(KEYS.events("a")) > 0


def test_when_an_event_was_announced_comes_back_and_of_two_the_first(
    redis_client: redis.Redis, history: History
) -> None:
    for told_ms in (NOW + 5_000, NOW + 90_000):
        redis_client.xadd(
            KEYS.events("a"), {"kind": "checkpoint", "start": NOW - 60_000}, id=f"{told_ms}-0"
        )
    (event,) = history.window("a", start_ms=NOW - 60_000, end_ms=NOW).events
    assert (event.span.start_ms, event.told_ms) == (NOW - 60_000, NOW + 5_000)
    assert event.heard_ms == NOW + 5_000


def test_a_third_partys_event_starts_at_its_entry_when_it_says_no_time(
    redis_client: redis.Redis, history: History
) -> None:
    redis_client.xadd(KEYS.events("a"), {"kind": "checkpoint", "start": "soon"}, id=f"{NOW}-0")
    (event,) = history.window("a", start_ms=NOW, end_ms=NOW + 1).events
    assert (event.kind, event.span) == ("checkpoint", Interval(start_ms=NOW, end_ms=NOW))


# A server in trouble


def test_a_full_server_is_told_as_such_and_nothing_is_half_rolled(
    redis_client: redis.Redis, history: History
) -> None:
    filled(redis_client, history, hours=2)
    length = redis_client.xlen(KEYS.samples("a"))
    redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreError, match="maxmemory") as caught:
            history.roll(["a"], now_ms=NOW)
        assert caught.value.kind is Trouble.OUT_OF_MEMORY
        with pytest.raises(StoreError):
            history.write("a", time_ms=NOW, ofu=0.5)
        assert len(follow(history)[0]["a"]) == length
    finally:
        redis_client.config_set("maxmemory", 0)
    assert redis_client.xlen(KEYS.samples("a")) == length


def test_a_server_that_is_away_is_told_by_its_address_without_the_password() -> None:
    client = redis.Redis.from_url("redis://u:secret@127.0.0.1:1/0", retry=None)
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1 does not answer") as caught:
        fresh(client).increments({}, now_ms=NOW)
    assert "secret" not in str(caught.value)


def test_a_client_of_the_older_protocol_reads_the_same(
    valkey: str, redis_client: redis.Redis
) -> None:
    filled(redis_client, fresh(redis_client), hours=3)
    redis_client.hset(KEYS.about("a"), "name", "x")
    with redis.Redis(unix_socket_path=valkey, protocol=2) as older:
        history = fresh(older)
        seen, _ = follow(history)
        history.roll(["a"], now_ms=NOW)
        assert history.describe("a").name == "x"
    assert follow(fresh(redis_client))[0] == seen
