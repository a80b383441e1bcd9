"""GPUs come together to hosts' parts and to jobs, each of them once."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.aggregate import Part, merge, parts
from detector.analysis.quality import Judged, Quality
from detector.fleet import Gpu
from detector.reading import Reading

NOW = 1_764_000_000_000


def judged(
    uuid: str,
    ofu: float = 0.4,
    *,
    host: str = "n1",
    index: str = "0",
    jobs: tuple[str, ...] = ("7",),
    quality: Quality = "ok",
    repeat: bool = False,
    instance: str = "",
    model: str = "NVIDIA H100",
    **values: float,
) -> Judged:
    reading = Reading(
        uuid=uuid, host=host, index=index, instance=instance, model=model, time_ms=NOW,
        values=values, jobs=jobs,
    )  # fmt: skip
    value = ofu if quality == "ok" else math.nan
    return Judged(reading=reading, jobs=jobs, ofu=value, quality=quality, repeat=repeat)


def uuids(part: Part) -> list[str]:
    return [gpu.uuid for gpu in part.roster]


def test_a_part_is_the_mean_over_the_usable_gpus_of_its_host() -> None:
    (part,) = parts(
        [
            judged("A", 0.4, index="1", sm_clock_mhz=1700.0),
            judged("B", 0.2, index="0", sm_clock_mhz=1500.0),
            judged("C", index="2", quality="zero_mismatch", sm_clock_mhz=9.0),
            judged("D", math.nan, index="10"),
        ],
        time_ms=NOW,
    )
    assert (part.job, part.host, part.gpus) == ("7", "n1", 2)
    assert part.ofu == pytest.approx(0.3)
    assert part.fields == {"clock": 1600.0}
    assert uuids(part) == ["B", "A", "C", "D"]
    assert part.gpu_ofu[:2] == (0.2, 0.4)
    assert all(math.isnan(value) for value in part.gpu_ofu[2:])
    assert part.faults == {"zero_mismatch": 1, "blank": 1}


def test_a_gpu_that_two_jobs_share_counts_for_each() -> None:
    found = parts([judged("A", 0.4, jobs=("7", "8")), judged("B", 0.2)], time_ms=NOW)
    assert {part.job: (part.gpus, uuids(part)) for part in found} == {
        "7": (2, ["A", "B"]),
        "8": (1, ["A"]),
    }


def test_instances_of_a_gpu_stand_in_the_roster_by_themselves() -> None:
    found = [judged("A", instance="2", index="0"), judged("A", instance="1", index="0")]
    (part,) = parts(found, time_ms=NOW)
    assert uuids(part) == ["A/1", "A/2"]


@pytest.mark.parametrize(
    ("model", "compared"),
    [("NVIDIA H100", True), ("NVIDIA A100-SXM4-40GB", False), ("A30", False), ("", False)],
)
def test_instances_before_hopper_are_not_held_to_each_other(model: str, compared: bool) -> None:
    found = [judged("A", 0.1 * (i + 1), instance=str(i), model=model) for i in range(4)]
    (part,) = parts(found, time_ms=NOW)
    assert part.gpus == 4
    assert part.ofu == pytest.approx(0.25)
    assert [math.isnan(value) for value in part.gpu_ofu] == [not compared] * 4


def test_of_two_answers_about_a_gpu_the_better_one_counts_whatever_the_host_is_called() -> None:
    found = [
        judged("A", host="n1", repeat=True),
        judged("A", host="n1.example.com"),
        judged("B", host="n1"),
        judged("B", host="n1.example.com", quality="blank"),
    ]
    told = {part.host: (uuids(part), part.faults) for part in parts(found, time_ms=NOW)}
    assert told == {"n1.example.com": (["A"], {}), "n1": (["B"], {})}


def test_an_exporter_that_stands_still_holds_no_gpu_back_from_the_job_that_another_names() -> (
    None
):
    found = [
        judged("A", jobs=("before",), quality="stale"),
        judged("A", jobs=("now",)),
        judged("B", jobs=("before",), quality="stale"),
    ]
    told = {part.job: (uuids(part), part.faults) for part in parts(found, time_ms=NOW)}
    assert told == {"now": (["A"], {}), "before": (["B"], {"stale": 1})}


def test_a_host_that_only_repeats_itself_is_told_as_such() -> None:
    found = [
        judged("A", repeat=True),
        judged("B", repeat=True, host="n2"),
        judged("C", host="n2"),
    ]
    told = {part.host: part.fresh for part in parts(found, time_ms=NOW)}
    assert told == {"n1": False, "n2": True}


def test_nothing_is_made_of_repeats_alone() -> None:
    repeats = parts(
        [judged("A", repeat=True), judged("B", repeat=True, host="n2")], time_ms=NOW
    )
    assert merge(repeats) is None


def test_a_host_that_is_broken_makes_no_news_of_what_the_others_repeat() -> None:
    found = [judged("A", repeat=True), judged("B", host="n2", quality="blank")]
    assert merge(parts(found, time_ms=NOW)) is None


def test_a_job_is_the_mean_over_the_gpus_of_all_hosts_in_the_order_of_its_roster() -> None:
    found = parts(
        [
            judged("A", 0.6, sm_active=0.9),
            judged("B", 0.4, index="1", sm_active=0.7),
            judged("C", 0.2, host="n2"),
            judged("D", host="n2", index="1", quality="frozen"),
        ],
        time_ms=NOW,
    )
    roster = [Gpu(uuid=uuid) for uuid in "CAXDB"]
    merged = merge(found, roster)
    assert merged is not None
    assert merged.ofu == pytest.approx(0.4)
    assert (merged.gpus, merged.unusable) == (3, 1)
    assert merged.fields == {"sm": pytest.approx(0.8)}
    assert merged.faults == (("n2", "frozen", 1),)
    assert [None if math.isnan(value) else value for value in merged.gpu_ofu] == [
        0.2, 0.6, None, None, 0.4,
    ]  # fmt: skip


def test_a_job_without_a_usable_gpu_has_no_ofu_and_is_not_forgotten() -> None:
    merged = merge(parts([judged("A", quality="stale")], time_ms=NOW))
    assert merged is not None
    assert math.isnan(merged.ofu)
    assert (merged.gpus, merged.unusable) == (0, 1)


def test_a_gpu_that_two_hosts_parts_name_counts_once_by_the_later_one() -> None:
    before = Part(job="7", host="n1", time_ms=NOW, ofu=0.3, gpus=2,
                  roster=(Gpu(uuid="A"), Gpu(uuid="B")), gpu_ofu=(0.4, 0.2))  # fmt: skip
    after = Part(job="7", host="n2", time_ms=NOW + 1, ofu=0.6, gpus=1,
                 roster=(Gpu(uuid="A"),), gpu_ofu=(0.6,))  # fmt: skip
    merged = merge([after, before], [Gpu(uuid="A"), Gpu(uuid="B")])
    assert merged is not None
    assert merged.gpus == 2
    assert merged.ofu == pytest.approx(0.4)
    assert merged.gpu_ofu == (0.6, 0.2)


values = st.floats(0, 1).map(lambda value: round(value, 6))
gpus = st.lists(
    st.tuples(st.sampled_from(["n1", "n2", "n3"]), values, st.booleans()),
    min_size=1,
    max_size=12,
)


@given(gpus, st.randoms())
def test_neither_hosts_nor_their_order_change_a_jobs_mean(
    gpus: Sequence[tuple[str, float, bool]], random: object
) -> None:
    found = [
        judged(f"G{at}", ofu, host=host, index=str(at), quality="ok" if good else "stale")
        for at, (host, ofu, good) in enumerate(gpus)
    ]
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    roster = [Gpu(uuid=f"G{at}") for at in range(len(gpus))]
    merged = merge(parts(shuffled, time_ms=NOW), roster)
    assert merged is not None
    good = [one.ofu for one in found if one.usable]
    assert merged.gpus == len(good)
    assert merged.unusable == len(found) - len(good)
    if good:
        assert merged.ofu == pytest.approx(math.fsum(good) / len(good))
    assert [value for value in merged.gpu_ofu if not math.isnan(value)] == good
