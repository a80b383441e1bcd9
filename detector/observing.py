"""What a batch shows: every watch folds it, what stands out is verified, and then judged.

A job that breaks something on its way is set aside by name, and the others are judged. OSError
is the store's: it goes through, and the pass is repeated.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from detector.analysis.baselines import LEAST_GPUS, Model
from detector.analysis.change import Candidate, Confirmed, Rejected, Shift
from detector.analysis.derived import derived
from detector.analysis.early import (
    asked_again_ms,
    early_start_ms,
    verify_early,
)
from detector.analysis.judge import Content, Finding, judge
from detector.analysis.lineage import Kept, differences, joined, sources, stand_in
from detector.analysis.phases import announced
from detector.analysis.verify import verify, window_start_ms
from detector.analysis.watch import Observed, observe
from detector.fleet import Earlier
from detector.incident.happening import Found, Happening, Recovered
from detector.incident.ledger import shard_of
from detector.jobs import Jobs
from detector.series import Batch, FloatArray, Interval, Wanted, Window
from detector.state import FleetState
from detector.succession import Newcomers, only, parts, with_born

# What is told of GPUs that cannot be used may begin with the scrape before the onset, at any
# cadence of collection.
_SAID_EARLIER_MS = 120_000


@dataclass(slots=True, kw_only=True)
class Seen:
    """What a batch showed, gathered model by model."""

    state: FleetState
    happenings: defaultdict[str, list[Happening]] = field(
        default_factory=lambda: defaultdict(list)
    )
    confirmed: list[tuple[str, Confirmed]] = field(default_factory=list)
    rejected: list[tuple[str, Candidate, Rejected]] = field(default_factory=list)
    shifts: list[tuple[str, str, Shift]] = field(default_factory=list)
    poisoned: dict[str, str] = field(default_factory=dict)


def observe_fleet(
    state: FleetState,
    coming: Newcomers,
    jobs: Jobs,
    *,
    content: Content,
    now_ms: int,
    meet_again: Collection[int] = (),
) -> Seen:
    """Fold the samples into every watch, verify what stands out, judge what is confirmed.

    Parameters
    ----------
    now_ms
        Wall time: until when a poison job stays out.
    meet_again
        Shards whose jobs are asked again who they are.
    """
    batch = coming.batch
    state = _corrected(state, batch, jobs, again=meet_again)
    batch = _without(batch, {job for job, until in state.aside.items() if until > now_ms})
    seen = Seen(state=state)
    for part, born in parts(replace(coming, batch=batch)):
        if len(part.job):
            _observe(seen, part, jobs, content=content)
        seen.state = with_born(seen.state, born, jobs)
    for job in seen.poisoned:
        seen.happenings.pop(job, None)
    return seen


def _observe(seen: Seen, batch: Batch, jobs: Jobs, *, content: Content) -> None:
    """Fold one part of a batch into every watch and add what it shows to what was seen."""
    values = _values(batch, seen.state.clock_ratios)
    watches = {}
    for model in content.models:
        asking = _Asking(model=model, jobs=jobs, kept=seen.state.kept)
        observed = observe(
            seen.state.watches[model.name],
            batch,
            values.get(model.metric),
            confirm=asking.confirm,
            ahead=asking.ahead,
        )
        watches[model.name] = observed.watch
        _take_down(seen, model, observed, jobs, windows=asking.windows, content=content)
    seen.state = replace(seen.state, watches=watches)


def _without(batch: Batch, aside: Collection[str]) -> Batch:
    """Return the batch without the entries of poison jobs."""
    out = [k for k, job in enumerate(batch.jobs) if job in aside]
    return only(batch, ~np.isin(batch.job, out)) if out else batch


def _corrected(
    state: FleetState, batch: Batch, jobs: Jobs, *, again: Collection[int]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """The test that candidates of one model must pass, on histories read many at a time.

    Attributes
    ----------
    windows
        Job and time of each confirmed candidate -> the history that it was confirmed by.
    """

    model: Model
    jobs: Jobs
    kept: Mapping[str, Kept]
    windows: dict[tuple[str, int], Window] = field(default_factory=dict)

    def ahead(self, raised: Sequence[tuple[str, Candidate]]) -> None:
        """Read what :meth:`confirm` needs for these candidates, in as few trips."""
        self.jobs.hear(job for job, _ in raised)
        self.jobs.read(
            Wanted(job=job, span=self._span(candidate), gpus=not candidate.early)
            for job, candidate in raised
            if self._explained(job, candidate) is None
        )

    def confirm(self, job: str, candidate: Candidate) -> Confirmed | Rejected:
        """Return what the job's history makes of a candidate."""
        explained = self._explained(job, candidate)
        if explained is not None:
            return explained
        if candidate.early:
            outcome = verify_early(candidate, self._window(job, candidate), self.model)
        else:
            window = self._reaching_back(job, candidate)
            outcome = verify(candidate, window, self.model)
        if isinstance(outcome, Confirmed):
            if candidate.early:
                # What it may be needs the single GPUs, and no more than others are judged by.
                window = self._window(job, candidate, gpus=True)
                window = window.since(window_start_ms(candidate, self.model))
            self.windows[job, candidate.time_ms] = window
        return outcome

    def _span(self, candidate: Candidate) -> Interval:
        """Return the stretch of the job's history that the candidate is held to."""
        starts_ms = early_start_ms if candidate.early else window_start_ms
        start_ms = starts_ms(candidate, self.model)
        return Interval(start_ms=start_ms, end_ms=candidate.time_ms + 1)

    def _explained(self, job: str, candidate: Candidate) -> Rejected | None:
        """Return why no history is read for a candidate, if what was announced says so."""
        events = self.jobs.context(job, self._span(candidate))
        if candidate.early and not events:
            return Rejected(reason="the job announces nothing")
        explained = announced(candidate, events)
        if explained is None or not candidate.early:
            return explained
        if candidate.time_ms - candidate.onset_ms < candidate.known_ms:
            return replace(explained, again_ms=asked_again_ms(candidate))
        return None

    def _window(self, job: str, candidate: Candidate, *, gpus: bool = False) -> Window:
        span = self._span(candidate)
        window = self.jobs.window(job, span, gpus=gpus)
        return replace(window, events=self.jobs.context(job, span))

    def _reaching_back(self, job: str, candidate: Candidate) -> Window:
        """Return a job's history, where it is short behind that of the run whose level it has.

        Time counts as the runs' own: what the job lacks of the span is taken from the end of
        the earlier run, however long ago that was.
        """
        span, own = self._span(candidate), self._window(job, candidate, gpus=True)
        source = sources(self.kept, job).get(self.model.name)
        origin = self.kept[job].origin if job in self.kept else None
        if source is None or origin is None or span.start_ms >= origin.began_ms:
            return own
        end_ms = source.until_ms + 1
        missing_ms = origin.began_ms - span.start_ms
        before = Interval(start_ms=end_ms - missing_ms, end_ms=end_ms)
        earlier = self.jobs.window(source.run, before)
        series = earlier.series(self.model.metric)
        if series is None or len(series.values) < self.model.verify.min_before:
            earlier = stand_in(source, self.model.metric)
        return joined(earlier, own, own_ms=origin.began_ms)


def _take_down(
    seen: Seen,
    model: Model,
    observed: Observed,
    jobs: Jobs,
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
                outcome,
                window,
                jobs[job],
                jobs.gpu(job),
                content.rules,
                family=model.family,
                earlier=_earlier(seen.state.kept, jobs, job, model)
                if outcome.cause == "lineage"
                else None,
            )
        except OSError:
            raise
        except Exception as exception:  # one odd job must not cost the others
            seen.poisoned[job] = f"{type(exception).__name__}: {exception}"
            continue
        if finding.verdict.rule.kind == "telemetry_fault":
            finding = _with_reasons(finding, job, jobs)
        seen.happenings[job].append(
            Found(time_ms=outcome.detected_ms, finding=finding, family=model.family)
        )


def _with_reasons(finding: Finding, job: str, jobs: Jobs) -> Finding:
    """Return what is told of the telemetry, with what collectors announced about it since."""
    change = finding.change
    since_ms = change.onset.start_ms - _SAID_EARLIER_MS
    span = Interval(start_ms=since_ms, end_ms=change.detected_ms + 1)
    told = [event for event in jobs.context(job, span) if event.kind == "telemetry"]
    if not told:
        return finding
    latest = max(told, key=lambda event: (event.heard_ms, event.span.end_ms))
    return replace(finding, summary=f"{finding.summary}; {latest.note}")


def _earlier(kept: Mapping[str, Kept], jobs: Jobs, job: str, model: Model) -> Earlier | None:
    """Return the run that a job was compared with, and what differs between the two."""
    source = sources(kept, job).get(model.name)
    if source is None:
        return None
    run = jobs[source.run]
    return Earlier(
        id=run.id,
        name=run.name,
        until_ms=source.until_ms,
        differs=differences(jobs[job], run),
    )
