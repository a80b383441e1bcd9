"""What a pass looks up: each stretch once, many jobs in one trip, as if read one by one."""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.judge import Content
from detector.fleet import Job
from detector.jobs import Jobs
from detector.series import ContextEvent, Interval, Wanted, Window
from detector.store.memory import MemoryHistories

START_MS, STEP_MS, ROWS = 1_790_000_000_000, 10_000, 60


class Counting(MemoryHistories):
    """Histories that note what is asked of them."""

    def __init__(self, names: Sequence[str]) -> None:
        times_ms = START_MS + STEP_MS * np.arange(ROWS)
        windows = {
            name: Window(
                times_ms=times_ms,
                fields={"ofu": np.arange(ROWS) / 100 + k / 1000},
                gpus=np.full((ROWS, 2), 0.5),
            )
            for k, name in enumerate(names)
        }
        super().__init__(windows, jobs={name: Job(id=name) for name in names})
        self.trips: list[list[Wanted]] = []

    def windows(self, wanted: Sequence[Wanted]) -> list[Window]:
        self.trips.append(list(wanted))
        return super().windows(wanted)


def looking(source: Counting, content: Content) -> Jobs:
    return Jobs(source, content, source.increments({}, now_ms=START_MS + ROWS * STEP_MS))


def span(first: int, last: int) -> Interval:
    return Interval(start_ms=START_MS + first * STEP_MS, end_ms=START_MS + last * STEP_MS)


def test_many_jobs_windows_are_one_trip(content: Content) -> None:
    source = Counting("abc")
    jobs = looking(source, content)
    jobs.read(Wanted(job=name, span=span(5, 20)) for name in "abc")
    for name in "abc":
        jobs.window(name, span(5, 20))
    assert [len(trip) for trip in source.trips] == [3]


def test_what_lies_later_in_the_pass_is_not_read_again(content: Content) -> None:
    source = Counting("a")
    jobs = looking(source, content)
    for last in range(10, ROWS, 5):
        assert len(jobs.window("a", span(5, last)).times_ms) == last - 5
    assert len(source.trips) == 1


def test_what_was_read_with_its_gpus_serves_who_needs_none(content: Content) -> None:
    source = Counting("a")
    jobs = looking(source, content)
    assert jobs.window("a", span(0, 20), gpus=True).gpus is not None
    assert jobs.window("a", span(3, 9)).gpus is None
    assert len(source.trips) == 1


@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(0, ROWS), st.integers(0, ROWS), st.booleans()
        ),
        max_size=12,
    ),
    ahead=st.booleans(),
)
def test_a_window_is_what_a_read_of_it_alone_gives(
    content: Content, asked: list[tuple[str, int, int, bool]], *, ahead: bool
) -> None:
    source = Counting("ab")
    jobs = looking(source, content)
    wanted = [
        Wanted(job=job, span=span(min(ends), max(ends)), gpus=gpus)
        for job, *ends, gpus in asked
    ]
    if ahead:
        jobs.read(wanted)
    for item in wanted:
        shared = jobs.window(item.job, item.span, gpus=item.gpus)
        alone = looking(source, content).window(item.job, item.span, gpus=item.gpus)
        assert shared.fields.keys() == alone.fields.keys()
        np.testing.assert_array_equal(shared.times_ms, alone.times_ms)
        np.testing.assert_array_equal(shared.fields["ofu"], alone.fields["ofu"])
        assert (shared.gpus is None) is (alone.gpus is None) is (not item.gpus)


def test_a_pass_without_entries_can_look_up_what_it_needs(content: Content) -> None:
    source = Counting("a")
    nothing = source.increments({"a": START_MS + ROWS * STEP_MS}, now_ms=START_MS)
    assert nothing.jobs == ()
    assert len(Jobs(source, content, nothing).window("a", span(0, 7)).times_ms) == 7


def test_what_was_announced_of_a_job_is_read_once_a_pass(content: Content) -> None:
    asked: list[str] = []

    class Listening(Counting):
        def announced(
            self, jobs: Sequence[str]
        ) -> list[Callable[[Interval], tuple[ContextEvent, ...]]]:
            asked.extend(jobs)
            return super().announced(jobs)

    jobs = looking(Listening("ab"), content)
    jobs.hear("aab")
    for first in range(5):
        assert jobs.context("a", span(first, 20)) == ()
    assert asked == ["a", "b"]
