"""The page bound's hold in an incident's life: when it is asked, and what the answer does."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.paging import Later, Passed
from detector.incident.happening import Acted, Ended, Found, Happening
from detector.incident.incident import Incident, State, Transition
from detector.incident.ledger import Action
from detector.incident.page import AskPage
from tests.incident import samples
from tests.incident.samples import back, found


def ripe_after(seconds: int, asked: list[int] | None = None) -> AskPage:
    """A bound that is passed so long after the onset, whatever else happens."""

    def page(incident: Incident, at_ms: int) -> Passed | Later:
        if asked is not None:
            asked.append(at_ms // 1000)
        due_ms = incident.onset_ms + 1000 * seconds
        if at_ms >= due_ms:
            return Passed(reason="it is low for long enough")
        return Later(reason="too early", again_ms=due_ms)

    return page


live = partial(samples.live, until_s=2_000, page=ripe_after(700))


def told(steps: tuple[Transition, ...]) -> list[str]:
    return [f"{step.time_ms // 1000} {step.type} {step.incident.severity}" for step in steps]


def test_what_passes_is_escalated_at_its_own_time_and_critical_from_then_on() -> None:
    lived = live(found(60), back(1_000))
    assert told(lived.transitions) == [
        "60 opened error", "700 escalated critical", "1120 resolved critical",
    ]  # fmt: skip
    (incident,) = lived.incidents
    assert incident.paged_ms == 700_000
    assert incident.page_reason == "it is low for long enough"


@pytest.mark.parametrize(
    "ending",
    [back(600), Ended(time_ms=650_000, reason="job_ended"),
     Ended(time_ms=650_000, reason="telemetry_lost")],
)  # fmt: skip
def test_what_is_over_or_on_its_way_back_calls_nobody(ending: Happening) -> None:
    lived = live(found(60), ending)
    assert all(step.type != "escalated" for step in lived.transitions)


@pytest.mark.parametrize(
    "finding",
    [
        pytest.param(found(60, severity="info"), id="a job that got faster"),
        pytest.param(found(60, kind="telemetry_fault"), id="a broken collector"),
        pytest.param(found(60, family="capacity"), id="missing GPUs"),
        pytest.param(found(60, direction="up"), id="a rise"),
        pytest.param(found(60, shadow=True), id="a rule on trial"),
        pytest.param(found(60, hold_s=5_000), id="what has not opened"),
    ],
)
def test_the_bound_is_not_even_asked_about(finding: Found) -> None:
    asked: list[int] = []
    live(finding, page=ripe_after(0, asked))
    assert asked == []


def test_a_job_that_was_slow_from_its_start_calls_nobody_and_says_why() -> None:
    asked: list[int] = []
    slow = found(60, kind="slow_from_start", cause="lineage")
    (incident,) = live(slow, page=ripe_after(0, asked)).incidents
    assert asked == []
    assert "slow from its first sample" in incident.page_reason


def test_whoever_has_taken_an_incident_is_not_called() -> None:
    (incident,) = live(found(60), until_s=100).incidents
    action = Action(verb="acknowledge", incident=incident.id, actor="alice", time_ms=200_000)
    lived = live(Acted(time_ms=200_000, action=action), incidents=(incident,))
    (after,) = lived.incidents
    assert (after.state, after.paged_ms) == (State.ACKNOWLEDGED, None)


def test_a_fall_that_flaps_is_asked_about_anew_and_never_in_the_past() -> None:
    asked: list[int] = []
    lived = live(found(60), back(690), found(780, onset_s=770), page=ripe_after(700, asked))
    assert asked == [60, 780]
    assert told(lived.transitions)[-1] == "780 escalated critical"


def test_it_is_not_asked_again_after_people_were_called() -> None:
    asked: list[int] = []
    live(found(60), found(900, metric="tokens"), page=ripe_after(700, asked))
    assert asked == [60, 700]


def test_without_a_bound_nobody_is_ever_called() -> None:
    lived = live(found(60), page=lambda incident, at_ms: None)
    assert told(lived.transitions) == ["60 opened error"]


def test_an_answer_that_names_no_later_time_is_asked_for_again_later() -> None:
    asked: list[int] = []

    def stubborn(incident: Incident, at_ms: int) -> Later:
        asked.append(at_ms)
        return Later(reason="not yet", again_ms=at_ms if len(asked) < 5 else None)

    live(found(60), page=stubborn)
    assert asked == sorted(set(asked))
    assert len(asked) == 5


def test_a_further_drop_of_what_people_were_called_for_is_critical_and_calls_nobody() -> None:
    def once(incident: Incident, at_ms: int) -> Passed | Later:
        if incident.supersedes is None and at_ms >= 700_000:
            return Passed(reason="low")
        return Later(reason="too early", again_ms=700_000 if at_ms < 700_000 else None)

    lived = live(found(60), found(900), page=once)
    first, second = lived.incidents
    assert first.paged_ms == 700_000
    assert (second.severity, second.paged_ms, second.supersedes) == ("critical", None, first.id)
    assert told(lived.transitions)[-1] == "900 opened critical"


def test_a_job_that_stands_still_is_told_as_that_although_it_is_no_more_severe() -> None:
    lived = live(
        found(60, metric="tokens", kind="precision_shift"),
        found(80, onset_s=10, kind="hang", after=0.0),
        page=lambda incident, at_ms: None,
    )
    (incident,) = lived.incidents
    assert (incident.kind, incident.severity) == ("hang", "error")
    assert told(lived.transitions) == ["60 opened error", "80 updated error"]


@given(cuts=st.lists(st.integers(1, 1_500), max_size=6), after=st.integers(0, 1_500))
def test_the_hold_falls_due_at_its_own_time_however_time_is_cut(
    cuts: list[int], after: int
) -> None:
    happenings: list[Happening] = [found(60), back(400), found(450, onset_s=440), back(1_200)]
    whole = live(*happenings, page=ripe_after(after))
    steps: list[Transition] = []
    incidents: tuple[Incident, ...] = ()
    start = 0
    for stop in [*sorted(set(cuts)), 2_000]:
        part = [one for one in happenings if start < one.time_ms // 1000 <= stop]
        lived = live(*part, until_s=stop, page=ripe_after(after), incidents=incidents)
        incidents, start = lived.incidents, stop
        steps += lived.transitions
    assert incidents == whole.incidents
    assert tuple(steps) == whole.transitions
