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

import numpy as np

from detector.analysis.baselines import LEAST_GPUS, Model
from detector.analysis.change import Candidate, Confirmed, Estimate, Rejected, Shift
from detector.analysis.derived import clock_correction, derived
from detector.analysis.judge import Content, judge
from detector.analysis.ofu import GpuModel
from detector.analysis.present import present_level
from detector.analysis.verify import announced, verify, window_start_ms
from detector.analysis.watch import Confirm, Observed, observe
from detector.fleet import Job
from detector.incident.incident import Incident, Transition
from detector.incident.ledger import SHARDS, Action, Commit, Notice, Saved, shard_of
from detector.incident.lifecycle import (
    Acted,
    Ended,
    Found,
    Happening,
    Ignored,
    Policy,
    Recovered,
    follow,
)
from detector.incident.route import Destination, owed
from detector.series import (
    Batch,
    ContextEvent,
    Duration,
    FloatArray,
    Interval,
    Reject,
    Window,
)
from detector.state import FleetState


class Histories(Protocol):
    """Where samples come from. Raises OSError when the store is out of reach."""

    def increments(self, cursors: Mapping[str, int], *, now_ms: int) -> Batch:
        """Return the entries after each job's cursor; jobs without one are new."""
        ...

    def window(self, job: str, *, start_ms: int, end_ms: int) -> Window:
        """Return the job's history in ``[start_ms, end_ms)``."""
        ...

    def context(self, job: str, span: Interval) -> tuple[ContextEvent, ...]:
        """Return what was announced about the job that touches ``span``."""
        ...

    def describe_many(self, jobs: Iterable[str]) -> Mapping[str, Job]:
        """Return who the jobs are."""
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
# How much of an incident's history is read to measure its present level. Chosen: as much as
# verification looks back.
_MEASURED_MS = 3_600_000


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
    jobs = _Jobs(histories, content)

    state = _corrected(state, batch, jobs, again=checkpoint)
    seen = _observe(state, batch, jobs, content=content, now_ms=now_ms)
    state = replace(seen.state.moved(batch), aside=_aside(state, seen.poisoned, now_ms=now_ms))
    happenings = seen.happenings
    for job, happening in _asked(actions, state):
        happenings[job].append(happening)
    if settings.silent is not None:
        for job in state.silent(settings.silent):
            happenings[job].append(_end_of(jobs[job], time_ms=state.watermark_ms))

    state, followed = _follow(state, happenings, jobs, settings, now_ms=now_ms)
    notices, withheld = _owed(followed.transitions, settings, now_ms=now_ms)
    commits = _commits(state, followed.changed, notices, actions, checkpoint=checkpoint)
    if commits:
        ledger.commit(commits)
    report = Report(
        entries=len(batch.job),
        jobs=len(batch.jobs),
        rejects=batch.rejects + seen.rejects,
        confirmed=tuple(seen.confirmed),
        rejected=tuple(seen.rejected),
        shifts=tuple(seen.shifts),
        poisoned=seen.poisoned,
        transitions=tuple(followed.transitions),
        ignored=tuple(followed.ignored),
        notices=notices,
        withheld=withheld,
        more=batch.more,
    )
    return (state.tidied() if checkpoint and settings.silent is not None else state), report


class _Jobs:
    """Who the jobs are, read when needed and at most once a pass."""

    def __init__(self, histories: Histories, content: Content) -> None:
        self._histories = histories
        self._gpus = content.gpus
        self._known: dict[str, Job] = {}

    def __getitem__(self, job: str) -> Job:
        if job not in self._known:
            self.meet([job])
        return self._known[job]

    def meet(self, jobs: Iterable[str]) -> None:
        """Read who ``jobs`` are, all in one trip."""
        new = [job for job in jobs if job not in self._known]
        if new:
            self._known.update(self._histories.describe_many(new))

    def gpu(self, job: str) -> GpuModel | None:
        return self._gpus.find(self[job].gpu_model)

    def clock_ratio(self, job: str) -> float:
        return clock_correction(self.gpu(job), self[job].precision)

    def context(self, job: str, span: Interval) -> tuple[ContextEvent, ...]:
        return self._histories.context(job, span)

    def measure(self, incident: Incident, at_ms: int) -> Estimate | None:
        """Return the level of the incident's metric in its last hour up to ``at_ms``."""
        start_ms = max(incident.onset_high_ms, at_ms - _MEASURED_MS)
        window = self.window(incident.job.id, start_ms=start_ms, end_ms=at_ms + 1)
        span = Interval(start_ms=start_ms, end_ms=at_ms)
        return present_level(window, incident.metric, span)

    def window(self, job: str, *, start_ms: int, end_ms: int) -> Window:
        window = self._histories.window(job, start_ms=start_ms, end_ms=end_ms)
        more = derived(window.fields, clock_ratio=self.clock_ratio(job))
        return replace(window, fields={**window.fields, **more})


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What a batch showed, gathered model by model."""

    state: FleetState
    happenings: defaultdict[str, list[Happening]] = field(
        default_factory=lambda: defaultdict(list)
    )
    confirmed: list[tuple[str, Confirmed]] = field(default_factory=list)
    rejected: list[tuple[str, Candidate, Rejected]] = field(default_factory=list)
    shifts: list[tuple[str, str, Shift]] = field(default_factory=list)
    poisoned: dict[str, str] = field(default_factory=dict)

    @property
    def rejects(self) -> tuple[Reject, ...]:
        """Poison jobs, as entries that were set aside."""
        return tuple(
            Reject(job=job, entry="", reason="poison", detail=why)
            for job, why in self.poisoned.items()
        )


def _observe(
    state: FleetState, batch: Batch, jobs: _Jobs, *, content: Content, now_ms: int
) -> _Seen:
    """Fold the samples into every watch, verify what stands out, judge what is confirmed."""
    batch = _without(batch, {job for job, until in state.aside.items() if until > now_ms})
    values = _values(batch, state.clock_ratios)
    seen = _Seen(state=state)
    watches = {}
    for model in content.models:
        windows: dict[tuple[str, int], Window] = {}
        observed = observe(
            state.watches[model.name],
            batch,
            values.get(model.metric),
            confirm=_confirm(model, jobs, windows),
        )
        watches[model.name] = observed.watch
        _take_down(seen, model, observed, jobs, windows=windows, content=content)
    seen.state = replace(state, watches=watches)
    for job in seen.poisoned:
        seen.happenings.pop(job, None)
    return seen


def _without(batch: Batch, aside: Collection[str]) -> Batch:
    """Return the batch without the entries of poison jobs."""
    out = [k for k, job in enumerate(batch.jobs) if job in aside]
    if not out:
        return batch
    keep = ~np.isin(batch.job, out)
    fields = {name: values[keep] for name, values in batch.fields.items()}
    gpus, counts = batch.gpus, batch.gpu_counts
    if gpus is not None and counts is not None:
        gpus, counts = gpus[np.repeat(keep, counts)], counts[keep]
    return replace(
        batch,
        job=batch.job[keep],
        times_ms=batch.times_ms[keep],
        fields=fields,
        gpus=gpus,
        gpu_counts=counts,
    )


def _corrected(
    state: FleetState, batch: Batch, jobs: _Jobs, *, again: Collection[int]
) -> FleetState:
    """Learn the clock correction of jobs that report MFU: at first sight, and now and then."""
    if "mfu" not in batch.fields:
        return state
    reporting = np.unique(batch.job[np.isfinite(batch.fields["mfu"])])
    known = state.clock_ratios
    new = [
        job
        for job in (batch.jobs[k] for k in reporting)
        if job not in known or (again and shard_of(job) in again)
    ]
    if not new:
        return state
    jobs.meet(new)
    return replace(state, clock_ratios={**known, **{job: jobs.clock_ratio(job) for job in new}})


def _values(batch: Batch, clock_ratios: Mapping[str, float]) -> Mapping[str, FloatArray]:
    """Return the batch's values by metric, derived ones included."""
    ratio = np.fromiter(
        (clock_ratios.get(job, 1.0) for job in batch.jobs), float, len(batch.jobs)
    )
    values = {**batch.fields, **derived(batch.fields, clock_ratio=ratio[batch.job])}
    if batch.gpu_counts is not None:
        # The job's own where it has peers to compare; its GPUs stand beside it in the batch.
        enough = batch.gpu_counts >= LEAST_GPUS
        values["gpu_ofu"] = np.where(enough, batch.fields["ofu"], np.nan)
    return values


def _confirm(model: Model, jobs: _Jobs, windows: dict[tuple[str, int], Window]) -> Confirm:
    """Return the test that a candidate of this model must pass; keeps the windows it read."""

    def confirm(job: str, candidate: Candidate) -> Confirmed | Rejected:
        span = Interval(
            start_ms=window_start_ms(candidate, model), end_ms=candidate.time_ms + 1
        )
        explained = announced(candidate, jobs.context(job, span))
        if explained is not None:
            return explained
        window = jobs.window(job, start_ms=span.start_ms, end_ms=span.end_ms)
        windows[job, candidate.time_ms] = window
        return verify(candidate, window, model)

    return confirm


def _take_down(
    seen: _Seen,
    model: Model,
    observed: Observed,
    jobs: _Jobs,
    *,
    windows: Mapping[tuple[str, int], Window],
    content: Content,
) -> None:
    """Add what one model observed to what was seen."""
    seen.poisoned.update(observed.poisoned)
    seen.shifts += [(job, model.metric, shift) for job, shift in observed.shifts]
    for job, over in observed.recoveries:
        seen.happenings[job].append(
            Recovered(time_ms=over.time_ms, since_ms=over.since_ms, metric=model.metric)
        )
    for job, candidate, outcome in observed.outcomes:
        if isinstance(outcome, Rejected):
            seen.rejected.append((job, candidate, outcome))
            continue
        seen.confirmed.append((job, outcome))
        window = windows[job, candidate.time_ms]
        try:
            finding = judge(
                outcome, window, jobs[job], jobs.gpu(job), content.rules, family=model.family
            )
        except OSError:
            raise
        except Exception as exception:  # one odd job must not cost the others
            seen.poisoned[job] = f"{type(exception).__name__}: {exception}"
            continue
        seen.happenings[job].append(
            Found(time_ms=outcome.detected_ms, finding=finding, family=model.family)
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


def _follow(
    state: FleetState,
    happenings: Mapping[str, Sequence[Happening]],
    jobs: _Jobs,
    settings: Settings,
    *,
    now_ms: int,
) -> tuple[FleetState, _Followed]:
    """Lead each job's incidents through what happened."""
    live = {job for job, items in state.incidents.items() if any(item.live for item in items)}
    incidents = dict(state.incidents)
    followed = _Followed()
    for job in sorted(live | happenings.keys()):
        known = incidents.get(job, ())
        what = sorted(happenings.get(job, ()), key=lambda item: item.time_ms)
        until_ms = max([state.cursors.get(job, 0), *(item.time_ms for item in what)])
        lived = follow(
            known,
            what,
            until_ms=until_ms,
            job=jobs[job] if what else known[0].job,
            cluster=settings.cluster,
            policy=settings.policy,
            now_ms=now_ms,
            measure=jobs.measure,
        )
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
        states, cursors = state.packed(jobs)
        commits.append(
            Commit(
                shard=shard,
                states=states,
                cursors=cursors,
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
