import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.store.keys import Keys, decode_job, encode_job

JOBS = st.text(min_size=1, max_size=128)
KEYS = Keys()


@given(JOBS)
def test_any_job_id_reads_back_from_its_key(job: str) -> None:
    assert decode_job(encode_job(job)) == job
    assert KEYS.job_of(KEYS.samples(job)) == job
    assert KEYS.job_of(KEYS.samples(job).encode()) == job


@given(JOBS)
def test_an_encoded_id_has_no_brace_no_space_and_no_control_character(job: str) -> None:
    text = encode_job(job)
    assert not any(c in "{}" or c.isspace() or not (c > "\x1f") or c == "\x7f" for c in text)


@given(JOBS, JOBS)
def test_two_jobs_never_share_a_key(one: str, other: str) -> None:
    assert (encode_job(one) == encode_job(other)) == (one == other)


def test_what_needs_no_escape_is_left_readable() -> None:
    assert encode_job("llama-3_70b/run#7+é") == "llama-3_70b/run#7+é"
    assert encode_job("50% {a} b\n") == "50%25%20%7Ba%7D%20b%0A"


@pytest.mark.parametrize("job", ["", "x" * 513, "é" * 257, "\ud800"])
def test_an_empty_an_endless_and_a_broken_id_are_refused(job: str) -> None:
    with pytest.raises(ValueError, match="job id"):
        encode_job(job)


@pytest.mark.parametrize(
    "key",
    [
        "ofu:{}:s",
        "ofu:{a b}:s",
        "ofu:{50%}:s",
        "ofu:{a}:h",
        "other:{a}:s",
        "ofu:a:s",
        b"ofu:{\xff}:s",
    ],
)
def test_a_key_that_no_job_has_is_nobodys(key: str | bytes) -> None:
    assert KEYS.job_of(key) is None


def test_all_keys_of_a_job_share_one_hash_tag() -> None:
    names = [KEYS.samples, KEYS.about, KEYS.events, KEYS.chunks, KEYS.rejects]
    assert [name("j 1") for name in names] == [f"ofu:{{j%201}}:{c}" for c in "smehr"]


def test_a_shard_never_takes_the_key_of_a_job_with_its_name() -> None:
    assert KEYS.shard(7, "state") == "ofu:{s07}:state"
    with pytest.raises(ValueError, match="two letters"):
        KEYS.shard(7, "s")


@pytest.mark.parametrize("prefix", ["", "a*", "a b", "{x}", "x" * 65])
def test_a_prefix_that_would_break_patterns_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Keys(prefix)
