"""Who a job is, written before its first sample."""

import pytest
import redis

from detector.fleet import Gpu, Job
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys

KEYS = Keys()


@pytest.fixture
def history(redis_client: redis.Redis) -> History:
    return History(redis_client, KEYS, HistorySettings())


def test_what_is_written_of_a_job_is_read_back(history: History) -> None:
    job = Job(
        id="4711",
        name="llama",
        owner="ann",
        team="nlp",
        scheduler="slurm",
        cluster="east",
        gpu_model="H100 SXM",
        roster=(Gpu(uuid="GPU-1", host="n1", index=0),),
        start_ms=1_764_000_000_000,
        lineage=("4698", "4650"),
        labels={"partition": "gpu"},
    )
    history.introduce([job])
    assert history.describe("4711") == job


def test_what_somebody_else_wrote_of_a_job_is_kept(
    history: History, redis_client: redis.Redis
) -> None:
    redis_client.hset(KEYS.about("7"), mapping={"owner": "bob", "precision": "bf16"})
    history.introduce([Job(id="7", owner="ann", team="nlp"), Job(id="8")])
    told = history.describe("7")
    assert (told.owner, told.team, told.precision) == ("bob", "nlp", "bf16")
    assert not redis_client.exists(KEYS.about("8"))


def test_a_description_is_kept_as_long_as_the_job(
    history: History, redis_client: redis.Redis
) -> None:
    history.introduce([Job(id="7", name="x")])
    assert redis_client.ttl(KEYS.about("7")) > 0
