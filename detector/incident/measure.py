"""The level of an incident while it lasts, measured anew. Pure.

What was found early, on a slope, has another size later: an incident says what is true now.
"""

from collections.abc import Callable

from msgspec.structs import replace

from detector.analysis.change import Estimate
from detector.incident.incident import Incident

# Reads the level that an incident's metric stands on at a time, ms.
Measure = Callable[[Incident, int], Estimate | None]

# A live incident is measured anew this long after it was found, and whenever its age has
# doubled since. Chosen: real slides reach their floor within minutes.
_MEASURE_MS = 600_000
# Relative change that has moved by so much is told. Chosen: what people would call another
# number, 26 % where they were told 14 %.
_TELLING = 0.02


def measured(incident: Incident, measure: Measure | None, *, at: int) -> Incident:
    """Return the incident with the level as it is at ``at``; as it was where none is known."""
    incident = replace(incident, measured_ms=at)
    if measure is None or incident.cause not in ("excursion", "drift", "lineage"):
        return incident
    after = measure(incident, at)
    if after is None or incident.before.value <= 0:
        return incident
    change = max(after.value / incident.before.value - 1, -1.0)
    return replace(incident, after=after, relative_change=change)


def measured_next(incident: Incident) -> int:
    """Return when the level is measured again: after ten minutes, and at each doubling."""
    known_ms = (incident.measured_ms or incident.detected_ms) - incident.detected_ms
    return incident.detected_ms + max(_MEASURE_MS, 2 * known_ms)


def telling(before: Incident, after: Incident) -> bool:
    """Whether a level measured anew says something else than before."""
    return abs(after.relative_change - before.relative_change) >= _TELLING
