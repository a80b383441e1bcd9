"""The past of new jobs: written before their first live sample, and never in others' way."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pytest

from detector.analysis.aggregate import Part
from detector.analysis.quality import Judged
from detector.fleet import Job
from detector.reading import Reading
from detector.telemetry.collector import Round
from detector.telemetry.past import FirstSight
from detector.telemetry.source import SourceError
from detector.telemetry.whose import Whose

_T0 = 1_796_000_000_000
_EVERY = 10_000
_LOOK = 60 * _EVERY


@dataclass(slots=True)
class _Store:
    """Histories as a stream keeps them: oldest first, or refused."""

    times: dict[str, list[int]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    away: bool = False

    def introduce(self, jobs: Sequence[Job]) -> None:
        self.known |= {job.id for job in jobs}

    def newest(self, jobs: Sequence[str]) -> Mapping[str, int]:
        return {job: self.times[job][-1] for job in jobs if self.times.get(job)}

    def fill(self, parts: Sequence[Part]) -> None:
        if self.away:
            raise ConnectionRefusedError("away")
        assert {part.job for part in parts} <= self.known, "who a job is goes first"
        self.write(parts)

    def write(self, parts: Sequence[Part]) -> None:
        for part in parts:
            known = self.times.setdefault(part.job, [])
            assert not known or part.time_ms > known[-1], "a stream goes on at its end alone"
            known.append(part.time_ms)


@dataclass(slots=True)
class _Server:
    """A server that has every job's past; it answers when it is let.

    Where there is an error it hands out the ``first`` parts before it, ``times`` times.
    """

    go: threading.Event = field(default_factory=threading.Event)
    error: str = ""
    first: int = 0
    times: int = 1_000
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __call__(
        self, found: Sequence[Reading], whose: Whose, *, start_ms: int, end_ms: int
    ) -> Iterator[Part]:
        self.asked.append((start_ms, end_ms))
        times_ms = range(-(-start_ms // _EVERY) * _EVERY, end_ms, _EVERY)
        parts = (
            Part(job=reading.jobs[0], host="", time_ms=time_ms, ofu=0.4, gpus=1)
            for reading in found
            for time_ms in times_ms
        )
        failing = self.error and len(self.asked) <= self.times
        if failing:
            yield from islice(parts, self.first)
        self.go.wait(30)
        if failing:
            raise SourceError(self.error)
        yield from parts


def _round(n: int, *jobs: str, age_ms: int | None = None) -> Round:
    """Return a round in which each job has a GPU; with an age, the readings' own times."""
    time_ms = _T0 + n * _EVERY
    readings = [
        Reading(
            uuid=f"GPU-{job}",
            host="a",
            time_ms=time_ms - (age_ms or 0),
            own_clock=age_ms is not None,
            jobs=(job,),
        )
        for job in jobs
    ]
    judged = tuple(
        Judged(reading=one, jobs=one.jobs, ofu=0.4, quality="ok") for one in readings
    )
    parts = tuple(Part(job=job, host="a", time_ms=time_ms, ofu=0.4, gpus=1) for job in jobs)
    return Round(time_ms=time_ms, judged=judged, parts=parts)


def _first_sight(store: _Store, *servers: _Server, retries: int = 0) -> FirstSight:
    return FirstSight(
        servers, store, first_look_ms=_LOOK, interval_ms=_EVERY,
        describe=lambda jobs: [Job(id=job) for job in jobs], retries_s=[0.0] * retries,
    )  # fmt: skip


def test_a_new_jobs_history_is_its_past_and_then_its_present_without_a_gap() -> None:
    store, server = _Store(), _Server()
    sight = _first_sight(store, server)
    for n in range(3):
        store.write(sight.admit(_round(n, "7")))
        assert not store.times
    server.go.set()
    sight.join(10)
    store.write(sight.admit(_round(3, "7")))
    assert store.times["7"] == list(range(_T0 - _LOOK, _T0 + 4 * _EVERY, _EVERY))


def test_the_reading_of_the_first_live_sample_is_none_of_the_past() -> None:
    store, server = _Store(), _Server()
    server.go.set()
    sight = _first_sight(store, server)
    sight.admit(_round(0, "7", age_ms=2 * _EVERY))
    sight.join(10)
    store.write(sight.admit(_round(1, "7")))
    assert store.times["7"][-3:] == [_T0 - 3 * _EVERY, _T0, _T0 + _EVERY]


def test_others_rounds_go_on_while_a_past_is_fetched() -> None:
    store, server = _Store(), _Server()
    store.times["old"] = [_T0 - _EVERY]
    sight = _first_sight(store, server)
    assert not sight.admit(_round(0, "old"))
    server.go.set()
    sight.join(10)
    server.go.clear()
    store.write(sight.admit(_round(1, "old", "new")))
    store.write(sight.admit(_round(2, "old", "new")))
    assert store.times["old"][-1] == _T0 + 2 * _EVERY
    assert "new" not in store.times
    server.go.set()


def test_after_a_restart_only_the_gap_is_fetched() -> None:
    store, server = _Store(), _Server()
    server.go.set()
    store.times["7"] = [_T0 - 20 * _EVERY]
    store.times["8"] = [_T0 - _EVERY]
    sight = _first_sight(store, server)
    sight.admit(_round(0, "7", "8"))
    sight.join(10)
    store.write(sight.admit(_round(1, "7", "8")))
    assert store.times["7"] == list(range(_T0 - 20 * _EVERY, _T0 + 2 * _EVERY, _EVERY))
    assert store.times["8"] == [_T0 - _EVERY, _T0, _T0 + _EVERY]
    assert len(server.asked) == 1


def test_a_gap_is_not_asked_for_as_far_back_as_a_job_that_is_new() -> None:
    store, server = _Store(), _Server()
    server.go.set()
    store.times["7"] = [_T0 - 20 * _EVERY]
    sight = _first_sight(store, server)
    sight.admit(_round(0, "7", "new"))
    sight.join(10)
    starts = [start_ms for start_ms, _ in server.asked]
    assert starts == [_T0 - 20 * _EVERY + 1, _T0 - _LOOK]
    assert store.times["new"][0] == _T0 - _LOOK


def test_a_past_that_fails_after_its_time_is_written_no_more() -> None:
    store, server = _Store(), _Server(error="HTTP 504", first=1)
    sight = _first_sight(store, server)
    for n in range(14):
        store.write(sight.admit(_round(n, "7")))
    thread = next(one for one in threading.enumerate() if one.name == "past")
    server.go.set()
    thread.join(10)
    assert store.times["7"] == [_T0 + n * _EVERY for n in range(14)]


@pytest.mark.parametrize("away", [False, True])
def test_a_past_that_cannot_be_had_costs_no_present_and_is_told(away: bool) -> None:
    store, server = _Store(away=away), _Server(error="" if away else "HTTP 503; see its log")
    server.go.set()
    sight = _first_sight(store, server)
    sight.admit(_round(0, "7"))
    sight.join(10)
    store.write(sight.admit(_round(1, "7")))
    assert store.times["7"] == [_T0, _T0 + _EVERY]
    (told,) = sight.troubles()
    assert told.startswith("the past of new jobs cannot be ")
    assert not sight.troubles()


def test_a_server_that_hangs_holds_a_job_up_for_two_minutes_and_no_longer() -> None:
    store, server = _Store(), _Server()
    sight = _first_sight(store, server)
    rounds = [_round(n, "7") for n in range(14)]
    for found in rounds:
        store.write(sight.admit(found))
    assert store.times["7"] == [found.time_ms for found in rounds]
    assert "took longer" in sight.troubles()[0]
    server.go.set()


def test_a_server_that_breaks_off_is_asked_again_for_what_is_missing() -> None:
    store, server = _Store(), _Server(error="HTTP 503", first=20, times=1)
    server.go.set()
    sight = _first_sight(store, server, retries=1)
    sight.admit(_round(0, "7"))
    sight.join(10)
    store.write(sight.admit(_round(1, "7")))
    assert store.times["7"] == list(range(_T0 - _LOOK, _T0 + 2 * _EVERY, _EVERY))
    assert [start_ms for start_ms, _ in server.asked] == [
        _T0 - _LOOK,
        _T0 - _LOOK + 19 * _EVERY + 1,
    ]
    assert not sight.troubles()


def test_without_a_server_nothing_is_held_back() -> None:
    assert _first_sight(_Store()).admit(_round(0, "7")) == _round(0, "7").parts


def test_a_second_server_gives_what_the_first_one_has_not() -> None:
    store = _Store()
    first, second = _Server(error="down"), _Server()
    first.go.set()
    second.go.set()
    sight = _first_sight(store, first, second)
    sight.admit(_round(0, "7"))
    sight.join(10)
    assert store.times["7"][0] == _T0 - _LOOK
