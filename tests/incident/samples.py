"""Findings and incidents whose every value is known, and lives of one job's incidents."""

from collections.abc import Sequence

from msgspec.structs import replace

from detector.analysis.change import Cause, Confirmed, Direction, Estimate
from detector.analysis.judge import Finding
from detector.analysis.rules import Rule, Severity, Verdict
from detector.fleet import Gpu, Job
from detector.incident.happening import Found, Happening, Recovered
from detector.incident.incident import Incident, State, Transition, TransitionType, incident_id
from detector.incident.lifecycle import Lived, Policy, follow
from detector.incident.measure import Measure
from detector.incident.page import AskPage
from detector.series import Duration, Interval

JOB = Job(
    id="slurm:5728163",
    name="llm-70b-v3",
    owner="alice",
    team="pretrain",
    scheduler="slurm",
    cluster="prod-a",
    gpu_model="H100 SXM",
    precision="bf16",
    start_ms=1_795_000_000_000,
    lineage=("slurm:5728001",),
    labels={"precision": "bf16"},
)
GPU = Gpu(uuid="GPU-3d7408b2-d525-643f-5bfc-45a761045e14", host="gpu-node-042", index=5)
POLICY = Policy(keep_open=Duration.parse("2m"), expire=Duration.parse("1h"))
NOON_MS = 1_796_000_400_000  # 2026-11-30T01:00:00Z


def level(value: float, half: float = 0.003) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half)


def found(
    at_s: int,
    *,
    onset_s: int | None = None,
    metric: str = "ofu",
    kind: str = "unexplained",
    family: str = "performance",
    severity: Severity = "error",
    direction: Direction = "down",
    hold_s: int = 0,
    keep_open_s: int | None = None,
    shadow: bool = False,
    after: float = 0.3,
    evidence: dict[str, float | None] | None = None,
    gpus: tuple[Gpu, ...] = (),
    cause: Cause = "excursion",
) -> Found:
    """A finding that was made at ``at_s``, its onset a minute earlier unless said."""
    onset_ms = 1000 * (at_s - 60 if onset_s is None else onset_s)
    rule = Rule(
        name=kind,
        kind=kind,
        families=("performance",),
        severity=severity,
        summary="it fell",
        action="notify_owner",
        hold=Duration(hold_s * 1000),
        keep_open=None if keep_open_s is None else Duration(keep_open_s * 1000),
        shadow=shadow,
    )
    change = Confirmed(
        metric=metric,
        cause=cause,
        direction=direction,
        onset_ms=onset_ms,
        onset=Interval(start_ms=onset_ms - 5_000, end_ms=onset_ms + 5_000),
        detected_ms=at_s * 1000,
        before=level(0.4),
        after=level(after),
        relative_change=after / 0.4 - 1,
        confidence=0.99,
        before_span=Interval(start_ms=onset_ms - 600_000, end_ms=onset_ms),
        after_span=Interval(start_ms=onset_ms, end_ms=at_s * 1000 + 1),
    )
    finding = Finding(
        change=change,
        verdict=Verdict(rule=rule, ruled_out=(("hang", "ofu_after is 0.3, not below 0.02"),)),
        evidence=evidence if evidence is not None else {"relative_change": after / 0.4 - 1},
        gpus=gpus,
        gpu_places=tuple(range(len(gpus))),
        attribution_confidence=0.9 if gpus else None,
        gpus_total=64,
        before_samples=60,
        after_samples=6,
        summary="it fell",
    )
    return Found(time_ms=at_s * 1000, finding=finding, family=family)


def back(at_s: int, *, since_s: int | None = None, metric: str = "ofu") -> Recovered:
    """The metric is seen to be back at ``at_s``, since then unless said."""
    since_ms = 1000 * (at_s if since_s is None else since_s)
    return Recovered(time_ms=at_s * 1000, since_ms=since_ms, metric=metric)


def live(
    *happenings: Happening,
    until_s: int = 1_000,
    incidents: Sequence[Incident] = (),
    job: Job = JOB,
    now_s: int | None = None,
    measure: Measure | None = None,
    page: AskPage | None = None,
) -> Lived:
    """What becomes of the job's incidents up to ``until_s``."""
    return follow(
        incidents,
        happenings,
        until_ms=until_s * 1000,
        job=job,
        cluster="prod-a",
        policy=POLICY,
        now_ms=None if now_s is None else now_s * 1000,
        measure=measure,
        page=page,
    )


def incident(**changes: object) -> Incident:
    """An incident that opened at noon, ten minutes after its onset, with ``changes``."""
    onset_ms = NOON_MS - 600_000
    opened = Incident(
        id=incident_id(cluster="prod-a", job=JOB.id, kind="straggler", onset_ms=onset_ms),
        cluster="prod-a",
        job=JOB,
        kind="straggler",
        family="performance",
        metric="ofu",
        direction="down",
        cause="excursion",
        state=State.OPEN,
        revision=1,
        severity="error",
        confidence=0.97,
        rule="straggler",
        summary="One GPU holds the others back.",
        onset_ms=onset_ms,
        onset_low_ms=onset_ms - 60_000,
        onset_high_ms=onset_ms + 60_000,
        detected_ms=NOON_MS,
        opened_ms=NOON_MS,
        before=level(0.4),
        after=level(0.3),
        relative_change=-0.25,
        before_samples=712,
        after_samples=23,
        features={"worst_gpu_ratio": 0.47, "clock_ratio": None},
        runners_up=("throttle_thermal",),
        gpus=(GPU,),
        attribution_confidence=0.91,
        gpus_total=1024,
        hosts_total=128,
        runbook="docs/rules.md#straggler",
        recommended_action="investigate_node",
        away=("ofu",),
        news_ms=NOON_MS,
    )
    return replace(opened, **changes)


def transition(
    step: TransitionType = "opened", /, *, time_ms: int = NOON_MS, **changes: object
) -> Transition:
    """A step of the incident that :func:`incident` makes of ``changes``."""
    return Transition(type=step, time_ms=time_ms, incident=incident(**changes))
