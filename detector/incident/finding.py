"""What a finding is to a job's incidents: a new one, more of one, or a successor. Pure."""

from collections.abc import Mapping

from msgspec.structs import replace

from detector.analysis.judge import Finding
from detector.analysis.rules import SEVERITIES, Severity
from detector.fleet import Job
from detector.incident.incident import Incident, RuledOut, State, incident_id


def begun(finding: Finding, *, family: str, time_ms: int, job: Job, cluster: str) -> Incident:
    """Return the incident that a finding makes: pending, and not yet recorded (revision 0)."""
    change, rule = finding.change, finding.verdict.rule
    hosts = len({gpu.host for gpu in job.roster if gpu.host})
    identity = incident_id(
        cluster=cluster, job=job.id, kind=rule.kind, onset_ms=change.onset_ms
    )
    return Incident(
        id=identity,
        cluster=cluster,
        job=replace(job, roster=()),
        kind=rule.kind,
        family=family,
        metric=change.metric,
        direction=change.direction,
        cause=change.cause,
        state=State.PENDING,
        revision=0,
        severity=rule.severity,
        confidence=change.confidence,
        rule=rule.name,
        summary=finding.summary,
        shadow=rule.shadow,
        onset_ms=change.onset_ms,
        onset_low_ms=change.onset.start_ms,
        onset_high_ms=change.onset.end_ms,
        detected_ms=change.detected_ms,
        before=change.before,
        after=change.after,
        relative_change=change.relative_change,
        before_samples=finding.before_samples,
        after_samples=finding.after_samples,
        earlier=finding.earlier,
        features=dict(finding.evidence),
        runners_up=finding.verdict.runners_up,
        ruled_out=tuple(RuledOut(rule=r, reason=w) for r, w in finding.verdict.ruled_out),
        gpus=finding.gpus,
        gpu_places=finding.gpu_places,
        attribution_confidence=finding.attribution_confidence,
        gpus_total=finding.gpus_total or len(job.roster) or _reporting(finding),
        hosts_total=hosts or None,
        runbook=rule.runbook,
        recommended_action=rule.action,
        hold_ms=int(rule.hold),
        keep_open_ms=None if rule.keep_open is None else int(rule.keep_open),
        away=(change.metric,),
        news_ms=time_ms,
    )


def same_trouble(known: Incident, fresh: Incident) -> bool:
    """Whether a finding only shows in another metric what the incident already tells.

    What began before the incident was even detected began with it. What began later is more
    of the same when it is of the same kind, and another trouble otherwise: a hang is not to
    hide in last week's precision switch.
    """
    if fresh.metric in known.away:
        return False  # it had fallen already: this is a further drop
    with_it = fresh.onset_low_ms <= max(known.detected_ms, known.onset_high_ms)
    if not (with_it or _alike(known, fresh)):
        return False
    if known.recovering_ms is None:
        return True
    return fresh.metric != known.metric and fresh.onset_ms < known.recovering_ms


def flaps(known: Incident, fresh: Incident) -> bool:
    """Whether a finding is the incident's own drop again, before it was over."""
    return known.recovering_ms is not None and _alike(known, fresh)


def merged(known: Incident, fresh: Incident) -> Incident:
    """Return the incident with what another metric adds: gaps are filled, nothing overruled."""
    placed = known if known.gpus else fresh
    others = () if fresh.rule in (known.rule, *known.runners_up) else (fresh.rule,)
    return replace(
        known,
        away=(*known.away, fresh.metric),
        recovering_ms=None,
        features=_filled(known.features, fresh.features),
        runners_up=(*known.runners_up, *others),
        gpus=placed.gpus,
        gpu_places=placed.gpu_places,
        attribution_confidence=placed.attribution_confidence,
    )


def flapped(known: Incident, fresh: Incident) -> Incident:
    """Return the incident fallen again: one flap more, with the newest evidence and level."""
    again = replace(
        known,
        away=(fresh.metric,),
        recovering_ms=None,
        flap_count=known.flap_count + 1,
        features=_filled(fresh.features, known.features),
    )
    if fresh.metric != known.metric:
        return again
    return replace(
        again,
        after=fresh.after,
        after_samples=fresh.after_samples,
        relative_change=fresh.relative_change,
    )


def inherited(old: Incident, fresh: Incident) -> Incident:
    """Return the incident that takes over from ``old``, with the metrics that are still away.

    Not those that moved the other way: a rise may stay for good, and would keep open what
    came after it. A further drop is counted from where the first one began: a decline in steps
    of a tenth is told as what it adds up to. What people were called for stays critical; they
    are called again only for what passes the page bound once more.
    """
    onwards = old.direction == fresh.direction
    kept = old.away if onwards else ()
    called = onwards and old.severity == "critical" and fresh.severity != "info"
    if onwards and old.metric == fresh.metric and old.before.value > 0:
        change = max(fresh.after.value / old.before.value - 1, -1.0)
        fresh = replace(fresh, before=old.before, relative_change=change)
    return replace(
        fresh,
        away=tuple(dict.fromkeys((*kept, *fresh.away))),
        supersedes=old.id if old.opened_ms is not None else None,
        severity="critical" if called else fresh.severity,
        fallen_ms=(old.fallen_ms or old.onset_ms) if onwards and not called else None,
    )


def graver(known: Incident, fresh: Incident) -> Incident:
    """Return the incident told as the graver finding tells it; it is still the same trouble.

    A job that first lost a tenth of its tokens and now stands still is a hang, whatever its
    first loss was called.
    Its identity and its onset stay those that it was first told with.
    """
    named = known if known.kind == fresh.kind else fresh
    return replace(
        known,
        severity=fresh.severity,
        kind=named.kind,
        rule=named.rule,
        summary=fresh.summary,
        runbook=named.runbook,
        recommended_action=named.recommended_action,
        ruled_out=named.ruled_out,
        metric=fresh.metric,
        direction=fresh.direction,
        cause=fresh.cause,
        confidence=fresh.confidence,
        before=fresh.before,
        after=fresh.after,
        relative_change=fresh.relative_change,
        before_samples=fresh.before_samples,
        after_samples=fresh.after_samples,
        measured_ms=None,
    )


def stands_still(known: Incident, fresh: Incident) -> bool:
    """Whether a finding says that a job, told of as merely slower, stands still.

    Both may be of one severity; what to do about them is not the same.
    """
    alike = rank(fresh.severity) == rank(known.severity)
    return alike and fresh.kind == "hang" and known.kind != "hang"


def rank(severity: Severity) -> int:
    """Return the severity's place, 0 for the least."""
    return SEVERITIES.index(severity)


def _reporting(finding: Finding) -> int | None:
    """How many GPUs reported before the change, else after it; None when nobody said."""
    counts = (finding.evidence.get(name) for name in ("gpus_before", "gpus_after"))
    return next((round(count) for count in counts if count and round(count)), None)


def _alike(known: Incident, fresh: Incident) -> bool:
    return (fresh.kind, fresh.direction) == (known.kind, known.direction)


def _filled(
    first: Mapping[str, float | None], second: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The features of ``first``, those that it left unknown taken from ``second``."""
    known = {name: value for name, value in first.items() if value is not None}
    return {**first, **second, **known}
