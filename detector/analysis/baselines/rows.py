"""The walk over a panel's rows that all baselines share.

Each row hands every column its next sample. A column that raises a candidate stops there, and
what it has not read yet comes back, so that no result depends on where the samples were cut.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from detector.analysis.baselines.columns import Columns, copied, taken, written
from detector.analysis.change import Candidate, Recovery, Shift
from detector.series import FloatArray, IntArray, Panel

BoolArray = npt.NDArray[np.bool_]
S = TypeVar("S", bound=Columns)

# Up to so many columns are gone through one by one, where they have so many samples each.
# Measured: at 24 columns both ways take as long; a column is cut out in the time of a sample.
_FEW, _LONG = 24, 4


def anywhere(claim: BoolArray) -> bool:
    """Whether the claim holds in any column; ``any`` takes four times as long for few."""
    return bool(np.count_nonzero(claim))


def places(claim: BoolArray) -> IntArray:
    """Return the columns in which the claim holds; ``flatnonzero`` takes longer for few."""
    return np.asarray(claim.nonzero()[0])


@dataclass(slots=True, kw_only=True)
class Found:
    """What a walk has come upon so far.

    Attributes
    ----------
    columns
        Which column of the panel each column of the step's state is. Shape ``(n,)``.
    """

    columns: IntArray
    candidates: list[Candidate] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    shifts: list[Shift] = field(default_factory=list)


Step = Callable[[S, IntArray, FloatArray, Found], None]
"""Folds one finite sample into each column of the state, in place."""


@dataclass(slots=True, kw_only=True)
class Ahead:
    """The usable samples of a single column, and which of them is the next to fold."""

    times_ms: list[int]
    values: list[float]
    next: int = 0

    def __bool__(self) -> bool:
        return self.next < len(self.values)


Stretch = Callable[[S, Ahead, Found], None]
"""Folds uneventful samples into a state of one column, in place, and moves ``next`` on.

It stops at the first sample that it leaves to the step. What it folds, it folds exactly as the
step would.
"""


def walk(
    state: S, panel: Panel, step: Step[S], stretch: Stretch[S]
) -> tuple[S, Found, Panel | None, IntArray]:
    """Return the state after the panel's rows, what was found, and the unread rest."""
    if panel.columns <= _FEW and panel.rows >= _LONG:
        return _walk_along(copied(state), panel, step, stretch)
    return _walk_across(copied(state), panel, step)


def _walk_along(
    state: S, panel: Panel, step: Step[S], stretch: Stretch[S]
) -> tuple[S, Found, Panel | None, IntArray]:
    """Go through the panel column by column, passing over what is uneventful."""
    found = Found(columns=np.arange(panel.columns))
    running = np.ones(panel.columns, bool)
    stopped_at = np.full(panel.columns, panel.rows)
    for column in range(panel.columns):
        mine = np.array([column])
        part, here = (
            (state, panel) if panel.columns == 1 else (taken(state, mine), panel.cut(mine))
        )
        more, stopped = _along(part, here, step, stretch, column)
        if stopped is not None:
            running[column], stopped_at[column] = False, stopped
        if part is not state:
            written(state, mine, part)
        found.candidates += more.candidates
        found.recoveries += more.recoveries
        found.shifts += more.shifts
    rest, columns = unread(panel, stopped_at, running)
    return state, found, rest, columns


def _along(
    state: S, panel: Panel, step: Step[S], stretch: Stretch[S], column: int
) -> tuple[Found, int | None]:
    """Fold a single column; return what was found and, if it stopped, the row after that."""
    found = Found(columns=np.array([column]))
    times_ms, values = panel.times_ms[:, 0], panel.values[:, 0]
    latest_ms = np.maximum.accumulate(np.concatenate([state.last_ms, times_ms]))
    use = np.flatnonzero((times_ms > latest_ms[:-1]) & np.isfinite(values))
    times_ms, values = times_ms[use], values[use]
    ahead = Ahead(times_ms=times_ms.tolist(), values=values.tolist())
    while ahead:
        stretch(state, ahead, found)
        if ahead and not found.candidates:
            row = slice(ahead.next, ahead.next + 1)
            step(state, times_ms[row], values[row], found)
            ahead.next += 1
        if found.candidates:
            state.last_ms[0] = times_ms[ahead.next - 1]
            return found, int(use[ahead.next - 1]) + 1
    state.last_ms[0] = latest_ms[-1]
    return found, None


def _walk_across(
    state: S, panel: Panel, step: Step[S]
) -> tuple[S, Found, Panel | None, IntArray]:
    """Go through the panel row by row, all columns at once."""
    found = Found(columns=np.arange(0))
    running = np.ones(panel.columns, bool)
    stopped_at = np.full(panel.columns, panel.rows)
    working: S | None = None
    for row in range(panel.rows):
        times_ms, values = panel.times_ms[row], panel.values[row]
        fresh = running & (times_ms > state.last_ms)
        state.last_ms[fresh] = times_ms[fresh]
        use = np.flatnonzero(fresh & np.isfinite(values))
        if not len(use):
            continue
        # Cutting a state costs more than a step over it, so the cut is kept while it fits.
        if working is None or not np.array_equal(use, found.columns):
            if working is not None:
                _flush(state, found.columns, working)
            found.columns = use
            working = state if len(use) == panel.columns else taken(state, use)
        before = len(found.candidates)
        step(working, times_ms[use], values[use], found)
        for candidate in found.candidates[before:]:
            running[candidate.column] = False
            stopped_at[candidate.column] = row + 1
    if working is not None:
        _flush(state, found.columns, working)
    rest, columns = unread(panel, stopped_at, running)
    return state, found, rest, columns


def _flush(state: S, columns: IntArray, working: S) -> None:
    if working is state:
        return
    last_ms = state.last_ms.copy()
    written(state, columns, working)
    state.last_ms[:] = last_ms


def unread(
    panel: Panel, stopped_at: IntArray, running: BoolArray
) -> tuple[Panel | None, IntArray]:
    """Return the stopped columns' unread rows, packed to the top, and whose they are."""
    left = panel.times_ms > 0
    left &= np.arange(panel.rows)[:, None] >= stopped_at[None, :]
    columns = np.flatnonzero(~running & left.any(axis=0))
    if not len(columns):
        return None, columns
    left, panel = left[:, columns], panel.cut(columns)
    rows = int(left.sum(axis=0).max())
    # Stable sort by "already read" moves the unread rows up in their order.
    order = np.argsort(~left, axis=0, kind="stable")[:rows]

    def moved(cells: IntArray | None) -> IntArray | None:
        return None if cells is None else np.take_along_axis(cells, order, axis=0)

    rest = replace(
        panel,
        times_ms=np.take_along_axis(np.where(left, panel.times_ms, 0), order, axis=0),
        values=np.take_along_axis(panel.values, order, axis=0),
        gpu_starts=moved(panel.gpu_starts),
        gpu_counts=moved(panel.gpu_counts),
    )
    return rest, columns
