"""Laws of the folds: cuts, order and packing change nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.baselines import (
    Model,
    State,
    advance,
    append,
    empty,
    pack,
    put,
    take,
    unpack,
)
from detector.analysis.candidate import Folded, fold
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.series import Panel
from tests.analysis.notation import START_MS, believed, model

MODELS = [model(name) for name in ("ofu", "gpus_reporting", "mfu_ratio", "valid")]
# More columns than are gone through one by one.
MANY = 12
seeds = st.integers(0, 2**32 - 1)


def confirm(column: int, candidate: Candidate) -> Confirmed | Rejected:
    """Answer by the candidate alone, so that both answers occur and cuts do not matter."""
    if candidate.time_ms // 1000 % 3 == 0 or candidate.before <= 0:
        return Rejected(reason="every third second")
    return believed(candidate)


def anything(seed: int, *, by: Model, rows: int = 90, columns: int = 4) -> Panel:
    """Return a panel with drops, rises, stills, NaN, repeats, steps back and mixed cadence."""
    rng = np.random.default_rng(seed)
    every = rng.choice([1_000, 10_000, 61_000, 3_600_000], columns)
    steps = rng.choice([0, 1, 1, 1, 1, 1, 1, 8, -2], (rows, columns)) * every
    times_ms = START_MS + np.cumsum(steps, axis=0) + every
    scale = 64.0 if by.metric == "gpus" else 1.0
    level = scale * rng.choice([0.0, 0.3, 0.4, 0.5, 1.0], (6, columns))
    values = np.repeat(level, -(-rows // 6), axis=0)[:rows]
    if by.metric == "gpus":
        values = np.round(values)
    else:
        values = values + 0.005 * rng.standard_normal((rows, columns)) * (values > 0)
    values[rng.random((rows, columns)) < 0.05] = np.nan
    stuck = rng.random(columns) < 0.3
    values[rows // 3 : rows * 5 // 6, stuck] = 0.25 * scale
    for column, first in enumerate(rng.integers(rows // 2, rows + 1, columns)):
        times_ms[first:, column] = 0
    return Panel(times_ms=times_ms, values=values)


def lives(seed: int, *, by: Model, rows: int = 400, columns: int = MANY) -> Panel:
    """Return a panel of mostly healthy jobs: long stretches, and all that ends one."""
    rng = np.random.default_rng(seed)
    times_ms = START_MS + np.cumsum(
        rng.choice([10_000, 10_000, 10_000, 10_001, 15_000, 0, 90_000], (rows, columns),
                   p=[0.5, 0.2, 0.1, 0.1, 0.085, 0.01, 0.005]), axis=0,
    )  # fmt: skip
    noise = rng.choice([0.0, 0.002, 0.01, 0.05], columns) * rng.standard_normal((rows, columns))
    values = 0.4 + 0.4 * noise
    for column, changes in enumerate(rng.integers(8, size=columns)):
        for first in rng.integers(rows, size=changes):
            until = first + rng.choice([1, 2, 3, 8, 20, 60, 200])
            values[first:until, column] *= rng.choice(
                [0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 1.04, 1.3, 2.5]
            )
    # Few digits repeat themselves; so does an exporter that froze.
    for few in np.flatnonzero(rng.random(columns) < 0.3):
        values[:, few] = np.round(values[:, few], int(rng.integers(1, 4)))
    for stuck in np.flatnonzero(rng.random(columns) < 0.2):
        frozen = rng.integers(60, rows) + np.arange(60)
        values[frozen[frozen < rows], stuck] = values[frozen[0], stuck]
    if by.metric in ("mfu_ratio", "valid"):
        values *= 2.5
    if by.metric == "gpus":
        values = np.round(20 * values)
    values[rng.random((rows, columns)) < 0.02] = np.nan
    return Panel(times_ms=times_ms, values=values)


def rows_of(panel: Panel, start: int, end: int) -> Panel:
    return Panel(times_ms=panel.times_ms[start:end], values=panel.values[start:end])


def columns_of(panel: Panel, columns: np.typing.NDArray[np.int64]) -> Panel:
    return Panel(times_ms=panel.times_ms[:, columns], values=panel.values[:, columns])


def same(left: State, right: State) -> None:
    for name in left.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def cut(by: Model, panel: Panel, places: list[int]) -> Folded:
    """Fold the panel in pieces and put what came of them together."""
    state = empty(by.baseline, panel.columns)
    parts = []
    for start, end in zip([0, *places], [*places, panel.rows], strict=True):
        parts.append(fold(by, state, rows_of(panel, start, end), confirm))
        state = parts[-1].state
    return Folded(
        state=state,
        outcomes=tuple(item for part in parts for item in part.outcomes),
        recoveries=tuple(item for part in parts for item in part.recoveries),
        shifts=tuple(item for part in parts for item in part.shifts),
    )


def by_column(folded: Folded) -> tuple[object, ...]:
    """Return all that was found, each column's in its order."""
    return (
        sorted(folded.outcomes, key=lambda item: (item[0], item[1].time_ms)),
        sorted(folded.recoveries, key=lambda item: (item.column, item.time_ms)),
        sorted(folded.shifts, key=lambda item: (item.column, item.time_ms)),
    )


@pytest.mark.parametrize("by", MODELS, ids=lambda item: item.name)
@settings(max_examples=25, deadline=None)
@given(seed=seeds, places=st.lists(st.integers(0, 90), max_size=4))
def test_one_pass_equals_any_cut_of_it(by: Model, seed: int, places: list[int]) -> None:
    panel = anything(seed, by=by)
    whole, pieces = cut(by, panel, []), cut(by, panel, sorted(places))
    assert by_column(whole) == by_column(pieces)
    same(whole.state, pieces.state)


@pytest.mark.parametrize("by", MODELS, ids=lambda item: item.name)
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_a_series_alone_comes_to_the_same_as_among_many(by: Model, seed: int) -> None:
    panel = lives(seed, by=by)
    together = fold(by, empty(by.baseline, MANY), panel, confirm)
    for column in range(MANY):
        mine = np.array([column])
        alone = fold(by, empty(by.baseline, 1), columns_of(panel, mine), confirm)
        same(take(together.state, mine), alone.state)
        assert [replace(item, column=column) for _, item, _ in alone.outcomes] == [
            item for at, item, _ in together.outcomes if at == column
        ]
        assert [replace(item, column=column) for item in alone.recoveries] == [
            item for item in together.recoveries if item.column == column
        ]
        assert [replace(item, column=column) for item in alone.shifts] == [
            item for item in together.shifts if item.column == column
        ]


@pytest.mark.parametrize("by", MODELS, ids=lambda item: item.name)
@settings(max_examples=15, deadline=None)
@given(seed=seeds, order=st.permutations(range(4)))
def test_the_order_of_the_columns_is_irrelevant(by: Model, seed: int, order: list[int]) -> None:
    panel, columns = anything(seed, by=by), np.array(order)
    straight = fold(by, empty(by.baseline, 4), panel, confirm)
    turned = fold(by, empty(by.baseline, 4), columns_of(panel, columns), confirm)
    same(take(straight.state, columns), turned.state)
    back = [
        (order[column], replace(item, column=order[column]), out)
        for column, item, out in turned.outcomes
    ]
    back.sort(key=lambda item: (item[1].time_ms, item[0]))
    assert list(straight.outcomes) == back


def test_random_panels_do_raise_and_recover() -> None:
    found = [fold(by, empty(by.baseline, 40), anything(7, by=by, columns=40), confirm)
             for by in MODELS]  # fmt: skip
    assert all(item.outcomes for item in found)
    assert any(item.recoveries for item in found)
    assert found[0].shifts


@pytest.mark.parametrize("by", MODELS, ids=lambda item: item.name)
def test_a_packed_state_goes_on_as_if_it_had_never_been_packed(by: Model) -> None:
    panel = anything(3, by=by, columns=12)
    half = fold(by, empty(by.baseline, 12), rows_of(panel, 0, 45), confirm).state
    again = unpack(by.baseline, pack(half))
    same(half, again)
    rest = rows_of(panel, 45, 90)
    one, other = fold(by, half, rest, confirm), fold(by, again, rest, confirm)
    assert one.outcomes == other.outcomes


def test_a_state_of_another_baseline_or_a_torn_one_is_refused() -> None:
    ofu, gpus = MODELS[0].baseline, MODELS[1].baseline
    with pytest.raises(ValueError, match="start cold"):
        unpack(ofu, pack(empty(gpus, 3)))
    with pytest.raises(ValueError, match="start cold"):
        unpack(ofu, pack(empty(ofu, 3))[:-9])
    with pytest.raises(ValueError, match="no state of a Ceiling"):
        advance(gpus, empty(ofu, 1), anything(1, by=MODELS[0], columns=1))


@pytest.mark.parametrize("by", MODELS, ids=lambda item: item.name)
def test_advancing_leaves_the_given_state_as_it_was(by: Model) -> None:
    panel = anything(5, by=by)
    state = fold(by, empty(by.baseline, 4), rows_of(panel, 0, 50), confirm).state
    before = take(state, np.arange(4))
    advance(by.baseline, state, rows_of(panel, 50, 90))
    same(before, state)


def test_columns_can_be_taken_put_back_and_appended() -> None:
    by = MODELS[0]
    panel = anything(11, by=by, columns=6)
    state = fold(by, empty(by.baseline, 6), panel, confirm).state
    some = np.array([4, 1])
    same(put(state, some, take(state, some)), state)
    left, right = take(state, np.arange(2)), take(state, np.arange(2, 6))
    same(append(left, right), state)


def test_what_a_stopped_column_has_not_read_comes_back_and_only_that() -> None:
    by = MODELS[0]
    panel = anything(7, by=by, columns=40)
    step = advance(by.baseline, empty(by.baseline, 40), panel)
    assert step.candidates
    assert step.rest is not None
    assert set(step.rest_columns) <= {item.column for item in step.candidates}
    stopped = {item.column: item.time_ms for item in step.candidates}
    for place, column in enumerate(step.rest_columns):
        unread = step.rest.times_ms[:, place]
        times_ms = panel.times_ms[:, column]
        stop = int(np.flatnonzero(times_ms == stopped[int(column)])[0])
        expected = times_ms[stop + 1 :][times_ms[stop + 1 :] > 0]
        assert unread[unread > 0].tolist() == expected.tolist()
