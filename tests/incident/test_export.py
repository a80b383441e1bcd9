"""The JSON of version 1: what it says, that its schema holds, and that it stays small."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from detector.analysis.change import Estimate
from detector.analysis.rules import SEVERITIES
from detector.fleet import Earlier, Gpu, Job
from detector.incident.export import document, payload, permalink, schema, wasted_gpu_hours
from detector.incident.incident import (
    Incident,
    RuledOut,
    State,
    Transition,
    TransitionType,
    incident_id,
)
from detector.series import iso
from tests.incident.samples import JOB, NOON_MS, incident, transition

SOURCE = "https://ofu.example.com/clusters/prod-a"
BASE = "https://ofu.example.com"
HOUR_MS = 3_600_000


def closed(part: Any) -> Any:
    """A schema that refuses fields it does not name: what we send is all described."""
    if isinstance(part, list):
        return [closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    shut = {name: closed(value) for name, value in part.items()}
    if "properties" in part and "allOf" not in part and part.get("required"):
        shut.setdefault("additionalProperties", False)
    return shut


OPEN = Draft202012Validator(schema())
CLOSED = Draft202012Validator(closed(schema()))


def event(step: Transition, *, now_ms: int = NOON_MS, base: str = BASE) -> dict[str, Any]:
    """The payload as a consumer reads it, checked against the schema."""
    text = json.dumps(payload(step, now_ms=now_ms, source=SOURCE, permalink_base=base))
    read: dict[str, Any] = json.loads(text)
    CLOSED.validate(read)
    return read


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema())


def test_the_envelope_is_a_cloudevent_that_sorts_and_deduplicates() -> None:
    step = transition(revision=7)
    read = event(step)
    assert read["specversion"] == "1.0"
    assert read["id"] == step.event_id
    assert read["type"] == "io.ofu.incident.opened.v1"
    assert read["subject"] == "jobs/slurm:5728163"
    assert read["time"] == "2026-11-30T01:00:00Z"
    assert read["sequence"] == "0000000007"
    assert read["partitionkey"] == read["correlationid"] == step.incident.id
    assert (read["severitytext"], read["severitynumber"]) == ("ERROR", 17)
    assert read["dataschema"] == f"{BASE}/schemas/incident.v1.json"


def test_attributes_of_a_cloudevent_are_lower_case_letters_and_digits_and_never_null() -> None:
    read = event(transition())
    assert all(name.isalnum() and name.islower() for name in read)
    assert None not in read.values()


def test_the_incident_says_what_when_and_how_sure() -> None:
    told = event(transition())["data"]["incident"]
    assert told["status"] == "open"
    assert told["kind"] == "straggler"
    assert told["confidence"] == 0.97
    assert told["onset_time"] == "2026-11-30T00:50:00Z"
    assert told["onset_ci95"] == ["2026-11-30T00:49:00Z", "2026-11-30T00:51:00Z"]
    assert told["dedup_key"] == f"prod-a/slurm:5728163/straggler/{NOON_MS - 600_000}"
    assert told["permalink"] == f"{BASE}/i/{told['id']}"
    assert (told["resolved_time"], told["resolve_reason"]) == (None, None)


def test_without_an_address_there_is_no_link_and_the_schema_goes_by_name() -> None:
    read = event(transition(), base="")
    assert read["data"]["incident"]["permalink"] is None
    assert read["dataschema"] == schema()["$id"]


def test_a_dedup_key_that_is_too_long_gives_way_to_the_id() -> None:
    step = transition(job=Job(id="x" * 300))
    told = event(step)["data"]["incident"]
    assert told["dedup_key"] == told["id"]


def test_an_empty_word_about_a_job_is_null() -> None:
    told = event(transition(job=Job(id="7")))["data"]["job"]
    assert (told["owner"], told["name"], told["start_time"]) == (None, None, None)
    assert told["cluster"] == "prod-a"


def test_scope_names_the_gpus_by_host_with_its_own_confidence() -> None:
    scope = event(transition())["data"]["scope"]
    assert scope["level"] == "gpu"
    assert scope["attribution_confidence"] == 0.91
    assert scope["hosts"] == [
        {
            "name": "gpu-node-042",
            "gpus": [{"uuid": "GPU-3d7408b2-d525-643f-5bfc-45a761045e14", "index": 5}],
        }
    ]
    assert (scope["hosts_affected"], scope["hosts_total"]) == (1, 128)


def test_counts_of_gpus_stay_true_where_the_list_is_cut() -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{k}", host=f"n{k // 8}", index=k % 8) for k in range(800))
    scope = event(transition(gpus=gpus))["data"]["scope"]
    assert scope["level"] == "node"
    assert (scope["gpus_affected"], scope["hosts_affected"]) == (800, 100)
    assert sum(len(host["gpus"]) for host in scope["hosts"]) == 16


def test_a_change_of_the_whole_job_has_no_hosts() -> None:
    scope = event(transition(gpus=(), attribution_confidence=None))["data"]["scope"]
    assert (scope["level"], scope["hosts"], scope["gpus_affected"]) == ("job", [], 0)


def test_evidence_keeps_what_was_not_measured_as_null() -> None:
    evidence = event(transition())["data"]["evidence"]
    assert evidence[0] == {"type": "change_point", "cause": "excursion", "confidence": 0.97}
    assert {"type": "feature", "name": "clock_ratio", "value": None} in evidence
    assert {"type": "feature", "name": "worst_gpu_ratio", "value": 0.47} in evidence
    assert {"type": "runner_up", "rule": "throttle_thermal"} in evidence


def test_causes_that_were_excluded_come_with_why() -> None:
    step = transition(ruled_out=(RuledOut(rule="hang", reason="OFU is 0.3"),))
    assert event(step)["data"]["excluded_causes"] == [{"rule": "hang", "reason": "OFU is 0.3"}]


@pytest.mark.parametrize("kind", ["opened", "updated", "acknowledged", "escalated", "resolved"])
@pytest.mark.parametrize("action", ["none", "drain_node", "requeue_job", "made_up"])
def test_no_program_is_ever_told_that_it_may_act(kind: Any, action: str) -> None:
    advice = event(transition(kind, recommended_action=action))["data"]["recommendation"]
    assert advice["automation_allowed"] is False
    assert advice["reason_not_allowed"] == "policy:observe_only"


def test_advice_says_what_it_would_touch_until_when_and_under_which_conditions() -> None:
    advice = event(transition())["data"]["recommendation"]
    assert advice["target"] == {"type": "node", "name": "gpu-node-042"}
    assert advice["blast_radius"] == {"jobs": 1, "gpus": 1, "running_job_interrupted": True}
    assert advice["valid_until"] == "2026-11-30T02:00:00Z"
    assert advice["preconditions"][1] == "node still in the allocation of slurm:5728163"


def test_an_action_nobody_knows_is_taken_to_stop_the_job() -> None:
    advice = event(transition(recommended_action="made_up"))["data"]["recommendation"]
    assert advice["blast_radius"] == {"jobs": 1, "gpus": 1024, "running_job_interrupted": True}


def test_what_is_over_needs_no_action() -> None:
    step = transition(
        "resolved", state=State.RESOLVED, resolved_ms=NOON_MS, resolve_reason="recovered"
    )
    advice = event(step)["data"]["recommendation"]
    assert (advice["action"], advice["target"]) == ("none", None)
    assert advice["preconditions"] == []
    assert advice["blast_radius"] == {"jobs": 0, "gpus": 0, "running_job_interrupted": False}


def test_waste_is_gpus_times_loss_times_time_since_onset() -> None:
    one = incident(relative_change=-0.25, gpus_total=1024)
    onset_ms = one.onset_ms
    assert wasted_gpu_hours(one, until_ms=onset_ms + HOUR_MS) == (256.0, 256.0)
    metric = event(transition(), now_ms=onset_ms + 2 * HOUR_MS)["data"]["metric"]
    assert (metric["wasted_gpu_hours"], metric["wasted_gpu_hours_per_hour"]) == (512.0, 256.0)


def test_waste_stops_growing_when_the_level_is_back() -> None:
    onset_ms = incident().onset_ms
    back = incident(recovering_ms=onset_ms + HOUR_MS)
    assert wasted_gpu_hours(back, until_ms=onset_ms + 9 * HOUR_MS) == (256.0, 256.0)
    over = incident(resolved_ms=onset_ms + HOUR_MS)
    assert wasted_gpu_hours(over, until_ms=onset_ms + 9 * HOUR_MS) == (256.0, 256.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"direction": "up"},
        {"family": "telemetry"},
        {"family": "accounting"},
        {"severity": "info"},
        {"gpus_total": None},
    ],
)
def test_where_nothing_is_known_to_be_lost_waste_is_null(changes: dict[str, Any]) -> None:
    assert wasted_gpu_hours(incident(**changes), until_ms=NOON_MS) is None
    assert event(transition(**changes))["data"]["metric"]["wasted_gpu_hours"] is None


def test_the_same_step_at_its_own_time_is_the_same_event() -> None:
    step = transition()
    first, second = event(step, now_ms=step.time_ms), event(step, now_ms=step.time_ms)
    assert first == second


def test_the_permalink_s_json_is_the_event_s_data() -> None:
    step = transition()
    told = document(step.incident, now_ms=NOON_MS, permalink_base=BASE)
    assert told == event(step)["data"]


def test_a_consumer_of_version_1_accepts_fields_that_it_does_not_know() -> None:
    read = event(transition())
    read["traceparent"] = "00-1-2-3"
    read["data"]["incident"]["mood"] = 3
    read["data"]["evidence"].append({"type": "xid", "code": 79})
    OPEN.validate(read)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("data", "incident", "revision"), "1"),
        (("data", "incident", "revision"), 0),
        (("data", "incident", "status"), "firing"),
        (("data", "incident", "onset_time"), "yesterday"),
        (("data", "metric", "before"), "0.4"),
        (("data", "recommendation", "automation_allowed"), "false"),
        (("data", "evidence", 0, "cause"), "magic"),
        (("type",), "io.ofu.incident.opened.v2"),
    ],
)
def test_the_schema_is_strict_about_types(place: tuple[Any, ...], value: object) -> None:
    read = event(transition())
    part = read
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(ValidationError):
        OPEN.validate(read)


def test_a_permalink_survives_any_base() -> None:
    one = incident()
    assert permalink(one, "") is None
    assert permalink(one, "https://a.example/") == f"https://a.example/i/{one.id}"


TEXTS = st.text(max_size=400)
FLOATS = st.floats()
TIMES = st.integers(0, 4_102_444_800_000)
ESTIMATES = st.builds(Estimate, value=FLOATS, low=FLOATS, high=FLOATS)
GPUS = st.builds(Gpu, uuid=TEXTS, host=TEXTS, index=st.none() | st.integers(0, 10**6))
JOBS = st.builds(
    Job,
    id=st.text(min_size=1, max_size=400),
    name=TEXTS,
    owner=TEXTS,
    team=TEXTS,
    start_ms=st.none() | TIMES,
    lineage=st.lists(TEXTS, max_size=20).map(tuple),
    labels=st.dictionaries(TEXTS, TEXTS, max_size=30),
)


@st.composite
def transitions(draw: st.DrawFn) -> Transition:
    job = draw(JOBS)
    onset_ms = draw(TIMES)
    one: Incident = incident(
        id=incident_id(cluster="c", job=job.id, kind="k", onset_ms=onset_ms),
        job=job,
        cluster=draw(TEXTS),
        kind=draw(TEXTS),
        metric=draw(st.sampled_from(["ofu", "gpus", "unheard_of"])),
        state=draw(st.sampled_from(State)),
        revision=draw(st.integers(1, 10**11)),
        severity=draw(st.sampled_from(SEVERITIES)),
        confidence=draw(st.floats(0, 1) | st.just(float("nan"))),
        summary=draw(TEXTS),
        onset_ms=onset_ms,
        resolved_ms=draw(st.none() | TIMES),
        recovering_ms=draw(st.none() | TIMES),
        resolve_reason=draw(st.sampled_from([None, "recovered", "expired"])),
        acknowledged_by=draw(TEXTS),
        before=draw(ESTIMATES),
        after=draw(ESTIMATES),
        relative_change=draw(FLOATS),
        features=draw(st.dictionaries(TEXTS, st.none() | FLOATS, max_size=5)),
        runners_up=tuple(draw(st.lists(TEXTS, max_size=3))),
        ruled_out=tuple(
            draw(st.lists(st.builds(RuledOut, rule=TEXTS, reason=TEXTS), max_size=3))
        ),
        gpus=tuple(draw(st.lists(GPUS, max_size=4))),
        attribution_confidence=draw(st.none() | st.floats(0, 1)),
        gpus_total=draw(st.none() | st.integers(0, 10**6)),
        recommended_action=draw(st.sampled_from(["none", "drain_node", "anything"])),
    )
    kind: TransitionType = draw(
        st.sampled_from(["opened", "updated", "acknowledged", "escalated", "resolved"])
    )
    return Transition(type=kind, time_ms=draw(TIMES), incident=one)


@settings(max_examples=60, deadline=None)
@given(transitions(), TIMES)
def test_whatever_the_incident_its_event_is_valid_json(step: Transition, now_ms: int) -> None:
    text = json.dumps(payload(step, now_ms=now_ms, source=SOURCE), allow_nan=False)
    text.encode()
    CLOSED.validate(json.loads(text))


@pytest.mark.parametrize("letter", ["x", "€", "😀", '"', "\\", "\x00", "\ud800"])
def test_no_incident_makes_an_event_above_20_kb(letter: str) -> None:
    long = letter * 5_000
    many = tuple(f"{long[:4000]}{k}" for k in range(100))
    job = Job(
        id=long,
        name=long,
        owner=long,
        team=long,
        scheduler=long,
        cluster=long,
        gpu_model=long,
        precision=long,
        lineage=many,
        labels={f"{k}{long}": long for k in range(100)},
        start_ms=1,
    )
    step = transition(
        job=job,
        cluster=long,
        kind=long,
        rule=long,
        summary=long,
        acknowledged_by=long,
        runbook=long,
        features={f"{k}{long}": -1.2345678901234567e-300 for k in range(200)},
        runners_up=many,
        ruled_out=tuple(RuledOut(rule=one, reason=long) for one in many),
        gpus=tuple(Gpu(uuid=f"{k}{long}", host=f"{k}{long}", index=10**9) for k in range(99)),
        recommended_action=long,
        earlier=Earlier(
            id=long,
            name=long,
            until_ms=1,
            differs={f"{k}{long}": (long, long) for k in range(99)},
        ),
    )
    event(step)
    told = payload(step, now_ms=NOON_MS, source=SOURCE, permalink_base="https://" + "h" * 100)
    size = len(json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode())
    assert size <= 20_000


def test_the_level_before_says_which_earlier_run_it_is_of() -> None:
    assert event(transition(job=JOB))["data"]["metric"]["baseline"]["kind"] == "self"
    earlier = Earlier(id="4698", until_ms=NOON_MS, differs={"image": ("v1", "v2")})
    told = event(transition(job=JOB, cause="lineage", before_samples=300, earlier=earlier))
    assert told["data"]["metric"]["baseline"] == {
        "kind": "lineage",
        "samples": 300,
        "job": "4698",
        "until": iso(NOON_MS),
        "differs": {"image": ["v1", "v2"]},
    }


def test_what_was_measured_is_told_before_what_was_not() -> None:
    features = {f"a{k:02d}": None for k in range(40)} | {"z": 1.0}
    told = event(transition(job=JOB, features=features))["data"]["evidence"]
    names = [item["name"] for item in told if item["type"] == "feature"]
    assert len(names) == 32
    assert names[-1] == "z"


def test_an_ordinary_incident_is_a_few_kilobytes() -> None:
    told = event(transition(job=JOB))
    assert len(json.dumps(told)) < 4_000
