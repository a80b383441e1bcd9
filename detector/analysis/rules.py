"""Rules: tables that say what a change with this evidence is called, and why not otherwise.

A rule is rows of ``feature above/below bound``. There is no expression language: a table can
be read at night, printed row by row and tested by its author. Rows are three-valued, since a
feature that was not measured proves nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

from detector.analysis.baselines import Family
from detector.analysis.features import FEATURES, Evidence, written
from detector.series import Duration

FAMILIES: tuple[Family, ...] = get_args(Family)

Severity = Literal["info", "warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

Action = Literal[
    "none",
    "notify_owner",
    "investigate_node",
    "drain_node",
    "requeue_job",
    "capture_profile",
]

UNEXPLAINED = "unexplained"

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "hang": "the job stands still",
        "capacity_loss": "GPUs no longer report",
        "throttle": "the SM clock fell, and OFU with it",
        "throttle_power": "the SM clock fell while the power draw stayed at its limit",
        "throttle_thermal": "the SM clock fell and the GPU says heat is why",
        "debug_flag_stall": "every GPU waits for its host at each step",
        "precision_shift": "the number format changed, so OFU and speed no longer agree",
        "mfu_ofu_divergence": "reported MFU and OFU disagree",
        "telemetry_fault": "the values are the collector's, not the job's",
        "straggler": "one GPU or a few fell by themselves",
        "data_starvation": "the GPUs wait for input",
        "communication_stall": "the GPUs wait for each other",
        "slow_from_start": "slower than earlier runs from the first sample on",
        "fleet_event": "many jobs fell at once",
        UNEXPLAINED: "a real change that no rule names",
    }
)

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: the feature is strictly above, or strictly below, or between two bounds.

    ``missing`` says what the row is when the feature was not measured: ``unknown`` (the
    default: then the whole rule is), or ``holds`` for a row that only guards against a
    contradiction, or ``fails`` for one that must have been seen.
    """

    feature: str
    above: float | None = None
    below: float | None = None
    missing: Literal["unknown", "holds", "fails"] = "unknown"

    def __post_init__(self) -> None:
        """Refuse a row without a bound or with bounds that nothing lies between."""
        if self.above is None and self.below is None:
            msg = "a row needs `above`, `below` or both"
            raise ValueError(msg)
        if self.above is not None and self.below is not None and self.above >= self.below:
            msg = f"nothing is above {self.above:g} and below {self.below:g}"
            raise ValueError(msg)


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a change is called when all rows hold.

    Attributes
    ----------
    families, metrics
        Which changes it is asked about; no metrics means all of the families.
    summary
        One sentence in the words of whoever is on call; ``{feature}`` is replaced by the
        measured value.
    hold
        ``for`` in TOML: the change must last this long before the incident opens.
    keep_open
        The level must be back this long before the incident is resolved; None is the
        configuration's ``[incidents] keep_open``.
    shadow
        On trial: evaluated and listed, never names an incident.
    """

    name: str
    kind: str
    families: tuple[Family, ...]
    metrics: tuple[str, ...] = ()
    severity: Severity
    summary: str
    action: Action = "none"
    runbook: str = ""
    shadow: bool = False
    hold: Duration = msgspec.field(default=Duration(0), name="for")
    keep_open: Duration | None = None
    when: tuple[Condition, ...] = ()

    def applies(self, *, metric: str, family: str) -> bool:
        """Whether the rule is asked about changes of this metric in this family."""
        return family in self.families and (not self.metrics or metric in self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which rule names the change, and what became of the others.

    Attributes
    ----------
    runners_up
        Other rules that held, most specific first.
    ruled_out, unknown
        Rule and the row that says why: what contradicts it, what was not measured.
    shadowed
        Rules on trial that held.
    """

    rule: Rule
    runners_up: tuple[str, ...] = ()
    ruled_out: tuple[tuple[str, str], ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    shadowed: tuple[str, ...] = ()


def evaluate(rules: Sequence[Rule], evidence: Evidence, *, metric: str, family: str) -> Verdict:
    """Return the most specific rule that holds, and why each other one does not.

    The most specific rule has the most rows; of several, the most severe; of several, the
    first by name. The rule without rows holds always and so names what no other one does.

    Raises
    ------
    ValueError
        When no rule holds: ``rules`` lacks the fallback that ``content.load`` demands.
    """
    held: list[Rule] = []
    ruled_out, unknown, shadowed = [], [], []
    for rule in rules:
        if not rule.applies(metric=metric, family=family):
            continue
        state, reason = _state(rule, evidence)
        if state is None:
            unknown.append((rule.name, reason))
        elif not state:
            ruled_out.append((rule.name, reason))
        elif rule.shadow:
            shadowed.append(rule.name)
        else:
            held.append(rule)
    if not held:
        msg = f"no rule for family {family!r}, metric {metric!r}: the fallback is missing"
        raise ValueError(msg)
    held.sort(key=lambda r: (-len(r.when), -SEVERITIES.index(r.severity), r.name))
    return Verdict(
        rule=held[0],
        runners_up=tuple(rule.name for rule in held[1:] if rule.when),
        ruled_out=tuple(ruled_out),
        unknown=tuple(unknown),
        shadowed=tuple(shadowed),
    )


def holds(row: Condition, evidence: Evidence) -> bool | None:
    """Return whether a row holds; None when its feature was not measured and that matters."""
    value = evidence.get(row.feature)
    if value is None:
        return {"unknown": None, "holds": True, "fails": False}[row.missing]
    return (row.above is None or value > row.above) and (row.below is None or value < row.below)


def in_words(row: Condition, evidence: Evidence) -> str:
    """Return what was measured and what the row asks for, for people."""
    unit = FEATURES[row.feature].unit
    name = row.feature.replace("_", " ")
    value = evidence.get(row.feature)
    if value is None:
        return f"{name} was not measured"
    asked = " and ".join(
        f"{word} {written(bound, unit)}"
        for word, bound in (("above", row.above), ("below", row.below))
        if bound is not None
    )
    if unit == "flag":
        return f"{name}: {written(value, unit)}"
    return f"{name} is {written(value, unit)}, not {asked}"


def summarise(rule: Rule, evidence: Evidence) -> str:
    """Return the rule's sentence with the measured values in place."""

    def value(match: re.Match[str]) -> str:
        feature = FEATURES.get(match[1])
        return match[0] if feature is None else written(evidence.get(match[1]), feature.unit)

    return _PLACEHOLDER.sub(value, rule.summary)


def placeholders(summary: str) -> tuple[str, ...]:
    """Return the names in braces that a summary holds."""
    return tuple(_PLACEHOLDER.findall(summary))


def _state(rule: Rule, evidence: Evidence) -> tuple[bool | None, str]:
    """False if a row is, else unknown if a row is, else true; with the first telling row."""
    rows = [(row, holds(row, evidence)) for row in rule.when]
    for state in (False, None):
        for row, held in rows:
            if held is state:
                return state, in_words(row, evidence)
    return True, ""
