"""A straggler in a job of 1,024 GPUs, as the receivers' tests tell it."""

from typing import Any

import msgspec

from detector.analysis.change import Estimate
from detector.fleet import Gpu, Job
from detector.incident.incident import (
    Incident,
    RuledOut,
    State,
    Transition,
    TransitionType,
)
from tests.incident import samples

MINUTE_MS = 60_000
ONSET_MS = 1_795_913_460_000  # 2026-11-29 00:51 UTC

ROSTER = tuple(
    Gpu(uuid=f"GPU-{host:03d}-{index}", host=f"gpu-node-{host:03d}", index=index)
    for host in range(128)
    for index in range(8)
)
CULPRIT = ROSTER[42 * 8 + 5]

STRAGGLER = samples.incident(
    id="inc_abcdefghij0123456789",
    job=Job(id="5728163", name="llm-70b-v3", owner="alice", team="pretrain"),
    summary="One GPU runs far below its peers while the others wait for it.",
    onset_ms=ONSET_MS,
    onset_low_ms=ONSET_MS - 2 * MINUTE_MS,
    onset_high_ms=ONSET_MS + 2 * MINUTE_MS,
    detected_ms=ONSET_MS + 23 * MINUTE_MS,
    opened_ms=ONSET_MS + 23 * MINUTE_MS,
    before=Estimate(value=0.412, low=0.409, high=0.415),
    after=Estimate(value=0.331, low=0.326, high=0.336),
    relative_change=-0.197,
    before_samples=0,
    after_samples=0,
    features={},
    gpus=(CULPRIT,),
    gpu_places=(42 * 8 + 5,),
    ruled_out=(
        RuledOut(rule="restart", reason="no restart within 10 min"),
        RuledOut(rule="telemetry_fault", reason="all 1,024 GPUs report"),
    ),
)


def incident(**changes: Any) -> Incident:
    """The straggler with some of its fields changed."""
    return msgspec.structs.replace(STRAGGLER, **changes)


def opened(**changes: Any) -> Transition:
    """It opens, 23 min after its onset."""
    return step("opened", 23, **changes)


def resolved(**changes: Any) -> Transition:
    """It is over, 29 min after its onset."""
    over = {
        "state": State.RESOLVED,
        "resolved_ms": ONSET_MS + 29 * MINUTE_MS,
        "resolve_reason": "recovered",
        "revision": 9,
    }
    return step("resolved", 29, **{**over, **changes})


def step(kind: TransitionType, minute: int, **changes: Any) -> Transition:
    """A transition so many minutes after the onset."""
    return Transition(
        type=kind, time_ms=ONSET_MS + minute * MINUTE_MS, incident=incident(**changes)
    )
