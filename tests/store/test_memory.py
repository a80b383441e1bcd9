"""Stores in memory answer as the real ones do."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.change import Estimate
from detector.fleet import Job
from detector.incident.incident import Incident, State
from detector.incident.ledger import Commit, shard_of
from detector.series import Batch, ContextEvent, Interval, Wanted, Window
from detector.store.memory import MemoryHistories, MemoryLedger

T = 1_760_000_000_000
NOW = T + 10**9


def window(count: int, **fields: float) -> Window:
    times = T + 1_000 * np.arange(count)
    return Window(
        times_ms=times,
        fields={
            "ofu": np.arange(count) / 100,
            **{k: np.full(count, v) for k, v in fields.items()},
        },
        gpus=np.full((count, 2), 0.5),
        events=(
            ContextEvent(kind="restart", span=Interval(start_ms=T + 2_000, end_ms=T + 4_000)),
        ),
    )


def histories(windows: Mapping[str, Window], **options: int) -> MemoryHistories:
    return MemoryHistories(windows, jobs={job: Job(id=job) for job in windows}, **options)


def read_all(source: MemoryHistories) -> tuple[dict[str, list[tuple[int, float]]], int]:
    """Read increments to their end; return each job's samples and the number of calls."""
    cursors: dict[str, int] = {}
    seen: dict[str, list[tuple[int, float]]] = {}
    calls, more = 0, True
    while more:
        batch = source.increments(cursors, now_ms=NOW)
        calls, more = calls + 1, batch.more
        for k, at, value in zip(
            batch.job.tolist(),
            batch.times_ms.tolist(),
            batch.fields["ofu"].tolist(),
            strict=True,
        ):
            seen.setdefault(batch.jobs[k], []).append((at, value))
            cursors[batch.jobs[k]] = at
    return seen, calls


@given(
    counts=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40)),
    slice_entries=st.integers(1, 50),
)
def test_slices_of_any_size_are_the_whole(counts: dict[str, int], slice_entries: int) -> None:
    windows = {job: window(count) for job, count in counts.items()}
    seen, _ = read_all(histories(windows, slice_entries=slice_entries))
    assert seen == {
        job: list(zip(item.times_ms.tolist(), item.fields["ofu"].tolist(), strict=True))
        for job, item in windows.items()
        if len(item.times_ms)
    }


@given(counts=st.lists(st.integers(1, 500), min_size=1, max_size=4), slices=st.integers(1, 60))
def test_a_number_of_slices_is_kept_whatever_the_lengths(
    counts: list[int], slices: int
) -> None:
    windows = {str(k): window(count) for k, count in enumerate(counts)}
    _, calls = read_all(histories(windows, slices=slices))
    assert calls <= slices


def test_nothing_is_handed_out_from_the_future() -> None:
    batch = histories({"j": window(10)}).increments({}, now_ms=T + 3_000)
    assert batch.times_ms.tolist() == [T, T + 1_000, T + 2_000, T + 3_000]
    assert not batch.more


def test_a_field_that_only_some_jobs_have_is_no_data_for_the_others() -> None:
    batch: Batch = histories({"a": window(2, mfu=0.5), "b": window(2)}).increments(
        {}, now_ms=NOW
    )
    np.testing.assert_array_equal(batch.fields["mfu"], [0.5, 0.5, np.nan, np.nan])
    assert batch.job.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("start", "end", "count", "events"),
    [(0, 10, 10, 1), (1, 3, 2, 1), (5, 9, 4, 0), (20, 30, 0, 0)],
)
def test_a_window_is_half_open_with_all_that_touches_it(
    start: int, end: int, count: int, events: int
) -> None:
    source = histories({"j": window(10, mfu=0.4)})
    span = Interval(start_ms=T + 1_000 * start, end_ms=T + 1_000 * end)
    (found,) = source.windows([Wanted(job="j", span=span, gpus=True)])
    assert len(found.times_ms) == count
    assert {len(values) for values in found.fields.values()} == {count}
    assert found.gpus is not None
    assert found.gpus.shape == (count, 2)
    (told,) = source.announced(["j"])
    assert len(told(span)) == events


def test_single_gpus_come_only_where_they_are_wanted() -> None:
    source = histories({"j": window(10)})
    span = Interval(start_ms=T, end_ms=NOW)
    without, with_them = source.windows(
        [Wanted(job="j", span=span), Wanted(job="j", span=span, gpus=True)]
    )
    assert without.gpus is None
    assert with_them.gpus is not None


def incident(name: str, *, job: str = "j", revision: int = 1) -> Incident:
    level = Estimate(value=0.4, low=0.4, high=0.4)
    return Incident(
        id=name, cluster="c", job=Job(id=job), kind="hang", family="performance", metric="ofu",
        direction="down", cause="excursion", state=State.OPEN, revision=revision,
        severity="error", confidence=1.0, rule="hang", summary="", onset_ms=T, onset_low_ms=T,
        onset_high_ms=T, detected_ms=T, before=level, after=level, relative_change=0.0,
    )  # fmt: skip


def test_a_ledger_gives_back_every_incident_of_a_shard_at_its_newest_revision() -> None:
    ledger, shard = MemoryLedger(), shard_of("j")
    ledger.commit([Commit(shard=shard, incidents=(incident("a"), incident("b", revision=3)))])
    ledger.commit([Commit(shard=shard, incidents=(incident("a", revision=2),))])
    ledger.commit([Commit(shard=shard, incidents=(incident("b", revision=2),))])
    (saved,) = ledger.load([shard, shard + 1])
    assert {item.id: item.revision for item in saved.incidents} == {"a": 2, "b": 3}


def test_a_commit_without_states_leaves_those_that_are_there() -> None:
    ledger = MemoryLedger()
    ledger.commit([Commit(shard=0, states={"ofu": b"x"}, cursors={"j": T})])
    ledger.commit([Commit(shard=0)])
    (saved,) = ledger.load([0])
    assert (saved.states, saved.cursors) == ({"ofu": b"x"}, {"j": T})


def test_nobody_asks_a_ledger_in_memory_for_anything() -> None:
    assert MemoryLedger().actions(range(4)) == {}


def test_what_is_announced_later_than_a_span_ends_is_not_known_in_it() -> None:
    span = Interval(start_ms=T, end_ms=T + 5_000)
    late = ContextEvent(kind="checkpoint", span=span, told_ms=T + 8_000)
    source = histories({"a": replace(window(20), events=(late,))})
    spans = [Interval(start_ms=T, end_ms=T + end) for end in (8_000, 8_001)]
    (told,) = source.announced(["a"])
    assert [told(each) for each in spans] == [(), (late,)]
