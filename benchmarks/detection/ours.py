"""Our own detector on the benchmark's jobs, run as ``ofuwatch replay`` runs it.

The shipped models and rules, the same tick, stores in memory. An alarm is an incident of
falling performance that opened with a severity above info, at the time it was detected.
"""

from collections.abc import Sequence
from functools import cache

from benchmarks.detection.generator import Made
from benchmarks.detection.score import Heard
from detector.analysis.judge import Content
from detector.content import load, shipped
from detector.fleet import Gpu, Job
from detector.incident.incident import Incident
from detector.incident.lifecycle import Policy
from detector.replay import replay
from detector.series import Duration
from detector.store.recording import Recording

# An alert that says the telemetry is broken is right this long after it was.
_AFTER = Duration(600_000)


@cache
def content() -> Content:
    """Return models and rules as they are shipped."""
    return load(shipped() / "models", shipped() / "rules")


def listen(jobs: Sequence[Made]) -> list[Heard]:
    """Return what ofuwatch says of these jobs."""
    recordings = {made.id: Recording(job=_job(made), window=made.window) for made in jobs}
    replayed = replay(recordings, content(), cluster="benchmark", policy=Policy())
    if replayed.poisoned:
        job, why = next(iter(replayed.poisoned.items()))
        msg = f"the detector broke on {job}: {why}"
        raise RuntimeError(msg)
    mine: dict[str, list[Incident]] = {made.id: [] for made in jobs}
    for incident in replayed.incidents:
        mine[incident.job.id].append(incident)
    return [_heard(made, mine[made.id]) for made in jobs]


def _job(made: Made) -> Job:
    # At the first incident of a large job its roster is asked for names.
    roster = tuple(Gpu(uuid=f"GPU-{k}", index=k) for k in range(made.kind.gpus))
    return Job(id=made.id, roster=roster)


def _heard(made: Made, found: Sequence[Incident]) -> Heard:
    alarms = [item for item in found if is_alarm(item, made)]
    return Heard(
        kind=made.kind.name,
        truth=made.truth,
        alarms=tuple(sorted(item.detected_ms for item in alarms)),
        pages=tuple(sorted(i.paged_ms for i in alarms if i.paged_ms is not None)),
        named=tuple(sorted(i.detected_ms for i in alarms if i.gpus)),
    )


def is_alarm(incident: Incident, made: Made) -> bool:
    """Whether an incident says that the job fell, and is not about telemetry that broke."""
    if incident.direction != "down" or incident.severity == "info":
        return False
    if incident.kind != "telemetry_fault":
        return True
    return not any(
        span.start_ms <= incident.detected_ms <= span.end_ms + _AFTER for span in made.blind
    )
