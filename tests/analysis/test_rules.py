"""The table's logic, and what the shipped rules may never say."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.analysis.features import FEATURES, Evidence
from detector.analysis.rules import (
    FAMILIES,
    KINDS,
    SEVERITIES,
    Condition,
    Rule,
    evaluate,
    holds,
    in_words,
    summarise,
)
from detector.content import load_rules, shipped

SHIPPED = load_rules(shipped() / "rules")
FALLBACK = Rule(
    name="unexplained",
    kind="unexplained",
    families=("performance",),
    severity="warning",
    summary="",
)
# Bounds of the shipped rules lie between these, and so do their neighbours.
VALUES = st.one_of(
    st.none(),
    st.floats(-1, 2),
    st.sampled_from([-1.0, -0.1, -0.03, 0.0, 0.02, 0.02000001, 1.0, 30.0]),
)
EVIDENCE = st.fixed_dictionaries({}, optional=dict.fromkeys(FEATURES, VALUES))


def rule(name: str, *rows: Condition, severity: str = "warning", shadow: bool = False) -> Rule:
    return Rule(
        name=name,
        kind="straggler",
        families=("performance",),
        severity=severity,  # type: ignore[arg-type]  # a test's shorthand
        summary="",
        shadow=shadow,
        when=rows,
    )


def below(feature: str, bound: float = 0.0) -> Condition:
    return Condition(feature=feature, below=bound)


def named(rules: list[Rule], evidence: Evidence) -> str:
    verdict = evaluate([*rules, FALLBACK], evidence, metric="ofu", family="performance")
    return verdict.rule.name


@pytest.mark.parametrize(
    ("value", "above", "below", "held"),
    [
        (0.5, 0.4, None, True),
        (0.4, 0.4, None, False),
        (0.3, None, 0.4, True),
        (0.4, None, 0.4, False),
        (0.5, 0.4, 0.6, True),
        (0.7, 0.4, 0.6, False),
    ],
)
def test_bounds_are_strict(
    value: float, above: float | None, below: float | None, held: bool
) -> None:
    row = Condition(feature="ofu_change", above=above, below=below)
    assert holds(row, {"ofu_change": value}) is held


@pytest.mark.parametrize(
    ("missing", "held"), [("unknown", None), ("holds", True), ("fails", False)]
)
@pytest.mark.parametrize("evidence", [{}, {"sm_change": None}])
def test_a_row_says_what_it_is_when_nothing_was_measured(
    missing: str, held: bool | None, evidence: Evidence
) -> None:
    row = msgspec.convert({"feature": "sm_change", "below": 0, "missing": missing}, Condition)
    assert holds(row, evidence) is held


@pytest.mark.parametrize("bounds", [{}, {"above": 1, "below": 1}, {"above": 2, "below": 1}])
def test_a_row_that_can_never_hold_is_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"feature": "sm_change", **bounds}, Condition)


def test_one_false_row_outweighs_an_unknown_one() -> None:
    table = rule("a", below("sm_change"), below("clock_change"))
    verdict = evaluate(
        [table, FALLBACK], {"clock_change": 0.5}, metric="ofu", family="performance"
    )
    assert verdict.ruled_out == (("a", "clock change is +50 %, not below 0 %"),)
    assert verdict.unknown == ()


def test_missing_telemetry_is_unknown_not_false() -> None:
    table = rule("a", below("sm_change"), below("clock_change"))
    verdict = evaluate(
        [table, FALLBACK], {"clock_change": -0.5}, metric="ofu", family="performance"
    )
    assert verdict.unknown == (("a", "sm change was not measured"),)
    assert verdict.ruled_out == ()


def test_the_most_specific_rule_names_it_and_the_others_run_up() -> None:
    rules = [
        rule("one", below("sm_change")),
        rule("two", below("sm_change"), below("ofu_change")),
    ]
    evidence: Evidence = {"sm_change": -1, "ofu_change": -1}
    verdict = evaluate([*rules, FALLBACK], evidence, metric="ofu", family="performance")
    assert verdict.rule.name == "two"
    assert verdict.runners_up == ("one",)


def test_of_equally_specific_rules_the_severer_then_the_first_by_name_names_it() -> None:
    a, b = rule("a", below("sm_change")), rule("b", below("sm_change"))
    severe = rule("z", below("sm_change"), severity="error")
    assert named([b, a], {"sm_change": -1}) == "a"
    assert named([a, b, severe], {"sm_change": -1}) == "z"


def test_a_rule_on_trial_is_listed_and_never_names() -> None:
    trial = rule("trial", below("sm_change"), below("ofu_change"), shadow=True)
    table = rule("a", below("sm_change"))
    evidence: Evidence = {"sm_change": -1, "ofu_change": -1}
    verdict = evaluate([trial, table, FALLBACK], evidence, metric="ofu", family="performance")
    assert verdict.rule.name == "a"
    assert verdict.shadowed == ("trial",)
    assert verdict.runners_up == ()


def test_a_rule_is_asked_about_its_own_metrics_and_families_only() -> None:
    table = msgspec.structs.replace(rule("a", below("sm_change")), metrics=("tokens",))
    assert named([table], {"sm_change": -1}) == "unexplained"
    assert table.applies(metric="tokens", family="performance")
    assert not table.applies(metric="tokens", family="capacity")


def test_without_a_fallback_the_caller_is_told() -> None:
    with pytest.raises(ValueError, match="fallback"):
        evaluate([rule("a", below("sm_change"))], {}, metric="ofu", family="performance")


@given(evidence=EVIDENCE)
def test_the_order_of_rules_changes_nothing_but_the_order_of_reasons(
    evidence: Evidence,
) -> None:
    forth = evaluate(SHIPPED, evidence, metric="ofu", family="performance")
    back = evaluate(SHIPPED[::-1], evidence, metric="ofu", family="performance")
    assert forth.rule == back.rule
    assert forth.runners_up == back.runners_up
    assert set(forth.ruled_out) == set(back.ruled_out)


@settings(max_examples=600)
@given(
    evidence=EVIDENCE,
    throughput=st.floats(0.02, 10, exclude_min=True),
    metric=st.sampled_from(["ofu", "tokens", "mfu"]),
)
def test_a_job_that_got_faster_is_never_called_a_regression(
    evidence: Evidence, throughput: float, metric: str
) -> None:
    evidence = {**evidence, "throughput_change": throughput}
    verdict = evaluate(SHIPPED, evidence, metric=metric, family="performance")
    assert verdict.rule.severity == "info", verdict.rule.name


@given(evidence=EVIDENCE, family=st.sampled_from(FAMILIES))
def test_every_change_has_a_name_and_every_other_rule_a_reason(
    evidence: Evidence, family: str
) -> None:
    verdict = evaluate(SHIPPED, evidence, metric="ofu", family=family)
    asked = [r.name for r in SHIPPED if r.when and r.applies(metric="ofu", family=family)]
    told = [verdict.rule.name, *verdict.runners_up]
    told += [name for name, reason in (*verdict.ruled_out, *verdict.unknown) if reason]
    assert set(asked) <= set(told)


@given(
    evidence=EVIDENCE,
    missing=st.sets(st.sampled_from(sorted(FEATURES)), max_size=4),
)
def test_taking_telemetry_away_never_rules_a_rule_out(
    evidence: Evidence, missing: set[str]
) -> None:
    whole = evaluate(SHIPPED, evidence, metric="ofu", family="performance")
    less = {name: value for name, value in evidence.items() if name not in missing}
    poor = evaluate(SHIPPED, less, metric="ofu", family="performance")
    held = {whole.rule.name, *whole.runners_up}
    assert not held & {name for name, _ in poor.ruled_out}


def test_every_shipped_rule_recommends_reading_something_that_exists() -> None:
    root = Path(__file__).parents[2]
    for table in SHIPPED:
        page, _, anchor = table.runbook.partition("#")
        text = (root / page).read_text()
        assert not anchor or f"\n## {anchor}\n" in text, table.name


def test_every_shipped_rule_has_a_case_that_it_wins() -> None:
    from detector.content import load_cases

    cases = [c for f in (shipped() / "rules" / "tests").glob("*.toml") for c in load_cases(f)]
    won = {case.want.rule for case in cases}
    assert {table.name for table in SHIPPED} <= won


def test_kinds_say_what_they_mean() -> None:
    assert {table.kind for table in SHIPPED} <= set(KINDS)
    assert all(KINDS.values())
    assert SEVERITIES == ("info", "warning", "error", "critical")


def test_a_summary_carries_the_measured_values() -> None:
    table = msgspec.structs.replace(
        FALLBACK, summary="OFU {ofu_change}, SMs {sm_change}, {odd_gpus} GPUs, {job}"
    )
    text = summarise(table, {"ofu_change": -0.6, "odd_gpus": 3.0})
    assert text == "OFU −60 %, SMs unknown, 3 GPUs, {job}"


def test_values_in_a_summary_are_never_read_as_its_text() -> None:
    table = msgspec.structs.replace(
        FALLBACK, summary="{{ofu_change}} {0} {ofu_change.__class__}"
    )
    assert summarise(table, {"ofu_change": 0.5}) == "{+50 %} {0} {ofu_change.__class__}"


@pytest.mark.parametrize(
    ("row", "evidence", "text"),
    [
        (below("clock_change", -0.03), {"clock_change": -0.001},
         "clock change is −0.1 %, not below −3 %"),
        (Condition(feature="standstill", above=0.5), {"standstill": 0.0}, "standstill: no"),
        (Condition(feature="throughput_change", above=-0.05, below=0.02),
         {"throughput_change": 0.3},
         "throughput change is +30 %, not above −5 % and below +2 %"),
        (below("sm_change"), {}, "sm change was not measured"),
    ],
)  # fmt: skip
def test_reasons_say_what_was_measured_and_what_was_asked(
    row: Condition, evidence: Evidence, text: str
) -> None:
    assert in_words(row, evidence) == text
