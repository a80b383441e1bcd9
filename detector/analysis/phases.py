"""Announced phases: what a job said that it was doing, and which falls that explains.

Announcements come from scripts: without an end, twice, late, by a clock that is a minute off.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from detector.analysis.change import Candidate, Rejected
from detector.series import ContextEvent, Duration, iso

# Phases during which a lower level is what was announced.
PHASES = frozenset({"checkpoint", "evaluation", "restart", "planned_change"})
# An announcement without an end explains a fall for so long: restarts take 2 to 20 min.
OPEN_PHASE = Duration(1_200_000)
# How far the clocks of who announces and who measures may be apart, and how long after a phase
# of training was announced without an end its fall may begin. Chosen: one minute is what hosts
# without time synchronisation drift in a month or two.
CLOCKS = Duration(60_000)
OF_TRAINING = ("checkpoint", "evaluation")


def phases_of(events: Iterable[ContextEvent]) -> tuple[ContextEvent, ...]:
    """Return the announced phases, each once: with its end where that was told later.

    Who announces a phase as it begins, and again with its end when it is over, means one phase.
    """
    once = {(item.kind, item.span.start_ms, item.span.end_ms): item for item in events}
    phases = [item for item in once.values() if item.kind in PHASES]
    closed = [item for item in phases if item.span.length_ms]
    kept: list[ContextEvent] = []
    told: dict[int, int] = {}
    for item in phases:
        if item.span.length_ms:
            continue
        ends = [k for k, other in enumerate(closed) if _same(item, other)]
        for k in ends:
            told[k] = min(told.get(k, item.heard_ms), item.heard_ms)
        if not ends:
            kept.append(item)
    kept += [
        replace(item, told_ms=min(item.heard_ms, told.get(k, item.heard_ms)))
        for k, item in enumerate(closed)
    ]
    return tuple(sorted(kept, key=lambda item: (item.span.start_ms, item.span.end_ms)))


def _same(opened: ContextEvent, closed: ContextEvent) -> bool:
    apart_ms = abs(opened.span.start_ms - closed.span.start_ms)
    return opened.kind == closed.kind and apart_ms <= CLOCKS


def announced(candidate: Candidate, events: Sequence[ContextEvent]) -> Rejected | None:
    """Return the refusal of a candidate that an announced phase explains; else None.

    On its own because it needs no history: whoever has the events need not read a window for
    nothing.
    """
    if candidate.cause in ("frozen", "band"):
        return None
    for event in phases_of(events):
        if _explains(event, candidate):
            kind, start_ms = event.kind.replace("_", " "), event.span.start_ms
            return Rejected(reason=f"an announced {kind} explains it (since {iso(start_ms)})")
    return None


def _explains(event: ContextEvent, candidate: Candidate) -> bool:
    start_ms, end_ms = event.span.start_ms, event.span.end_ms
    if start_ms > candidate.time_ms:
        return False
    if event.kind == "planned_change":
        # What was planned explains a lasting fall that began while it was made.
        return candidate.onset_ms <= end_ms + OPEN_PHASE
    if event.span.length_ms:
        return candidate.time_ms < end_ms
    # Without an end: a fall that began well after a checkpoint did is not that checkpoint.
    if event.kind in OF_TRAINING and candidate.onset_ms > start_ms + CLOCKS:
        return False
    return candidate.time_ms < start_ms + OPEN_PHASE
