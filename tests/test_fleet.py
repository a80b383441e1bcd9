"""Who holds which GPU when, and what a handover does."""

from hypothesis import given
from hypothesis import strategies as st

from detector.fleet import Fleet, Held, Placement, Placements, host_key
from detector.reading import Reading

SEAT = Reading(uuid="GPU-a", host="n1", index="0", time_ms=0)


def held(*placements: Placement, start: int, end: int, fleet: Fleet | None = None) -> Held:
    known = fleet or Fleet()
    return Placements(placements).at(SEAT, start_ms=start, end_ms=end, fleet=known)


def on(job: str, start: int, end: int | None = None) -> Placement:
    return Placement(job=job, uuid="GPU-a", start_ms=start, end_ms=end)


holds = st.builds(
    lambda job, start, length: on(job, start, None if length is None else start + length),
    st.sampled_from("abc"),
    st.integers(0, 50),
    st.none() | st.integers(1, 50),
)


def test_a_gpu_that_changes_hands_between_two_scrapes_is_nobodys() -> None:
    seen = (on("a", 0, 14_000), on("b", 16_000))
    assert held(*seen, start=0, end=10_000) == Held(jobs=("a",))
    assert held(*seen, start=10_000, end=20_000) == Held(handover=("a", "b"))
    assert held(*seen, start=20_000, end=30_000) == Held(jobs=("b",))


def test_a_change_at_the_very_scrape_belongs_to_each() -> None:
    seen = (on("a", 0, 10_000), on("b", 10_000))
    assert held(*seen, start=0, end=10_000) == Held(jobs=("a",))
    assert held(*seen, start=10_000, end=20_000) == Held(jobs=("b",))


def test_a_job_that_begins_on_an_idle_gpu_does_not_own_the_idle_time() -> None:
    assert held(on("a", 5), start=0, end=10) == Held(handover=("a",))


def test_the_end_of_one_tenant_of_a_shared_gpu_makes_the_interval_nobodys() -> None:
    seen = (on("a", 0), on("b", 0, 5))
    assert held(*seen, start=0, end=5) == Held(jobs=("a", "b"))
    assert held(*seen, start=0, end=9) == Held(handover=("a", "b"))


@given(st.lists(holds, max_size=6), st.integers(0, 60), st.integers(0, 60))
def test_the_order_of_placements_says_nothing(
    found: list[Placement], start: int, length: int
) -> None:
    there = held(*found, start=start, end=start + length)
    assert held(*reversed(found), start=start, end=start + length) == there
    assert not (there.jobs and there.handover)


@given(st.lists(holds, max_size=6), st.integers(0, 60), st.integers(1, 60))
def test_who_is_counted_held_it_at_each_moment(
    found: list[Placement], start: int, length: int
) -> None:
    there = held(*found, start=start, end=start + length)
    if not there.handover:
        for moment in range(start, start + length):
            assert held(*found, start=moment, end=moment).jobs == there.jobs


@given(st.lists(holds, max_size=6), st.integers(0, 60), st.integers(1, 30), st.integers(1, 30))
def test_a_part_of_an_interval_that_somebody_held_is_theirs_too(
    found: list[Placement], start: int, first: int, second: int
) -> None:
    whole = held(*found, start=start, end=start + first + second)
    parts = (
        held(*found, start=start, end=start + first),
        held(*found, start=start + first, end=start + first + second),
    )
    if not whole.handover:
        assert [part.jobs for part in parts] == [whole.jobs, whole.jobs]
    elif not parts[0].handover and not parts[1].handover:
        moved = parts[0].jobs != parts[1].jobs
        again = any(one.start_ms == start + first for one in found)
        assert moved or again


def test_a_device_number_counts_only_where_it_is_known_of_which_gpu_it_is() -> None:
    by_minor = Placement(job="a", host="n1", minor=3, start_ms=0)
    assert held(by_minor, start=0, end=9) == Held()
    assert held(by_minor, start=0, end=9, fleet=Fleet(minors={"GPU-a": 3})).jobs == ("a",)
    assert held(by_minor, start=0, end=9, fleet=Fleet(minors={"GPU-a": 0})).jobs == ()


def test_all_gpus_of_a_host_are_known_without_knowing_which() -> None:
    eight = Placement(job="a", host="n1", gpus=8, start_ms=0)
    assert held(eight, start=0, end=9, fleet=Fleet(counts={"n1": 8})).jobs == ("a",)
    assert held(eight, start=0, end=9, fleet=Fleet(counts={"n1": 7})).jobs == ("a",)
    assert held(eight, start=0, end=9, fleet=Fleet(counts={"n1": 16})).jobs == ()
    other = Placement(job="b", host="n1", gpus=8, start_ms=3)
    assert held(eight, other, start=4, end=9, fleet=Fleet(counts={"n1": 8})) == Held()
    assert held(eight, start=0, end=9).jobs == ()
    whole = Placement(job="a", host="n1", start_ms=0)
    assert held(whole, start=0, end=9).jobs == ("a",)


def test_an_instance_of_a_gpu_is_another_seat_than_its_sibling() -> None:
    one = Placement(job="a", uuid="GPU-a", instance="7", start_ms=0)
    placements = Placements([one])
    seven = Reading(uuid="GPU-a", instance="7", time_ms=0)
    eight = Reading(uuid="GPU-a", instance="8", time_ms=0)
    assert placements.at(seven, start_ms=0, end_ms=5).jobs == ("a",)
    assert placements.at(eight, start_ms=0, end_ms=5).jobs == ()
    assert placements.at(SEAT, start_ms=0, end_ms=5).jobs == ()


def test_a_host_is_the_same_by_all_its_names() -> None:
    assert {host_key(name) for name in ("n1", "N1.example.org", "n1:9400", " n1 ")} == {"n1"}
    assert host_key("10.1.2.3:9400") == "10.1.2.3"
    assert host_key("10.1.2.3") != host_key("10.9.9.9")
    assert host_key("fe80::1") == "fe80::1"
