"""Rounds over sources: what one bad source, target or store costs, and what it does not."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import msgspec
import pytest

from detector.analysis.aggregate import Part
from detector.analysis.judge import Content
from detector.analysis.maxclock import MaxClocks
from detector.fleet import Job
from detector.reading import Dropped, Reading, Scrape
from detector.series import ContextEvent
from detector.telemetry.collector import Collector
from detector.telemetry.register import Register
from detector.telemetry.scheduler import Census, Run
from detector.telemetry.source import Source, SourceError

_T0 = 1_796_000_000_000
_BUSY = {
    "tensor_active": 0.5,
    "sm_clock_mhz": 1500.0,
    "max_sm_clock_mhz": 2000.0,
    "gr_engine_active": 0.9,
}


@dataclass(slots=True)
class _Source:
    """A source that answers by a function of the time."""

    answer: Callable[[int], Sequence[Scrape]]
    name: str = "made"
    settle_s: float = 0.0
    asked: list[int] = field(default_factory=list)
    closed: bool = False

    def scrape(self, now_ms: int) -> Sequence[Scrape]:
        self.asked.append(now_ms)
        return self.answer(now_ms)

    def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class _Sink:
    """A store that may be away."""

    away: bool = False
    introduced: list[str] = field(default_factory=list)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    posted: list[Part] = field(default_factory=list)
    events: list[tuple[str, ContextEvent]] = field(default_factory=list)

    def _look(self) -> None:
        if self.away:
            message = "connection refused"
            raise ConnectionRefusedError(message)

    def post(self, parts: Sequence[Part]) -> None:
        self._look()
        self.posted += parts

    def introduce(self, jobs: Sequence[Job]) -> None:
        self._look()
        self.introduced += [job.id for job in jobs]
        self.labels |= {job.id: job.labels for job in jobs}

    def announce(self, events: Sequence[tuple[str, ContextEvent]]) -> None:
        self._look()
        self.events += events


_NUMBER = count()


def _scrape(
    now_ms: int,
    *,
    target: str = "a:9400",
    job: str = "7",
    time_ms: int | None = None,
    values: Mapping[str, float] = _BUSY,
) -> Scrape:
    # Never the very same twice: that would be a repeat.
    values = {**values, "power_w": 400.0 + next(_NUMBER) % 97}
    reading = Reading(
        uuid=f"GPU-{target}",
        host=target,
        time_ms=now_ms,
        values=values,
        labels={"hpc_job": job} if job else {},
    )
    return Scrape(target=target, asked_ms=now_ms, time_ms=time_ms, readings=(reading,))


def _well(now_ms: int) -> Sequence[Scrape]:
    return [_scrape(now_ms)]


@pytest.fixture
def making(content: Content) -> Callable[..., Collector]:
    def make(*sources: Source, deadline_s: float = 5.0) -> Collector:
        return Collector(
            sources,
            Register(),
            max_clocks=MaxClocks(table=content.gpus),
            deadline_s=deadline_s,
            interval_ms=10_000,
        )

    return make


@contextmanager
def _hanging(name: str = "stuck") -> Iterator[tuple[_Source, threading.Event]]:
    """A source that answers once it is let go."""
    go = threading.Event()

    def answer(now_ms: int) -> Sequence[Scrape]:
        go.wait(60)
        return [_scrape(now_ms, target="stuck:9400")]

    try:
        yield _Source(answer, name=name), go
    finally:
        go.set()


def test_a_round_gives_each_job_its_part(making: Callable[..., Collector]) -> None:
    collector = making(
        _Source(lambda now: [_scrape(now), _scrape(now, target="b:9400", job="8")])
    )
    found = collector.round(_T0 + 10_000)
    assert {(part.job, part.host, part.gpus) for part in found.parts} == {
        ("7", "a:9400", 1),
        ("8", "b:9400", 1),
    }
    assert {part.ofu for part in found.parts} == {0.375}
    assert not found.troubles


def test_a_source_that_hangs_is_named_and_costs_the_others_nothing(
    making: Callable[..., Collector],
) -> None:
    with _hanging() as (stuck, _):
        collector = making(stuck, _Source(_well), deadline_s=0.2)
        first, second = collector.round(_T0), collector.round(_T0 + 10_000)
        for found in (first, second):
            assert [part.job for part in found.parts] == ["7"]
            (trouble,) = found.troubles
            assert trouble.startswith("stuck: no answer within 0.2 s")
        # The same trouble in the same words: it is told once.
        assert first.troubles == second.troubles
        assert stuck.asked == [_T0]


def test_an_answer_that_comes_too_late_is_dropped_and_the_source_is_asked_again(
    making: Callable[..., Collector],
) -> None:
    with _hanging() as (stuck, go):
        collector = making(stuck, deadline_s=0.2)
        assert not collector.round(_T0).scrapes
        go.set()
        for thread in threading.enumerate():
            if thread.name == "source:stuck":
                thread.join(timeout=10)
        found = collector.round(_T0 + 10_000)
        assert [scrape.asked_ms for scrape in found.scrapes] == [_T0 + 10_000]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SourceError("no libdcgm; install it"), "made: no libdcgm; install it"),
        (ZeroDivisionError("by zero"), "made: a mistake of ofuwatch's: ZeroDivisionError"),
    ],
)
def test_a_source_that_fails_is_told_in_one_line(
    making: Callable[..., Collector], error: Exception, told: str
) -> None:
    def fail(now_ms: int) -> Sequence[Scrape]:
        raise error

    found = making(_Source(fail), _Source(_well, name="other")).round(_T0)
    (trouble,) = found.troubles
    assert trouble.startswith(told)
    assert found.silent == found.troubles
    assert len(found.parts) == 1


def test_a_target_that_fails_is_named_and_counted(making: Callable[..., Collector]) -> None:
    down = Scrape(target="c:9400", asked_ms=_T0, error="connection refused")
    found = making(_Source(lambda now: [_scrape(now), down])).round(_T0)
    assert found.troubles == ("c:9400: connection refused",)
    assert not found.silent
    counts = found.counts()
    assert (counts["targets"], counts["targets_down"], counts["ok"]) == (2, 1, 1)


def test_what_profiling_lacks_and_gpus_that_are_lost_are_told_with_their_reasons(
    making: Callable[..., Collector],
) -> None:
    dropped = tuple(
        Dropped(gpu=gpu, metric=metric, raw=raw, reason=reason)
        for gpu, metric, raw, reason in (
            ("", "tensor_active", "", "no module; install it"),
            ("GPU-1", "gpu", "", "lost; reboot"),
            ("GPU-2", "tensor_active", "None", "no value"),
        )
    )
    well = _scrape(_T0)
    found = msgspec.structs.replace(well, failing="no_profiling", dropped=dropped)
    assert making(_Source(lambda _: [found])).round(_T0).troubles == (
        "a:9400: no_profiling: no module; install it",
        "a:9400: GPU-1: lost; reboot",
    )
    found = msgspec.structs.replace(well, failing="contention")
    assert making(_Source(lambda _: [found])).round(_T0).troubles == ("a:9400: contention",)


@pytest.mark.parametrize(("off_s", "told"), [(38, True), (5, False), (-200, False)])
def test_readings_of_the_future_tell_a_clock_that_is_fast(
    making: Callable[..., Collector], off_s: int, told: bool
) -> None:
    def answer(now_ms: int) -> Sequence[Scrape]:
        scrape = _scrape(now_ms)
        own = [
            msgspec.structs.replace(one, time_ms=now_ms + off_s * 1_000, own_clock=True)
            for one in scrape.readings
        ]
        return [msgspec.structs.replace(scrape, readings=tuple(own))]

    clocks = [line for line in making(_Source(answer)).round(_T0).troubles if "clock" in line]
    assert clocks == (
        ["clock of a:9400: about 40 s ahead of the one here; run NTP there"] if told else []
    )


def test_a_clock_that_is_off_is_told_until_the_target_says_otherwise(
    making: Callable[..., Collector],
) -> None:
    said = {_T0: _T0 + 41_000, _T0 + 10_000: None, _T0 + 20_000: _T0 + 20_000 + 38_500}
    collector = making(_Source(lambda now: [_scrape(now, time_ms=said.get(now, now))]))
    for now_ms in said:
        (trouble,) = collector.round(now_ms).troubles
        assert trouble == "clock of a:9400: about 40 s ahead of the one here; run NTP there"
    assert not collector.round(_T0 + 30_000).troubles


def test_who_a_job_is_goes_before_its_first_sample_and_once(
    making: Callable[..., Collector],
) -> None:
    collector, sink = making(_Source(_well)), _Sink()
    for n in range(3):
        collector.deliver(collector.round(_T0 + n * 10_000), sink)
    assert sink.introduced == ["7"]
    assert sink.labels["7"]["max_clock_source"] == "dcgm"
    assert [part.time_ms for part in sink.posted] == [_T0, _T0 + 10_000, _T0 + 20_000]


def test_a_job_is_described_again_when_its_scheduler_says_who_it_is(
    content: Content,
) -> None:
    class Late:
        name, every_ms, keep_ms = "slurm", 10_000, 600_000

        def look(self, now_ms: int) -> Census:
            job = Job(id="7", name="llama", scheduler="slurm", start_ms=_T0)
            return Census(runs=(Run(job=job),) if now_ms > _T0 else ())

        def past(self, now_ms: int) -> tuple[Run, ...]:
            return ()

        def close(self) -> None:
            """Nothing is open."""

    collector = Collector(
        [_Source(_well)],
        Register([Late()]),
        max_clocks=MaxClocks(table=content.gpus),
        deadline_s=5.0,
    )
    sink = _Sink()
    for n in range(3):
        collector.deliver(collector.round(_T0 + n * 10_000), sink)
    assert sink.introduced == ["7", "7"]


def test_what_a_store_that_was_away_has_not_got_goes_with_the_next_round(
    making: Callable[..., Collector],
) -> None:
    collector, sink = making(_Source(_well)), _Sink(away=True)
    for n in range(3):
        with pytest.raises(OSError, match="refused"):
            collector.deliver(collector.round(_T0 + n * 10_000), sink)
    sink.away = False
    collector.deliver(collector.round(_T0 + 30_000), sink)
    assert sink.introduced == ["7"]
    assert [part.time_ms - _T0 for part in sink.posted] == [0, 10_000, 20_000, 30_000]
    collector.deliver(collector.round(_T0 + 40_000), sink)
    assert len(sink.posted) == 5


def test_what_is_kept_for_a_store_that_is_away_is_bounded_and_the_oldest_goes(
    making: Callable[..., Collector],
) -> None:
    hosts = [_scrape(_T0, target=f"n{n}:9400") for n in range(3_000)]
    collector, sink = making(_Source(lambda now: hosts)), _Sink(away=True)
    for n in range(8):
        with pytest.raises(OSError, match="refused"):
            collector.deliver(collector.round(_T0 + n * 10_000), sink)
    assert (len(collector.owed), collector.lost) == (20_000, 4_000)
    assert collector.owed[0].time_ms == _T0 + 10_000


def test_another_maximal_clock_is_announced_to_its_jobs_and_going_to_and_fro_once_an_hour(
    making: Callable[..., Collector],
) -> None:
    maxima = {0: 1980.0, 1: 1980.0, 2: 2100.0, 3: 2100.0, 4: 1980.0, 5: 2100.0, 363: 1980.0}

    def answer(now_ms: int) -> Sequence[Scrape]:
        top = maxima[(now_ms - _T0) // 10_000]
        return [_scrape(now_ms, values={**_BUSY, "max_sm_clock_mhz": top})]

    collector, sink = making(_Source(answer)), _Sink()
    for n in maxima:
        collector.deliver(collector.round(_T0 + n * 10_000), sink)
    assert [(job, event.span.start_ms - _T0) for job, event in sink.events] == [
        ("7", 20_000),
        ("7", 3_630_000),
    ]
    assert {event.kind for _, event in sink.events} == {"planned_change"}
    assert "now 2100 MHz (dcgm), was 1980 MHz (dcgm)" in sink.events[0][1].note


def test_rounds_a_little_early_or_late_are_of_their_slot(
    making: Callable[..., Collector],
) -> None:
    collector = making(_Source(_well))
    times = [collector.round(_T0 + off).parts[0].time_ms for off in (9_990, 20_010, 30_400)]
    assert times == [_T0 + 10_000, _T0 + 20_000, _T0 + 30_000]


def test_nothing_is_remembered_of_jobs_that_are_gone(making: Callable[..., Collector]) -> None:
    collector, sink = making(_Source(lambda now: [_scrape(now, job=str(now))])), _Sink()
    for n in range(5):
        collector.deliver(collector.round(_T0 + n * 10_000), sink)
    assert len(collector._introduced) <= 1


def test_closing_a_collector_closes_every_source(making: Callable[..., Collector]) -> None:
    sources = [_Source(_well, name=str(n)) for n in range(3)]
    making(*sources).close()
    assert all(source.closed for source in sources)
