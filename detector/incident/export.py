"""The JSON that leaves the house: a transition as a CloudEvent, version 1. Pure.

What a field means to a consumer is in docs/incidents.md; what it may look like is in
``schemas/incident.v1.json``, which ships in the wheel. Version 1 may grow fields and never
loses or bends one. Everything is bounded, so that an event stays below 20 kB whatever a job
calls itself: Standard Webhooks asks for that, and intermediaries need carry no more than 64.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from itertools import accumulate, takewhile
from math import isfinite
from typing import Any
from urllib.parse import quote

from detector.analysis.change import Estimate
from detector.analysis.rules import Severity
from detector.fleet import Gpu
from detector.incident.incident import Incident, Transition
from detector.metric import METRICS
from detector.series import iso

SCHEMA_URN = "urn:ofuwatch:schema:incident.v1"

# OpenTelemetry's severity numbers, which CloudEvents' severity extension takes over.
_SEVERITY_NUMBERS: Mapping[Severity, int] = {
    "info": 9,
    "warning": 13,
    "error": 17,
    "critical": 21,
}

# How long a recommendation may be acted on. chosen: within an hour a scheduler has often moved
# the job; who comes later asks again.
_VALID_MS = 3_600_000
_HOUR_MS = 3_600_000

# Bounds that together keep the event below 20 kB; a test holds them against the worst case.
_NAME, _WORD, _ID, _SENTENCE = 64, 128, 256, 300
_MOST_GPUS, _MOST_FEATURES, _MOST_RULES, _MOST_LABELS, _MOST_RUNS = 16, 32, 8, 12, 4
_MOST_CHANGES, _SHORT = 5, 44

# What does not touch the running job; anything else, known or not, is taken to stop it.
_HARMLESS = ("none", "notify_owner", "capture_profile")
_ON_NODES = ("investigate_node", "drain_node")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of :func:`payload`."""
    text = files("detector.incident").joinpath("schemas/incident.v1.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def permalink(incident: Incident, base: str) -> str | None:
    """Return the address of the incident's page, or None when no ``base`` is configured."""
    return f"{base.rstrip('/')}/i/{quote(incident.id, safe='')}" if base else None


def wasted_gpu_hours(incident: Incident, *, until_ms: int) -> tuple[float, float] | None:
    """Return GPU-hours lost up to ``until_ms`` and per hour; None where nothing is known lost.

    GPUs of the job x relative loss x time since onset: a job that runs a fifth slower wastes
    a fifth of all its GPUs, whichever is at fault, since the others wait. Where single GPUs
    fell and the others did not, only theirs is lost. The clock stops when the level is back.
    """
    lossy = incident.direction == "down" and incident.family in ("performance", "capacity")
    if not incident.gpus_total or not lossy or incident.severity == "info":
        return None
    ends_ms = (incident.recovering_ms, incident.resolved_ms, until_ms)
    end_ms = min(end for end in ends_ms if end is not None)
    alone = incident.cause == "peers"
    losing = len(incident.gpus) if alone else incident.gpus_total
    per_hour = losing * min(1.0, max(0.0, -incident.relative_change))
    return per_hour * max(0, end_ms - incident.onset_ms) / _HOUR_MS, per_hour


def payload(
    transition: Transition, *, now_ms: int, source: str, permalink_base: str = ""
) -> dict[str, Any]:
    """Return the CloudEvent of version 1 that tells ``transition``.

    Parameters
    ----------
    now_ms
        The time it speaks from: waste is counted up to it, the recommendation is valid for an
        hour from it. Give the transition's own time to get the same event on every retry,
        wall time to answer somebody who asks.
    source
        Who says so, a URI such as ``https://ofu.example.com/clusters/prod-a``.
    permalink_base
        Where the service's pages are; "" leaves links null.
    """
    incident = transition.incident
    base = permalink_base.rstrip("/")
    return {
        "specversion": "1.0",
        "id": transition.event_id,
        "source": source,
        "type": f"io.ofu.incident.{transition.type}.v1",
        "subject": f"jobs/{_text(incident.job.id, _ID) or '-'}",
        "time": iso(transition.time_ms),
        "datacontenttype": "application/json",
        "dataschema": f"{base}/schemas/incident.v1.json" if base else SCHEMA_URN,
        "partitionkey": incident.id,
        "correlationid": incident.id,
        "sequence": f"{incident.revision:010d}",
        "severitytext": incident.severity.upper(),
        "severitynumber": _SEVERITY_NUMBERS[incident.severity],
        "expirytime": iso(now_ms + _VALID_MS),
        "data": document(incident, now_ms=now_ms, permalink_base=permalink_base),
    }


def document(incident: Incident, *, now_ms: int, permalink_base: str = "") -> dict[str, Any]:
    """Return what is known of an incident: an event's ``data``, and its permalink's ``.json``.

    The parameters are those of :func:`payload`.
    """
    return {
        "schema_version": 1,
        "incident": _incident(incident, permalink_base),
        "job": _job(incident),
        "metric": _metric(incident, now_ms),
        "scope": _scope(incident),
        "evidence": _evidence(incident),
        "excluded_causes": [
            {"rule": _text(one.rule, _NAME), "reason": _text(one.reason, _SENTENCE)}
            for one in incident.ruled_out[:_MOST_RULES]
        ],
        "suppression": {"silenced": False, "inhibited_by": None},
        "recommendation": _recommendation(incident, now_ms),
    }


def _incident(incident: Incident, base: str) -> dict[str, Any]:
    key = f"{incident.cluster}/{incident.job.id}/{incident.kind}/{incident.onset_ms}"
    return {
        "id": incident.id,
        # PagerDuty takes 255; whoever is longer is known by the id, which is as unique.
        "dedup_key": key if len(key) <= 255 and _text(key, 255) == key else incident.id,
        "status": incident.state.value,
        "revision": incident.revision,
        "kind": _text(incident.kind, _WORD),
        "family": incident.family,
        "rule": _text(incident.rule, _WORD),
        "summary": _text(incident.summary, _SENTENCE),
        "severity": incident.severity,
        "confidence": _number(incident.confidence),
        "onset_time": iso(incident.onset_ms),
        "onset_ci95": [iso(incident.onset_low_ms), iso(incident.onset_high_ms)],
        "detected_time": iso(incident.detected_ms),
        "opened_time": _time(incident.opened_ms),
        "paged_time": _time(incident.paged_ms),
        "page_reason": _text(incident.page_reason, _SENTENCE) or None,
        "acknowledged_time": _time(incident.acknowledged_ms),
        "acknowledged_by": _text(incident.acknowledged_by, _WORD) or None,
        "resolved_time": _time(incident.resolved_ms),
        "resolve_reason": incident.resolve_reason,
        "permalink": permalink(incident, base),
        "runbook": _text(incident.runbook, _SENTENCE) or None,
        "supersedes": incident.supersedes,
        "flap_count": incident.flap_count,
    }


def _job(incident: Incident) -> dict[str, Any]:
    job = incident.job
    words = {
        "scheduler": job.scheduler,
        "cluster": job.cluster or incident.cluster,
        "name": job.name,
        "owner": job.owner,
        "team": job.team,
        "gpu_model": job.gpu_model,
        "precision": job.precision,
    }
    return {
        "id": _text(job.id, _ID),
        **{name: _text(value, _WORD) or None for name, value in words.items()},
        "start_time": _time(job.start_ms),
        "gpus": incident.gpus_total,
        "hosts": incident.hosts_total,
        "lineage": [_text(run, _WORD) for run in job.lineage[:_MOST_RUNS]],
        "labels": {
            _text(name, _NAME): _text(value, _WORD)
            for name, value in sorted(job.labels.items())[:_MOST_LABELS]
        },
    }


def _metric(incident: Incident, now_ms: int) -> dict[str, Any]:
    known = METRICS.get(incident.metric)
    wasted = wasted_gpu_hours(incident, until_ms=now_ms)
    return {
        "name": _text(incident.metric, _WORD),
        "unit": known.unit if known else None,
        "direction": incident.direction,
        "before": _number(incident.before.value),
        "before_ci95": _interval(incident.before),
        "after": _number(incident.after.value),
        "after_ci95": _interval(incident.after),
        "delta_rel": _number(incident.relative_change),
        "baseline": _baseline(incident),
        "after_samples": incident.after_samples,
        "wasted_gpu_hours": round(wasted[0], 2) if wasted else None,
        "wasted_gpu_hours_per_hour": round(wasted[1], 2) if wasted else None,
    }


def _baseline(incident: Incident) -> dict[str, Any]:
    """Whose level it was: the job's own, or that of a run that the job continues."""
    earlier = incident.earlier
    if earlier is None:
        return {"kind": "self", "samples": incident.before_samples}
    return {
        "kind": "lineage",
        "samples": incident.before_samples,
        "job": _text(earlier.id, _WORD),
        "until": iso(earlier.until_ms),
        "differs": {
            _text(name, _SHORT): [_text(there, _SHORT), _text(here, _SHORT)]
            for name, (there, here) in sorted(earlier.differs.items())[:_MOST_CHANGES]
        },
    }


def _scope(incident: Incident) -> dict[str, Any]:
    named = incident.gpus[:_MOST_GPUS]
    hosts: dict[str, list[Gpu]] = {}
    for gpu in named:
        hosts.setdefault(gpu.host, []).append(gpu)
    return {
        "level": _level(incident),
        "attribution_confidence": _number(incident.attribution_confidence),
        "hosts": [
            {
                "name": _text(host, _NAME) or None,
                "gpus": [
                    {"uuid": _text(gpu.uuid, _NAME) or None, "index": gpu.index} for gpu in gpus
                ],
            }
            for host, gpus in hosts.items()
        ],
        "hosts_affected": len({gpu.host for gpu in incident.gpus}),
        "hosts_total": incident.hosts_total,
        "gpus_affected": len(incident.gpus),
        "gpus_total": incident.gpus_total,
    }


def _level(incident: Incident) -> str:
    if incident.kind == "fleet_event":
        return "fleet"
    match len(incident.gpus):
        case 0:
            return "job"
        case 1:
            return "gpu"
        case _:
            return "node"


def _evidence(incident: Incident) -> list[dict[str, Any]]:
    """What speaks for it: the change itself, the features measured, other rules that held."""
    change = {
        "type": "change_point",
        "cause": incident.cause,
        "confidence": _number(incident.confidence),
    }
    features = [
        {"type": "feature", "name": _text(name, _NAME), "value": _number(value)}
        for name, value in _telling(incident.features)
    ]
    others = [
        {"type": "runner_up", "rule": _text(rule, _NAME)}
        for rule in incident.runners_up[:_MOST_RULES]
    ]
    return [change, *features, *others]


def _telling(features: Mapping[str, float | None]) -> list[tuple[str, float | None]]:
    """Return as many features as an event holds, by name; what was measured goes first."""
    chosen = sorted(features, key=lambda name: (features[name] is None, name))[:_MOST_FEATURES]
    return [(name, features[name]) for name in sorted(chosen)]


def _recommendation(incident: Incident, now_ms: int) -> dict[str, Any]:
    """What to do about it. Never without a person: that is the service's one policy so far."""
    action = incident.recommended_action if incident.live else "none"
    on_nodes = action in _ON_NODES and bool(incident.gpus)
    gpus = len(incident.gpus) if on_nodes else incident.gpus_total
    return {
        "action": _text(action, _WORD),
        "target": _target(incident, on_nodes=on_nodes) if action != "none" else None,
        "automation_allowed": False,
        "reason_not_allowed": "policy:observe_only",
        "blast_radius": {
            "jobs": 0 if action == "none" else 1,
            "gpus": 0 if action == "none" else gpus,
            "running_job_interrupted": action not in _HARMLESS,
        },
        "valid_until": iso(now_ms + _VALID_MS),
        "preconditions": _preconditions(incident, action, on_nodes=on_nodes),
    }


def _target(incident: Incident, *, on_nodes: bool) -> dict[str, Any]:
    if not on_nodes:
        return {"type": "job", "name": _text(incident.job.id, _ID)}
    return {"type": "node", "name": _text(incident.gpus[0].host, _NAME) or None}


def _preconditions(incident: Incident, action: str, *, on_nodes: bool) -> list[str]:
    if action == "none":
        return []
    job = _text(incident.job.id, _ID)
    still = "incident still open or acknowledged (GET its permalink, .json)"
    where = f"node still in the allocation of {job}" if on_nodes else f"{job} still running"
    return [still, where]


def _text(value: str, limit: int) -> str:
    """``value`` without control characters, at most ``limit`` bytes of JSON long.

    A lone surrogate cannot be encoded, and a control character takes six bytes: both come
    from outside, in a job's name or labels.
    """
    clean = [c if c.isprintable() else " " for c in value[:limit]]
    sizes = accumulate(len(c.encode()) + (c in '"\\') for c in clean)
    return "".join(clean[: sum(1 for _ in takewhile(lambda size: size <= limit, sizes))])


def _number(value: float | None) -> float | None:
    """``value``, or None where JSON has no word for it."""
    return None if value is None or not isfinite(value) else value


def _interval(estimate: Estimate) -> list[float | None]:
    return [_number(estimate.low), _number(estimate.high)]


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else iso(time_ms)
