"""What single GPUs read reaches the tick with the entries, from Redis and from memory alike."""

import numpy as np
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.fleet import Job
from detector.series import Batch, FloatArray, Window
from detector.store.batch import Part, assembled, only
from detector.store.entries import pack_gpus
from detector.store.history import History, HistorySettings, Sample
from detector.store.keys import Keys
from detector.store.memory import MemoryHistories

START = 1_764_000_000_000
STEP = 10_000
KEYS = Keys()


def of_entries(batch: Batch) -> dict[tuple[str, int], list[float]]:
    """Job and time of each entry -> its GPUs."""
    assert batch.gpus is not None
    assert batch.gpu_counts is not None
    assert len(batch.gpu_counts) == len(batch.job)
    ends = np.cumsum(batch.gpu_counts)
    assert ends[-1] == len(batch.gpus)
    return {
        (batch.jobs[job], time_ms): batch.gpus[end - count : end].tolist()
        for job, time_ms, end, count in zip(
            batch.job.tolist(),
            batch.times_ms.tolist(),
            ends.tolist(),
            batch.gpu_counts.tolist(),
            strict=True,
        )
    }


def history(client: redis.Redis) -> History:
    return History(client, KEYS, HistorySettings())


def test_entries_of_all_jobs_come_with_their_gpus(redis_client: redis.Redis) -> None:
    values = {"a": np.array([0.1, np.nan, 0.5]), "b": np.array([1.0, 0.0]), "c": None}
    writer = history(redis_client)
    for row in range(3):
        writer.write_many(
            [
                Sample(job=job, time_ms=START + row * STEP, ofu=0.3, gpus=gpus)
                for job, gpus in values.items()
            ]
        )
    batch = history(redis_client).increments({}, now_ms=START + 10 * STEP)
    told = of_entries(batch)
    assert len(told) == 9
    for (job, _), gpus in told.items():
        expected = values[job]
        np.testing.assert_allclose(gpus, [] if expected is None else expected, atol=1e-5)


def test_memory_hands_out_what_redis_does(redis_client: redis.Redis) -> None:
    times = START + STEP * np.arange(4)
    gpus = np.round(np.random.default_rng(1).random((4, 5)) * 65534) / 65534
    gpus = gpus.astype(np.float32).astype(float)
    gpus[1, 2] = np.nan
    writer = history(redis_client)
    for time_ms, row in zip(times.tolist(), gpus, strict=True):
        writer.write_many([Sample(job="j", time_ms=time_ms, ofu=0.5, gpus=row)])
    window = Window(times_ms=times, fields={"ofu": np.full(4, 0.5)}, gpus=gpus)
    memory = MemoryHistories({"j": window}, jobs={"j": Job(id="j")})
    now_ms = START + 10 * STEP
    one = history(redis_client).increments({}, now_ms=now_ms)
    other = memory.increments({}, now_ms=now_ms)
    assert one.gpus is not None
    assert other.gpus is not None
    np.testing.assert_array_equal(one.gpus, other.gpus)
    np.testing.assert_array_equal(one.gpu_counts, other.gpu_counts)


def test_gpus_of_the_wrong_number_are_left_out_and_told(redis_client: redis.Redis) -> None:
    redis_client.xadd(KEYS.samples("j"), {"v": "0.4", "g": pack_gpus(np.full(4, 0.4))},
                      id=f"{START}-0")  # fmt: skip
    redis_client.xadd(KEYS.samples("j"), {"v": "0.4", "g": b"odd"}, id=f"{START + STEP}-0")
    batch = history(redis_client).increments({}, now_ms=START + 10 * STEP)
    assert [len(gpus) for gpus in of_entries(batch).values()] == [4, 0]
    assert [reject.reason for reject in batch.rejects] == ["wrong_length"]


def test_a_fleet_without_gpus_costs_nothing(redis_client: redis.Redis) -> None:
    history(redis_client).write("j", time_ms=START, ofu=0.5)
    batch = history(redis_client).increments({}, now_ms=START + STEP)
    assert batch.gpus is None
    assert batch.gpu_counts is None


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_gpus_stay_with_their_entries_however_parts_lie(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts, expected = [], {}
    for number in rng.permutation(5).tolist():
        counts = rng.integers(0, 4, 3)
        gpus = rng.random(int(counts.sum())).astype(np.float32)
        kept = rng.random(3) < 0.7
        values: list[FloatArray] = np.split(gpus, np.cumsum(counts)[:-1])
        for at in np.flatnonzero(kept).tolist():
            expected[f"job{number}", at] = values[at].tolist()
        bare = len(gpus) == 0 and rng.random() < 0.5
        part = Part(
            np.full(3, number), np.arange(3), {"ofu": np.ones(3)},
            None if bare else gpus, None if bare else counts,
        )  # fmt: skip
        parts.append(only(part, kept))
    batch = assembled([f"job{k}" for k in range(5)], parts, rejects=(), more=False)
    if batch.gpus is None:
        assert not any(expected.values())
    else:
        assert of_entries(batch) == expected
