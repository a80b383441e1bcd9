"""GPUs held to the others of their job: who is raised, who is not, and the laws of the fold."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.baselines import (
    Model,
    State,
    accept,
    append,
    empty,
    pack,
    put,
    take,
    unpack,
)
from detector.analysis.candidate import Folded, fold
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.analysis.verify import verify
from detector.series import FloatArray, Panel, Window
from tests.analysis.notation import START_MS, model

GPU_OFU = model("gpu_ofu")
STEP_MS = 10_000
seeds = st.integers(0, 2**32 - 1)


def healthy(
    rng: np.random.Generator, *, rows: int, gpus: int, noise: float = 0.02
) -> FloatArray:
    """GPUs that differ by up to a quarter, with a wobble and checkpoints in common.

    They enter and leave each checkpoint within a sample of each other.
    """
    level = 0.4 * rng.uniform(0.875, 1.125, gpus)
    common = 1 + 0.03 * rng.standard_normal((rows, 1))
    x = level * common * (1 + noise * rng.standard_normal((rows, gpus)))
    for start in range(int(rng.integers(40, 90)), rows - 10, 90):
        x[start] *= rng.uniform(0.2, 1.0, gpus)
        x[start + 1 : start + 9] *= 0.1
        x[start + 9] *= rng.uniform(0.2, 1.0, gpus)
    return x


def panel_of(jobs: list[FloatArray]) -> Panel:
    """Return the jobs side by side; shorter ones end early."""
    rows = max(len(x) for x in jobs)
    shape = (rows, len(jobs))
    times, values = np.zeros(shape, np.int64), np.full(shape, np.nan)
    starts, counts = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    at = 0
    for column, x in enumerate(jobs):
        n, width = x.shape
        times[:n, column] = START_MS + STEP_MS * np.arange(1, n + 1)
        values[:n, column] = 0.4
        starts[:n, column] = at + width * np.arange(n)
        counts[:n, column] = width
        at += n * width
    return Panel(
        times_ms=times,
        values=values,
        gpus=np.concatenate([x.ravel() for x in jobs]).astype(np.float32),
        gpu_starts=starts,
        gpu_counts=counts,
    )


def rows_of(panel: Panel, start: int, end: int) -> Panel:
    assert panel.gpu_starts is not None
    assert panel.gpu_counts is not None
    return replace(
        panel,
        times_ms=panel.times_ms[start:end],
        values=panel.values[start:end],
        gpu_starts=panel.gpu_starts[start:end],
        gpu_counts=panel.gpu_counts[start:end],
    )


def window_of(x: FloatArray) -> Window:
    times = START_MS + STEP_MS * np.arange(1, len(x) + 1)
    return Window(times_ms=times, fields={"ofu": np.full(len(x), 0.4)}, gpus=x)


def believed(column: int, candidate: Candidate) -> Confirmed | Rejected:
    """Answer by the candidate alone: mostly yes."""
    del column
    if candidate.time_ms // STEP_MS % 5 == 0:
        return Rejected(reason="every fifth sample")
    return confirmed(candidate)


def confirmed(candidate: Candidate) -> Confirmed:
    from detector.analysis.change import Estimate
    from detector.series import Interval

    level = Estimate(value=candidate.before, low=candidate.before, high=candidate.before)
    span = Interval(start_ms=candidate.onset_ms, end_ms=candidate.time_ms)
    return Confirmed(
        metric="gpu_ofu", cause="peers", direction="down", onset_ms=candidate.onset_ms,
        onset=span, detected_ms=candidate.time_ms, before=level, after=level,
        relative_change=-0.2, confidence=1.0, before_span=span, after_span=span,
        gpus=candidate.gpus,
    )  # fmt: skip


def judged(jobs: list[FloatArray], by: Model = GPU_OFU) -> Folded:
    """Fold and verify, each candidate on its own job's window."""

    def confirm(column: int, candidate: Candidate) -> Confirmed | Rejected:
        return verify(candidate, window_of(jobs[column]), by)

    return fold(by, empty(by.baseline, len(jobs)), panel_of(jobs), confirm)


def found(folded: Folded) -> list[tuple[int, tuple[int, ...], int]]:
    """Column, GPUs and detecting sample of each confirmed change."""
    return [
        (column, out.gpus, (candidate.time_ms - START_MS) // STEP_MS)
        for column, candidate, out in folded.outcomes
        if isinstance(out, Confirmed)
    ]


# -- who is raised -------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [4, 8, 64, 512])
def test_one_gpu_that_falls_by_a_fifth_is_found_within_five_minutes(gpus: int) -> None:
    x = healthy(np.random.default_rng(gpus), rows=300, gpus=gpus)
    x[200:, 2] *= 0.8
    ((_, whose, seen),) = found(judged([x]))
    assert whose == (2,)
    assert seen - 200 <= 30


def test_two_gpus_that_fall_together_are_one_change() -> None:
    x = healthy(np.random.default_rng(1), rows=300, gpus=64)
    x[200:, [7, 40]] *= 0.7
    ((_, whose, _),) = found(judged([x]))
    assert set(whose) == {7, 40}


def test_a_second_gpu_that_falls_meanwhile_is_not_a_second_change() -> None:
    x = healthy(np.random.default_rng(2), rows=400, gpus=16)
    x[200:, 3] *= 0.6
    x[300:, 9] *= 0.6
    assert [whose for _, whose, _ in found(judged([x]))] == [(3,)]


def test_what_fell_before_and_after_is_told_in_ofu_of_that_gpu() -> None:
    x = healthy(np.random.default_rng(3), rows=300, gpus=8, noise=0.005)
    x[200:, 5] *= 0.5
    ((_, candidate, out),) = judged([x]).outcomes
    assert isinstance(out, Confirmed)
    before = float(np.median(x[:200, 5]))
    assert out.before.value == pytest.approx(before, rel=0.03)
    assert out.after.value == pytest.approx(before / 2, rel=0.05)
    assert out.relative_change == pytest.approx(-0.5, abs=0.02)
    assert candidate.before == pytest.approx(before, rel=0.05)
    onset = START_MS + STEP_MS * 200
    assert out.onset.start_ms <= onset <= out.onset.end_ms
    assert abs(out.onset_ms - onset) <= STEP_MS


# -- who is not ----------------------------------------------------------------------------


def test_checkpoints_that_gpus_enter_at_their_own_moments_alarm_nobody() -> None:
    rng = np.random.default_rng(4)
    jobs = [healthy(rng, rows=720, gpus=gpus) for gpus in (4, 8, 8, 64, 200)]
    assert judged(jobs).outcomes == ()


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan])
def test_single_odd_samples_of_a_gpu_alarm_nobody(value: float) -> None:
    x = healthy(np.random.default_rng(5), rows=500, gpus=8)
    x[100:480:19, 1] = value
    x[200:203, 2] = value
    assert judged([x]).outcomes == ()


@pytest.mark.parametrize("who", [slice(None), slice(3, 6)])
def test_a_frozen_exporter_alarms_nobody(who: slice) -> None:
    x = healthy(np.random.default_rng(18), rows=500, gpus=16)
    x[300:390, who] = 0.85 * x[299, who]  # low, and the same bit for bit
    assert judged([x]).outcomes == ()


def test_values_that_are_rounded_to_percents_are_judged() -> None:
    x = np.round(healthy(np.random.default_rng(19), rows=400, gpus=16), 2)
    x[250:, 3] = np.round(0.7 * x[250:, 3], 2)
    assert [whose for _, whose, _ in found(judged([x]))] == [(3,)]


def test_a_fall_of_the_whole_job_is_nobodys() -> None:
    x = healthy(np.random.default_rng(6), rows=700, gpus=16)
    x[200:] *= 0.4
    assert judged([x]).outcomes == ()


def test_a_shift_of_many_gpus_is_nobodys_and_the_next_fall_is_seen() -> None:
    x = healthy(np.random.default_rng(7), rows=600, gpus=16)
    x[200:, :6] *= 0.7
    x[450:, 12] *= 0.7
    assert [whose for _, whose, _ in found(judged([x]))] == [(12,)]


def test_gpus_of_other_levels_that_leave_for_a_while_shift_nobody() -> None:
    x = healthy(np.random.default_rng(8), rows=500, gpus=8)
    x[:, :3] *= 1.5
    x[200:300, :3] = np.nan
    assert judged([x]).outcomes == ()


def test_a_gpu_that_rises_or_idles_from_the_start_alarms_nobody() -> None:
    x = healthy(np.random.default_rng(9), rows=500, gpus=16)
    x[200:, 3] *= 1.6
    x[:, 7] = 0.0
    x[:, 8] *= 0.3
    assert judged([x]).outcomes == ()


def test_fewer_than_four_gpus_are_no_peers() -> None:
    x = healthy(np.random.default_rng(10), rows=400, gpus=3)
    x[200:, 0] *= 0.3
    assert judged([x]).outcomes == ()


def test_a_fall_that_is_smaller_than_an_alarm_is_worth_is_refused() -> None:
    x = healthy(np.random.default_rng(11), rows=500, gpus=8, noise=0.002)
    x[200:, 3] *= 0.955
    assert found(judged([x])) == []


def test_healthy_jobs_are_alarmed_in_less_than_one_of_a_hundred_days() -> None:
    # 40 jobs for six hours with noise of phi 0.7 are ten job-days; one alarm is chance 0.1.
    rng = np.random.default_rng(12)
    rows, gpus = 2160, 16
    jobs = []
    for _ in range(40):
        noise = np.zeros((rows, gpus))
        shock = 0.03 * np.sqrt(1 - 0.7**2) * rng.standard_normal((rows, gpus))
        for row in range(1, rows):
            noise[row] = 0.7 * noise[row - 1] + shock[row]
        jobs.append(healthy(rng, rows=rows, gpus=gpus, noise=0.0) * (1 + noise))
    assert found(judged(jobs)) == []


# -- how it ends ---------------------------------------------------------------------------


def test_a_gpu_that_is_back_is_told_and_may_fall_again() -> None:
    x = healthy(np.random.default_rng(13), rows=900, gpus=16)
    x[200:300, 3] *= 0.7
    x[500:, 3] *= 0.7
    folded = judged([x])
    assert [whose for _, whose, _ in found(folded)] == [(3,), (3,)]
    (over,) = folded.recoveries
    assert 0 <= (over.since_ms - START_MS) // STEP_MS - 300 <= 2
    assert (over.time_ms - START_MS) // STEP_MS <= 330


def test_a_gpu_that_falls_briefly_again_and_again_alarms_once() -> None:
    x = healthy(np.random.default_rng(14), rows=2000, gpus=16)
    for start in range(200, 1900, 150):  # validation on one rank: 3 min every 25
        x[start : start + 18, 0] *= 0.5
    assert [whose for _, whose, _ in found(judged([x]))] == [(0,)]


def test_a_gpu_that_no_longer_reports_is_no_longer_slow() -> None:
    x = healthy(np.random.default_rng(15), rows=500, gpus=16)
    x[200:, 3] *= 0.5
    x[300:, 3] = np.nan
    (over,) = judged([x]).recoveries
    assert (over.since_ms - START_MS) // STEP_MS == 300


def test_a_roster_of_another_size_starts_anew_and_ends_what_was() -> None:
    rng = np.random.default_rng(16)
    old, new = healthy(rng, rows=300, gpus=16), healthy(rng, rows=300, gpus=8)
    old[200:, 3] *= 0.5
    new[:, 3] *= 0.5  # slow from its first sample: nothing to compare it with
    first, second = panel_of([old]), panel_of([new])
    second = replace(second, times_ms=second.times_ms + 300 * STEP_MS)
    state = empty(GPU_OFU.baseline, 1)
    one = fold(GPU_OFU, state, first, lambda _, candidate: confirmed(candidate))
    two = fold(GPU_OFU, one.state, second, lambda _, candidate: confirmed(candidate))
    assert len(one.outcomes) == 1
    assert two.outcomes == ()
    assert [over.time_ms for over in two.recoveries] == [int(second.times_ms[0, 0])]


def test_what_people_accept_is_the_new_usual() -> None:
    x = healthy(np.random.default_rng(17), rows=600, gpus=16)
    x[200:, 3] *= 0.6
    panel = panel_of([x])
    state = empty(GPU_OFU.baseline, 1)
    one = fold(GPU_OFU, state, rows_of(panel, 0, 300), lambda _, c: confirmed(c))
    taught = accept(GPU_OFU.baseline, one.state, np.array([0]))
    two = fold(GPU_OFU, taught, rows_of(panel, 300, 600), lambda _, c: confirmed(c))
    assert len(one.outcomes) == 1
    assert two.outcomes == ()
    assert two.recoveries == ()


# -- laws ----------------------------------------------------------------------------------


def anything(rng: np.random.Generator) -> list[FloatArray]:
    """Jobs of many sizes with falls, shifts, silence and rosters that appear late."""
    jobs = []
    for gpus in rng.choice([2, 4, 5, 8, 33], 4):
        rows = int(rng.integers(60, 220))
        x = healthy(rng, rows=rows, gpus=int(gpus), noise=float(rng.choice([0.0, 0.01, 0.05])))
        for _ in range(3):
            start, length = int(rng.integers(rows)), int(rng.integers(1, 80))
            who = rng.random(gpus) < rng.choice([0.1, 0.3, 1.0])
            x[start : start + length, who] *= rng.choice([0.0, 0.5, 0.9, 1.5, np.nan])
        jobs.append(np.clip(x, 0, 1))
    return jobs


def quick(**changes: Any) -> Model:
    """A model that needs little, so that short series show everything."""
    import msgspec

    settings = {"first_samples": 20, "first_span": 100_000, "evidence": 5.0, **changes}
    return msgspec.structs.replace(
        GPU_OFU, baseline=msgspec.structs.replace(GPU_OFU.baseline, **settings)
    )


QUICK = quick()


@settings(max_examples=25, deadline=None)
@given(seed=seeds, cuts=st.lists(st.integers(0, 220), max_size=4))
def test_cuts_change_nothing(seed: int, cuts: list[int]) -> None:
    panel = panel_of(anything(np.random.default_rng(seed)))
    whole = fold(QUICK, empty(QUICK.baseline, 4), panel, believed)
    state, told = empty(QUICK.baseline, 4), []
    edges = [0, *sorted(cut for cut in cuts if cut < panel.rows), panel.rows]
    for start, end in pairwise(edges):
        part = fold(QUICK, state, rows_of(panel, start, end), believed)
        state = part.state
        told += [*part.outcomes, *part.recoveries]
    assert pack(state) == pack(whole.state)
    assert set(map(repr, told)) == set(map(repr, [*whole.outcomes, *whole.recoveries]))


@settings(max_examples=25, deadline=None)
@given(seed=seeds, order=st.permutations(range(4)))
def test_a_job_is_judged_alike_whoever_stands_beside_it(seed: int, order: list[int]) -> None:
    jobs = anything(np.random.default_rng(seed))
    whole = fold(QUICK, empty(QUICK.baseline, 4), panel_of(jobs), believed)
    other = fold(QUICK, empty(QUICK.baseline, 4), panel_of([jobs[k] for k in order]), believed)
    places = np.argsort(order)
    assert pack(take(other.state, places)) == pack(whole.state)
    told = [replace(c, column=order[k]) for k, c, _ in other.outcomes]
    assert set(told) == {c for _, c, _ in whole.outcomes}


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_states_are_cut_joined_and_packed_without_loss(seed: int) -> None:
    jobs = anything(np.random.default_rng(seed))
    state: State = fold(QUICK, empty(QUICK.baseline, 4), panel_of(jobs), believed).state
    some, rest = np.array([2, 0]), np.array([1, 3])
    again = append(take(state, some), take(state, rest))
    assert pack(take(again, np.array([1, 2, 0, 3]))) == pack(state)
    assert pack(unpack(QUICK.baseline, pack(state))) == pack(state)
    blank = put(state, some, take(empty(QUICK.baseline, 2), np.array([0, 1])))
    assert pack(put(blank, some, take(state, some))) == pack(state)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, order=st.permutations(range(8)))
def test_the_order_of_gpus_names_others_and_changes_nothing(
    seed: int, order: list[int]
) -> None:
    x = healthy(np.random.default_rng(seed), rows=260, gpus=8)
    x[150:, 5] *= 0.7
    ((_, whose, seen),) = found(judged([x]))
    ((_, others, when),) = found(judged([x[:, order]]))
    assert [order[k] for k in others] == list(whose)
    assert when == seen


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="start cold"):
        unpack(GPU_OFU.baseline, b"junk")
