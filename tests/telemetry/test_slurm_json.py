"""Slurm's jobs in the forms of its generations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.fleet import Fleet, Placements
from detector.reading import Reading
from detector.telemetry.slurm_json import devices, hosts, number, read_jobs, read_past
from tests.telemetry.slurm_forms import GENERATIONS, document, ended, job

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_each_generation_says_the_same(generation: str) -> None:
    census = read_jobs(document(generation, job(generation, job_id=4711)))
    (run,) = census.runs
    assert (run.job.id, run.job.name, run.job.owner, run.job.team) == (
        "4711",
        "llama",
        "ann",
        "nlp",
    )
    assert (run.job.scheduler, run.job.cluster, run.job.start_ms) == (
        "slurm",
        "east",
        1_000_000,
    )
    assert run.job.labels == {"partition": "gpu", "qos": "normal"}
    assert (run.end_ms, run.serial) == (None, "0")
    assert {one.minor for one in census.placements if one.minor is not None} == set(range(8))
    assert {one.host for one in census.placements} == {"n1"}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_job_that_has_its_node_alone_holds_all_its_gpus(generation: str) -> None:
    census = read_jobs(document(generation, job(generation, exclusive=True)))
    (hold,) = census.placements
    assert (hold.host, hold.minor, hold.gpus) == ("n1", None, 0)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_gpus_are_told_node_by_node(generation: str) -> None:
    two = job(
        generation,
        nodes="n[1-3]",
        gres_detail=["gpu:h100:2(IDX:0,3)", "", "gpu:h100(CNT:4)"],
    )
    census = read_jobs(document(generation, two))
    assert [(one.host, one.minor, one.gpus) for one in census.placements] == [
        ("n1", 0, 0), ("n1", 3, 0), ("n1", None, 2), ("n3", None, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_waits_or_is_stopped_holds_nothing(generation: str) -> None:
    waiting = [
        job(generation, job_id=1, job_state=["PENDING"], nodes="", gres_detail=[]),
        job(generation, job_id=2, job_state=["SUSPENDED"]),
        job(generation, job_id=3, job_state=["RUNNING", "CONFIGURING"]),
        job(generation, job_id=4, job_state=["REQUEUED"]),
    ]
    census = read_jobs(document(generation, *waiting))
    held = {one.job for one in census.placements}
    # As text, 21.08 and 23.02 give one word only.
    assert held <= ({"3"} if generation < "23.11" else set())
    assert {run.job.id for run in census.runs} == {"2", "3"}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("state", ["COMPLETED", "COMPLETING", "CANCELLED", "NODE_FAIL"])
def test_what_is_over_held_its_gpus_until_it_ended(generation: str, state: str) -> None:
    done = job(generation, job_state=[state], start_time=1_000, end_time=2_000)
    census = read_jobs(document(generation, done))
    assert {one.end_ms for one in census.placements} == {2_000_000}
    assert census.runs[0].end_ms == 2_000_000


@pytest.mark.parametrize("generation", GENERATIONS)
def test_components_of_a_heterogeneous_job_are_one_job(generation: str) -> None:
    parts = [
        job(generation, job_id=701, het_job_id=700, het_job_offset=1, name="b", nodes="n2"),
        job(generation, job_id=700, het_job_id=700, het_job_offset=0, name="a"),
    ]
    census = read_jobs(document(generation, *parts))
    assert {one.job for one in census.placements} == {"700"}
    assert {one.host for one in census.placements} == {"n1", "n2"}
    assert [run.job.name for run in census.runs] == ["a"]
    assert census.aliases == {"701": "700", "700+1": "700", "700+0": "700"}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_task_of_an_array_is_a_job_of_its_own_and_known_by_both_names(
    generation: str,
) -> None:
    census = read_jobs(
        document(generation, job(generation, job_id=805, array_job_id=800, array_task_id=3))
    )
    assert census.runs[0].job.id == "805"
    assert census.runs[0].job.labels["array"] == "800_3"
    assert census.aliases == {"800_3": "805"}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_without_devices_the_tres_say_how_many(generation: str) -> None:
    bare = job(generation, gres_detail=[], nodes="n[01-02]", tres_alloc_str="cpu=1,gres/gpu=16")
    census = read_jobs(document(generation, bare))
    assert [(one.host, one.gpus) for one in census.placements] == [("n01", 8), ("n02", 8)]


def test_jobs_without_gpus_are_nobodys_concern() -> None:
    census = read_jobs(
        document("25.11", job("25.11", gres_detail=[], tres_alloc_str="cpu=4,mem=8G,node=1"))
    )
    assert (census.runs, census.placements) == ((), ())


def test_a_job_on_half_a_node_counts_only_where_its_devices_are_known() -> None:
    census = read_jobs(document("23.11", job("23.11", gres_detail=["gpu:h100:4(IDX:4-7)"])))
    placements = Placements(census.placements)
    at = {"start_ms": 2_000_000, "end_ms": 2_010_000}
    seats = [Reading(uuid=f"GPU-{k}", host="n1.example.org", time_ms=0) for k in range(8)]
    blind = Fleet(counts={"n1": 8})
    assert all(placements.at(seat, fleet=blind, **at).jobs == () for seat in seats)
    known = Fleet(counts={"n1": 8}, minors={f"GPU-{k}": 7 - k for k in range(8)})
    assert [placements.at(seat, fleet=known, **at).jobs for seat in seats] == [
        ("1",) if k < 4 else () for k in range(8)
    ]


def test_past_runs_are_read_from_the_accounting() -> None:
    (run,) = read_past({"jobs": [ended(55, start=10, end=20)], "errors": []})
    assert (run.job.id, run.job.start_ms, run.end_ms) == ("55", 10_000, 20_000)
    census = read_jobs(document("25.11", job("25.11")))
    assert run.key == census.runs[0].key != ()


def test_a_name_that_says_nothing_is_continued_by_nobody() -> None:
    census = read_jobs(document("25.11", job("25.11", name="wrap")))
    assert census.runs[0].key == ()


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("gpu[01-03,07],login1", ("gpu01", "gpu02", "gpu03", "gpu07", "login1")),
        ("r[1-2]n[08-10]", ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10")),
        ("a[1-2]-ib,b", ("a1-ib", "a2-ib", "b")),
        ("n[9-11]", ("n9", "n10", "n11")),
    ],
)
def test_a_list_of_hosts_is_unfolded_in_order(listed: str, found: tuple[str, ...]) -> None:
    assert hosts(listed) == found


@pytest.mark.parametrize(
    ("detail", "numbers", "count"),
    [
        ("gpu:h100:4(IDX:0-3)", (0, 1, 2, 3), 4),
        ("gpu:8(IDX:0-7)", tuple(range(8)), 8),
        ("gpu:a100:2(IDX:0,5),gpu:v100:1(IDX:3)", (0, 5, 3), 3),
        ("gpu:nvidia_h100_80gb_hbm3:1(IDX:7)", (7,), 1),
        ("gpu:a6000:0(IDX:N/A)", (), 0),
        ("gpu:h100(CNT:4)", (), 4),
        ("gpu(CNT:2)", (), 2),
        ("shard:4(0/4,0/4),craynetwork:1", (), 0),
        # Cut off by Slurm: its numbers are not all there.
        ("gpu:h100:4(IDX:0-", (), 4),
        ("", (), 0),
    ],
)
def test_devices_are_told_where_all_of_them_are(
    detail: str, numbers: tuple[int, ...], count: int
) -> None:
    assert devices(detail) == (numbers, count)


def test_a_number_is_one_in_every_form() -> None:
    assert (
        number(7) == number(7.0) == number({"set": True, "infinite": False, "number": 7}) == 7
    )
    none: list[Any] = [None, True, "7", {"set": False, "number": 7}, {"infinite": True}, 1e300]
    assert [number(one) for one in none] == [None] * len(none)


@given(st.dictionaries(st.sampled_from(sorted(job("25.11"))), anything))
def test_a_job_of_no_known_form_costs_no_other_job(strange: dict[str, Any]) -> None:
    good = job("25.11", job_id=9)
    census = read_jobs(document("25.11", job("25.11", job_id=8) | strange, good))
    assert "9" in {run.job.id for run in census.runs}
    read_past({"jobs": [ended(8, start=1, end=2) | strange, strange]})


@given(anything)
def test_a_document_without_jobs_is_refused(strange: Any) -> None:
    if not isinstance(strange, dict) or not isinstance(strange.get("jobs"), list):
        with pytest.raises(ValueError, match="no list of jobs"):
            read_jobs(strange)
