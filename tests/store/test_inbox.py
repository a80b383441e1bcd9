from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detector.series import Window
from detector.store.entries import pack_gpus
from detector.store.errors import StoreError
from detector.store.history import History, HistorySettings
from detector.store.inbox import Inbox
from detector.store.keys import Keys
from detector.store.settings import InboxSettings

NOW = 1_764_000_000_000
KEYS = Keys()
SEQUENCE = count(1)  # Redis 6.2 has no id <ms>-*


@pytest.fixture
def history(redis_client: redis.Redis) -> History:
    return History(redis_client, KEYS, HistorySettings())


@pytest.fixture
def inbox(redis_client: redis.Redis, history: History) -> Inbox:
    return Inbox(redis_client, KEYS, history, InboxSettings())


def post(client: redis.Redis, entry_ms: int | str = "*", **fields: bytes | str | float) -> None:
    entry = f"{entry_ms}-{next(SEQUENCE)}" if isinstance(entry_ms, int) else entry_ms
    client.xadd(KEYS.inbox, {name: value for name, value in fields.items()}, id=entry)


def everything(history: History, job: str) -> Window:
    return history.window(job, start_ms=0, end_ms=2**60)


def told(history: History) -> list[tuple[str, str]]:
    rejects = history.increments({}, now_ms=NOW).rejects
    return [(reject.job, reject.reason) for reject in rejects]


def test_an_entry_that_names_its_job_goes_into_its_history(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    post(redis_client, NOW, job="a b", v="0.5", n="8", clock="1700", g=pack_gpus(np.ones(2)))
    report = inbox.drain(NOW)
    assert (report.read, report.written, report.rejected, report.waiting) == (1, 1, 0, 0)
    window = everything(history, "a b")
    assert window.times_ms.tolist() == [NOW]
    assert {name: v.tolist() for name, v in window.fields.items()} == {
        "ofu": [0.5],
        "gpus": [8.0],
        "clock": [1700.0],
    }
    assert window.gpus is not None
    assert window.gpus.tolist() == [[1.0, 1.0]]
    assert redis_client.xlen(KEYS.inbox) == 0
    assert inbox.drain(NOW).read == 0


@pytest.mark.parametrize("ts", ["1763999990", "1763999990000", "2025-11-24T15:59:50Z"])
def test_ts_may_be_seconds_milliseconds_or_iso(
    redis_client: redis.Redis, history: History, inbox: Inbox, ts: str
) -> None:
    post(redis_client, NOW, job="a", v="0.5", ts=ts)
    inbox.drain(NOW)
    assert everything(history, "a").times_ms.tolist() == [NOW - 10_000]


def test_entries_are_written_in_the_order_of_their_times(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    for ts in (NOW - 10_000, NOW - 30_000, NOW - 20_000):
        post(redis_client, job="a", v="0.5", ts=ts)
    assert inbox.drain(NOW).written == 3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"v": "0.5"}, ("", "no_job")),
        ({"job": "", "v": "0.5"}, ("", "no_job")),
        ({"job": "x" * 600, "v": "0.5"}, ("", "no_job")),
        ({"job": b"\xff", "v": "0.5"}, ("", "no_job")),
        ({"job": "a"}, ("a", "no_value")),
        ({"job": "a", "v": "x", "host": "h"}, ("a", "not_a_number")),
        ({"job": "a", "v": "41"}, ("a", "out_of_range")),
        ({"job": "a", "v": "0.5", "ts": "noon"}, ("a", "bad_time")),
        ({"job": "a", "v": "0.5", "ts": "-5"}, ("a", "bad_time")),
        ({"job": "a", "v": "0.5", "ts": b"\xff"}, ("a", "bad_time")),
        ({"job": "a", "v": "0.5", "ts": str(NOW + 61_000)}, ("a", "from_the_future")),
        ({"job": "a", "v": "0.5", "ts": "9" * 400}, ("a", "bad_time")),
    ],
)
def test_a_malformed_entry_is_told_and_deleted_and_written_nowhere(
    redis_client: redis.Redis,
    history: History,
    inbox: Inbox,
    fields: dict[str, bytes | str],
    expected: tuple[str, str],
) -> None:
    post(redis_client, NOW, **fields)
    report = inbox.drain(NOW)
    assert (report.written, report.rejected, report.waiting) == (0, 1, 0)
    assert redis_client.keys() == [b"ofu:in"]
    assert redis_client.xlen(KEYS.inbox) == 0
    assert told(history) == [expected]


def test_what_the_inbox_refused_is_counted_under_its_own_key(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    for _ in range(2):
        post(redis_client, v="0.5")
        inbox.drain(NOW)
        history.set_aside(history.increments({}, now_ms=NOW).rejects)
    assert history.rejected("")["no_job"].count == 2
    assert history.rejected("")["no_job"].last.startswith("ofu:in/")


def test_an_entry_with_one_bad_field_is_written_without_it(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    post(redis_client, NOW, job="a", v="0.5", clock="fast", g=b"abc")
    assert inbox.drain(NOW).written == 1
    assert set(everything(history, "a").fields) == {"ofu"}
    assert told(history) == [("a", "not_a_number"), ("a", "wrong_length")]


def test_hosts_are_merged_by_their_gpus_when_the_wait_is_over(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    post(redis_client, NOW + 1, job="a", host="h1", v="0.5", n="6", clock="1700")
    post(redis_client, NOW + 2, job="a", host="h2", v="0.1", n="2")
    assert inbox.drain(NOW + 24_999).waiting == 2
    assert everything(history, "a").times_ms.size == 0
    assert inbox.drain(NOW + 25_000).written == 1
    window = everything(history, "a")
    assert window.times_ms.tolist() == [NOW]
    assert window.fields["ofu"].tolist() == [pytest.approx(0.4)]
    assert window.fields["gpus"].tolist() == [8.0]
    assert window.fields["clock"].tolist() == [1700.0]
    assert redis_client.xlen(KEYS.inbox) == 0


def test_a_scrape_is_merged_at_once_when_all_hosts_of_the_roster_have_reported(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    roster = '[{"uuid":"G1","host":"h1"},{"uuid":"G2","host":"h2"},{"uuid":"G3","host":"h2"}]'
    redis_client.hset(KEYS.about("a"), "gpus", roster)
    post(redis_client, NOW, job="a", host="h1", v="0.5")
    assert inbox.drain(NOW).written == 0
    post(redis_client, NOW, job="a", host="h2", v="0.5")
    assert inbox.drain(NOW).written == 1


def test_a_complete_scrape_takes_the_unfinished_ones_before_it_along(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    redis_client.hset(
        KEYS.about("a"), "gpus", '[{"uuid":"1","host":"h1"},{"uuid":"2","host":"h2"}]'
    )
    post(redis_client, NOW, job="a", host="h1", v="0.25")
    post(redis_client, NOW + 10_000, job="a", host="h1", v="0.5")
    post(redis_client, NOW + 10_000, job="a", host="h2", v="0.5")
    assert inbox.drain(NOW + 10_000).written == 2
    assert everything(history, "a").fields["ofu"].tolist() == [0.25, 0.5]


def test_a_host_that_comes_late_is_told_and_changes_nothing(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    post(redis_client, NOW, job="a", host="h1", v="0.5")
    inbox.drain(NOW + 30_000)
    post(redis_client, NOW + 1, job="a", host="h2", v="0.1")
    assert inbox.drain(NOW + 31_000).rejected == 1
    assert told(history) == [("a", "late")]
    assert everything(history, "a").fields["ofu"].tolist() == [0.5]
    assert redis_client.xlen(KEYS.inbox) == 0


def test_parts_that_came_in_different_calls_lose_no_metric(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    post(redis_client, NOW, job="a", host="h1", v="0.5")
    inbox.drain(NOW)
    post(redis_client, NOW, job="a", host="h2", v="0.5", clock="1700", n="3")
    inbox.drain(NOW + 30_000)
    window = everything(history, "a")
    assert {name: values.tolist() for name, values in window.fields.items()} == {
        "ofu": [0.5],
        "clock": [1700.0],
        "gpus": [3.0],
    }


def test_of_a_host_that_reports_twice_the_last_counts(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    post(redis_client, NOW, job="a", host="h1", v="0.5")
    post(redis_client, NOW + 5, job="a", host="h1", v="0.25")
    inbox.drain(NOW + 30_000)
    assert everything(history, "a").fields["ofu"].tolist() == [0.25]


def test_a_host_without_reporting_gpus_has_no_weight(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    post(redis_client, NOW, job="a", host="h1", v="0", n="0")
    post(redis_client, NOW, job="a", host="h2", v="0.5", n="4")
    post(redis_client, NOW, job="b", host="h1", v="0", n="0")
    inbox.drain(NOW + 30_000)
    assert everything(history, "a").fields["ofu"].tolist() == [0.5]
    window = everything(history, "b")
    assert window.fields["gpus"].tolist() == [0.0]
    assert np.isnan(window.fields["ofu"]).all()
    assert told(history) == []


Part = tuple[str, int, float, int]
parts = st.lists(
    st.tuples(
        st.sampled_from(["h1", "h2", "h3"]),
        st.integers(0, 39_999),
        st.floats(0, 1, width=16),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=10,
)


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(parts, st.integers(0, 40_000))
def test_a_crash_between_two_calls_loses_nothing(
    redis_client: redis.Redis, arrivals: Sequence[Part], crash_ms: int
) -> None:
    def run(crashes: bool) -> list[tuple[int, float]]:
        redis_client.flushall()
        history = History(redis_client, KEYS, HistorySettings())
        inbox = Inbox(redis_client, KEYS, history, InboxSettings())
        for host, at, value, gpus in arrivals:
            post(redis_client, job="a", host=host, v=value, n=gpus, ts=NOW + at)
        inbox.drain(NOW + crash_ms)
        if crashes:
            inbox = Inbox(redis_client, KEYS, history, InboxSettings())
        inbox.drain(NOW + 100_000)
        assert redis_client.xlen(KEYS.inbox) == 0
        window = everything(history, "a")
        return list(zip(window.times_ms.tolist(), window.fields["ofu"].tolist(), strict=True))

    assert run(crashes=True) == run(crashes=False)


def test_a_store_in_trouble_loses_nothing(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    post(redis_client, NOW, job="a", v="0.5")
    post(redis_client, NOW, job="b", host="h", v="0.5")
    redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreError, match="maxmemory"):
            inbox.drain(NOW + 30_000)
    finally:
        redis_client.config_set("maxmemory", 0)
    assert inbox.drain(NOW + 30_000).written == 2


def test_an_inbox_that_nobody_emptied_is_cut_and_the_loss_is_told(
    redis_client: redis.Redis, history: History
) -> None:
    inbox = Inbox(redis_client, KEYS, history, InboxSettings(longest=3))
    for at in range(5):
        post(redis_client, job="a", v="0.5", ts=NOW - 50_000 + at * 10_000)
    assert inbox.drain(NOW).written == 3
    assert [(r.reason, r.detail) for r in history.increments({}, now_ms=NOW).rejects] == [
        ("inbox_full", "2 entries lost")
    ]


def test_an_inbox_of_another_type_is_told_once(
    redis_client: redis.Redis, history: History, inbox: Inbox
) -> None:
    redis_client.set(KEYS.inbox, "x")
    inbox.drain(NOW)
    inbox.drain(NOW)
    assert told(history) == [("", "wrong_type")]
