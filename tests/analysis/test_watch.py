"""A watch: who has a column, that cuts do not matter, that a poison job costs no other."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.baselines import Level, Model
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.analysis.watch import (
    Observed,
    Watch,
    accepted,
    observe,
    packed,
    restored,
    start,
    without,
)
from detector.series import Batch, FloatArray

T = 1_790_000_000_000
STEP = 10_000
OFU = Model(name="ofu", metric="ofu", family="performance", baseline=Level())
MFU = Model(name="mfu", metric="mfu", family="performance", baseline=Level())
VALID = Model(name="valid", metric="valid", family="telemetry", baseline=Level())


def refuse(job: str, candidate: Candidate) -> Confirmed | Rejected:
    """Refuse whatever is raised."""
    del job, candidate
    return Rejected(reason="for the test")


def batch(values: Mapping[str, FloatArray], *, first: int = 0) -> Batch:
    """Return one entry a step and job, from step ``first`` on."""
    lengths = [len(column) for column in values.values()]
    return Batch(
        jobs=tuple(values),
        job=np.repeat(np.arange(len(lengths)), lengths),
        times_ms=np.concatenate([T + STEP * (first + np.arange(n)) for n in lengths]),
        fields={"ofu": np.concatenate(list(values.values()))},
    )


def seen(
    watch: Watch,
    values: Mapping[str, FloatArray],
    *,
    first: int = 0,
    confirm: Callable[[str, Candidate], Confirmed | Rejected] = refuse,
) -> Observed:
    entries = batch(values, first=first)
    return observe(watch, entries, entries.fields["ofu"], confirm=confirm)


def fleet(count: int, *, samples: int = 400, fall: float = 0.6) -> dict[str, FloatArray]:
    """Return jobs that all fall after 240 samples, each with noise of its own."""
    rng = np.random.default_rng(5)
    shape = np.where(np.arange(samples) < 240, 0.4, 0.4 * fall)
    return {f"j{k}": shape + 0.004 * rng.standard_normal(samples) for k in range(count)}


def raised(observed: Observed) -> dict[str, list[tuple[int, str]]]:
    """Job -> what was raised and what came of it."""
    told: dict[str, list[tuple[int, str]]] = {}
    for job, candidate, outcome in observed.outcomes:
        told.setdefault(job, []).append((candidate.time_ms, type(outcome).__name__))
    return told


@pytest.mark.parametrize("poison", ["j0", "j3", "j6"])
def test_a_job_that_breaks_verification_costs_no_other_job_anything(poison: str) -> None:
    def confirm(job: str, candidate: Candidate) -> Confirmed | Rejected:
        if job == poison:
            msg = "an entry that nobody thought of"
            raise KeyError(msg)
        return refuse(job, candidate)

    values = fleet(7)
    before = seen(start(OFU), {job: column[:200] for job, column in values.items()}).watch
    rest = {job: column[200:] for job, column in values.items()}
    whole = seen(before, rest, first=200)
    broken = seen(before, rest, first=200, confirm=confirm)
    assert broken.poisoned == {poison: "KeyError: 'an entry that nobody thought of'"}
    expected = raised(whole)
    assert expected.pop(poison)
    assert raised(broken) == expected
    others = [job for job in values if job != poison]
    assert packed(broken.watch, others) == packed(whole.watch, others)
    # Nothing false was learnt of the poison job itself.
    assert packed(broken.watch, [poison]) == packed(before, [poison])


def test_many_poison_jobs_at_once_are_all_named_and_the_rest_is_judged() -> None:
    poison = {"j1", "j2", "j5"}

    def confirm(job: str, candidate: Candidate) -> Confirmed | Rejected:
        if job in poison:
            msg = job
            raise ValueError(msg)
        return refuse(job, candidate)

    observed = seen(start(OFU), fleet(6), confirm=confirm)
    assert observed.poisoned == {job: f"ValueError: {job}" for job in poison}
    assert raised(observed).keys() == {f"j{k}" for k in range(6)} - poison


def test_a_store_that_cannot_be_reached_stops_the_pass_and_poisons_nobody() -> None:
    def confirm(job: str, candidate: Candidate) -> Confirmed | Rejected:
        raise ConnectionError(job, candidate)

    with pytest.raises(ConnectionError):
        seen(start(OFU), fleet(3), confirm=confirm)


@settings(deadline=None, max_examples=10)
@given(cuts=st.lists(st.integers(1, 399), max_size=6, unique=True))
def test_samples_in_any_cuts_are_the_samples_at_once(cuts: list[int]) -> None:
    values = fleet(2)
    whole = seen(start(OFU), values)
    watch = start(OFU)
    outcomes: list[tuple[str, Candidate, Confirmed | Rejected]] = []
    edges = [0, *sorted(cuts), 400]
    for first, end in pairwise(edges):
        part = seen(watch, {job: v[first:end] for job, v in values.items()}, first=first)
        watch, outcomes = part.watch, [*outcomes, *part.outcomes]
    assert packed(watch, values) == packed(whole.watch, values)
    assert [(job, c.time_ms) for job, c, _ in sorted(outcomes, key=_key)] == [
        (job, c.time_ms) for job, c, _ in sorted(whole.outcomes, key=_key)
    ]


def _key(outcome: tuple[str, Candidate, Confirmed | Rejected]) -> tuple[str, int]:
    return outcome[0], outcome[1].time_ms


def test_a_job_does_not_depend_on_who_reports_beside_it() -> None:
    values = fleet(5)
    together = seen(start(OFU), values)
    for job, column in values.items():
        alone = seen(start(OFU), {job: column})
        assert packed(alone.watch, [job]) == packed(together.watch, [job])
        assert raised(alone).get(job) == raised(together).get(job)


def test_a_job_enters_with_its_first_finite_value_and_then_every_entry_counts() -> None:
    nothing = np.full(5, np.nan)
    watch = seen(start(OFU), {"blind": nothing, "sees": np.array([np.nan, 0.4])}).watch
    assert watch.jobs == ("sees",)
    after = seen(watch, {"sees": nothing}, first=2).watch
    assert after.jobs == ("sees",)
    # Its time has moved on: the same entries again are no samples.
    assert packed(seen(after, {"sees": np.full(5, 0.4)}, first=2).watch, ["sees"]) == packed(
        after, ["sees"]
    )


def test_entries_without_a_slower_metric_are_no_samples_of_it() -> None:
    slow = np.where(np.arange(60) % 6 == 0, 0.5, np.nan)
    told = seen(start(MFU), {"j": slow}).watch
    times = T + STEP * np.flatnonzero(np.isfinite(slow))
    thin = Batch(jobs=("j",), job=np.zeros(10, np.int64), times_ms=times, fields={"ofu": slow})
    alone = observe(start(MFU), thin, np.full(10, 0.5), confirm=refuse).watch
    assert packed(told, ["j"]) == packed(alone, ["j"])


def test_the_share_of_usable_samples_is_watched_from_the_first_unusable_one_on() -> None:
    fine = seen(start(VALID), {"j": np.ones(5), "k": np.array([1.0, 0.0])}).watch
    assert fine.jobs == ("k",)


def test_nothing_new_changes_nothing() -> None:
    watch = seen(start(OFU), fleet(2, samples=20)).watch
    assert observe(watch, batch({"j0": np.zeros(0)}), None, confirm=refuse).watch is watch
    assert seen(watch, {"new": np.zeros(0)}).watch is watch


def test_a_packed_watch_comes_back_bit_for_bit_and_only_with_the_jobs_asked_for() -> None:
    watch = seen(start(OFU), fleet(4)).watch
    back = restored(start(OFU), packed(watch, ["j3", "j1", "unknown"]))
    assert back.jobs == ("j3", "j1")
    assert packed(back, ["j1", "j3"]) == packed(watch, ["j1", "j3"])
    more = restored(back, packed(watch, ["j0"]))
    assert more.jobs == ("j3", "j1", "j0")
    assert packed(more, ["j0", "j1", "j3"]) == packed(watch, ["j0", "j1", "j3"])


def test_a_watch_that_cannot_be_unpacked_says_start_cold() -> None:
    other = start(Model(name="gpus", metric="gpus", family="capacity", baseline=OFU.baseline))
    assert restored(other, packed(seen(start(OFU), fleet(1)).watch, ["j0"])).jobs == ("j0",)
    for blob in (b"", b"junk", packed(seen(start(OFU), fleet(1)).watch, ["j0"])[:-9]):
        with pytest.raises(ValueError):  # noqa: PT011 -- msgspec's own words, or ours
            restored(start(OFU), blob)


def test_jobs_leave_a_watch_and_the_others_keep_their_state() -> None:
    watch = seen(start(OFU), fleet(3)).watch
    left = without(watch, {"j1", "unknown"})
    assert left.jobs == ("j0", "j2")
    assert packed(left, ["j0", "j2"]) == packed(watch, ["j0", "j2"])
    assert without(watch, {"unknown"}) is watch
    assert without(watch, {"j0", "j1", "j2"}).jobs == ()


def test_a_level_that_people_accept_is_not_raised_again() -> None:
    values = fleet(2, samples=900)
    fell = seen(start(OFU), {job: column[:400] for job, column in values.items()}).watch
    rest = {job: column[400:] for job, column in values.items()}
    after = seen(accepted(fell, ["j0", "unknown"]), rest, first=400)
    assert "j0" not in raised(after)
    assert accepted(fell, ["unknown"]) is fell
