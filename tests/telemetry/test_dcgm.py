"""The DCGM source in its real worker process, against a stand-in for bindings and engine."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detector.reading import Reading, Scrape
from detector.series import Duration
from detector.telemetry.dcgm import DcgmSettings, build
from detector.telemetry.dcgm_engine import PROFILING
from detector.telemetry.worker import NodeSource

STANDIN = Path(__file__).parents[1] / "fakes" / "pydcgm_standin"
UUIDS = ("GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000")
START_S = 1_800_000_000

BUSY: Mapping[str, Any] = {
    "1001": 0.99, "1002": 0.95, "1003": 0.5, "1004": 0.6, "1005": 0.4, "1009": 10, "1010": 20,
    "1011": 30, "1012": 40, "100": 1500, "113": 1980, "110": 1980, "112": 0, "150": 60,
    "155": 650.0, "156": {"per_s": 650_000}, "164": 700.0, "203": 100, "230": 0,
}  # fmt: skip


class Host:
    """A node: its engine's state, and the source that reads it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "engine.json"
        self.state: dict[str, Any] = {
            "now_us": START_S * 1_000_000,
            "gpus": [
                {"id": i, "uuid": uuid, "name": "NVIDIA H100", "minor": 7 - i,
                 "prof": list(PROFILING)}
                for i, uuid in enumerate(UUIDS)
            ],
            "instances": [],
            "values": {"1:0": dict(BUSY), "1:1": dict(BUSY)},
        }  # fmt: skip
        self.source = self.make()
        self.write()

    def make(self, **settings: Any) -> NodeSource:
        given = {"bindings": str(STANDIN), "host": "node1", "deadline": Duration(20_000)}
        return build(DcgmSettings(**{**given, **settings}))

    def write(self, **state: Any) -> None:
        self.state.update(state)
        whole = self.file.with_suffix(".new")
        whole.write_text(json.dumps(self.state))
        whole.replace(self.file)

    def set(self, entity: str, **fields: Any) -> None:
        values = {key.removeprefix("f"): value for key, value in fields.items()}
        self.state["values"].setdefault(entity, {}).update(values)
        self.write()

    def after(self, seconds: float) -> Scrape:
        """Scrape after the engine's and our time have passed."""
        self.write(now_us=self.state["now_us"] + round(seconds * 1_000_000))
        (scrape,) = self.source.scrape(self.state["now_us"] // 1000)
        return scrape

    def log(self, what: str) -> list[list[Any]]:
        file = Path(f"{self.file}.log")
        lines = file.read_text().splitlines() if file.exists() else []
        return [entry[1:] for entry in map(json.loads, lines) if entry[0] == what]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("PYDCGM_STANDIN", str(tmp_path / "engine.json"))
    made = Host(tmp_path)
    yield made
    made.source.close()


def only(scrape: Scrape, entity: str = UUIDS[0]) -> Reading:
    assert scrape.error == ""
    (found,) = (reading for reading in scrape.readings if reading.entity == entity)
    return found


def test_two_scrapes_give_what_ofu_is_made_of_with_the_engines_time(host: Host) -> None:
    host.after(0)
    reading = only(host.after(10.5))
    assert reading.values["tensor_active"] == 0.6
    assert reading.values["sm_clock_mhz"] == 1500
    assert reading.values["max_sm_clock_mhz"] == 1980
    assert reading.values["power_limit_w"] == 700
    assert reading.values["nvlink_rx_bytes"] == 40
    assert (reading.time_ms, reading.own_clock) == ((START_S + 10) * 1000, True)
    assert (reading.host, reading.index, reading.model) == ("node1", "0", "NVIDIA H100")
    assert reading.labels["minor_number"] == "7"  # what Slurm numbers GPUs by; DCGM says 0


def test_the_first_blank_after_a_watch_is_no_fault(host: Host) -> None:
    first = host.after(0)
    assert (first.error, first.failing, first.dropped) == ("", "", ())
    assert first.readings == ()  # nor a reading: nothing can be said of it yet


def test_the_clock_is_averaged_over_the_interval_of_the_tensor_counter(host: Host) -> None:
    host.set("1:0", f100=[[0, 1980], [START_S + 16, 990]])
    host.after(0)
    host.after(10)
    # Seconds 11 to 20: five at full clock and five at half; a glance at the end says 990.
    assert only(host.after(10)).values["sm_clock_mhz"] == pytest.approx(1485)


def test_several_intervals_between_two_scrapes_are_one_mean(host: Host) -> None:
    host.set("1:0", f1004=[[0, 0.9], [START_S + 11, 0.6], [START_S + 21, 0.3]])
    host.after(0)
    host.after(10)
    assert only(host.after(20)).values["tensor_active"] == pytest.approx(0.45)


def test_history_that_the_engine_replays_is_not_read_again(host: Host) -> None:
    # Another process watched before: its samples are in the cache, from an hour ago on.
    host.write(replay_us=50_000_000)
    host.set("1:0", f1004=[[0, 0.1], [START_S, 0.6]])
    host.after(0)
    for _ in range(3):
        assert only(host.after(10)).values["tensor_active"] == 0.6


def test_bindings_that_misspell_a_call_give_all_samples_all_the_same(
    host: Host, tmp_path: Path
) -> None:
    # DcgmGroupSamples.GetAllSinceLastCall_v2 of DCGM 3.0 to 3.2.
    for file in STANDIN.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    group = (STANDIN / "DcgmGroup.py").read_text()
    group = group.replace("Call_v2(self, dfvec,", "Call_v2(self, dvfec,")
    (tmp_path / "DcgmGroup.py").write_text(group)
    host.set("1:0", f1004=[[0, 0.9], [START_S + 11, 0.6], [START_S + 21, 0.3]])
    host.source.close()
    host.source = host.make(bindings=str(tmp_path))
    host.after(0)
    host.after(10)
    assert only(host.after(20)).values["tensor_active"] == pytest.approx(0.45)


def test_a_repeat_of_the_latest_keeps_its_time(host: Host) -> None:
    host.after(0)
    first = only(host.after(10))
    again = only(host.after(2))
    assert again.time_ms == first.time_ms
    assert again.values["tensor_active"] == first.values["tensor_active"]


def test_an_engine_that_froze_keeps_its_old_time(host: Host) -> None:
    host.after(0)
    last = only(host.after(20))
    host.write(frozen_us=host.state["now_us"])
    assert only(host.after(60)).time_ms == last.time_ms


@pytest.mark.parametrize(
    "blank",
    [2.0**47, 2.0**47 + 2, math.nan, {"status": -37}, {"status": -14}, 1.5, -0.1],
    ids=["blank", "unsupported", "nan", "contention", "no data", "above 1", "below 0"],
)
def test_no_blank_comes_through_and_the_value_before_does_not_stand_for_it(
    host: Host, blank: object
) -> None:
    host.set("1:0", f1004=[[0, 0.6], [START_S + 41, blank]])
    host.after(0)
    host.after(40)
    scrape = host.after(10)
    assert "tensor_active" not in only(scrape).values
    assert [(one.gpu, one.metric) for one in scrape.dropped] == [(UUIDS[0], "tensor_active")]
    assert only(scrape).time_ms == (START_S + 50) * 1000
    assert only(scrape, UUIDS[1]).values["tensor_active"] == 0.6


@pytest.mark.parametrize("blank", [2147483632, 2147483634, 0x7FFFFFFFFFFFFFF0, 0, 9000])
def test_no_blank_of_a_clock_comes_through(host: Host, blank: int) -> None:
    host.set("1:0", f100=blank)
    host.after(0)
    assert "sm_clock_mhz" not in only(host.after(10)).values


def test_hertz_stand_in_where_megahertz_are_blank(host: Host) -> None:
    host.write(version="4.6.1")
    host.set("1:0", f100={"status": -6}, f113={"status": -6}, f1603=1_500_000_000)
    host.set("1:0", f1608=1_980_000_000)
    host.set("1:1", f1603=1, f1608=1)  # megahertz are there: hertz are not looked at
    host.after(0)
    scrape = host.after(10)
    for uuid in UUIDS:
        assert only(scrape, uuid).values["sm_clock_mhz"] == pytest.approx(1500)
        assert only(scrape, uuid).values["max_sm_clock_mhz"] == pytest.approx(1980)


def test_fields_that_this_dcgm_does_not_know_are_not_asked_for(host: Host) -> None:
    host.after(0)
    asked = {field for _, _, fields, *_ in host.log("watch") for field in fields}
    assert not asked & {1084, 1086, 1603, 1608, 1611}
    assert {100, 113, 1004} <= asked


def test_the_counter_of_cycles_refines_a_clock_that_moves(host: Host) -> None:
    host.write(version="4.6")
    # Six steady intervals at 1500 MHz measure k = 2; then one that sampling sees at 1500 or
    # 1200 by turns, while the counter says 1450 (for k = 2, 10 s: 2.9e10 cycles).
    steps = [[0, {"per_s": 3_000_000_000}]]
    host.set("1:0", f1084=steps, f100=[[0, 1500], [START_S + 66, 1200]])
    host.after(0)
    for _ in range(6):
        host.after(10)
    seventy = 3_000_000_000 * (START_S + 60) + 29_000_000_000
    host.set("1:0", f1084=[*steps, [START_S + 70, seventy]])
    clock = only(host.after(10)).values["sm_clock_mhz"]
    assert clock == pytest.approx(1450, abs=1)


def test_cycles_that_went_back_say_nothing(host: Host) -> None:
    host.write(version="4.6")
    host.set("1:0", f1084=[[0, {"per_s": 3_000_000_000}], [START_S + 65, 5]])
    host.after(0)
    for _ in range(6):
        host.after(10)
    assert only(host.after(10)).values["sm_clock_mhz"] == 1500


def test_watches_are_bounded_in_age_and_count_and_their_names_are_unique(host: Host) -> None:
    host.after(0)
    watches = host.log("watch")
    for _, _, fields, every_us, age_s, most in watches:
        assert every_us in (1_000_000, 10_000_000, 60_000_000)
        assert 60 <= age_s <= 360
        assert 0 < most <= 70
        if 1004 in fields:
            assert every_us == 10_000_000
        if 100 in fields:
            assert every_us == 1_000_000
        if 113 in fields:
            assert every_us == 60_000_000
    names = [name for name, *_ in watches]
    assert len(set(names)) == len(names)
    other = host.make()
    other.scrape(host.state["now_us"] // 1000)
    other.close()
    assert len({name for name, *_ in host.log("watch")}) == 2 * len(names)


def test_closing_gives_the_groups_back(host: Host) -> None:
    host.after(0)
    names = {name for name, *_ in host.log("watch")}
    host.source.close()
    assert {name for (name,) in host.log("delete")} == names
    assert host.log("shutdown")


def test_a_restarted_engine_is_connected_to_again_and_watched_again(host: Host) -> None:
    host.after(0)
    host.after(10)
    host.write(generation=1)
    lost = host.after(10)
    assert "systemctl start nvidia-dcgm" in lost.error
    assert host.after(10).error == ""
    assert only(host.after(10)).values["tensor_active"] == 0.6


def test_an_engine_that_is_down_is_asked_ever_more_seldom(host: Host) -> None:
    host.write(refuse_connect=-21)
    told = {host.after(1).error for _ in range(100)}
    assert len(told) == 1  # so that a log says it once
    assert "systemctl start nvidia-dcgm" in told.pop()
    assert 4 <= len(host.log("connect")) <= 9
    asked = len(host.log("connect"))
    host.after(-3600)  # a clock that was set back is waited for by nobody
    assert len(host.log("connect")) == asked + 1
    host.write(refuse_connect=0)
    for _ in range(60):
        scrape = host.after(1)
    assert scrape.error == ""


@pytest.mark.parametrize(
    ("code", "word", "todo"),
    [
        (-33, "no_profiling", "install datacenter-gpu-manager-4-proprietary (DCGM 3: it is in"),
        (-36, "no_profiling", "this GPU has no profiling counters"),
        (-29, "no_profiling", "shows User=, which must be root"),
        (-6, "no_profiling", "does not support it"),
        (-54, "paused", "dcgmi profile --resume"),
    ],
)
@pytest.mark.parametrize("refused", ["refuse_groups", "refuse_profiling"])
def test_without_profiling_the_other_counters_stay_and_the_reason_is_told(
    host: Host, refused: str, code: int, word: str, todo: str
) -> None:
    host.write(**{refused: code})
    host.after(0)
    scrape = host.after(10)
    assert scrape.failing == word
    (why,) = scrape.dropped
    assert why.metric == "tensor_active"
    assert todo in why.reason
    values = only(scrape).values
    assert values["sm_clock_mhz"] == 1500
    assert values["power_w"] == 650
    assert "tensor_active" not in values


def test_another_profiler_is_called_contention_until_it_ends(host: Host) -> None:
    host.write(refuse_profiling=-37)
    host.after(0)
    scrape = host.after(10)
    assert scrape.failing == "contention"
    assert only(scrape).values["sm_clock_mhz"] == 1500
    host.write(refuse_profiling=0)
    host.after(60)
    scrape = host.after(10)
    assert scrape.failing == ""
    assert only(scrape).values["tensor_active"] == 0.6


def test_a_profiler_that_comes_later_leaves_the_other_counters_current(host: Host) -> None:
    host.after(0)
    host.after(10)
    host.write(generation=1, refuse_profiling=-37)
    host.after(10)
    host.after(10)
    scrape = host.after(10)
    assert scrape.failing == "contention"
    assert "tensor_active" not in only(scrape).values
    assert only(scrape).time_ms == (START_S + 40) * 1000


def test_a_node_that_is_divided_again_while_a_profiler_runs_keeps_no_old_values(
    host: Host,
) -> None:
    host.after(0)
    host.after(10)
    host.state["gpus"][1]["minor"] = 3  # anything about it changed: it is watched anew
    host.write(refuse_profiling=-37)
    host.after(60)
    scrape = host.after(10)
    assert scrape.failing == "contention"
    assert "tensor_active" not in only(scrape).values
    assert only(scrape).time_ms == (START_S + 80) * 1000


def test_a_gpu_that_cannot_sample_all_at_once_gives_the_few_that_matter(host: Host) -> None:
    host.write(most_profiling=4)
    host.after(0)
    scrape = host.after(10)
    assert scrape.failing == ""
    values = only(scrape).values
    assert {"tensor_active", "sm_active", "dram_active", "sm_clock_mhz"} <= values.keys()
    assert "fp16_active" not in values


def test_counters_that_would_take_turns_are_not_asked_for(host: Host) -> None:
    # As on an A10: groups of one letter share counters, and 1008 stands in another than 1004.
    groups = [(1, [1001]), (2, [1002, 1003, 1006, 1008]), (2, [1002, 1004, 1007]), (3, [1005])]
    for gpu in host.state["gpus"]:
        gpu["groups"] = [
            {"major": major, "minor": place, "fields": fields}
            for place, (major, fields) in enumerate(groups)
        ]
    host.write()
    host.after(0)
    asked = {field for _, _, fields, *_ in host.log("watch") for field in fields}
    assert {field for field in asked if 1000 < field < 1100} == {
        1001, 1002, 1004, 1005, 1007,
    }  # fmt: skip


def test_bindings_that_cannot_say_what_a_gpu_samples_are_asked_for_all_of_it(
    host: Host, tmp_path: Path
) -> None:
    for file in STANDIN.glob("*.py"):
        text = file.read_text().replace("dcgmProfGetSupportedMetricGroups", "unheard_of")
        (tmp_path / file.name).write_text(text)
    host.source.close()
    host.source = host.make(bindings=str(tmp_path))
    host.after(0)
    assert {"tensor_active", "sm_active"} <= only(host.after(10)).values.keys()


def test_each_model_on_a_node_is_asked_only_for_what_it_has(host: Host) -> None:
    host.state["gpus"][1]["prof"] = [1001, 1004]
    host.write()
    host.after(0)
    asked = {
        tuple(map(tuple, entities)): set(fields)
        for _, entities, fields, *_ in host.log("watch")
        if 1004 in fields
    }
    assert asked[((1, 1),)] == {1001, 1004}
    assert 1002 in asked[((1, 0),)]


def test_no_gpus_is_an_error_and_no_empty_success(host: Host) -> None:
    host.write(gpus=[])
    scrape = host.after(0)
    assert scrape.readings == ()
    assert "has no GPUs" in scrape.error
    assert "systemctl restart nvidia-dcgm" in scrape.error


def test_gpus_that_vanish_are_an_error_too(host: Host) -> None:
    host.after(0)
    host.write(gpus=[])
    assert any("has no GPUs" in host.after(10).error for _ in range(8))


def test_a_lost_gpu_costs_no_other(host: Host) -> None:
    host.after(0)
    host.state["gpus"][1]["lost"] = True
    host.write()
    for _ in range(15):
        scrape = host.after(10)
    assert only(scrape).values["tensor_active"] == 0.6
    assert "tensor_active" not in {
        name for one in scrape.readings if one.uuid == UUIDS[1] for name in one.values
    }


def test_a_gpu_that_was_lost_before_the_start_costs_no_other(host: Host) -> None:
    host.state["gpus"][1]["lost"] = True
    host.write(mute=[1])
    host.after(0)
    scrape = [host.after(10) for _ in range(4)][-1]
    assert only(scrape).values["tensor_active"] == 0.6
    assert [one.metric for one in scrape.dropped] == ["gpu"]
    assert scrape.dropped[0].gpu == UUIDS[1]


def test_a_lost_gpu_that_the_engine_has_given_up_is_named(host: Host) -> None:
    host.state["gpus"][1] |= {"supported": False, "status": 4}
    host.write()
    host.after(0)
    scrape = host.after(10)
    assert [one.uuid for one in scrape.readings] == [UUIDS[0]]
    assert [(one.metric, one.gpu) for one in scrape.dropped] == [("gpu", "GPU 1")]
    assert scrape.dropped[0].reason.startswith("a GPU is lost; dmesg")
    assert "tensor_active" in only(scrape).values


def test_a_gpu_that_is_listed_and_never_sampled_is_named_once_it_has_had_its_time(
    host: Host,
) -> None:
    host.write(mute=[1])
    assert host.after(0).lost == ()
    told = [host.after(10).lost for _ in range(4)][-1]
    assert [one.gpu for one in told] == [UUIDS[1]]
    assert "the host engine delivers nothing of it; dmesg" in told[0].reason


def test_a_display_that_dcgm_does_not_support_is_no_loss(host: Host) -> None:
    host.state["gpus"][1] |= {"supported": False, "status": 2}
    host.write()
    host.after(0)
    assert host.after(10).dropped == ()


def test_a_gpu_whose_description_fails_costs_no_other(host: Host) -> None:
    host.state["gpus"][1] |= {"lost": True, "nameless": True}
    host.write()
    host.after(0)
    scrape = host.after(10)
    assert [one.uuid for one in scrape.readings] == [UUIDS[0]]
    assert [one.metric for one in scrape.dropped] == ["gpu"]


def test_a_gpu_that_is_added_is_found(host: Host) -> None:
    both: Sequence[object] = host.state["gpus"]
    host.write(gpus=both[:1])
    host.after(0)
    host.write(gpus=both)
    host.after(60)
    assert only(host.after(10), UUIDS[1]).values["tensor_active"] == 0.6


def test_a_clock_that_is_set_back_holds_up_no_new_gpu(host: Host) -> None:
    both: Sequence[object] = host.state["gpus"]
    host.write(gpus=both[:1])
    host.after(0)
    host.write(gpus=both)
    host.after(-3600)
    assert only(host.after(10), UUIDS[1]).values["tensor_active"] == 0.6


def divide(host: Host) -> None:
    host.state["instances"] = [
        {"id": 3, "gpu": 0, "nvml": 7, "profile": "1g.10gb"},
        {"id": 4, "gpu": 0, "nvml": 2, "profile": "3g.40gb"},
    ]
    host.set("4:3", f1004=0.3, f1002=0.5)
    host.set("4:4", f1004=0.8, f1002=0.9)


def test_each_instance_reads_for_itself_with_the_clock_of_its_gpu(host: Host) -> None:
    divide(host)
    host.after(0)
    scrape = host.after(10)
    assert {one.entity for one in scrape.readings} == {
        f"{UUIDS[0]}/7", f"{UUIDS[0]}/2", UUIDS[1],
    }  # fmt: skip
    small = only(scrape, f"{UUIDS[0]}/7")
    assert (small.profile, small.index) == ("1g.10gb", "0")
    assert small.values["tensor_active"] == 0.3
    assert small.values["sm_clock_mhz"] == 1500
    assert small.values["max_sm_clock_mhz"] == 1980
    # Power, traffic and time of use are the whole GPU's.
    assert not {"power_w", "pcie_rx_bytes", "gpu_util_pct", "energy_j"} & small.values.keys()


def test_instances_are_not_asked_for_what_they_lack(host: Host) -> None:
    divide(host)
    host.after(0)
    for _, entities, fields, *_ in host.log("watch"):
        kinds = {group for group, _ in entities}
        assert len(kinds) == 1
        if kinds == {4}:
            assert not {1009, 1010, 1011, 1012, 1084, 1086, 100} & set(fields)


def test_an_instance_without_a_compute_instance_is_not_watched(host: Host) -> None:
    divide(host)
    host.state["instances"][1]["compute"] = 0
    host.write()
    host.after(0)
    assert {one.entity for one in host.after(10).readings} == {f"{UUIDS[0]}/7", UUIDS[1]}
    assert [4, 4] not in [
        entity for _, entities, *_ in host.log("watch") for entity in entities
    ]


def test_a_gpu_that_is_divided_meanwhile_is_read_by_instance(host: Host) -> None:
    host.after(0)
    only(host.after(10))
    divide(host)
    host.after(60)
    scrape = host.after(10)
    assert only(scrape, f"{UUIDS[0]}/2").values["tensor_active"] == 0.8


def test_clock_event_bits_of_an_interval_are_all_kept(host: Host) -> None:
    host.set("1:0", f112=[[0, 0], [START_S + 12, 4], [START_S + 14, 32], [START_S + 16, 0]])
    host.after(0)
    host.after(10)
    assert only(host.after(10)).values["clock_event_bits"] == 36


def test_an_engine_that_hangs_costs_one_deadline_and_the_next_scrape_works(host: Host) -> None:
    host.source.close()
    host.source = host.make(deadline=Duration(5_000))
    host.after(0)
    host.write(hang="ask")
    hung = host.after(10)
    assert "no answer within 5 s, so the worker was killed" in hung.error
    host.write(hang="")
    assert host.after(10).error == ""
    assert only(host.after(10)).values["tensor_active"] == 0.6


def test_a_worker_that_died_is_replaced(host: Host) -> None:
    host.after(0)
    child = host.source._child
    assert child is not None
    os.kill(child.pid, 9)
    assert "the worker ended (SIGKILL)" in host.after(1).error
    assert host.after(1).error == ""


@pytest.mark.parametrize(
    ("code", "todo"),
    [
        (-25, "install datacenter-gpu-manager-4-core"),
        (-12, "bindings and host engine are of different versions"),
        (-11, "systemctl restart nvidia-dcgm"),
        (-56, "without the driver"),
        (-54, "dcgmi profile --resume"),
    ],
)
def test_what_dcgm_refuses_comes_with_what_to_do(host: Host, code: int, todo: str) -> None:
    host.write(refuse_connect=code)
    error = host.after(0).error
    assert todo in error
    assert "\n" not in error


def test_without_bindings_the_error_says_what_to_install(host: Host, tmp_path: Path) -> None:
    host.source.close()
    host.source = host.make(bindings=str(tmp_path))
    assert re.search(r"no DCGM bindings .* in .*; set bindings", host.after(0).error)
    for file in STANDIN.glob("*.py"):  # they are found when they come
        (tmp_path / file.name).write_text(file.read_text())
    assert host.after(10).error == ""


def test_broken_bindings_are_told_as_such(host: Host, tmp_path: Path) -> None:
    (tmp_path / "pydcgm.py").write_text("print 'for Python 2'")
    host.source.close()
    host.source = host.make(bindings=str(tmp_path))
    error = host.after(0).error
    assert error.startswith(f"the DCGM bindings {tmp_path} are broken (SyntaxError")
    assert "\n" not in error


def test_a_library_that_libdcgm_needs_and_is_not_there_is_told_with_what_to_install(
    host: Host, tmp_path: Path
) -> None:
    for file in STANDIN.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    broken = (
        "class DcgmHandle:\n    def __init__(self, **_):\n        raise OSError('no libz')\n"
    )
    (tmp_path / "DcgmHandle.py").write_text(broken)
    host.source.close()
    host.source = host.make(bindings=str(tmp_path))
    error = host.after(0).error
    assert error.startswith("DCGM: no libz: libdcgm was not found; install datacenter-gpu-")


def test_other_bindings_do_not_stand_in_for_the_configured_ones(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pydcgm.py").write_text("")
    for name in ("dcgm_structs", "dcgm_fields", "dcgm_agent"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert f"PYTHONPATH has other DCGM bindings, in {tmp_path}" in host.after(0).error


def test_bindings_that_lack_a_call_are_one_line_and_the_worker_is_replaced(
    host: Host, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for file in STANDIN.glob("*.py"):
        text = file.read_text().replace("def UpdateAllFields", "def UpdateNoFields")
        (tmp_path / file.name).write_text(text)
    host.source.close()
    host.source = host.make(bindings=str(tmp_path))
    error = host.after(0).error
    assert "AttributeError" in error
    assert "in dcgm_engine.py, line" in error
    assert capfd.readouterr().err == ""
    (tmp_path / "DcgmSystem.py").write_text((STANDIN / "DcgmSystem.py").read_text())
    assert host.after(10).error == ""


def test_the_bindings_path_is_appended(host: Host, tmp_path: Path) -> None:
    # Their flat names must not shadow a module of the collector's.
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    for file in STANDIN.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    host.source.close()
    host.source = host.make(bindings=str(tmp_path))
    assert host.after(0).error == ""


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("10.0.0.1:5555", ["10.0.0.1:5555", None]),
        ("unix:///run/dcgm.sock", [None, "/run/dcgm.sock"]),
    ],
)
def test_the_address_is_always_given_so_that_no_engine_is_embedded(
    host: Host, address: str, told: list[str | None]
) -> None:
    host.source.close()
    host.source = host.make(address=address)
    host.after(0)
    assert host.log("connect") == [told]
    assert not host.log("embedded")


@pytest.mark.parametrize("address", ["", " ", "unix://", "embedded"])
def test_an_address_that_would_embed_an_engine_is_refused(address: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="would start a second one"):
        msgspec.convert({"type": "dcgm", "address": address}, DcgmSettings)


def test_names_of_fields_that_warn_are_not_used(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::DeprecationWarning:dcgm_fields")
    host.write(version="4.6.1")
    assert host.after(0).error == ""
