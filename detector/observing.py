"""What a batch shows: every watch folds it, what stands out is verified, and then judged.

A job that breaks something on its way is set aside by name, and the others are judged. OSError
is the store's: it goes through, and the pass is repeated.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from detector.analysis.baselines import LEAST_GPUS, Model
from detector.analysis.change import Candidate, Confirmed, Estimate, Rejected, Shift
from detector.analysis.derived import clock_correction, derived
from detector.analysis.early import (
    asked_again_ms,
    early_start_ms,
    verify_early,
)
from detector.analysis.judge import Content, judge
from detector.analysis.lineage import Kept, differences, joined, sources, stand_in
from detector.analysis.ofu import GpuModel
from detector.analysis.paging import Fall, Later, Passed, Read, ask
from detector.analysis.phases import announced
from detector.analysis.present import present_level
from detector.analysis.verify import verify, window_start_ms
from detector.analysis.watch import Confirm, Observed, observe
from detector.fleet import Earlier, Job
from detector.incident.happening import Found, Happening, Recovered
from detector.incident.incident import Incident
from detector.incident.ledger import shard_of
from detector.series import (
    Batch,
    ContextEvent,
    FloatArray,
    Interval,
    Series,
    Window,
)
from detector.state import FleetState
from detector.succession import Newcomers, only, parts, with_born


class Histories(Protocol):
    """Where more is read about few jobs. Raises OSError when the store is out of reach."""

    def window(self, job: str, *, start_ms: int, end_ms: int) -> Window:
        """Return the job's history in ``[start_ms, end_ms)``."""
        ...

    def context(self, job: str, span: Interval) -> tuple[ContextEvent, ...]:
        """Return what was announced about the job that touches ``span``."""
        ...

    def describe_many(self, jobs: Iterable[str]) -> Mapping[str, Job]:
        """Return who the jobs are."""
        ...


# How much of an incident's history is read to measure its present level. Chosen: as much as
# verification looks back.
_MEASURED_MS = 3_600_000


class Jobs:
    """Who the jobs are, read when needed and at most once a pass."""

    def __init__(self, histories: Histories, content: Content) -> None:
        self._histories = histories
        self._gpus = content.gpus
        self._bounds = {
            model.metric: (model, model.page) for model in content.models if model.page
        }
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
        """Return the GPU model that the job runs on, where it is known."""
        return self._gpus.find(self[job].gpu_model)

    def clock_ratio(self, job: str) -> float:
        """Return what the job's OFU is multiplied by to be MFU on the data sheet."""
        return clock_correction(self.gpu(job), self[job].precision)

    def context(self, job: str, span: Interval) -> tuple[ContextEvent, ...]:
        """Return what was announced about the job that touches ``span``."""
        return self._histories.context(job, span)

    def measure(self, incident: Incident, at_ms: int) -> Estimate | None:
        """Return the level of the incident's metric in its last hour up to ``at_ms``."""
        start_ms = max(incident.onset_high_ms, at_ms - _MEASURED_MS)
        window = self.window(incident.job.id, start_ms=start_ms, end_ms=at_ms + 1)
        span = Interval(start_ms=start_ms, end_ms=at_ms)
        return present_level(window, incident.metric, span)

    def page(self, incident: Incident, at_ms: int) -> Passed | Later | None:
        """Return whether one of the incident's fallen metrics passes its page bound."""
        answers = [
            ask(
                _fall(incident, metric, at_ms),
                model,
                bound,
                self._reader(incident.job.id, metric),
            )
            for metric, (model, bound) in self._bounds.items()
            if metric in incident.away
        ]
        passed = [answer for answer in answers if isinstance(answer, Passed)]
        later = [answer for answer in answers if isinstance(answer, Later)]
        soonest = min(later, key=lambda one: one.again_ms or math.inf, default=None)
        return passed[0] if passed else soonest

    def _reader(self, job: str, metric: str) -> Read:
        def read(span: Interval) -> Series | None:
            # A sample's time is the end of what it stands for: ``(start, end]``.
            window = self.window(job, start_ms=span.start_ms + 1, end_ms=span.end_ms + 1)
            return window.series(metric)

        return read

    def window(self, job: str, *, start_ms: int, end_ms: int) -> Window:
        """Return the job's history in ``[start_ms, end_ms)``, derived metrics included."""
        window = self._histories.window(job, start_ms=start_ms, end_ms=end_ms)
        more = derived(window.fields, clock_ratio=self.clock_ratio(job))
        return replace(window, fields={**window.fields, **more})


def _fall(incident: Incident, metric: str, at_ms: int) -> Fall:
    """Return the fall of one metric that the page bound is asked about.

    A further drop goes on with the fall that it tells its loss from. Where people were called
    for that one, only what was lost since is worth another call: from the level that it had
    fallen to, which the history shows.
    """
    own = metric == incident.metric and incident.severity != "critical"
    return Fall(
        onset_ms=incident.fallen_ms or incident.onset_ms,
        at_ms=at_ms,
        before=incident.before.value if own and incident.before.value > 0 else None,
    )


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
        windows: dict[tuple[str, int], Window] = {}
        observed = observe(
            seen.state.watches[model.name],
            batch,
            values.get(model.metric),
            confirm=_confirm(model, jobs, windows, kept=seen.state.kept),
        )
        watches[model.name] = observed.watch
        _take_down(seen, model, observed, jobs, windows=windows, content=content)
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


def _confirm(
    model: Model,
    jobs: Jobs,
    windows: dict[tuple[str, int], Window],
    *,
    kept: Mapping[str, Kept],
) -> Confirm:
    """Return the test that a candidate of this model must pass; keeps the windows it read."""

    def confirm(job: str, candidate: Candidate) -> Confirmed | Rejected:
        start_ms, end_ms = window_start_ms(candidate, model), candidate.time_ms + 1
        if candidate.early:
            return early(job, candidate, start_ms=start_ms)
        span = Interval(start_ms=start_ms, end_ms=end_ms)
        explained = announced(candidate, jobs.context(job, span))
        if explained is not None:
            return explained
        window = _reaching_back(jobs, job, span, model=model, kept=kept)
        windows[job, candidate.time_ms] = window
        return verify(candidate, window, model)

    def early(job: str, candidate: Candidate, *, start_ms: int) -> Confirmed | Rejected:
        first_ms, end_ms = early_start_ms(candidate, model), candidate.time_ms + 1
        events = jobs.context(job, Interval(start_ms=first_ms, end_ms=end_ms))
        # Most jobs announce nothing, and most falls of others were: no window is read for them.
        if not events:
            return Rejected(reason="the job announces nothing")
        explained = announced(candidate, events)
        if (
            explained is not None
            and candidate.time_ms - candidate.onset_ms < candidate.known_ms
        ):
            return replace(explained, again_ms=asked_again_ms(candidate))
        window = jobs.window(job, start_ms=first_ms, end_ms=end_ms)
        windows[job, candidate.time_ms] = window.since(start_ms)
        return verify_early(candidate, window, model)

    return confirm


def _reaching_back(
    jobs: Jobs, job: str, span: Interval, *, model: Model, kept: Mapping[str, Kept]
) -> Window:
    """Return a job's history, where it is short behind that of the run whose level it has.

    Time counts as the runs' own: what the job lacks of the span is taken from the end of the
    earlier run, however long ago that was.
    """
    own = jobs.window(job, start_ms=span.start_ms, end_ms=span.end_ms)
    source = sources(kept, job).get(model.name)
    origin = kept[job].origin if job in kept else None
    if source is None or origin is None or span.start_ms >= origin.began_ms:
        return own
    end_ms = source.until_ms + 1
    missing_ms = origin.began_ms - span.start_ms
    earlier = jobs.window(source.run, start_ms=end_ms - missing_ms, end_ms=end_ms)
    series = earlier.series(model.metric)
    if series is None or len(series.values) < model.verify.min_before:
        earlier = stand_in(source, model.metric)
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
        seen.happenings[job].append(
            Found(time_ms=outcome.detected_ms, finding=finding, family=model.family)
        )


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
