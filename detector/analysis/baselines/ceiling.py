"""The ceiling baseline: as many as there ever were, for counts such as GPUs that report."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from detector.analysis.baselines.columns import Columns
from detector.analysis.baselines.rows import Ahead, Found, anywhere
from detector.analysis.change import Candidate, Confirmed, Recovery, Rejected
from detector.series import Duration, FloatArray, IntArray

VERSION = 2

FULL, RAISED, CONFIRMED, REFUSED = 0, 1, 2, 3
"""What is known of a column's shortage."""

# A refused shortage that goes on is asked about again. Chosen: what is announced without an end
# explains no longer than that.
_AGAIN_MS = 1_200_000


class Ceiling(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="ceiling",
):
    """Settings of the ceiling baseline.

    Attributes
    ----------
    hold_for, hold_samples
        How long fewer than the most must report. Chosen: longer than a scrape that one slow
        exporter missed twice. Written ``for`` in models/.
    rise_samples
        A new most counts after so many samples in a row: one entry may count a host twice.
    return_samples
        Samples in a row at the ceiling that end a shortage.
    """

    hold_for: Duration = msgspec.field(default=Duration(120_000), name="for")
    hold_samples: int = 3
    rise_samples: int = 2
    return_samples: int = 2


@dataclass(slots=True, kw_only=True)
class CeilingState(Columns):
    """What the ceiling remembers; all of shape ``(columns,)``.

    Attributes
    ----------
    most
        The ceiling, NaN before there is one.
    short_ms, short_count, short_most
        Since when fewer report, for how many samples, and the most that did meanwhile.
    above_count, above_least
        Samples in a row above the ceiling, and the least of them.
    back_ms, back_count
        Since when, and for how many samples, the ceiling has been reached again.
    seen_ms
        Time of the latest sample.
    state
        0 full, 1 raised, 2 confirmed short, 3 refused short.
    again_ms
        When a refused shortage that still goes on is raised again.
    known_short
        What a confirmed or refused shortage counted; fewer than this is news.
    latest
        The latest count.
    """

    most: FloatArray
    short_ms: IntArray
    short_count: IntArray
    short_most: FloatArray
    above_count: IntArray
    above_least: FloatArray
    back_ms: IntArray
    back_count: IntArray
    seen_ms: IntArray
    state: IntArray
    again_ms: IntArray
    known_short: FloatArray
    latest: FloatArray


def blank(columns: int) -> CeilingState:
    """Return the state of series of which nothing was seen yet."""

    def unknown() -> FloatArray:
        return np.full(columns, np.nan)

    def zero() -> IntArray:
        return np.zeros(columns, np.int64)

    return CeilingState(
        last_ms=zero(), most=unknown(), short_ms=zero(), short_count=zero(),
        short_most=unknown(), above_count=zero(), above_least=unknown(), back_ms=zero(),
        back_count=zero(), seen_ms=zero(), state=zero(), again_ms=zero(),
        known_short=unknown(), latest=unknown(),
    )  # fmt: skip


def step(
    ceiling: Ceiling, state: CeilingState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    """Fold one finite count into each column, in place."""
    with np.errstate(invalid="ignore"):
        _lift(ceiling, state, values)
        _end(ceiling, state, times_ms, values, found)
        _raise(ceiling, state, times_ms, values, found)
    state.seen_ms[:] = times_ms
    state.latest[:] = values


def stretch(state: CeilingState, ahead: Ahead, found: Found) -> None:
    """Fold samples of a single column as long as all that there ever were are there."""
    del found
    most, first = state.most.item(), ahead.next
    if state.state[0] != FULL or not np.isnan(state.known_short[0]):
        return
    at, values = first, ahead.values
    while at < len(values) and values[at] == most:
        at += 1
    if at == first:
        return
    if not state.back_count[0]:
        state.back_ms[0] = state.seen_ms[0] or ahead.times_ms[first]
    state.back_count[0] += at - first
    state.above_least[0] = state.short_most[0] = np.nan
    state.above_count[0] = state.short_count[0] = 0
    state.seen_ms[0] = ahead.times_ms[at - 1]
    state.latest[0] = most
    ahead.next = at


def _lift(ceiling: Ceiling, state: CeilingState, values: FloatArray) -> None:
    above = np.isnan(state.most) | (values > state.most)
    least = np.where(state.above_count > 0, np.fmin(state.above_least, values), values)
    state.above_least[:] = np.where(above, least, np.nan)
    state.above_count[:] = np.where(above, state.above_count + 1, 0)
    lifted = state.above_count >= ceiling.rise_samples
    state.most[:] = np.where(lifted, state.above_least, state.most)
    state.above_count[lifted] = 0


def _end(
    ceiling: Ceiling, state: CeilingState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    back = values >= state.most
    first = back & (state.back_count == 0)
    state.back_ms[:] = np.where(
        first, np.where(state.seen_ms > 0, state.seen_ms, times_ms), state.back_ms
    )
    state.back_count[:] = np.where(back, state.back_count + 1, 0)
    over = (state.state > 0) & (state.back_count >= ceiling.return_samples)
    for k in np.flatnonzero(over):
        if state.state[k] == CONFIRMED:
            found.recoveries.append(
                Recovery(
                    column=int(found.columns[k]),
                    since_ms=int(state.back_ms[k]),
                    time_ms=int(times_ms[k]),
                    level=float(values[k]),
                )
            )
        state.state[k] = FULL
        state.known_short[k] = np.nan


def _raise(
    ceiling: Ceiling, state: CeilingState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    again = (state.state == REFUSED) & (times_ms >= state.again_ms)
    if anywhere(again):
        state.state[again], state.known_short[again] = FULL, np.nan
        state.short_count[again] = ceiling.hold_samples
    expected = np.where(np.isnan(state.known_short), state.most, state.known_short)
    short = values < expected
    first = short & (state.short_count == 0)
    lead_ms = np.where(state.seen_ms > 0, state.seen_ms, times_ms)
    state.short_ms[:] = np.where(first, lead_ms, state.short_ms)
    most = np.where(first, values, np.fmax(state.short_most, values))
    state.short_most[:] = np.where(short, most, np.nan)
    state.short_count[:] = np.where(short, state.short_count + 1, 0)
    due = (state.short_count >= ceiling.hold_samples) & (state.state != RAISED)
    due &= times_ms - state.short_ms >= ceiling.hold_for
    for k in np.flatnonzero(due):
        state.state[k] = RAISED
        found.candidates.append(
            Candidate(
                column=int(found.columns[k]),
                cause="ceiling",
                direction="down",
                onset_ms=int(state.short_ms[k]),
                time_ms=int(times_ms[k]),
                before=float(state.most[k]),
                after=float(values[k]),
                scale=0.0,
            )
        )


def settled(state: CeilingState, outcomes: Mapping[int, Confirmed | Rejected]) -> None:
    """Act on what verification said, in place: fewer still than now is a new candidate."""
    for column, outcome in outcomes.items():
        confirmed = isinstance(outcome, Confirmed)
        state.state[column] = CONFIRMED if confirmed else REFUSED
        state.known_short[column] = state.latest[column]
        state.short_count[column] = 0
        state.again_ms[column] = state.seen_ms[column] + _AGAIN_MS


def accepted(state: CeilingState, columns: IntArray) -> None:
    """Make the present count the ceiling, in place."""
    state.most[columns] = state.latest[columns]
    state.known_short[columns] = np.nan
    for name in ("state", "short_count", "above_count"):
        getattr(state, name)[columns] = 0
