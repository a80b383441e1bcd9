"""Whose a reading is, by labels and schedulers together, and what changes of hands do."""

import json
import os
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.aggregate import parts
from detector.analysis.maxclock import MaxClocks
from detector.analysis.ofu import GpuTable
from detector.analysis.quality import NOTHING, judge
from detector.fleet import Job, Placement
from detector.reading import Reading, Scrape
from detector.series import iso
from detector.telemetry.hpc import HpcDirectory
from detector.telemetry.identity import IdentitySettings
from detector.telemetry.register import Register, schedulers
from detector.telemetry.runs import lineage
from detector.telemetry.scheduler import Census, Run, SchedulerError
from detector.telemetry.scheduler_settings import KubernetesSettings, SlurmSettings
from detector.telemetry.slurm import Slurm
from tests.telemetry.slurm_forms import document, ended, job

T = 1_700_000_000_000
S = 1_000


@dataclass(slots=True, kw_only=True)
class Told:
    """A scheduler that says what it is told to say, or nothing."""

    name: str = "slurm"
    every_ms: int = 10 * S
    keep_ms: int = 600 * S
    census: Census | None = None
    before: tuple[Run, ...] = ()
    looks: int = field(default=0)

    def look(self, now_ms: int) -> Census:
        self.looks += 1
        if self.census is None:
            msg = "squeue failed: Unable to contact slurm controller"
            raise SchedulerError(msg)
        return self.census

    def past(self, now_ms: int) -> tuple[Run, ...]:
        return self.before

    def close(self) -> None:
        """Nothing is open."""


def reading(
    at: int, value: float = 0.0, *, uuid: str = "GPU-0", index: str = "0", **labels: str
) -> Reading:
    return Reading(
        uuid=uuid,
        host="n1",
        index=index,
        time_ms=T + at * S,
        values={"tensor_active": value or at / 1000 + 0.1},
        labels=labels,
    )


def whose(register: Register, *readings: Reading) -> list[tuple[str, ...]]:
    (scrape,) = register.identify([Scrape(target="n1", asked_ms=0, readings=readings)])
    for one in scrape.readings:
        assert not (one.jobs and one.handover)
    return [one.jobs or tuple(f"-{job}" for job in one.handover) for one in scrape.readings]


def on(job: str, start: int, end: int | None = None) -> Placement:
    until = None if end is None else T + end * S
    return Placement(job=job, host="n1", gpus=1, start_ms=T + start * S, end_ms=until)


def test_a_label_that_changes_between_two_scrapes_makes_the_interval_nobodys() -> None:
    register = Register()
    told = [
        whose(register, reading(at, hpc_job=job))[0]
        for at, job in ((0, "a"), (10, "a"), (20, "b"), (30, "b"), (40, ""), (50, "b"))
    ]
    assert told == [("a",), ("a",), ("-a", "-b"), ("b",), ("-b",), ("-b",)]


def test_an_exporter_without_job_labels_takes_no_gpu_from_the_one_that_has_them() -> None:
    register = Register()
    told = []
    for at in (0, 10, 20):
        scrapes = register.identify([
            Scrape(target="pods", asked_ms=0, readings=(reading(at, pod="w-0"),)),
            Scrape(target="host", asked_ms=0, readings=(reading(at, at / 1000 + 0.2),)),
        ])  # fmt: skip
        told += [(one.jobs, one.handover) for scrape in scrapes for one in scrape.readings]
    assert told == [(("w-0",), ()), ((), ())] * 3


def test_a_gpu_that_is_read_instance_by_instance_is_not_counted_as_a_whole_too() -> None:
    slurm = Told(census=Census(placements=(on("a", -100),)))
    register = Register([slurm])
    register.refresh(T)
    for whole, name in ((reading(0, hpc_job="9"), "9"), (reading(0, uuid="GPU-1"), "a")):
        instances = [msgspec.structs.replace(whole, instance=one) for one in ("1", "2")]
        assert whose(register, whole, *instances) == [(name,), (name,)]
        assert whose(register, whole) == [(name,)]


def test_slurm_knows_of_a_change_of_hands_that_no_label_shows() -> None:
    slurm = Told(census=Census(placements=(on("a", -100, 14), on("b", 16))))
    register = Register([slurm])
    register.refresh(T + 21 * S)
    told = [whose(register, reading(at))[0] for at in (0, 10, 20, 30)]
    assert told == [("a",), ("a",), ("-a", "-b"), ("b",)]


def test_a_job_that_left_the_list_ended_somewhere_since_the_last_look() -> None:
    slurm = Told(census=Census(placements=(on("a", -100),)))
    register = Register([slurm])
    register.refresh(T + 1 * S)
    told = [whose(register, reading(1))[0]]
    slurm.census = Census()
    register.refresh(T + 11 * S)
    told += [whose(register, reading(at))[0] for at in (11, 21)]
    assert told == [("a",), (), ()]


def test_a_gpu_that_joins_a_running_job_is_nobodys_in_the_interval_in_which_it_joined() -> None:
    slurm, told = Told(), []
    register = Register([slurm])
    # Slurm says of the second node what it says of the job: that it began 100 s ago.
    second = msgspec.structs.replace(on("a", -100), host="n2")
    for at in (0, 10, 20):
        slurm.census = Census(placements=(on("a", -100), *([second] if at else [])))
        register.refresh(T + at * S)
        there = msgspec.structs.replace(reading(at, uuid="GPU-1"), host="n2")
        told.append(whose(register, reading(at), there))
    assert told == [[("a",), ()], [("a",), ("-a",)], [("a",), ("a",)]]


def test_a_gpu_that_changed_hands_just_before_it_is_seen_first_is_nobodys_at_first() -> None:
    register = Register([Told(census=Census(placements=(on("a", -900, -5), on("b", -3))))])
    register.refresh(T)
    told = [whose(register, reading(at))[0] for at in (0, 10)]
    assert told == [("-a", "-b"), ("b",)]


def test_labels_win_over_what_a_scheduler_says_of_the_host() -> None:
    register = Register(
        [Told(census=Census(placements=(on("a", -100),), aliases={"7_1": "9"}))]
    )
    register.refresh(T)
    assert whose(register, reading(0, hpc_job="7_1")) == [("9",)]


def test_a_label_of_a_job_that_is_long_over_names_nobody() -> None:
    over, lately = run("a", -900, -100), run("c", -900, -20)
    slurm = Told(census=Census(placements=(on("b", -90),), runs=(over, lately, run("b", -90))))
    register = Register([slurm])
    register.refresh(T)
    # An epilog that failed has left the mapping's file behind.
    assert whose(register, reading(0, hpc_job="a")) == [("b",)]
    assert whose(register, reading(1, uuid="GPU-1", hpc_job="c")) == [("c",)]
    assert whose(register, reading(2, uuid="GPU-2", hpc_job="unknown")) == [("unknown",)]


def test_several_jobs_of_one_gpu_are_all_told() -> None:
    shared = reading(0, hpc_job="a")
    shared = Reading(**{
        name: getattr(shared, name) for name in ("uuid", "host", "time_ms", "values", "labels")
    } | {"sharing": ({"hpc_job": "b"},)})  # fmt: skip
    assert whose(Register(), shared) == [("a", "b")]


def test_the_last_answer_counts_for_a_while_and_then_no_longer_as_one_line_each() -> None:
    slurm = Told(census=Census(placements=(on("a", -100),)), keep_ms=60 * S)
    register = Register([slurm])
    register.refresh(T)
    slurm.census = None
    register.refresh(T + 40 * S)
    assert list(register.troubles) == [
        "slurm: squeue failed: Unable to contact slurm controller, and its answer of "
        f"{iso(T)} counts until it is 1m old",
    ]
    told = register.troubles
    register.refresh(T + 50 * S)
    assert register.troubles == told
    assert whose(register, reading(50)) == [("a",)]
    register.refresh(T + 70 * S)
    assert register.troubles[0].endswith(f"its answer of {iso(T)} counts no longer")
    assert whose(register, reading(70)) == [()]
    slurm.census = Census(placements=(on("a", -100),))
    register.refresh(T + 80 * S)
    assert not register.troubles
    assert whose(register, reading(80)) == [("a",)]


def test_a_scheduler_that_hangs_costs_no_other_and_counts_once_it_answers() -> None:
    go = threading.Event()

    class Hanging(Told):
        def look(self, now_ms: int) -> Census:
            self.looks += 1
            if self.looks == 1:
                return Census(placements=(on("a", -100),))
            go.wait(60)
            return Census(placements=(on("b", -100),))

    slurm, pods = Hanging(), Told(name="kubernetes", census=Census(aliases={"ml/b-0": "ml/b"}))
    register = Register([slurm, pods], patience_s=0.01)
    try:
        for at in (0, 10, 20):
            register.refresh(T + at * S)
            pod = msgspec.structs.replace(
                reading(at, uuid="P", namespace="ml", pod="b-0"), host="n2"
            )
            assert whose(register, reading(at), pod) == [("a",), ("ml/b",)]
        assert (slurm.looks, pods.looks) == (2, 3)
        (told,) = register.troubles
        assert f"and its answer of {iso(T)} counts until it is 10m old; see" in told
    finally:
        go.set()
    for _ in range(1_000):  # until its thread is done
        register.refresh(T + 21 * S)
        if not register.troubles:
            break
    assert whose(register, reading(21), reading(30))[1] == ("b",)


def test_a_scheduler_is_asked_no_more_often_than_set() -> None:
    slurm = Told(census=Census())
    register = Register([slurm])
    for at in range(0, 60, 5):
        register.refresh(T + at * S)
    assert slurm.looks == 6


def test_a_round_that_comes_a_little_early_asks_the_scheduler_all_the_same() -> None:
    slurm = Told(census=Census())
    register = Register([slurm])
    for at in (0, 9_100, 20_900, 29_300):
        register.refresh(T + at)
    assert slurm.looks == 4


def run(
    id: str, start: int, end: int | None = None, *, serial: str = "0", key: str = "k"
) -> Run:
    return Run(
        job=Job(id=id, name="llama", scheduler="slurm", start_ms=T + start * S),
        end_ms=None if end is None else T + end * S,
        key=(key,) if key else (),
        serial=serial,
        why="requeued",
    )


def test_a_new_run_continues_the_ones_before_it_latest_first() -> None:
    slurm = Told(
        before=(run("1", -500, -400), run("2", -300, -200)), census=Census(runs=(run("3", -9),))
    )
    register = Register([slurm], cluster="east")
    register.refresh(T)
    (told,) = register.describe(["3"])
    assert told.lineage == ("2", "1")
    assert (told.name, told.scheduler, told.cluster) == ("llama", "slurm", "east")


def test_a_run_that_begins_at_once_continues_one_that_its_scheduler_has_forgotten() -> None:
    slurm = Told(census=Census(runs=(run("71", -900),)))
    register = Register([slurm])
    register.refresh(T)
    slurm.census = Census(runs=(run("72", 6),))
    register.refresh(T + 10 * S)
    assert register.describe(["72"])[0].lineage == ("71",)


def test_what_runs_side_by_side_is_no_lineage() -> None:
    sweep = [run(id, -500, -400) for id in ("1", "2", "3")]
    assert lineage(run("4", -100), sweep) == ()
    assert lineage(run("4", -100), [run("3", -300)]) == ()
    assert lineage(run("4", -100, key=""), [run("3", -300, -200, key="")]) == ()
    assert lineage(run("4", -100), [run("3", -300, -200, key="other")]) == ()


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 20)), max_size=8), st.randoms())
def test_the_order_in_which_runs_are_met_says_nothing(
    spans: Sequence[tuple[int, int]],
    chance: "st.Random",  # type: ignore[name-defined]
) -> None:
    runs = [run(str(k), start, start + long) for k, (start, long) in enumerate(spans)]
    mixed = list(runs)
    chance.shuffle(mixed)
    new = run("new", 120)
    assert lineage(new, runs) == lineage(new, mixed)


def test_a_requeue_under_the_same_id_is_announced_as_a_restart() -> None:
    slurm = Told(census=Census(runs=(run("3", -900),)))
    register = Register([slurm])
    register.refresh(T)
    slurm.census = Census()  # it waits in the queue again
    register.refresh(T + 10 * S)
    assert register.restarts() == ()
    slurm.census = Census(runs=(run("3", 15, serial="1"),))
    register.refresh(T + 20 * S)
    ((job, event),) = register.restarts()
    assert (job, event.kind, event.span.start_ms) == ("3", "restart", T + 15 * S)
    assert event.note == "requeued by slurm"
    assert register.restarts() == ()
    assert register.describe(["3"])[0].lineage == ()


def test_a_job_that_only_labels_tell_is_described_by_them() -> None:
    register = Register(cluster="east")
    (scrape,) = register.identify([
        Scrape(target="n1", asked_ms=0, readings=(
            Reading(uuid="G", model="AMD MI300X", time_ms=T,
                    labels={"job_id": "7", "job_user": "ann", "namespace": "nlp"}),
        ))
    ])  # fmt: skip
    assert scrape.readings[0].jobs == ("7",)
    (told,) = register.describe(["7"])
    assert (told.owner, told.team, told.gpu_model) == ("ann", "nlp", "AMD MI300X")
    assert (told.cluster, told.lineage) == ("east", ())


def test_what_labels_say_of_jobs_is_remembered_up_to_a_bound() -> None:
    register = Register()
    for at in range(0, 600, 10):
        register.refresh(T + at * S)
        pods = [reading(at, uuid=f"GPU-{n}", pod=f"p{at}-{n}", user="ann") for n in range(400)]
        whose(register, *pods)
    assert len(register._shown) <= 10_400
    whose(register, *(msgspec.structs.replace(one, time_ms=T + 700 * S) for one in pods))
    assert {one.owner for one in register.describe(["p590-0", "p590-399"])} == {"ann"}


def test_the_hpc_mapping_says_which_job_has_which_gpu(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("48213\n")
    (tmp_path / "1").write_text("48214\n\n48215 \n")
    (tmp_path / "2.7").write_text("48216\n")
    (tmp_path / "notes").write_text("nothing\n")
    for file in tmp_path.iterdir():
        os.utime(file, (T / 1000 - 100, T / 1000 - 100))
    register = Register([HpcDirectory(str(tmp_path), host="n1.example.org")])
    register.refresh(T)
    seven = Reading(uuid="GPU-2", instance="7", host="n1", index="2", time_ms=T)
    told = whose(
        register,
        reading(0),
        reading(0, uuid="GPU-1", index="1"),
        seven,
        reading(0, uuid="GPU-3", index="3"),
    )
    assert told == [("48213",), ("48214", "48215"), ("48216",), ()]
    (tmp_path / "0").write_text("48217\n")
    os.utime(tmp_path / "0", (T / 1000 + 6, T / 1000 + 6))
    register.refresh(T + 10 * S)
    assert whose(register, reading(10)) == [("-48217",)]
    register.refresh(T + 20 * S)
    assert whose(register, reading(20)) == [("48217",)]


def test_a_mapping_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    register = Register([HpcDirectory(str(tmp_path / "none"), host="n1")])
    register.refresh(T)
    assert "let the prolog make it" in register.troubles[0]
    assert "but what labels say" in register.troubles[0]


def test_gpus_that_slurm_hands_over_between_two_scrapes_are_counted_for_neither(
    tmp_path: Path,
) -> None:
    """A node of eight GPUs goes from job to job; squeue and sacct are real processes."""
    at = T // 1000
    first = {"job_id": 71, "name": "bert", "start_time": at - 900}
    queue = [job("25.11", **first)]

    def write(jobs: Sequence[Mapping[str, object]]) -> None:
        (tmp_path / "squeue.json").write_text(json.dumps(document("25.11", *map(dict, jobs))))

    past = {"jobs": [ended(70, start=at - 9_000, end=at - 1_000, name="bert")], "errors": []}
    (tmp_path / "sacct.json").write_text(json.dumps(past))
    for name in ("squeue", "sacct"):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.json\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    settings = SlurmSettings(
        via="squeue", squeue=str(tmp_path / "squeue"), sacct=str(tmp_path / "sacct")
    )
    register = Register([Slurm(settings)], IdentitySettings())
    told: list[set[tuple[str, ...]]] = []
    for now in (0, 10, 20, 30):
        if now == 20:
            over = {"job_state": ["COMPLETED"], "end_time": at + 14}
            queue = [
                job("25.11", **first | over),
                job("25.11", job_id=72, name="llama", start_time=at + 16),
            ]
        write(queue)
        readings = [reading(now, uuid=f"GPU-{k}", index=str(k)) for k in range(8)]
        register.refresh(T + now * S)
        told.append(set(whose(register, *readings)))
    assert not register.troubles
    assert told == [{("71",)}, {("71",)}, {("-71", "-72")}, {("72",)}]
    bert, llama = register.describe(["71", "72"])
    assert (bert.lineage, llama.lineage) == (("70",), ())
    assert (bert.owner, bert.team, bert.cluster) == ("ann", "nlp", "east")


def test_a_change_of_hands_costs_two_collections_and_is_counted_for_neither() -> None:
    """From the labels to the parts: what reaches the histories of the two jobs."""
    register, memory, counted = Register(), NOTHING, []
    clocks = MaxClocks(table=GpuTable(sources={}, gpu=()))
    for at, name, tensor in (
        (0, "a", 0.5),
        (10, "a", 0.51),
        (20, "b", 0.3),
        (30, "b", 0.5),
        (40, "b", 0.6),
    ):
        values = {"tensor_active": tensor, "sm_clock_mhz": 1000.0, "max_sm_clock_mhz": 2000.0}
        one = msgspec.structs.replace(reading(at, hpc_job=name), values=values)
        now = T + at * S
        scrapes = register.identify([Scrape(target="n1", asked_ms=now, readings=(one,))])
        judged, memory = judge(memory, scrapes, now_ms=now, max_clocks=clocks)
        counted.append(
            [(part.job, part.ofu) for part in parts(judged, time_ms=now) if part.gpus]
        )
    assert counted == [[("a", 0.25)], [("a", 0.255)], [], [], [("b", 0.3)]]


def test_who_is_asked_is_what_the_configuration_says(tmp_path: Path) -> None:
    none = schedulers(SlurmSettings(), KubernetesSettings(), IdentitySettings())
    assert none == ()
    every = schedulers(
        SlurmSettings(via="squeue"),
        KubernetesSettings(url="https://k8s:6443"),
        IdentitySettings(hpc_directory=str(tmp_path)),
    )
    assert [one.name for one in every] == ["hpc", "slurm", "kubernetes"]
    Register(every).close()
