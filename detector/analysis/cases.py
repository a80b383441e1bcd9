"""Cases: what rules are tested with, written as text by whoever writes the rules.

A case gives evidence, or a short history from which the evidence is measured, and says what
it wants: the rule, the runners-up, what must be ruled out, features near a value. Pure; reading
the files is ``content``'s work.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from detector.analysis.baselines import Family
from detector.analysis.change import Confirmed, exact
from detector.analysis.derived import derived
from detector.analysis.features import Evidence, measured
from detector.analysis.ofu import GpuTable
from detector.analysis.rules import Rule, Verdict, evaluate, holds, in_words
from detector.analysis.view import View
from detector.series import ContextEvent, Duration, FloatArray, Interval, Window

_TOKEN = re.compile(r"(_|[-+0-9.e]+?)(?:\.\.([-+0-9.e]+))?(?:x(\d+))?")
# When the first sample of a case's history was taken. Any time will do; this one reads well.
_START_MS = 1_700_000_000_000


def notation(text: str) -> FloatArray:
    """Return the samples that ``text`` names. Shape ``(n,)``; NaN where it says so.

    ``0.42x60`` is 60 samples of 0.42, ``0.4..0.2x5`` five from 0.4 to 0.2, ``_x3`` three
    without data, ``0.42`` one sample; blanks join them: ``0.42x60 _x3 0.17x30``.

    Raises
    ------
    ValueError
        When a word of ``text`` is none of these.
    """
    parts: list[FloatArray] = []
    for token in text.split():
        match = _TOKEN.fullmatch(token)
        if match is None:
            msg = f"{token!r} is no series; write for example 0.42x60, 0.4..0.2x5 or _x3"
            raise ValueError(msg)
        first, last, count = match[1], match[2], int(match[3] or 1)
        try:
            low = np.nan if first == "_" else float(first)
            high = float(last) if last else low
        except ValueError:
            msg = f"{token!r} is no series: {first} or {last} is no number"
            raise ValueError(msg) from None
        parts.append(np.linspace(low, high, count))
    return np.concatenate(parts) if parts else np.empty(0)


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Announced context at a sample of the case's history, see ``series.ContextEvent``."""

    kind: str
    at: int


class CaseHistory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A short history to measure the evidence on.

    Attributes
    ----------
    every
        Time between two samples.
    onset
        The sample, counted from 0, at which the change begins.
    series
        Catalogue metric -> samples in :func:`notation`, all equally many; ``ofu`` at least.
    gpus
        OFU of each GPU, in the same notation.
    """

    onset: int
    series: dict[str, str]
    every: Duration = Duration(10_000)
    gpus: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    gpu_model: str = ""
    precision: str = ""

    def __post_init__(self) -> None:
        """Refuse series of unequal length and an onset outside of them."""
        if "ofu" not in self.series:
            msg = "series needs at least `ofu`"
            raise ValueError(msg)
        every = {**self.series, **{f"gpus[{k}]": text for k, text in enumerate(self.gpus)}}
        length = len(notation(self.series["ofu"]))
        for name, text in every.items():
            if len(notation(text)) != length:
                msg = f"{name} has {len(notation(text))} samples, ofu has {length}"
                raise ValueError(msg)
        if not 0 < self.onset < length:
            msg = f"onset {self.onset} leaves no sample before or after it (there are {length})"
            raise ValueError(msg)


class Want(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a case wants; what is not given is not looked at.

    Attributes
    ----------
    runners_up
        Exactly these, in this order.
    ruled_out, unknown, shadowed
        These rules at least.
    gpus
        Exactly these places of the roster are blamed.
    features, within
        Features near a value, and how near, in the feature's unit.
    """

    rule: str | None = None
    kind: str | None = None
    severity: str | None = None
    runners_up: tuple[str, ...] | None = None
    ruled_out: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    shadowed: tuple[str, ...] = ()
    gpus: tuple[int, ...] | None = None
    features: dict[str, float] = {}
    within: float = 0.01


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One test of the rules."""

    name: str
    want: Want
    metric: str = "ofu"
    family: Family = "performance"
    evidence: dict[str, float] | None = None
    history: CaseHistory | None = None

    def __post_init__(self) -> None:
        """Refuse a case that says nothing, or says it twice."""
        if (self.evidence is None) == (self.history is None):
            msg = "a case needs either [case.evidence] or [case.history]"
            raise ValueError(msg)
        if self.history is not None and self.metric not in _fields(self.history):
            msg = f"the history lacks the metric {self.metric!r} that changed"
            raise ValueError(msg)


class CaseFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of cases."""

    case: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a case went: no failures is a pass.

    Attributes
    ----------
    failures
        Each one line: what was expected, what came.
    rows
        For people who wonder: the rows of the wanted rule that did not hold.
    """

    failures: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


def run_case(case: Case, rules: Sequence[Rule], gpus: GpuTable) -> Result:
    """Return how the rules answer a case."""
    blamed: tuple[int, ...] = ()
    if case.history is None:
        evidence: Evidence = dict(case.evidence or {})
    else:
        change, window = _measured(case.history, case.metric)
        gpu = gpus.find(case.history.gpu_model) if case.history.gpu_model else None
        view = View(change=change, window=window, gpu=gpu, precision=case.history.precision)
        evidence = measured(view)
        blamed = view.attribution.gpus if view.attribution else ()
    verdict = evaluate(rules, evidence, metric=case.metric, family=case.family)
    failures = [*_verdict_failures(case.want, verdict), *_near(case.want, evidence)]
    if case.want.gpus is not None and set(case.want.gpus) != set(blamed):
        failures.append(f"gpus: expected {list(case.want.gpus)}, got {list(blamed)}")
    rows = _rows(case.want, rules, evidence) if failures else ()
    return Result(failures=tuple(failures), rows=rows)


def _fields(history: CaseHistory) -> dict[str, FloatArray]:
    fields = {name: notation(text) for name, text in history.series.items()}
    return {**fields, **derived(fields)}


def _measured(history: CaseHistory, metric: str) -> tuple[Confirmed, Window]:
    """The change and the window that verification would have passed on."""
    fields = _fields(history)
    length = len(fields["ofu"])
    times_ms = _START_MS + (1 + np.arange(length, dtype=np.int64)) * int(history.every)
    events = tuple(
        ContextEvent(kind=event.kind, span=Interval(start_ms=time_ms, end_ms=time_ms))
        for event in history.events
        for time_ms in [_START_MS + (1 + event.at) * int(history.every)]
    )
    gpus = np.array([notation(text) for text in history.gpus]).T if history.gpus else None
    window = Window(times_ms=times_ms, fields=fields, gpus=gpus, events=events)
    # The change begins where the sample before it ends.
    onset_ms, end_ms = int(times_ms[history.onset - 1]), int(times_ms[-1])
    before, after = (
        float(np.nanmedian(part))
        for part in (fields[metric][: history.onset], fields[metric][history.onset :])
    )
    change = Confirmed(
        metric=metric,
        cause="excursion",
        direction="down" if after < before else "up",
        onset_ms=onset_ms,
        onset=Interval(start_ms=onset_ms, end_ms=onset_ms + int(history.every)),
        detected_ms=end_ms,
        before=exact(before),
        after=exact(after),
        relative_change=after / before - 1 if before else 0.0,
        confidence=1.0,
        before_span=Interval(start_ms=_START_MS, end_ms=onset_ms),
        after_span=Interval(start_ms=onset_ms, end_ms=end_ms),
    )
    return change, window


def _verdict_failures(want: Want, verdict: Verdict) -> list[str]:
    failures = [
        f"{word}: expected {expected}, got {got}"
        for word, expected, got in (
            ("rule", want.rule, verdict.rule.name),
            ("kind", want.kind, verdict.rule.kind),
            ("severity", want.severity, verdict.rule.severity),
        )
        if expected is not None and expected != got
    ]
    if want.runners_up is not None and want.runners_up != verdict.runners_up:
        expected, got = (
            ", ".join(names) or "none" for names in (want.runners_up, verdict.runners_up)
        )
        failures.append(f"runners_up: expected {expected}, got {got}")
    for word, expected_names, found in (
        ("ruled_out", want.ruled_out, [name for name, _ in verdict.ruled_out]),
        ("unknown", want.unknown, [name for name, _ in verdict.unknown]),
        ("shadowed", want.shadowed, verdict.shadowed),
    ):
        failures += [
            f"{word}: expected {name} among {', '.join(found) or 'none'}"
            for name in expected_names
            if name not in found
        ]
    return failures


def _near(want: Want, evidence: Evidence) -> list[str]:
    failures = []
    for name, expected in want.features.items():
        got = evidence.get(name)
        if got is None:
            failures.append(f"{name}: expected {expected:g}, was not measured")
        elif abs(got - expected) > want.within:
            failures.append(f"{name}: expected {expected:g} ± {want.within:g}, got {got:g}")
    return failures


def _rows(want: Want, rules: Sequence[Rule], evidence: Evidence) -> tuple[str, ...]:
    """The wanted rule's rows that did not hold, in words."""
    return tuple(
        f"{rule.name}: {in_words(row, evidence)}"
        for rule in rules
        if want.rule == rule.name or (want.rule is None and want.kind == rule.kind)
        for row in rule.when
        if not holds(row, evidence)
    )
