"""What jobs report of themselves joins their scrapes, whoever writes it where."""

import numpy as np
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.derived import derived
from detector.series import Batch, FloatArray, Window
from detector.store.history import History, HistorySettings, Sample
from detector.store.inbox import Inbox
from detector.store.keys import Keys
from detector.store.reports import JOIN_MS, joined
from detector.store.settings import InboxSettings

NOW = 1_764_000_000_000
KEYS = Keys()
NAN = float("nan")


@pytest.fixture
def history(redis_client: redis.Redis) -> History:
    return History(redis_client, KEYS, HistorySettings())


def add(client: redis.Redis, at_ms: int, **fields: float) -> None:
    flat = {name: str(value) for name, value in fields.items()}
    client.xadd(KEYS.samples("j"), dict(flat.items()), id=f"{NOW + at_ms}-0")


def everything(history: History) -> Window:
    return history.window("j", start_ms=0, end_ms=2**60)


def times(batch: Batch) -> list[int]:
    return [int(time - NOW) for time in batch.times_ms]


def test_a_report_joins_the_next_scrape(redis_client: redis.Redis, history: History) -> None:
    add(redis_client, 0, v=0.4)
    add(redis_client, 3_000, tokens=100)
    add(redis_client, 7_000, tokens=120, mfu=0.3)
    add(redis_client, 10_000, v=0.5)
    batch = history.increments({}, now_ms=NOW + 10_000)
    assert times(batch) == [0, 10_000]
    np.testing.assert_array_equal(batch.fields["tokens"], [NAN, 120])
    np.testing.assert_array_equal(batch.fields["mfu"], [NAN, np.float32(0.3)])
    assert batch.rejects == ()
    window = everything(history)
    np.testing.assert_array_equal(window.fields["tokens"], [NAN, 120])
    assert derived(window.fields)["mfu_ratio"][1] == pytest.approx(0.6)


def test_a_report_whose_scrape_has_not_come_yet_is_read_with_it_later(
    redis_client: redis.Redis, history: History
) -> None:
    add(redis_client, 0, v=0.4)
    add(redis_client, 3_000, tokens=100)
    first = history.increments({}, now_ms=NOW + 5_000)
    assert times(first) == [0]
    assert not first.more
    add(redis_client, 10_000, v=0.5)
    second = history.increments({"j": NOW}, now_ms=NOW + 11_000)
    assert times(second) == [10_000]
    assert second.fields["tokens"].tolist() == [100.0]


def test_a_report_that_no_scrape_follows_stands_alone_and_is_no_scrape_without_data(
    redis_client: redis.Redis, history: History
) -> None:
    add(redis_client, 0, v=0.4)
    add(redis_client, 3_000, tokens=100)
    assert times(history.increments({}, now_ms=NOW + 3_000 + JOIN_MS - 1)) == [0]
    batch = history.increments({}, now_ms=NOW + 3_000 + JOIN_MS)
    assert times(batch) == [0, 3_000]
    assert batch.rejects == ()
    np.testing.assert_array_equal(derived(batch.fields)["valid"], [1.0, NAN])


def test_a_job_that_only_reports_itself_goes_on_being_read(
    redis_client: redis.Redis, history: History
) -> None:
    for at in range(1_000):
        add(redis_client, at * 1_000, tokens=at)
    cursors: dict[str, int] = {}
    seen = 0
    for _ in range(10):
        batch = history.increments(cursors, now_ms=NOW + 1_000_000)
        seen += len(batch.job)
        if len(batch.job):
            cursors = {"j": int(batch.times_ms[-1])}
        if not batch.more:
            break
    assert not batch.more
    assert seen == 1_000 - JOIN_MS // 1_000 + 1


def test_a_report_at_the_very_millisecond_of_a_scrape_is_no_duplicate(
    redis_client: redis.Redis, history: History
) -> None:
    add(redis_client, 0, v=0.4)
    redis_client.xadd(KEYS.samples("j"), {"tokens": 100}, id=f"{NOW}-1")
    batch = history.increments({}, now_ms=NOW + 1_000)
    assert batch.fields["tokens"].tolist() == [100.0]
    assert batch.rejects == ()


def test_a_scrape_goes_behind_reports_that_came_while_it_was_waited_for(
    redis_client: redis.Redis, history: History
) -> None:
    for slot in range(3):
        start = slot * 10_000
        for later in (21_000, 25_000):
            add(redis_client, start + later, tokens=1_000 + slot)
        sample = Sample(job="j", time_ms=NOW + start, ofu=0.4, movable=True)
        for _ in range(2):  # writing again is harmless
            assert history.write_many([sample]) == [True]
    batch = history.increments({}, now_ms=NOW + 60_000)
    assert times(batch) == [25_001, 35_001, 45_001]
    assert batch.fields["ofu"].tolist() == [pytest.approx(0.4)] * 3
    assert batch.fields["tokens"].tolist() == [1_000.0, 1_001.0, 1_002.0]
    assert batch.rejects == ()


def test_a_scrape_that_really_goes_back_is_refused_as_ever(
    redis_client: redis.Redis, history: History
) -> None:
    add(redis_client, 10_000, v=0.4)
    add(redis_client, 12_000, tokens=5)
    sample = Sample(job="j", time_ms=NOW, ofu=0.4, movable=True)
    assert history.write_many([sample]) == [False]
    assert [r.reason for r in history.increments({}, now_ms=NOW + 20_000).rejects] == [
        "went_back"
    ]


def test_a_report_to_the_inbox_costs_no_scrape_its_place(
    redis_client: redis.Redis, history: History
) -> None:
    inbox = Inbox(redis_client, KEYS, history, InboxSettings())
    cursors: dict[str, int] = {}
    read: list[tuple[int, float]] = []
    for at in range(0, 60_000, 10_000):
        # Whoever writes scrapes does so by their own times, a little later.
        redis_client.xadd(KEYS.inbox, {"job": "j", "tokens": at + 1, "ts": NOW + at + 400})
        inbox.drain(NOW + at + 500)
        add(redis_client, at, v=0.4)
        batch = history.increments(cursors, now_ms=NOW + at + 600)
        if len(batch.job):
            cursors = {"j": int(batch.times_ms[-1])}
            read += zip(times(batch), batch.fields.get("tokens", [NAN]), strict=True)
    assert [at for at, _ in read] == list(range(0, 60_000, 10_000))
    assert [tokens for _, tokens in read][1:] == [
        at + 1.0 for at in range(10_000, 60_000, 10_000)
    ]


def entries(kinds: str) -> dict[str, FloatArray]:
    """A scrape for each "s", one with tokens for "b", a report for each "r"."""
    count = len(kinds)
    ofu = np.array([0.4 if kind in "sb" else NAN for kind in kinds])
    tokens = np.array([float(at) if kind in "rb" else NAN for at, kind in enumerate(kinds)])
    return {"ofu": ofu, "tokens": tokens, "sm": np.full(count, NAN)}


@settings(deadline=None)
@given(st.text("srb", max_size=30), st.integers(1, 90))
def test_each_report_joins_one_scrape_or_none(kinds: str, step_s: int) -> None:
    fields = entries(kinds)
    when = NOW + 1_000 * step_s * np.arange(len(kinds))
    found = joined(np.zeros(len(kinds), np.int64), when, fields)
    if found is None:
        assert "r" not in kinds
        return
    report = np.array([kind == "r" for kind in kinds])
    np.testing.assert_array_equal(found.taken | found.alone, report)
    assert not (found.taken & found.alone).any()
    for at, kind in enumerate(kinds):
        if kind == "b":
            assert found.fields["tokens"][at] == at
        if kind == "s":
            before = [k for k in range(at) if kinds[k] == "r"]
            before = [k for k in before if not set(kinds[k:at]) & set("sb")]
            near = [k for k in before if (at - k) * step_s * 1_000 <= JOIN_MS]
            wanted = float(near[-1]) if near else NAN
            np.testing.assert_equal(found.fields["tokens"][at], wanted)
