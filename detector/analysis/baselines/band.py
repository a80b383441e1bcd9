"""The band baseline: a ratio that should stay between fixed bounds, whatever it was before."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from detector.analysis.baselines.columns import Columns
from detector.analysis.baselines.rows import Ahead, Found
from detector.analysis.change import Candidate, Confirmed, Recovery, Rejected
from detector.series import Duration, FloatArray, IntArray

VERSION = 1

# Most samples that the median looks back on.
RING = 20

INSIDE, RAISED, CONFIRMED, REFUSED = 0, 1, 2, 3
"""What is known of a column's stay outside of the band."""


class Band(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="band",
):
    """Settings of the band baseline.

    Attributes
    ----------
    expected
        What the value should be; charts and candidates name it as "before".
    low, high
        The band; a median outside of it is news.
    hold_for, hold_samples
        How long the median must have been outside, in time and samples. ``for`` in models/.
    """

    expected: float = 1.0
    low: float = 0.0
    high: float = float("inf")
    hold_for: Duration = msgspec.field(default=Duration(600_000), name="for")
    hold_samples: int = 20


@dataclass(slots=True, kw_only=True)
class BandState(Columns):
    """What the band remembers; shapes ``(columns,)`` but ``ring``'s ``(columns, RING)``.

    Attributes
    ----------
    ring, count
        The latest samples, sample k at ``k % RING``, and how many there were.
    seen_ms
        Time of the latest sample.
    side
        Where the series is held to be: -1 below the band, 0 inside, 1 above.
    out_ms, out_count, back_ms, back_count
        Since when, and for how many samples, it has been outside; inside again.
    state
        One of INSIDE, RAISED, CONFIRMED, REFUSED.
    known_side
        The side that was raised: the other one is news.
    expected
        What the value should be: the setting's, or what people accepted.
    """

    ring: FloatArray
    count: IntArray
    seen_ms: IntArray
    side: IntArray
    out_ms: IntArray
    out_count: IntArray
    back_ms: IntArray
    back_count: IntArray
    state: IntArray
    known_side: IntArray
    expected: FloatArray


def blank(band: Band, columns: int) -> BandState:
    """Return the state of series of which nothing was seen yet."""

    def zero() -> IntArray:
        return np.zeros(columns, np.int64)

    return BandState(
        last_ms=zero(), ring=np.full((columns, RING), np.nan), count=zero(), seen_ms=zero(),
        side=zero(), out_ms=zero(), out_count=zero(), back_ms=zero(), back_count=zero(),
        state=zero(), known_side=zero(), expected=np.full(columns, band.expected),
    )  # fmt: skip


def bounds(band: Band, state: BandState) -> tuple[FloatArray, FloatArray]:
    """Return the band of each column: its bounds move with what people accepted."""
    factor = state.expected / band.expected
    return band.low * factor, band.high * factor


def _median(state: BandState, samples: int) -> FloatArray:
    """Return the median of up to the latest ``samples`` values of each column."""
    rows = np.arange(len(state))
    place = (state.count[:, None] - samples + np.arange(samples)) % RING
    # What was not seen yet is NaN and sorts last; nanmedian takes ten times as long.
    ordered = np.sort(state.ring[rows[:, None], place], axis=1)
    seen = np.minimum(state.count, samples)
    return np.asarray((ordered[rows, (seen - 1) // 2] + ordered[rows, seen // 2]) / 2)


def _looks_back(band: Band) -> int:
    """Return over how many samples the median goes.

    Half of the stay: noise cannot end it, and the median follows within half of it.
    """
    return max(1, min(RING, band.hold_samples // 2))


def stretch(band: Band, state: BandState, ahead: Ahead, found: Found) -> None:
    """Fold samples of a single column as long as all that the median sees are inside."""
    del found
    low, high = (bound.item() for bound in bounds(band, state))
    count, looked_at = state.count.item(), _looks_back(band)
    if state.side[0] or not count:
        return
    seen = state.ring[0, np.arange(max(count - looked_at, 0), count) % RING]
    if not ((seen >= low) & (seen <= high)).all():
        return
    first, values = ahead.next, ahead.values
    at = first
    while at < len(values) and low <= values[at] <= high:
        at += 1
    if at == first:
        return
    count += at - first
    latest = values[max(first, at - RING) : at]
    state.ring[0, np.arange(count - len(latest), count) % RING] = latest
    state.count[0] = count
    state.back_count[0] = 0
    state.seen_ms[0] = ahead.times_ms[at - 1]
    ahead.next = at


def step(
    band: Band, state: BandState, times_ms: IntArray, values: FloatArray, found: Found
) -> None:
    """Fold one finite sample into each column, in place."""
    state.ring[np.arange(len(values)), state.count % RING] = values
    state.count += 1
    median = _median(state, _looks_back(band))
    low, high = bounds(band, state)
    side = np.where(median < low, -1, np.where(median > high, 1, 0))
    lead_ms = np.where(state.seen_ms > 0, state.seen_ms, times_ms)
    leaving = (side != 0) & (side != state.side)
    state.out_ms[:] = np.where(leaving, lead_ms, state.out_ms)
    state.out_count[:] = np.where(leaving, 1, state.out_count + (side != 0))
    back = (side == 0) & (state.side != 0)
    state.back_ms[:] = np.where(back & (state.back_count == 0), lead_ms, state.back_ms)
    state.back_count[:] = np.where(back, state.back_count + 1, 0)
    state.side[:] = np.where(side != 0, side, state.side)
    _end(band, state, times_ms, median, found)
    _raise(band, state, times_ms, median, found)
    state.seen_ms[:] = times_ms


def _end(
    band: Band, state: BandState, times_ms: IntArray, median: FloatArray, found: Found
) -> None:
    """Count a column as inside once its median has been there for a quarter of the stay."""
    over = (state.side != 0) & (state.back_count >= max(2, band.hold_samples // 4))
    for k in np.flatnonzero(over & (state.state == CONFIRMED)):
        found.recoveries.append(
            Recovery(
                column=int(found.columns[k]),
                since_ms=int(state.back_ms[k]),
                time_ms=int(times_ms[k]),
                level=float(median[k]),
            )
        )
    for name in ("side", "state", "known_side", "out_count", "back_count"):
        getattr(state, name)[over] = 0


def _raise(
    band: Band, state: BandState, times_ms: IntArray, median: FloatArray, found: Found
) -> None:
    due = (state.out_count >= band.hold_samples) & (state.side != state.known_side)
    due &= (times_ms - state.out_ms >= band.hold_for) & (state.state != RAISED)
    for k in np.flatnonzero(due):
        state.state[k] = RAISED
        state.known_side[k] = state.side[k]
        found.candidates.append(
            Candidate(
                column=int(found.columns[k]),
                cause="band",
                direction="down" if state.side[k] < 0 else "up",
                onset_ms=int(state.out_ms[k]),
                time_ms=int(times_ms[k]),
                before=float(state.expected[k]),
                after=float(median[k]),
                scale=0.0,
            )
        )


def settled(state: BandState, outcomes: Mapping[int, Confirmed | Rejected]) -> None:
    """Act on what verification said, in place."""
    for column, outcome in outcomes.items():
        state.state[column] = CONFIRMED if isinstance(outcome, Confirmed) else REFUSED
        if isinstance(outcome, Rejected):
            # The evidence must come together once more before it is raised again.
            state.out_count[column] = 0
            state.out_ms[column] = state.seen_ms[column]
            state.known_side[column] = 0


def accepted(state: BandState, columns: IntArray) -> None:
    """Make the present median the expected value, in place."""
    median = _median(state, RING)
    known = columns[np.isfinite(median[columns]) & (median[columns] > 0)]
    state.expected[known] = median[known]
    for name in ("state", "known_side", "side", "out_count", "back_count"):
        getattr(state, name)[columns] = 0
