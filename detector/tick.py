"""One pass over the fleet: what is new -> changes -> findings -> incidents -> what is owed.

This is the page to read first. The live service, replay, the demo and the benchmarks all call
:func:`run`; only the stores behind the two ports and the clock differ.

A pass returns the fleet's state after it and writes one commit. When that fails, the caller
still has the state before it and repeats the pass: an interrupted pass leaves no trace, and a
repeated one changes nothing. Nothing in here reads a clock.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from detector.analysis.change import Candidate, Confirmed, Rejected, Shift
from detector.analysis.judge import Content
from detector.fleet import Job
from detector.incident.happening import Acted, Ended, Happening
from detector.incident.incident import Incident, Transition
from detector.incident.ledger import SHARDS, Action, Commit, Notice, Saved, shard_of
from detector.incident.lifecycle import Ignored, Policy, follow
from detector.incident.route import Destination, owed
from detector.jobs import Histories as Lookup
from detector.jobs import Jobs
from detector.observing import observe_fleet
from detector.series import (
    Batch,
    Duration,
    Reject,
)
from detector.state import FleetState
from detector.succession import newcomers


class Histories(Lookup, Protocol):
    """Where samples come from. Raises OSError when the store is out of reach."""

    def increments(self, cursors: Mapping[str, int], *, now_ms: int) -> Batch:
        """Return the entries after each job's cursor; jobs without one are new."""
        ...


class Ledger(Protocol):
    """Where state, incidents and notices go, together. Raises OSError when out of reach."""

    def load(self, shards: Collection[int]) -> Iterable[Saved]:
        """Return what was last committed of each shard."""
        ...

    def actions(self, shards: Collection[int]) -> Mapping[int, Sequence[Action]]:
        """Return what people asked for and no pass has carried out yet."""
        ...

    def commit(self, commits: Sequence[Commit]) -> None:
        """Write each shard's commit whole or not at all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a pass needs to know that is neither content nor data.

    Attributes
    ----------
    silent
        A job without entries for this long has ended, or its telemetry is lost; None in a
        replay, where a recording's end means nothing.
    """

    cluster: str
    policy: Policy
    destinations: tuple[Destination, ...] = ()
    silent: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a pass did: for the log, the metrics and the tests.

    Attributes
    ----------
    shifts
        Job, metric and lasting rise that the baseline followed.
    poisoned
        Jobs that could not be judged, and why.
    ignored
        Actions that made no sense for their incident, and why.
    withheld
        Transitions that a receiver was not owed: transition, receiver, reason.
    more
        Histories hold more than one pass reads: run again at once.
    """

    entries: int = 0
    jobs: int = 0
    rejects: tuple[Reject, ...] = ()
    confirmed: tuple[tuple[str, Confirmed], ...] = ()
    rejected: tuple[tuple[str, Candidate, Rejected], ...] = ()
    shifts: tuple[tuple[str, str, Shift], ...] = ()
    poisoned: Mapping[str, str] = field(default_factory=dict)
    transitions: tuple[Transition, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    notices: tuple[Notice, ...] = ()
    withheld: tuple[tuple[Transition, str, str], ...] = ()
    more: bool = False


# A poison job is tried again after this long. Chosen: long enough that a job which breaks
# every time costs nothing, short enough that a mended one is watched again within the hour.
_ASIDE_MS = 600_000


def run(
    state: FleetState,
    *,
    histories: Histories,
    ledger: Ledger,
    content: Content,
    settings: Settings,
    now_ms: int,
    shards: Collection[int] = range(SHARDS),
    checkpoint: Collection[int] = (),
) -> tuple[FleetState, Report]:
    """Read what is new, judge it, commit what came of it; return the state after it.

    Parameters
    ----------
    now_ms
        Wall time in a service, the recording's own time in a replay. It only refuses entries
        from the future and withholds old news; every decision is made in sample time.
    shards
        The shards that this process leads.
    checkpoint
        Shards whose state is to be saved although nothing happened in them.
    """
    actions = ledger.actions(shards)
    batch = histories.increments(state.cursors, now_ms=now_ms)
    jobs = Jobs(histories, content, batch)

    coming = newcomers(state, batch, jobs)
    seen = observe_fleet(
        state, coming, jobs, content=content, now_ms=now_ms, meet_again=checkpoint
    )
    batch = coming.batch
    state = seen.state.moved(batch)
    happenings = seen.happenings
    for job, happening in _asked(actions, state):
        happenings[job].append(happening)
    if settings.silent is not None:
        for job in state.silent(settings.silent):
            happenings[job].append(_end_of(jobs[job], time_ms=state.watermark_ms))

    state, followed = _follow(state, happenings, jobs, settings, now_ms=now_ms)
    poisoned = {**seen.poisoned, **followed.poisoned}
    state = replace(state, aside=_aside(state, poisoned, now_ms=now_ms))
    notices, withheld = _owed(followed.transitions, settings, now_ms=now_ms)
    commits = _commits(state, followed.changed, notices, actions, checkpoint=checkpoint)
    if commits:
        ledger.commit(commits)
    report = Report(
        entries=len(batch.job),
        jobs=len(batch.jobs),
        rejects=batch.rejects + _as_rejects(poisoned),
        confirmed=tuple(seen.confirmed),
        rejected=tuple(seen.rejected),
        shifts=tuple(seen.shifts),
        poisoned=poisoned,
        transitions=tuple(followed.transitions),
        ignored=tuple(followed.ignored),
        notices=notices,
        withheld=withheld,
        more=batch.more,
    )
    # Once in a round of checkpoints is often enough to look for what is long over.
    tidy = settings.silent is not None and 0 in checkpoint
    return (state.tidied() if tidy else state), report


def _as_rejects(poisoned: Mapping[str, str]) -> tuple[Reject, ...]:
    """Return poison jobs as entries that were set aside, so that people see them there."""
    return tuple(
        Reject(job=job, entry="", reason="poison", detail=why) for job, why in poisoned.items()
    )


def _aside(state: FleetState, poisoned: Collection[str], *, now_ms: int) -> Mapping[str, int]:
    """Return which jobs are left out until when."""
    still = {job: until for job, until in state.aside.items() if until > now_ms}
    return still | dict.fromkeys(poisoned, now_ms + _ASIDE_MS)


def _asked(
    actions: Mapping[int, Sequence[Action]], state: FleetState
) -> Iterable[tuple[str, Happening]]:
    """Yield what people asked for, by job; an action on an unknown incident is void."""
    waiting = [action for listed in actions.values() for action in listed]
    if not waiting:
        return
    owner = {item.id: job for job, items in state.incidents.items() for item in items}
    for action in waiting:
        job = owner.get(action.incident)
        if job is not None:
            # In sample time: to acknowledge must not let a hold fall due before its data.
            time_ms = min(action.time_ms, state.cursors.get(job, action.time_ms))
            yield job, Acted(time_ms=time_ms, action=action)


def _end_of(job: Job, *, time_ms: int) -> Ended:
    """Return how a silent job's incidents end: a job says so itself, or nothing does."""
    return Ended(
        time_ms=time_ms, reason="job_ended" if "end" in job.labels else "telemetry_lost"
    )


@dataclass(slots=True, kw_only=True)
class _Followed:
    """What became of all jobs' incidents, gathered job by job."""

    changed: list[Incident] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    poisoned: dict[str, str] = field(default_factory=dict)


def _follow(
    state: FleetState,
    happenings: Mapping[str, Sequence[Happening]],
    jobs: Jobs,
    settings: Settings,
    *,
    now_ms: int,
) -> tuple[FleetState, _Followed]:
    """Lead each job's incidents through what happened."""
    live = {job for job, items in state.incidents.items() if any(item.live for item in items)}
    incidents = dict(state.incidents)
    followed = _Followed()
    _read_ahead(state, live, jobs)
    for job in sorted(live | happenings.keys()):
        known = incidents.get(job, ())
        what = sorted(happenings.get(job, ()), key=lambda item: item.time_ms)
        until_ms = max([state.cursors.get(job, 0), *(item.time_ms for item in what)])
        try:
            lived = follow(
                known,
                what,
                until_ms=until_ms,
                job=jobs[job] if what else known[0].job,
                cluster=settings.cluster,
                policy=settings.policy,
                now_ms=now_ms,
                measure=jobs.measure,
                page=jobs.page,
            )
        except OSError:
            raise
        except Exception as exception:  # one odd job must not cost the others
            followed.poisoned[job] = f"{type(exception).__name__}: {exception}"
            continue
        incidents[job] = lived.incidents
        followed.changed += lived.changed
        followed.transitions += lived.transitions
        followed.ignored += lived.ignored
    over = [
        step.incident
        for step in followed.transitions
        if step.incident.resolve_reason in ("expected_change", "false_positive", "expired")
    ]
    return replace(state, incidents=incidents).accepting(over), followed


def _read_ahead(state: FleetState, live: Iterable[str], jobs: Jobs) -> None:
    """Read together what the jobs' live incidents will be measured and asked on."""
    due = [
        wanted
        for job in sorted(live)
        for incident in state.incidents[job]
        for wanted in jobs.due(incident, until_ms=state.cursors.get(job, 0))
    ]
    try:
        jobs.read(due)
    except OSError:
        raise
    except Exception:  # an odd job: each reads its own below, where the odd one is named
        return


def _owed(
    transitions: Iterable[Transition], settings: Settings, *, now_ms: int
) -> tuple[tuple[Notice, ...], tuple[tuple[Transition, str, str], ...]]:
    """Return the notices that receivers are owed, and which they are not, with the reason."""
    notices: list[Notice] = []
    withheld: list[tuple[Transition, str, str]] = []
    for transition in transitions:
        due = owed(transition, settings.destinations, now_ms=now_ms, policy=settings.policy)
        notices += due.notices
        withheld += [(transition, item.receiver, item.reason) for item in due.withheld]
    return tuple(notices), tuple(withheld)


def _commits(
    state: FleetState,
    changed: Sequence[Incident],
    notices: Sequence[Notice],
    actions: Mapping[int, Sequence[Action]],
    *,
    checkpoint: Collection[int],
) -> list[Commit]:
    """Return one commit for each shard in which something happened or that is to be saved."""
    by_shard: dict[int, list[Incident]] = defaultdict(list)
    for incident in changed:
        by_shard[shard_of(incident.job.id)].append(incident)
    done = {shard: len(waiting) for shard, waiting in actions.items() if waiting}
    commits = []
    for shard, jobs in state.by_shard({*by_shard, *done, *checkpoint}).items():
        states, cursors, kept = state.packed(jobs)
        commits.append(
            Commit(
                shard=shard,
                states=states,
                cursors=cursors,
                kept=kept,
                incidents=tuple(by_shard[shard]),
                notices=tuple(
                    item
                    for item in notices
                    if shard_of(item.transition.incident.job.id) == shard
                ),
                actions_done=done.get(shard, 0),
            )
        )
    return commits
