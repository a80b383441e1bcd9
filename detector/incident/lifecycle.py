"""The life of incidents: what happens to one job, folded over its incidents.

    found -> pending --for--> open <-> acknowledged --recovered--keep_open--> resolved
                 |                                                              ^
                 +--- over before `for` had passed: resolved, nobody told       |
                                  job ended, a person says so, superseded, expired

An open incident that passes its page bound becomes critical (``page``); that alone wakes.

A fold: :func:`follow` over a stretch of time equals itself over the stretch's pieces, since a
hold (``for``, ``keep_open``, ``expire``, the page bound's) falls due at its own time and not
when somebody looks.
Following a history again over the incidents that it gave changes nothing. Pure; all times are
sample times, but those of actions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec
from msgspec.structs import replace

from detector.fleet import Job
from detector.incident.finding import (
    begun,
    flapped,
    flaps,
    graver,
    inherited,
    merged,
    rank,
    same_trouble,
    stands_still,
)
from detector.incident.happening import Acted, Ended, Found, Happening, Recovered
from detector.incident.incident import (
    Incident,
    ResolveReason,
    State,
    Transition,
    TransitionType,
)
from detector.incident.ledger import Action
from detector.incident.measure import Measure, measured, measured_next, telling
from detector.incident.page import AskPage, answered, asked, unasked
from detector.series import Duration


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[incidents]`` of config.toml.

    Attributes
    ----------
    keep_open
        The level must be back this long before an incident is resolved; a rule may say
        otherwise. A drop within it is the same incident, flapping.
    expire
        An incident that nothing has ended for this long is resolved as ``expired``.
    max_age
        What is older than this when it is first seen (after a cold start, say) is recorded
        and not delivered.
    """

    # chosen: twelve samples at 10 s; a job that is back in step for so long is back
    keep_open: Duration = Duration(120_000)
    # chosen: a week is longer than any on-call shift; what nobody ended by then is a habit
    expire: Duration = Duration(7 * 86_400_000)
    # chosen: as much history as a cold start reads
    max_age: Duration = Duration(6 * 3_600_000)


# What a person may resolve an incident with; the other reasons are the service's to find.
_VERDICTS: tuple[ResolveReason, ...] = ("expected_change", "false_positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """An action that was not carried out, and why."""

    action: Action
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What became of a job's incidents.

    Attributes
    ----------
    incidents
        All of them, the untouched ones too.
    changed
        Those that are new or changed: what the store must write. A pending incident that
        passed before its time is in here as resolved, with ``opened_ms`` None.
    transitions
        What people and machines may be told, oldest first.
    """

    incidents: tuple[Incident, ...]
    changed: tuple[Incident, ...] = ()
    transitions: tuple[Transition, ...] = ()
    ignored: tuple[Ignored, ...] = ()


def follow(
    incidents: Sequence[Incident],
    happenings: Iterable[Happening],
    *,
    until_ms: int,
    job: Job,
    cluster: str,
    policy: Policy,
    now_ms: int | None = None,
    measure: Measure | None = None,
    page: AskPage | None = None,
) -> Lived:
    """Return a job's incidents after ``happenings`` and all holds that fell due.

    Parameters
    ----------
    incidents
        The job's, live ones and those resolved lately.
    happenings
        What is new, each after the ``until_ms`` of the call before (actions may be late:
        they take effect at once).
    until_ms
        Up to when the job's samples have been seen; holds fall due up to and with it.
    job
        Who it is now; changed incidents take it on.
    now_ms
        Wall time, for telling old openings (``Policy.max_age``); None tells everything.
    measure
        Reads the level that an incident's metric stands on at a time, or None where it has
        none; without it incidents keep the level that they were found with.
    page
        Says whether an incident passes the page bound at a time; without it none does.
    """
    life = _Life(
        incidents,
        job=job,
        cluster=cluster,
        policy=policy,
        now_ms=now_ms,
        measure=measure,
        page=page,
    )
    for happening in sorted(happenings, key=lambda one: one.time_ms):
        life.pass_time(min(happening.time_ms, until_ms))
        life.happen(happening)
    life.pass_time(until_ms)
    return life.lived()


class _Life:
    """One call of :func:`follow` under way."""

    def __init__(
        self,
        incidents: Sequence[Incident],
        *,
        job: Job,
        cluster: str,
        policy: Policy,
        now_ms: int | None,
        measure: Measure | None,
        page: AskPage | None,
    ) -> None:
        self._incidents = {incident.id: incident for incident in incidents}
        self._measure, self._page = measure, page
        self._job, self._cluster, self._policy, self._now_ms = job, cluster, policy, now_ms
        self._changed: set[str] = set()
        self._transitions: list[Transition] = []
        self._ignored: list[Ignored] = []
        # What was news before this call: a history that is read again (a cold start) brings
        # it again. Taken at the start, so that happenings of one moment do not shut out
        # each other.
        self._news = {incident.id: incident.news_ms for incident in incidents}
        self._family_news: dict[tuple[str, bool], int] = {}
        for incident in incidents:
            key = (incident.family, incident.shadow)
            known_ms = self._family_news.get(key, incident.news_ms)
            self._family_news[key] = max(known_ms, incident.news_ms)

    def lived(self) -> Lived:
        return Lived(
            incidents=tuple(self._incidents.values()),
            changed=tuple(i for i in self._incidents.values() if i.id in self._changed),
            transitions=tuple(self._transitions),
            ignored=tuple(self._ignored),
        )

    def happen(self, happening: Happening) -> None:
        match happening:
            case Found():
                self._found(happening)
            case Recovered():
                for incident in self._live():
                    self._recovered(incident, happening)
            case Ended():
                for incident in self._live():
                    self._resolve(incident, happening.reason, at=happening.time_ms)
            case Acted():
                self._acted(happening.action, at=happening.time_ms)
            case _:
                assert_never(happening)

    def pass_time(self, until_ms: int) -> None:
        """Let every hold fall due, each at its own time, up to and with ``until_ms``."""
        while True:
            holds = ((self._due(one), one.id) for one in self._live())
            due_ms, which = min(holds, default=(until_ms + 1, ""))
            if due_ms > until_ms:
                return
            incident = self._incidents[which]
            if incident.state is State.PENDING:
                self._open(incident, at=due_ms)
            elif incident.recovering_ms is not None:
                self._resolve(incident, "recovered", at=due_ms, over=incident.recovering_ms)
            elif due_ms >= self._expires(incident):
                self._resolve(incident, "expired", at=due_ms)
            elif due_ms == self._asks(incident):
                self._ask_page(incident, at=due_ms)
            else:
                self._measure_again(incident, at=due_ms)

    def _due(self, incident: Incident) -> int:
        """When the hold that the incident is under falls due; it is always under one."""
        if incident.opened_ms is None:
            return incident.detected_ms + incident.hold_ms
        if incident.recovering_ms is not None:
            keep_open_ms = incident.keep_open_ms
            return incident.recovering_ms + (
                self._policy.keep_open if keep_open_ms is None else keep_open_ms
            )
        dues = [self._expires(incident), self._asks(incident)]
        if self._measure is not None:
            dues.append(measured_next(incident))
        return min(due for due in dues if due is not None)

    def _expires(self, incident: Incident) -> int:
        return (incident.opened_ms or incident.detected_ms) + self._policy.expire

    def _asks(self, incident: Incident) -> int | None:
        """When the page bound is asked about an open incident; None is not for now."""
        return None if self._page is None or not asked(incident) else incident.ask_page_ms

    def _ask_page(self, incident: Incident, *, at: int) -> None:
        """Ask the page bound; what passes it wakes people, and is critical from now on."""
        assert self._page is not None  # it would not be due
        after = answered(incident, self._page(incident, at), at=at)
        if after.paged_ms is None:
            self._record(after)
        else:
            self._escalate(after, at=at)

    def _escalate(self, incident: Incident, *, at: int) -> None:
        # Who was not told of an old opening is told of what happens now.
        quiet = incident.quiet and self._old(at)
        self._record(replace(incident, quiet=quiet), "escalated", at=at)

    def _measure_again(self, incident: Incident, *, at: int) -> None:
        """Take the level as it is now; tell it when it says something else than before."""
        after = replace(measured(incident, self._measure, at=at), ask_page_ms=at)
        self._record(after, "updated" if telling(incident, after) else None, at=at)

    def _live(self) -> tuple[Incident, ...]:
        return tuple(incident for incident in self._incidents.values() if incident.live)

    # -- what a finding does ---------------------------------------------------------------

    def _found(self, found: Found) -> None:
        fresh = begun(
            found.finding,
            family=found.family,
            time_ms=found.time_ms,
            job=self._job,
            cluster=self._cluster,
        )
        family = (fresh.family, fresh.shadow)
        if fresh.id in self._incidents:
            return
        if found.time_ms <= self._family_news.get(family, found.time_ms - 1):
            return
        kin = [one for one in self._live() if (one.family, one.shadow) == family]
        if not kin:
            self._begin(fresh, at=found.time_ms)
        elif same_trouble(kin[0], fresh):
            self._merge(kin[0], fresh, at=found.time_ms)
        elif flaps(kin[0], fresh):
            self._flap(kin[0], fresh, at=found.time_ms)
        else:
            self._supersede(kin[0], fresh, at=found.time_ms)

    def _begin(self, fresh: Incident, *, at: int) -> None:
        if fresh.detected_ms + fresh.hold_ms > at:
            self._record(fresh)
        else:
            self._open(fresh, at=at)

    def _supersede(self, old: Incident, fresh: Incident, *, at: int) -> None:
        """A further drop. It needs no hold of its own: that the job is in trouble is known."""
        fresh = inherited(old, fresh)
        self._resolve(old, "superseded", at=at, over=max(old.onset_ms, fresh.onset_ms))
        if fresh.supersedes is None:
            self._begin(fresh, at=at)
        else:
            self._open(fresh, at=at)

    def _merge(self, known: Incident, fresh: Incident, *, at: int) -> None:
        """Another metric of the same trouble: its evidence fills what the first left open."""
        grown = merged(known, fresh)
        told = (grown.features, grown.runners_up, grown.gpus)
        news = told != (known.features, known.runners_up, known.gpus)
        self._raise(grown, fresh, at=at, otherwise="updated" if news else None)

    def _flap(self, known: Incident, fresh: Incident, *, at: int) -> None:
        """Down again while it was coming back: the same incident, one flap more."""
        self._raise(flapped(known, fresh), fresh, at=at, otherwise="updated")

    def _raise(
        self,
        incident: Incident,
        fresh: Incident,
        *,
        at: int,
        otherwise: TransitionType | None,
    ) -> None:
        """Record a later finding's part in the incident: ``escalated`` if it is more severe."""
        incident = replace(incident, news_ms=at, ask_page_ms=at)
        worse = rank(fresh.severity) > rank(incident.severity)
        if worse or stands_still(incident, fresh):
            incident = graver(incident, fresh)
            otherwise = "updated"
        if incident.opened_ms is None:
            self._record(incident)
        elif worse:
            self._escalate(incident, at=at)
        else:
            self._record(incident, otherwise, at=at)

    # -- what ends it ----------------------------------------------------------------------

    def _recovered(self, incident: Incident, back: Recovered) -> None:
        if back.metric not in incident.away:
            return
        if back.time_ms <= self._news.get(incident.id, back.time_ms - 1):
            return
        away = tuple(metric for metric in incident.away if metric != back.metric)
        incident = replace(incident, away=away)
        since_ms = max(back.since_ms, incident.onset_ms)
        if away:
            self._record(incident)
        elif incident.opened_ms is None:
            self._resolve(incident, "recovered", at=back.time_ms, over=since_ms)
        else:
            incident = replace(incident, recovering_ms=since_ms)
            if self._due(incident) <= back.time_ms:
                self._resolve(incident, "recovered", at=back.time_ms, over=since_ms)
            else:
                self._record(incident)

    def _acted(self, action: Action, *, at: int) -> None:
        reason = self._carry_out(action, at=at)
        if reason:
            self._ignored.append(Ignored(action=action, reason=reason))

    def _carry_out(self, action: Action, *, at: int) -> str:
        """Do what somebody asked for and return "", or return why it was not done."""
        incident = self._incidents.get(action.incident)
        if incident is None:
            return "the job has no such incident"
        if not incident.live:
            return "the incident is resolved already"
        match action.verb:
            case "acknowledge" if incident.state is State.OPEN:
                acknowledged = replace(
                    incident,
                    state=State.ACKNOWLEDGED,
                    acknowledged_ms=at,
                    acknowledged_by=action.actor,
                )
                self._record(acknowledged, "acknowledged", at=at)
                return ""
            case "acknowledge":
                return f"the incident is {incident.state}, not open"
            case "resolve":
                verdicts = [reason for reason in _VERDICTS if reason == action.reason]
                if not verdicts:
                    return f"the reason must be one of: {', '.join(_VERDICTS)}"
                self._resolve(incident, verdicts[0], at=at)
                return ""
            case _:
                return "the verb must be acknowledge or resolve"

    # -- how a step is recorded ------------------------------------------------------------

    def _open(self, incident: Incident, *, at: int) -> None:
        opened = replace(
            incident,
            state=State.OPEN,
            opened_ms=at,
            quiet=self._old(at),
            ask_page_ms=at,
            page_reason="" if self._page is None else unasked(incident),
        )
        self._record(opened, "opened", at=at)

    def _resolve(
        self, incident: Incident, reason: ResolveReason, *, at: int, over: int | None = None
    ) -> None:
        """Resolve it at ``at``; ``over`` is when the trouble ended, where that is known."""
        if incident.opened_ms is not None and over is not None:
            incident = measured(incident, self._measure, at=over)
        resolved = replace(
            incident,
            state=State.RESOLVED,
            resolved_ms=at if over is None else over,
            resolve_reason=reason,
            away=(),
        )
        # What never opened leaves in silence.
        self._record(resolved, "resolved" if incident.opened_ms is not None else None, at=at)

    def _record(
        self, incident: Incident, transition: TransitionType | None = None, *, at: int = 0
    ) -> None:
        """Keep the incident under its next revision, and the transition if there is one."""
        known = self._job != Job(id=self._job.id)  # else its hash is gone: keep what we had
        incident = replace(
            incident,
            revision=incident.revision + 1,
            job=replace(self._job, roster=()) if known else incident.job,
        )
        self._incidents[incident.id] = incident
        self._changed.add(incident.id)
        if transition is not None:
            self._transitions.append(Transition(type=transition, time_ms=at, incident=incident))

    def _old(self, time_ms: int) -> bool:
        return self._now_ms is not None and self._now_ms - time_ms > self._policy.max_age
