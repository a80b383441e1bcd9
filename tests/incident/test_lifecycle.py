"""Timelines of one job: what happens when, and what is told of it when.

In the tables a time is in seconds; ``"400 resolved: recovered"`` is a transition at 400 s.
"""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from detector.analysis.change import Estimate
from detector.fleet import Gpu, Job
from detector.incident.happening import Acted, Ended, Found, Happening, Recovered
from detector.incident.incident import Incident, ResolveReason, State, Transition
from detector.incident.ledger import Action
from detector.incident.lifecycle import Lived
from tests.incident.samples import GPU, JOB, POLICY, back, found, live

LONG = 10_000


def told(lived: Lived) -> list[str]:
    """The transitions as lines: when, which, and why where it ended."""
    lines = []
    for step in lived.transitions:
        why = step.incident.resolve_reason if step.type == "resolved" else None
        lines.append(f"{step.time_ms // 1000} {step.type}" + (f": {why}" if why else ""))
    return lines


def replace_finding(happening: Found, **changes: Any) -> Found:
    finding = dataclasses.replace(happening.finding, **changes)
    return dataclasses.replace(happening, finding=finding)


def ended(at_s: int, reason: ResolveReason = "job_ended") -> Ended:
    return Ended(time_ms=at_s * 1000, reason=reason)


def acted(at_s: int, incident: Incident, verb: str, reason: str = "") -> Acted:
    time_ms = at_s * 1000
    action = Action(
        verb=verb, incident=incident.id, actor="alice", time_ms=time_ms, reason=reason
    )
    return Acted(time_ms=time_ms, action=action)


TIMELINES: list[tuple[list[Happening], list[str]]] = [
    ([found(60)], ["60 opened"]),
    ([found(60, hold_s=120)], ["180 opened"]),
    ([found(60, hold_s=120), back(170)], []),
    ([found(60, hold_s=120), back(181)], ["180 opened", "301 resolved: recovered"]),
    ([found(60), back(300)], ["60 opened", "420 resolved: recovered"]),
    ([found(60), back(300, since_s=280)], ["60 opened", "400 resolved: recovered"]),
    ([found(60), back(500, since_s=280)], ["60 opened", "500 resolved: recovered"]),
    ([found(60, keep_open_s=10), back(300)], ["60 opened", "310 resolved: recovered"]),
    ([found(60, keep_open_s=0), back(300)], ["60 opened", "300 resolved: recovered"]),
    ([found(60), back(950)], ["60 opened"]),
    ([found(60), back(300), ended(310)], ["60 opened", "310 resolved: job_ended"]),
    (
        [found(60), ended(200, "telemetry_lost")],
        ["60 opened", "200 resolved: telemetry_lost"],
    ),
    ([found(60, hold_s=120), ended(100)], []),
    (
        [found(60), back(300), found(400, onset_s=390), back(600)],
        ["60 opened", "400 updated", "720 resolved: recovered"],
    ),
    (
        [found(60), back(300), found(421, onset_s=415)],
        ["60 opened", "420 resolved: recovered", "421 opened"],
    ),
    ([found(60), found(300)], ["60 opened", "300 resolved: superseded", "300 opened"]),
    (
        [found(60), found(300, hold_s=500)],
        ["60 opened", "300 resolved: superseded", "300 opened"],
    ),
    ([found(60, hold_s=100), found(100, hold_s=100)], ["200 opened"]),
    (
        [found(60), back(300), found(400, onset_s=390, kind="hang")],
        ["60 opened", "400 resolved: superseded", "400 opened"],
    ),
    (
        [found(60), back(300), found(400, onset_s=390, direction="up")],
        ["60 opened", "400 resolved: superseded", "400 opened"],
    ),
    ([found(60), found(90, metric="gpus", family="capacity")], ["60 opened", "90 opened"]),
    ([found(60), found(90, metric="tokens", evidence={})], ["60 opened"]),
    (
        [found(60), found(90, metric="tokens", evidence={"sm": 0.5})],
        ["60 opened", "90 updated"],
    ),
    (
        [found(60), found(90, metric="tokens", severity="critical")],
        ["60 opened", "90 escalated"],
    ),
    (
        [found(60), back(300), found(400, onset_s=390, severity="critical")],
        ["60 opened", "400 escalated"],
    ),
    (
        [found(60, hold_s=60), found(90, metric="tokens", severity="critical")],
        ["120 opened"],
    ),
]


@pytest.mark.parametrize(("happenings", "want"), TIMELINES)
def test_what_happens_is_told_at_its_time(happenings: list[Happening], want: list[str]) -> None:
    assert told(live(*happenings)) == want


@pytest.mark.parametrize("happenings", [happenings for happenings, _ in TIMELINES])
def test_a_timeline_read_again_later_is_old_news(happenings: list[Happening]) -> None:
    data = [one for one in happenings if not isinstance(one, Ended)]
    first = live(*data, until_s=2_000)
    again = live(*data, until_s=2_000, incidents=first.incidents)
    assert (again.changed, again.transitions) == ((), ())


def test_two_metrics_found_at_one_moment_are_one_incident_and_old_news_later() -> None:
    both = (found(60), found(60, onset_s=5, metric="tokens"))
    over = (back(300), back(300, metric="tokens"))
    first = live(*both, *over)
    assert told(first)[0] == "60 opened"
    assert told(first)[-1] == "420 resolved: recovered"
    assert len(first.incidents) == 1
    assert live(*both, *over, incidents=first.incidents).changed == ()


def test_a_hold_falls_due_with_the_very_sample_of_its_time() -> None:
    assert told(live(found(60, hold_s=60), until_s=119)) == []
    assert told(live(found(60, hold_s=60), until_s=120)) == ["120 opened"]
    assert told(live(found(60, hold_s=60), back(120), until_s=120)) == ["120 opened"]


def test_nothing_was_over_before_it_began() -> None:
    (incident,) = live(found(60, onset_s=50), back(300, since_s=40)).incidents
    assert incident.resolved_ms == 50_000
    first, _ = live(found(60, onset_s=50), found(300, onset_s=40)).incidents
    assert first.resolved_ms == 50_000


def test_an_opened_incident_says_what_was_found() -> None:
    roster = (GPU, replace(GPU, index=6), Gpu(uuid="x", host="gpu-node-043"))
    lived = live(found(600, onset_s=500, gpus=(GPU,)), job=replace(JOB, roster=roster))
    (incident,) = lived.incidents
    assert incident.state is State.OPEN
    assert (incident.onset_ms, incident.detected_ms, incident.opened_ms) == (
        500_000,
        600_000,
        600_000,
    )
    assert (incident.onset_low_ms, incident.onset_high_ms) == (495_000, 505_000)
    assert (incident.gpus, incident.attribution_confidence) == ((GPU,), 0.9)
    assert (incident.gpus_total, incident.hosts_total) == (64, 2)
    assert incident.ruled_out[0].rule == "hang"
    assert incident.revision == 1


def test_a_job_s_size_is_its_roster_s_where_no_gpu_reports_by_itself() -> None:
    happening = found(60)
    bare = replace_finding(happening, gpus_total=None)
    roster = tuple(Gpu(uuid=f"{k}") for k in range(16))
    (incident,) = live(bare, job=replace(JOB, roster=roster)).incidents
    assert (incident.gpus_total, incident.hosts_total) == (16, None)
    assert live(bare).incidents[0].gpus_total is None


@pytest.mark.parametrize(
    ("evidence", "total"),
    [
        ({"gpus_before": 64.0, "gpus_after": 56.0}, 64),
        ({"gpus_before": None, "gpus_after": 56.0}, 56),
        ({"gpus_before": None, "gpus_after": 0.0}, None),
        ({}, None),
    ],
)
def test_a_job_s_size_is_what_its_samples_counted_where_it_has_no_roster(
    evidence: dict[str, float | None], total: int | None
) -> None:
    bare = replace_finding(found(60), gpus_total=None, evidence=evidence)
    (incident,) = live(bare).incidents
    assert incident.gpus_total == total


def test_a_roster_of_thousands_is_not_carried_by_its_incident() -> None:
    roster = tuple(Gpu(uuid=f"GPU-{k}", host=f"n{k // 8}") for k in range(4096))
    (incident,) = live(found(60), job=replace(JOB, roster=roster)).incidents
    assert incident.job == JOB
    assert incident.hosts_total == 512


def test_it_was_over_when_the_level_was_back_not_when_that_was_established() -> None:
    (incident,) = live(found(60), back(300, since_s=280)).incidents
    assert incident.resolved_ms == 280_000
    assert incident.recovering_ms == 280_000


def test_a_superseded_incident_was_over_when_the_next_began() -> None:
    first, second = live(found(60), found(300, onset_s=250)).incidents
    assert (first.resolve_reason, first.resolved_ms) == ("superseded", 250_000)
    assert second.supersedes == first.id


def test_what_never_opened_supersedes_nothing() -> None:
    first, second = live(found(60, hold_s=100), found(100, hold_s=100)).incidents
    assert (first.opened_ms, second.supersedes) == (None, None)


def test_what_passes_before_its_time_is_on_record_as_never_opened() -> None:
    (incident,) = live(found(60, hold_s=120), back(100)).incidents
    assert (incident.state, incident.opened_ms) == (State.RESOLVED, None)
    assert (incident.revision, incident.resolve_reason) == (2, "recovered")


def test_recovering_and_pending_bump_the_revision_without_a_transition() -> None:
    lived = live(found(60, hold_s=60), back(300))
    assert [step.incident.revision for step in lived.transitions] == [2, 4]


def test_a_flap_keeps_identity_and_onset_and_takes_the_new_level() -> None:
    lived = live(found(60), back(300), found(400, onset_s=390, after=0.2))
    (incident,) = lived.incidents
    assert (incident.flap_count, incident.onset_ms) == (1, 0)
    assert incident.after.value == 0.2
    assert incident.relative_change == pytest.approx(-0.5)


def test_a_flap_in_another_metric_leaves_the_level_of_the_first() -> None:
    again = found(400, onset_s=390, metric="tokens", after=0.2)
    (incident,) = live(found(60), back(300), again).incidents
    assert (incident.flap_count, incident.after.value) == (1, 0.3)


@pytest.mark.parametrize(("onset_s", "one"), [(60, True), (65, True), (66, False)])
def test_what_may_have_begun_before_the_first_was_detected_began_with_it(
    onset_s: int, one: bool
) -> None:
    # The onset's interval reaches 5 s to each side, and the first was detected at 60 s.
    later = found(600, onset_s=onset_s, metric="tokens", kind="hang")
    assert (len(live(found(60), later).incidents) == 1) is one


def test_what_may_have_begun_with_the_first_began_with_it() -> None:
    # The first is detected at once, while its onset may be as late as 65 s.
    later = found(600, onset_s=70, metric="tokens", kind="hang")
    assert len(live(found(60, onset_s=60), later).incidents) == 1


def test_a_trouble_that_shows_in_two_metrics_is_over_when_both_are_back() -> None:
    fell = (found(60), found(90, metric="tokens"))
    assert told(live(*fell, back(300)))[1:] == []
    assert told(live(*fell, back(300), back(400, metric="tokens")))[-1] == (
        "520 resolved: recovered"
    )


def test_a_second_metric_found_late_reopens_what_was_coming_back() -> None:
    lived = live(found(60), back(300), found(350, onset_s=10, metric="tokens"))
    assert told(lived) == ["60 opened"]
    assert lived.incidents[0].recovering_ms is None
    assert lived.incidents[0].flap_count == 0


def test_another_trouble_in_another_metric_does_not_hide_in_an_old_incident() -> None:
    benign = found(60, metric="tokens", kind="precision_shift", severity="info", direction="up")
    lived = live(benign, found(600, kind="hang", severity="critical"))
    assert told(lived) == ["60 opened", "600 resolved: superseded", "600 opened"]
    assert lived.incidents[1].kind == "hang"
    assert lived.incidents[1].away == ("ofu",)


def test_more_of_the_same_kind_in_another_metric_is_the_same_incident() -> None:
    assert told(live(found(60), found(600, metric="tokens", evidence={}))) == ["60 opened"]


def test_a_successor_is_over_when_all_that_had_fallen_is_back() -> None:
    fell = (found(60, metric="tokens"), found(600, kind="hang"))
    assert told(live(*fell, back(700)))[3:] == []
    assert told(live(*fell, back(700), back(800, metric="tokens")))[3:] == [
        "920 resolved: recovered"
    ]


def test_the_recovery_of_a_metric_that_never_fell_changes_nothing() -> None:
    lived = live(found(60), back(300, metric="clock"))
    assert lived.incidents[0].recovering_ms is None
    assert lived.incidents[0].revision == 1


def test_evidence_of_a_second_metric_fills_gaps_and_overrules_nothing() -> None:
    first = found(60, evidence={"sm": None, "clock": 0.9})
    second = found(90, metric="tokens", evidence={"sm": 0.5, "clock": 0.1, "dram": 0.2})
    (incident,) = live(first, second).incidents
    assert incident.features == {"sm": 0.5, "clock": 0.9, "dram": 0.2}


def test_the_rule_of_a_second_metric_becomes_a_runner_up() -> None:
    second = found(90, metric="tokens", kind="precision_shift")
    (incident,) = live(found(60), second).incidents
    assert (incident.kind, incident.runners_up) == ("unexplained", ("precision_shift",))


def test_a_rule_on_trial_neither_touches_nor_is_touched_by_the_real_incident() -> None:
    real, trial = live(found(60), found(300, kind="hang", shadow=True)).incidents
    assert (real.state, trial.state) == (State.OPEN, State.OPEN)
    assert (real.shadow, trial.shadow) == (False, True)


def test_acknowledging_keeps_it_live_and_names_who_did() -> None:
    opened = live(found(60), until_s=60)
    acknowledge = acted(100, opened.incidents[0], "acknowledge")
    lived = live(acknowledge, back(300), incidents=opened.incidents)
    assert told(lived) == ["100 acknowledged", "420 resolved: recovered"]
    assert lived.transitions[0].incident.acknowledged_by == "alice"


@pytest.mark.parametrize("reason", ["expected_change", "false_positive"])
def test_a_person_resolves_with_a_reason(reason: str) -> None:
    opened = live(found(60), until_s=60)
    lived = live(acted(100, opened.incidents[0], "resolve", reason), incidents=opened.incidents)
    assert told(lived) == [f"100 resolved: {reason}"]
    assert lived.ignored == ()


@pytest.mark.parametrize(
    ("verb", "reason", "why"),
    [
        ("resolve", "recovered", "the reason must be one of: expected_change, false_positive"),
        ("resolve", "", "the reason must be one of: expected_change, false_positive"),
        ("delete", "", "the verb must be acknowledge or resolve"),
    ],
)
def test_an_action_that_makes_no_sense_is_ignored_with_its_reason(
    verb: str, reason: str, why: str
) -> None:
    opened = live(found(60), until_s=60)
    lived = live(acted(100, opened.incidents[0], verb, reason), incidents=opened.incidents)
    assert lived.transitions == ()
    assert [one.reason for one in lived.ignored] == [why]


def test_an_action_that_comes_too_late_is_ignored_with_its_reason() -> None:
    over = live(found(60), ended(100))
    lived = live(acted(200, over.incidents[0], "acknowledge"), incidents=over.incidents)
    assert [one.reason for one in lived.ignored] == ["the incident is resolved already"]
    lived = live(acted(200, over.incidents[0], "acknowledge"))
    assert [one.reason for one in lived.ignored] == ["the job has no such incident"]


def test_a_second_acknowledgement_tells_nobody() -> None:
    opened = live(found(60), until_s=60)
    twice = [acted(at, opened.incidents[0], "acknowledge") for at in (100, 110)]
    lived = live(*twice, incidents=opened.incidents)
    assert told(lived) == ["100 acknowledged"]
    assert [one.reason for one in lived.ignored] == ["the incident is acknowledged, not open"]


def test_an_action_from_the_wall_clock_does_not_run_ahead_of_the_samples() -> None:
    opened = live(found(60), back(300), until_s=310)
    # Samples lag by minutes: they have come to 310 s when somebody clicks at 900 s.
    lived = live(
        acted(900, opened.incidents[0], "acknowledge"),
        incidents=opened.incidents,
        until_s=310,
    )
    assert told(lived) == ["900 acknowledged"]
    lived = live(found(400, onset_s=390), incidents=lived.incidents, until_s=1_000)
    assert told(lived) == ["400 updated"]


def test_what_nobody_ends_expires() -> None:
    assert told(live(found(60), until_s=LONG)) == ["60 opened", "3660 resolved: expired"]


def test_an_incident_without_news_does_not_change() -> None:
    first = live(found(60))
    again = live(incidents=first.incidents, until_s=1_500)
    assert again.changed == ()
    assert again.incidents == first.incidents


def test_a_finding_that_is_known_is_not_told_again() -> None:
    first = live(found(60))
    again = live(found(60), incidents=first.incidents)
    assert (again.changed, again.transitions) == ((), ())


def test_an_opening_too_old_when_first_seen_is_marked_quiet() -> None:
    now_s = int(POLICY.max_age) // 1000 + 100
    old, fresh = live(found(60)), live(found(60), now_s=now_s)
    assert (old.incidents[0].quiet, fresh.incidents[0].quiet) == (False, True)
    assert not live(found(160), now_s=now_s).incidents[0].quiet


def test_an_escalation_now_is_told_though_the_opening_was_too_old() -> None:
    now_s = int(POLICY.max_age) // 1000 + 100
    worse = found(500, metric="tokens", severity="critical")
    lived = live(found(60), worse, now_s=now_s)
    assert told(lived) == ["60 opened", "500 escalated"]
    assert [step.incident.quiet for step in lived.transitions] == [True, False]


def test_a_job_whose_description_is_gone_keeps_what_was_known_of_it() -> None:
    first = live(found(60))
    lived = live(ended(100), incidents=first.incidents, job=Job(id=JOB.id))
    assert lived.incidents[0].job.name == JOB.name


def test_a_job_that_got_its_name_late_is_told_by_name() -> None:
    first = live(found(60), job=Job(id=JOB.id))
    lived = live(ended(100), incidents=first.incidents)
    assert lived.transitions[0].incident.job.name == JOB.name


# -- laws ------------------------------------------------------------------------------------

METRICS = st.sampled_from(["ofu", "tokens", "mfu"])
AT_S = st.integers(10, 2_000)


@st.composite
def findings(draw: st.DrawFn) -> Found:
    at_s = draw(AT_S)
    return found(
        at_s,
        onset_s=at_s - draw(st.sampled_from([0, 5, 60, 200])),
        metric=draw(METRICS),
        kind=draw(st.sampled_from(["unexplained", "hang"])),
        family=draw(st.sampled_from(["performance", "performance", "capacity"])),
        severity=draw(st.sampled_from(["warning", "error", "critical"])),
        direction=draw(st.sampled_from(["down", "down", "up"])),
        hold_s=draw(st.sampled_from([0, 0, 60, 300])),
        keep_open_s=draw(st.sampled_from([None, 0, 30])),
        shadow=draw(st.sampled_from([False, False, True])),
        evidence=draw(
            st.dictionaries(st.sampled_from("ab"), st.none() | st.floats(0, 1), max_size=2)
        ),
    )


def recoveries() -> st.SearchStrategy[Recovered]:
    ages = st.sampled_from([0, 20, 150])
    return st.builds(
        lambda at, age, metric: back(at, since_s=at - age, metric=metric), AT_S, ages, METRICS
    )


HAPPENINGS = st.lists(
    st.one_of(
        findings(),
        recoveries(),
        st.builds(ended, AT_S, st.sampled_from(["job_ended", "telemetry_lost"])),
    ),
    max_size=12,
)


def in_pieces(happenings: list[Happening], cuts: list[int]) -> Lived:
    """Follow piece by piece, each up to its cut, as ticks do."""
    incidents: tuple[Incident, ...] = ()
    transitions: list[Transition] = []
    begin = -1
    for cut in [*sorted(cuts), LONG]:
        piece = [one for one in happenings if begin < one.time_ms // 1000 <= cut]
        lived = live(*piece, until_s=cut, incidents=incidents)
        incidents = lived.incidents
        transitions += lived.transitions
        begin = cut
    return Lived(incidents=incidents, transitions=tuple(transitions))


@settings(max_examples=200)
@given(HAPPENINGS, st.lists(st.integers(0, 2_100), max_size=6))
def test_following_in_pieces_is_following_at_once(
    happenings: list[Happening], cuts: list[int]
) -> None:
    whole = live(*happenings, until_s=LONG)
    pieces = in_pieces(happenings, cuts)
    assert pieces.transitions == whole.transitions
    assert pieces.incidents == whole.incidents


@given(HAPPENINGS)
def test_every_opened_incident_is_resolved_in_the_end_with_a_reason(
    happenings: list[Happening],
) -> None:
    lived = live(*happenings, until_s=LONG)
    for incident in lived.incidents:
        steps = [one.type for one in lived.transitions if one.incident.id == incident.id]
        assert incident.state is State.RESOLVED
        assert incident.resolve_reason is not None
        if incident.opened_ms is None:
            assert steps == []
        else:
            assert (steps[0], steps[-1]) == ("opened", "resolved")
            assert steps.count("opened") == steps.count("resolved") == 1


@given(HAPPENINGS, st.integers(0, 2_100))
def test_a_family_has_at_most_one_live_incident(
    happenings: list[Happening], until_s: int
) -> None:
    seen = [one for one in happenings if one.time_ms <= until_s * 1000]
    lived = live(*seen, until_s=until_s)
    families = [(one.family, one.shadow) for one in lived.incidents if one.live]
    assert len(families) == len(set(families))


@given(HAPPENINGS)
def test_transitions_are_in_time_order_and_revisions_grow(happenings: list[Happening]) -> None:
    lived = live(*happenings, until_s=LONG)
    times = [step.time_ms for step in lived.transitions]
    assert times == sorted(times)
    for incident in lived.incidents:
        steps = [one.incident for one in lived.transitions if one.incident.id == incident.id]
        revisions = [one.revision for one in steps]
        assert revisions == sorted(set(revisions))
        assert len({step.event_id for step in lived.transitions}) == len(lived.transitions)


@given(HAPPENINGS, st.integers(0, 2_100))
def test_a_history_read_again_tells_nothing_again(
    happenings: list[Happening], until_s: int
) -> None:
    data = [one for one in happenings if not isinstance(one, Ended)]
    seen = [one for one in data if one.time_ms <= until_s * 1000]
    first = live(*seen, until_s=until_s)
    again = live(*seen, until_s=until_s, incidents=first.incidents)
    assert again.transitions == ()
    assert again.incidents == first.incidents


# What was found on a slope is measured anew


def sliding(incident: Incident, at_ms: int) -> Estimate:
    """A level that slides from 0.36 at the onset to 0.24 at 900 s, and stays there."""
    del incident
    value = max(0.36 - 0.12 * at_ms / 900_000, 0.24)
    return Estimate(value=value, low=value, high=value)


def test_a_slide_is_told_again_when_it_has_reached_its_floor() -> None:
    lived = live(found(60, after=0.35), until_s=1_500, measure=sliding)
    assert told(lived) == ["60 opened", "660 updated", "1260 updated"]
    (incident,) = lived.incidents
    assert incident.after.value == pytest.approx(0.24)
    assert incident.relative_change == pytest.approx(-0.4)


def test_a_level_that_has_not_moved_is_measured_and_not_told() -> None:
    def steady(incident: Incident, at_ms: int) -> Estimate:
        del at_ms
        return incident.after

    lived = live(found(60), until_s=2_000, measure=steady)
    assert told(lived) == ["60 opened"]
    assert lived.incidents[0].measured_ms == 1_260_000


def test_what_is_over_is_measured_up_to_its_end() -> None:
    lived = live(found(60, after=0.35), back(400), until_s=1_000, measure=sliding)
    (incident,) = lived.incidents
    assert told(lived)[-1].endswith("resolved: recovered")
    assert incident.measured_ms == 400_000
    assert incident.after.value == pytest.approx(0.36 - 0.12 * 400 / 900)


@pytest.mark.parametrize("step_s", [1, 37, 250])
def test_measuring_does_not_depend_on_how_time_was_cut(step_s: int) -> None:
    whole = live(found(60, after=0.35), until_s=3_000, measure=sliding)
    pieces = live(found(60, after=0.35), until_s=60, measure=sliding)
    steps = list(pieces.transitions)
    for until_s in [*range(60 + step_s, 3_000, step_s), 3_000]:
        pieces = live(incidents=pieces.incidents, until_s=until_s, measure=sliding)
        steps += pieces.transitions
    assert tuple(steps) == whole.transitions
    assert pieces.incidents == whole.incidents


def test_a_hang_behind_a_small_loss_is_told_as_the_hang_it_is() -> None:
    small = found(60, metric="tokens", severity="warning", after=0.36)
    hang = found(100, onset_s=50, kind="hang", severity="critical", after=0.0)
    lived = live(small, hang)
    assert told(lived) == ["60 opened", "100 escalated"]
    (incident,) = lived.incidents
    assert (incident.kind, incident.rule, incident.metric) == ("hang", "hang", "ofu")
    assert incident.relative_change == -1.0
    assert incident.id == live(small).incidents[0].id


def test_a_decline_in_steps_is_told_as_what_it_adds_up_to() -> None:
    first = found(60, after=0.36)
    later = replace_finding(
        found(1_000, onset_s=900, after=0.30),
        change=dataclasses.replace(
            found(1_000, onset_s=900, after=0.30).finding.change,
            before=Estimate(value=0.36, low=0.36, high=0.36),
            relative_change=0.30 / 0.36 - 1,
        ),
    )
    lived = live(first, later)
    assert told(lived) == ["60 opened", "1000 resolved: superseded", "1000 opened"]
    newest = lived.incidents[-1]
    assert newest.before.value == 0.4
    assert newest.relative_change == pytest.approx(-0.25)
