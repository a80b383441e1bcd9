"""Hosts that fall silent: whose GPUs are stood in for, for how long, and whose are not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from detector.analysis.judge import Content
from detector.analysis.maxclock import MaxClocks
from detector.fleet import Placement
from detector.reading import Reading, Scrape
from detector.telemetry.collector import Collector, Round
from detector.telemetry.register import Register
from detector.telemetry.scheduler import Census, Run
from detector.telemetry.source import SourceError

_T0 = 1_796_000_000_000
_DOWN = "connection refused: is it up?"

# Target -> host -> the job that its GPU names; None where the target does not answer.
State = Mapping[str, Mapping[str, str] | None]


@dataclass(slots=True)
class _Fleet:
    """A source whose targets show hosts with a GPU each, as they are set."""

    state: State | None
    name: str = "made"
    settle_s: float = 0.0
    reads: int = 0
    instance: str = ""

    def scrape(self, now_ms: int) -> Sequence[Scrape]:
        if self.state is None:
            raise SourceError(_DOWN)
        return [self._scrape(target, shown, now_ms) for target, shown in self.state.items()]

    def _scrape(self, target: str, shown: Mapping[str, str] | None, now_ms: int) -> Scrape:
        if shown is None:
            return Scrape(target=target, asked_ms=now_ms, error=_DOWN)
        self.reads += 1
        readings = tuple(
            Reading(
                uuid=f"GPU-{host}", instance=self.instance, host=host, time_ms=now_ms,
                values={
                    "tensor_active": 0.5, "sm_clock_mhz": 1500.0, "max_sm_clock_mhz": 2000.0,
                    "gr_engine_active": 0.9, "power_w": 400.0 + self.reads % 97,
                },
                labels={"hpc_job": job} if job else {},
            )
            for host, job in shown.items()
        )  # fmt: skip
        return Scrape(target=target, asked_ms=now_ms, readings=readings)

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class _Slurm:
    """A scheduler that says what it is told to say."""

    census: Census = field(default_factory=Census)
    name: str = "slurm"
    every_ms: int = 10_000
    keep_ms: int = 600_000

    def look(self, now_ms: int) -> Census:
        return self.census

    def past(self, now_ms: int) -> tuple[Run, ...]:
        return ()

    def close(self) -> None:
        """Nothing is open."""


class _Rounds:
    """Rounds over a fleet, ten seconds apart."""

    def __init__(
        self, content: Content, sources: Sequence[_Fleet], slurm: Iterable[_Slurm]
    ) -> None:
        self.collector = Collector(
            sources,
            Register(list(slurm)),
            max_clocks=MaxClocks(table=content.gpus),
            deadline_s=5.0,
            interval_ms=10_000,
        )
        self.fleet, self.now_ms = sources[0], _T0

    def __call__(self, state: State | None, *, after_s: int = 10) -> Round:
        self.fleet.state = state
        self.now_ms += after_s * 1_000
        return self.collector.round(self.now_ms)


Making = Callable[..., _Rounds]


@pytest.fixture
def making(content: Content) -> Making:
    def make(*others: _Fleet, slurm: Iterable[_Slurm] = ()) -> _Rounds:
        return _Rounds(content, [_Fleet({}), *others], slurm)

    return make


def _told(found: Round) -> dict[tuple[str, str], tuple[int, Mapping[str, int]]]:
    """Job and host -> GPUs that count, and why how many others do not."""
    return {(part.job, part.host): (part.gpus, part.faults) for part in found.parts}


_MISSING = (0, {"unreachable": 1})
_GOOD: tuple[int, Mapping[str, int]] = (1, {})


def test_a_job_keeps_the_gpus_of_a_target_that_does_not_answer(making: Making) -> None:
    rounds = making()
    rounds({"a": {"a": "7"}, "b": {"b": "7"}})
    for _ in range(20):
        found = rounds({"a": {"a": "7"}, "b": None})
        assert _told(found) == {("7", "a"): _GOOD, ("7", "b"): _MISSING}
        assert found.troubles == (f"b: {_DOWN}",)
        assert (found.counts()["targets"], found.counts()["targets_down"]) == (2, 1)
    assert [one.reason for one in found.judged if one.quality == "unreachable"] == [_DOWN]
    assert _told(rounds({"a": {"a": "7"}, "b": {"b": "7"}}))["7", "b"] == _GOOD


def test_a_host_that_a_server_has_no_more_is_named(making: Making) -> None:
    rounds = making()
    rounds({"prom": {"a": "7", "b": "7"}})
    found = rounds({"prom": {"a": "7"}})
    assert _told(found) == {("7", "a"): _GOOD, ("7", "b"): _MISSING}
    assert found.troubles == ("prom: nothing of host b any more",)


def test_what_was_wrong_stands_until_there_is_a_reading_and_no_longer(making: Making) -> None:
    rounds = making()
    rounds({"prom": {"a": "7", "b": "7"}})
    assert rounds({"prom": None}).troubles == (f"prom: {_DOWN}",)
    # A worker that was started again has nothing to say at first.
    assert rounds({"prom": {}}).troubles == (f"prom: {_DOWN}",)
    assert rounds({"prom": {"a": "7"}}).troubles == ("prom: nothing of host b any more",)


def test_a_source_that_gives_nothing_at_all_leaves_its_jobs_their_gpus(making: Making) -> None:
    rounds = making(_Fleet({"c": {"c": "8"}}))
    rounds({"a": {"a": "7"}})
    assert _told(rounds(None)) == {("7", "a"): _MISSING, ("8", "c"): _GOOD}


def test_nothing_stands_in_for_a_host_without_a_job(making: Making) -> None:
    rounds = making()
    rounds({"a": {"a": "7"}, "b": {"b": ""}})
    found = rounds({"a": {"a": "7"}, "b": None})
    assert _told(found) == {("7", "a"): _GOOD}
    assert not any(one.quality == "unreachable" for one in found.judged)


def test_a_target_that_is_asked_no_more_is_forgotten(making: Making) -> None:
    rounds = making()
    rounds({"a": {"a": "7"}, "b": {"b": "7"}})
    assert _told(rounds({"a": {"a": "7"}})) == {("7", "a"): _GOOD}
    assert _told(rounds({"a": {"a": "7"}, "b": None})) == {("7", "a"): _GOOD}


def test_a_job_that_ends_on_the_hosts_that_answer_is_over_on_those_that_do_not(
    making: Making,
) -> None:
    rounds = making()
    rounds({"a": {"a": "7"}, "b": {"b": "7"}, "c": {"c": "7"}})
    rounds({"a": {"a": "7"}, "b": None, "c": {"c": "7"}})
    rounds({"a": {"a": "7"}, "b": None, "c": None})
    # What is collected at a pace of its own may be of both jobs up to its second reading.
    for _ in range(2):
        assert _told(rounds({"a": {"a": "9"}, "b": None, "c": None})) == {}
    assert _told(rounds({"a": {"a": "9"}, "b": None, "c": None})) == {("9", "a"): _GOOD}


def test_a_job_whose_hosts_fall_silent_one_by_one_goes_on(making: Making) -> None:
    rounds = making()
    rounds({"a": {"a": "7"}, "b": {"b": "7"}})
    rounds({"a": {"a": "7"}, "b": None})
    for _ in range(3):
        found = rounds({"a": None, "b": None})
        assert _told(found) == {("7", "a"): _MISSING, ("7", "b"): _MISSING}


def test_a_job_that_its_scheduler_ended_is_over(making: Making) -> None:
    held = Placement(job="7", host="b", gpus=1, start_ms=_T0 - 600_000)
    slurm = _Slurm(Census(placements=(held,)))
    rounds = making(slurm=[slurm])
    assert _told(rounds({"b": {"b": ""}})) == {("7", "b"): _GOOD}
    assert _told(rounds({"b": None})) == {("7", "b"): _MISSING}
    slurm.census = Census()
    rounds({"b": None})
    assert _told(rounds({"b": None})) == {}


def test_a_gpu_that_another_target_shows_is_not_missing(making: Making) -> None:
    rounds = making(_Fleet({"other": {"b": "7"}}))
    rounds({"b": {"b": "7"}})
    assert _told(rounds({"b": None})) == {("7", "b"): _GOOD}


def test_when_most_of_the_fleet_falls_silent_at_once_dark_jobs_are_nobodys_fault_there(
    making: Making,
) -> None:
    rounds = making()
    well = {f"n{k}": {f"n{k}": f"job{k // 2}"} for k in range(30)}
    rounds(well)
    some = rounds({**well, **{f"n{k}": None for k in range(15)}})
    assert sum(one.quality == "unreachable" for one in some.judged) == 15
    most = rounds({**well, **{f"n{k}": None for k in range(17)}})
    # Half of job 8 answers, so its other half is not lost; nothing is known of jobs 0 to 7.
    assert [one.jobs for one in most.judged if one.quality == "unreachable"] == [("job8",)]
    assert len(most.troubles) == 17
    again = rounds({**well, "n3": None})
    assert _told(again)["job1", "n3"] == _MISSING


def test_after_a_day_nobody_misses_a_host(making: Making) -> None:
    rounds = making()
    rounds({"b": {"b": "7"}})
    assert _told(rounds({"b": None}, after_s=86_000)) == {("7", "b"): _MISSING}
    assert _told(rounds({"b": None}, after_s=600)) == {}


def test_a_silent_host_whose_gpu_is_read_by_instance_elsewhere_costs_no_round(
    making: Making,
) -> None:
    other = _Fleet({})
    rounds = making(other)
    rounds({"a": {"a": "7"}, "b": {"b": "8"}})
    other.state, other.instance = {"mig": {"b": "8"}}, "3"
    found = rounds({"a": {"a": "7"}, "b": None})
    assert _told(found)["7", "a"] == _GOOD
    assert [one.reading.entity for one in found.judged if one.reading.host == "b"] == [
        "GPU-b/3"
    ]
