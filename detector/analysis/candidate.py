"""From new samples to verified changes: the loop between the fold and its verification."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from detector.analysis.baselines import Model, State, advance, put, settle, take
from detector.analysis.change import Candidate, Confirmed, Recovery, Rejected, Shift
from detector.series import IntArray, Panel

# So many candidates are told of at a time: enough to make a trip to the store for each cost
# nothing, few enough to keep the histories of all at hand.
_TOGETHER = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The state after a panel, and what came of it, each by time and then by column.

    Attributes
    ----------
    outcomes
        Column of the given panel, what was raised, what verification made of it. That an early
        candidate was no news yet is no outcome: it will be asked again, or be raised in time.
    """

    state: State
    outcomes: tuple[tuple[int, Candidate, Confirmed | Rejected], ...]
    recoveries: tuple[Recovery, ...]
    shifts: tuple[Shift, ...]


def fold(
    model: Model,
    state: State,
    panel: Panel,
    confirm: Callable[[int, Candidate], Confirmed | Rejected],
    ahead: Callable[[Sequence[Candidate]], None] = lambda _: None,
) -> Folded:
    """Read the panel to its end, each candidate being verified before its column goes on.

    Parameters
    ----------
    confirm
        Verifies a column's candidate. What it raises goes through to the caller.
    ahead
        Told which candidates are verified next, so that what is read for them can be read
        together.
    """
    outcomes: list[tuple[int, Candidate, Confirmed | Rejected]] = []
    recoveries: list[Recovery] = []
    shifts: list[Shift] = []
    whole: IntArray | None = None
    part, unread, baseline = state, panel, model.cautious

    def named(column: int) -> int:
        return column if whole is None else int(whole[column])

    def verify(found: Sequence[Candidate]) -> list[Confirmed | Rejected]:
        raised = [replace(item, column=named(item.column)) for item in found]
        verified: list[Confirmed | Rejected] = []
        for first in range(0, len(raised), _TOGETHER):
            group = raised[first : first + _TOGETHER]
            ahead(group)
            verified += [confirm(candidate.column, candidate) for candidate in group]
        outcomes.extend(
            (candidate.column, candidate, outcome)
            for candidate, outcome in zip(raised, verified, strict=True)
            if not (candidate.early and isinstance(outcome, Rejected))
        )
        return verified

    while True:
        step = advance(baseline, part, unread, verify)
        recoveries += [replace(item, column=named(item.column)) for item in step.recoveries]
        shifts += [replace(item, column=named(item.column)) for item in step.shifts]
        own = [item.column for item in step.candidates]
        judged = dict(zip(own, verify(step.candidates), strict=True))
        part = settle(baseline, step.state, judged) if judged else step.state
        state = part if whole is None else put(state, whole, part)
        if step.rest is None:
            break
        columns = step.rest_columns
        whole = columns if whole is None else whole[columns]
        part, unread = take(part, columns), step.rest
    return Folded(
        state=state,
        outcomes=tuple(sorted(outcomes, key=lambda item: (item[1].time_ms, item[0]))),
        recoveries=tuple(sorted(recoveries, key=lambda item: (item.time_ms, item.column))),
        shifts=tuple(sorted(shifts, key=lambda item: (item.time_ms, item.column))),
    )
