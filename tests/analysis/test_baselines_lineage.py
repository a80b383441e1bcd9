"""What a series leaves to the next run, and how that run begins with it: laws of the fold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.baselines import Heir, Level, Model, State, Taught, inherit, pack, taught
from detector.analysis.baselines.level import LevelState, blank
from detector.analysis.candidate import fold
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.series import FloatArray, Panel

T = 1_790_000_000_000
STEP = 10_000
OFU = Model(name="ofu", metric="ofu", family="performance", baseline=Level())


def panel(values: FloatArray, *, first: int = 0) -> Panel:
    times_ms = T + STEP * (1 + first + np.arange(len(values), dtype=np.int64))
    return Panel(times_ms=times_ms[:, None], values=values[:, None])


def folded(state: State, values: FloatArray, *, first: int = 0) -> State:
    """Return the state after the values; whatever stands out in them is refused."""
    return fold(OFU, state, panel(values, first=first), refuse).state


def refuse(column: int, candidate: Candidate) -> Confirmed | Rejected:
    """Refuse whatever is raised."""
    del column, candidate
    return Rejected(reason="for the test")


def noisy(count: int, *, level: float = 0.4, seed: int = 1) -> FloatArray:
    return level * (1 + 0.01 * np.random.default_rng(seed).standard_normal(count))


@pytest.fixture(scope="module")
def before() -> Taught:
    """Three hours of a run that evaluates for five minutes each half hour."""
    values = noisy(1080)
    for start in range(180, 1080, 180):
        values[start : start + 30] *= 0.6
    found = taught(folded(blank(1), values), 0)
    assert found is not None
    return found


def test_a_run_leaves_its_level_its_noise_its_habits_and_its_age(before: Taught) -> None:
    assert before.level == pytest.approx(0.4, rel=0.005)
    assert before.scale == pytest.approx(0.004, rel=0.3)
    ((relative, lasted_ms),) = before.habits
    assert relative == pytest.approx(0.6, abs=0.02)
    assert lasted_ms == pytest.approx(300_000, abs=2 * STEP)
    assert (before.age_ms, before.ended_ms) == (1079 * STEP, T + 1080 * STEP)
    assert before.own


@pytest.mark.parametrize(
    "values", [noisy(9), np.zeros(500), np.full(500, np.nan)], ids=["few", "zero", "none"]
)
def test_what_never_had_a_settled_level_leaves_nothing(values: FloatArray) -> None:
    assert taught(folded(blank(1), values), 0) is None


def test_a_level_begun_in_a_fall_ends_where_the_fall_began(before: Taught) -> None:
    values = np.concatenate([noisy(400), noisy(12, level=0.2)])
    found = taught(folded(blank(1), values), 0)
    assert found is not None
    assert found.level == pytest.approx(0.4, rel=0.01)
    assert found.until_ms == T + 400 * STEP
    assert found.ended_ms == T + 412 * STEP


@settings(max_examples=25, deadline=None)
@given(
    cut=st.integers(1, 179),
    level=st.sampled_from([0.4, 0.39, 0.37, 0.3, 0.45]),
    ramp=st.sampled_from([0, 30, 60]),
    taken=st.booleans(),
)
def test_a_run_that_was_taught_is_a_fold_as_any_other(
    before: Taught, cut: int, level: float, ramp: int, taken: bool
) -> None:
    values = noisy(180, level=level, seed=2)
    values[:ramp] *= np.linspace(0.2, 1, ramp)
    start = inherit([Heir(before=before, level=taken, began_ms=T)])
    whole = folded(start, values)
    first = folded(start, values[:cut])
    assert pack(folded(first, values[cut:], first=cut)) == pack(whole)


def state_after(before: Taught, values: FloatArray) -> LevelState:
    state = folded(inherit([Heir(before=before, level=True, began_ms=T)]), values)
    assert isinstance(state, LevelState)
    return state


def test_a_run_stands_on_its_own_level_once_that_agrees(before: Taught) -> None:
    young = state_after(before, noisy(12, level=0.396, seed=3))
    assert (young.heir_ms[0], young.level[0]) == (T + STEP, before.level)
    own = state_after(before, noisy(60, level=0.396, seed=3))
    assert own.heir_ms[0] == 0
    assert own.level[0] == pytest.approx(0.396, rel=0.005)


def test_a_level_a_little_lower_becomes_its_own_when_a_warm_up_would_be_over(
    before: Taught,
) -> None:
    assert state_after(before, noisy(100, level=0.385, seed=4)).heir_ms[0] > 0
    own = state_after(before, noisy(140, level=0.385, seed=4))
    assert own.heir_ms[0] == 0
    assert own.level[0] == pytest.approx(0.385, rel=0.005)


def test_what_it_passes_on_before_that_is_the_earlier_level_and_says_so(before: Taught) -> None:
    found = taught(state_after(before, noisy(30, level=0.3, seed=5)), 0)
    assert found is not None
    assert (found.level, found.own) == (before.level, False)
    assert found.age_ms == before.age_ms + 29 * STEP


def test_without_the_level_only_habits_and_age_are_taken_over(before: Taught) -> None:
    state = inherit([Heir(before=before, level=False, began_ms=T)])
    assert isinstance(state, LevelState)
    assert np.isnan(state.level[0])
    assert (state.heir_ms[0], state.credit_ms[0]) == (0, before.age_ms)
    after = folded(state, noisy(60, level=0.2, seed=6))
    assert isinstance(after, LevelState)
    assert after.level[0] == pytest.approx(0.2, rel=0.01)
    assert after.habit_ms[0].max() == before.habits[0][1]
