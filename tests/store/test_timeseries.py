import fakeredis
import pytest
import redis

from detector.store.history import History, HistorySettings
from detector.store.keys import Keys
from detector.store.timeseries import TimeSeries

NOW = 1_764_000_000_000
KEYS = Keys()


@pytest.fixture(params=[2, 3])
def client(request: pytest.FixtureRequest) -> redis.Redis:
    """Return a client of an emulated server that has the module."""
    return fakeredis.FakeRedis(protocol=request.param)


@pytest.fixture
def history(client: redis.Redis) -> History:
    return History(client, KEYS, HistorySettings())


def add(client: redis.Redis, job: str, metric: str, time_ms: int, value: float) -> None:
    labels = {"ofu_job": job, "metric": metric}
    client.ts().add(f"{job}/{metric}", time_ms, value, labels=labels)


def ofu(history: History, job: str) -> list[tuple[int, float]]:
    window = history.window(job, start_ms=0, end_ms=2**60)
    return list(zip(window.times_ms.tolist(), window.fields["ofu"].tolist(), strict=True))


def test_labelled_series_become_histories_and_metrics_join_by_time(
    client: redis.Redis, history: History
) -> None:
    add(client, "a b", "ofu", NOW - 20_000, 0.5)
    add(client, "a b", "ofu", NOW - 10_000, 0.25)
    add(client, "a b", "tokens", NOW - 10_000, 1e6)
    add(client, "a b", "tokens", NOW - 5_000, 1e6)
    client.ts().add("other", NOW - 10_000, 3, labels={"metric": "ofu"})
    assert TimeSeries(client, KEYS, history).copy(NOW).written == 2
    assert ofu(history, "a b") == [(NOW - 20_000, 0.5), (NOW - 10_000, 0.25)]
    window = history.window("a b", start_ms=NOW - 10_000, end_ms=NOW)
    assert window.fields["tokens"].tolist() == [1e6]
    assert history.jobs() == ("a b",)


def test_each_sample_is_copied_once_also_by_the_next_process(
    client: redis.Redis, history: History
) -> None:
    for at in range(5):
        add(client, "a", "ofu", NOW - 3 * 3_600_000 + at * 10_000, 0.5)
    series = TimeSeries(client, KEYS, history)
    assert [series.copy(NOW).written for _ in range(2)] == [5, 0]
    history.roll(["a"], now_ms=NOW)
    again = TimeSeries(client, KEYS, history)
    assert again.copy(NOW).written == 0
    add(client, "a", "ofu", NOW, 0.25)
    assert again.copy(NOW).written == 0  # its other metrics may still come
    assert again.copy(NOW + 10_000).written == 1
    assert history.increments({}, now_ms=NOW).rejects == ()


def test_a_long_series_is_copied_in_slices(client: redis.Redis, history: History) -> None:
    for at in range(500):  # so dense that a slice is shorter than the overlap
        add(client, "a", "ofu", NOW - 60_000 + at * 100, 0.5)
    add(client, "b", "ofu", NOW - 10_000, 0.5)
    series = TimeSeries(client, KEYS, history)
    first = series.copy(NOW)
    assert (first.written, first.more) == (360, True)
    while series.copy(NOW).more:
        pass
    assert len(ofu(history, "a")) == 500
    assert len(ofu(history, "b")) == 1


def test_values_out_of_bounds_are_set_aside_once(client: redis.Redis, history: History) -> None:
    add(client, "a", "ofu", NOW - 30_000, 41)
    add(client, "a", "ofu", NOW - 20_000, 0.5)
    add(client, "a", "clock", NOW - 20_000, 1.7e9)
    series = TimeSeries(client, KEYS, history)
    series.copy(NOW)
    series.copy(NOW)
    assert ofu(history, "a") == [(NOW - 20_000, 0.5)]
    rejects = history.increments({}, now_ms=NOW).rejects
    assert sorted(reject.detail for reject in rejects) == ["clock=1.7e+09", "ofu=41"]


def test_a_server_without_the_module_is_left_alone(redis_client: redis.Redis) -> None:
    history = History(redis_client, KEYS, HistorySettings())
    series = TimeSeries(redis_client, KEYS, history)
    assert not series.available
    assert series.copy(NOW).written == 0
