"""The walk over a panel's rows that all baselines share.

Each row hands every column its next sample. A column that raises a candidate stops there, and
what it has not read yet comes back, so that no result depends on where the samples were cut.
"""

from collections.abc import Callable, Sequence
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
# Measured: at 8 columns both ways take as long; a column is cut out in the time of a sample.
_FEW, _LONG = 8, 4
# Rows that are laid out anew at a time: enough to make up for a cut, few enough to cost no
# memory to speak of.
_SLAB = 32
# At what distance a column that has ended goes on until its state is put back; any will do.
_GOES_ON_MS = 1_000


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

    def keep(self, live: BoolArray, *, since: tuple[int, int, int]) -> None:
        """Drop what was found since then in columns of the panel that are not live."""
        for name, first in zip(("candidates", "recoveries", "shifts"), since, strict=True):
            found = getattr(self, name)
            if len(found) > first:
                found[first:] = [item for item in found[first:] if live[item.column]]


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


Answer = Callable[[S, Sequence[Candidate], IntArray], None]
"""Verifies candidates and settles, in place, the columns of the state that raised them."""


def walk(
    state: S, panel: Panel, step: Step[S], stretch: Stretch[S], answer: Answer[S] | None = None
) -> tuple[S, Found, Panel | None, IntArray]:
    """Return the state after the panel's rows, what was found, and the unread rest.

    Where many columns go side by side and candidates are answered at once, none stops: to walk
    the rest of those that did takes as long as to walk all.
    """
    if panel.columns <= _FEW and panel.rows >= _LONG:
        return _walk_along(copied(state), panel, step, stretch)
    return _walk_across(copied(state), panel, step, answer)


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
    state: S, panel: Panel, step: Step[S], answer: Answer[S] | None
) -> tuple[S, Found, Panel | None, IntArray]:
    """Go through the panel row by row, all columns at once."""
    found = Found(columns=np.arange(0))
    running = np.ones(panel.columns, bool)
    stopped_at = np.full(panel.columns, panel.rows)
    for first in range(0, panel.rows, _SLAB):
        slab = _usable(panel, slice(first, first + _SLAB), state.last_ms)
        state.last_ms[:] = np.where(running, slab.latest_ms, state.last_ms)
        row = 0
        while len(use := places(running & (slab.counts > row))):
            before = len(found.candidates)
            found.columns = use
            stops, row = _across(state, slab, row, step, found, answer=answer)
            for candidate, at in zip(found.candidates[before:], stops, strict=True):
                column = candidate.column
                running[column] = False
                stopped_at[column] = first + slab.rows[at, column] + 1
                state.last_ms[column] = slab.times_ms[at, column]
    rest, columns = unread(panel, stopped_at, running)
    return state, found, rest, columns


def _across(
    state: S,
    slab: "_Slab",
    row: int,
    step: Step[S],
    found: Found,
    *,
    answer: Answer[S] | None,
) -> tuple[list[int], int]:
    """Fold rows of a slab into the columns of ``found`` while at least half of them go on.

    Returns the row of each candidate, and the first row not folded. To cut a state costs more
    than a step over it. So a column that stops or ends is kept going for a while: what it was
    is put aside, and what is found in it from then on is dropped.
    """
    use = found.columns
    working = state if len(use) == len(state) else taken(state, use)
    times_ms, values, counts = slab.times_ms[:, use], slab.values[:, use], slab.counts[use]
    live = np.zeros(len(state), bool)
    live[use] = True
    aside: list[tuple[IntArray, S]] = []
    stops: list[int] = []
    while 2 * np.count_nonzero(live) > len(use):
        before = len(found.candidates), len(found.recoveries), len(found.shifts)
        step(working, times_ms[row], values[row], found)
        found.keep(live, since=before)
        raised = found.candidates[before[0] :]
        stopping = np.array([candidate.column for candidate in raised], np.int64)
        if raised and answer is not None:
            answer(working, raised, np.searchsorted(use, stopping))
            del found.candidates[before[0] :]
            stopping = stopping[:0]
        stops += [row] * len(stopping)
        row += 1
        over = live[use] & ((counts == row) | np.isin(use, stopping))
        if anywhere(over):
            at = places(over)
            aside.append((at, taken(working, at)))
            live[use[at]] = False
    for at, part in aside:
        written(working, at, part)
    if working is not state:
        last_ms = state.last_ms.copy()
        written(state, use, working)
        state.last_ms[:] = last_ms
    return stops, row


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slab:
    """Rows of a panel, each column's usable samples moved to the top in their order.

    Attributes
    ----------
    times_ms, values
        Below its last sample a column goes on as it was, for :func:`_across`.
        Shape ``(rows, columns)``.
    rows
        Which row each sample was in. Shape ``(rows, columns)``.
    counts, latest_ms
        Usable samples of each column, and the latest time that it reports.
    """

    times_ms: IntArray
    values: FloatArray
    rows: IntArray
    counts: IntArray
    latest_ms: IntArray


def _usable(panel: Panel, rows: slice, last_ms: IntArray) -> _Slab:
    """Return the samples in these rows that are finite and later than all before them."""
    times_ms, values = panel.times_ms[rows], panel.values[rows]
    latest_ms = np.maximum.accumulate(np.concatenate([last_ms[None], times_ms]), axis=0)
    use = (times_ms > latest_ms[:-1]) & np.isfinite(values)
    counts, place = use.sum(axis=0), np.cumsum(use, axis=0) - 1
    row, column = use.nonzero()
    at = (place[row, column], column)
    moved_ms, moved = np.zeros(use.shape, np.int64), np.zeros(use.shape)
    origin = np.zeros(use.shape, np.int64)
    moved_ms[at], moved[at], origin[at] = times_ms[use], values[use], row
    for k in range(1, len(use)):
        more = counts > k
        moved_ms[k] = np.where(more, moved_ms[k], moved_ms[k - 1] + _GOES_ON_MS)
        moved[k] = np.where(more, moved[k], moved[k - 1])
    return _Slab(
        times_ms=moved_ms, values=moved, rows=origin, counts=counts, latest_ms=latest_ms[-1]
    )


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
