"""What a pass looks up about jobs: who they are, what they announced, how they went.

All that is wanted at a time is read in one trip, and a stretch of a history once a pass,
whoever asks: verification, the judge, the page bound and the level of what is open. What is
read reaches to the end of the pass, and everybody is given the part that he asked for.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from detector.analysis.change import Estimate
from detector.analysis.derived import clock_correction, derived
from detector.analysis.judge import Content
from detector.analysis.ofu import GpuModel
from detector.analysis.paging import Fall, Later, Passed, Read, ask, first_read
from detector.analysis.present import present_level
from detector.fleet import Job
from detector.incident.incident import Incident
from detector.incident.measure import measured_next
from detector.incident.page import asked
from detector.series import Batch, ContextEvent, Interval, Series, Wanted, Window

Announced = Callable[[Interval], tuple[ContextEvent, ...]]
"""What was announced about a job that touches a span."""


class Histories(Protocol):
    """Where more is read about few jobs. Raises OSError when the store is out of reach."""

    def windows(self, wanted: Sequence[Wanted]) -> Sequence[Window]:
        """Return stretches of jobs' histories, without what was announced."""
        ...

    def announced(self, jobs: Sequence[str]) -> Sequence[Announced]:
        """Return for each job what was announced about it, to be asked for spans."""
        ...

    def describe_many(self, jobs: Iterable[str]) -> Mapping[str, Job]:
        """Return who the jobs are."""
        ...


# How much of an incident's history is read to measure its present level. Chosen: as much as
# verification looks back.
_MEASURED_MS = 3_600_000
# Values that are kept of what was read: 32 MB. Chosen: what a tick of 10,000 jobs needs, and
# little beside the memory that the service has.
_MOST_KEPT = 4_000_000


class Jobs:
    """Who the jobs of a pass are and what their histories show, each read once.

    Parameters
    ----------
    batch
        What the pass is about: histories are read to its end.
    """

    def __init__(self, histories: Histories, content: Content, batch: Batch) -> None:
        self._histories = histories
        self._gpus = content.gpus
        self._bounds = {
            model.metric: (model, model.page) for model in content.models if model.page
        }
        self._ends = _ends(batch)
        self._known: dict[str, Job] = {}
        self._windows: dict[tuple[str, bool], tuple[Interval, Window]] = {}
        self._announced: dict[str, Announced] = {}
        self._kept = 0

    def __getitem__(self, job: str) -> Job:
        if job not in self._known:
            self.meet([job])
        return self._known[job]

    def meet(self, jobs: Iterable[str]) -> None:
        """Read who ``jobs`` are, all in one trip."""
        new = [job for job in dict.fromkeys(jobs) if job not in self._known]
        if new:
            self._known.update(self._histories.describe_many(new))

    def gpu(self, job: str) -> GpuModel | None:
        """Return the GPU model that the job runs on, where it is known."""
        return self._gpus.find(self[job].gpu_model)

    def clock_ratio(self, job: str) -> float:
        """Return what the job's OFU is multiplied by to be MFU on the data sheet."""
        return clock_correction(self.gpu(job), self[job].precision)

    def hear(self, jobs: Iterable[str]) -> None:
        """Read what was announced about these jobs, all in one trip."""
        new = [job for job in dict.fromkeys(jobs) if job not in self._announced]
        if new:
            found = self._histories.announced(new)
            self._announced.update(zip(new, found, strict=True))

    def context(self, job: str, span: Interval) -> tuple[ContextEvent, ...]:
        """Return what was announced about the job that touches ``span``."""
        self.hear([job])
        return self._announced[job](span)

    def read(self, wanted: Iterable[Wanted]) -> None:
        """Read stretches that are not known yet, all in one trip."""
        while self._kept > _MOST_KEPT:  # the oldest first: what was just read is still needed
            _, gone = self._windows.pop(next(iter(self._windows)))
            self._kept -= _size(gone)
        missing: dict[tuple[str, bool], Interval] = {}
        for item in wanted:
            if self._found(item) is None:
                key = item.job, item.gpus
                end_ms = max(item.span.end_ms, self._ends.get(item.job, 0) + 1)
                known = missing.get(key, item.span)
                missing[key] = Interval(
                    start_ms=min(item.span.start_ms, known.start_ms),
                    end_ms=max(end_ms, known.end_ms),
                )
        if not missing:
            return
        self.meet(job for job, _ in missing)
        asked_for = [
            Wanted(job=job, span=span, gpus=gpus) for (job, gpus), span in missing.items()
        ]
        for item, window in zip(asked_for, self._histories.windows(asked_for), strict=True):
            shorter = self._windows.pop((item.job, item.gpus), None)
            self._windows[item.job, item.gpus] = item.span, window
            self._kept += _size(window) - (0 if shorter is None else _size(shorter[1]))

    def _found(self, item: Wanted) -> Window | None:
        """Return what was read that holds the stretch."""
        for gpus in (item.gpus, True):
            span, window = self._windows.get((item.job, gpus), (None, None))
            if span is not None and span.holds(item.span):
                return window
        return None

    def window(self, job: str, span: Interval, *, gpus: bool = False) -> Window:
        """Return the job's history in ``span`` with derived metrics, without announcements."""
        wanted = Wanted(job=job, span=span, gpus=gpus)
        found = self._found(wanted)
        if found is None:
            self.read([wanted])
            found = self._found(wanted)
            assert found is not None  # it was just read
        window = found.within(span)
        more = derived(window.fields, clock_ratio=self.clock_ratio(job))
        return replace(
            window, fields={**window.fields, **more}, gpus=window.gpus if gpus else None
        )

    def measure(self, incident: Incident, at_ms: int) -> Estimate | None:
        """Return the level of the incident's metric in its last hour up to ``at_ms``."""
        span = Interval(start_ms=_measured_from(incident, at_ms), end_ms=at_ms)
        window = self.window(incident.job.id, replace(span, end_ms=at_ms + 1))
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
            return self.window(job, _samples(span)).series(metric)

        return read

    def due(self, incident: Incident, *, until_ms: int) -> list[Wanted]:
        """Return what :meth:`page` and :meth:`measure` will read up to then, if they are due.

        A guess that spares trips; what it misses is read when it is asked for.
        """
        spans: list[Interval] = []
        if incident.live and incident.opened_ms is not None:
            ask_ms = incident.ask_page_ms if asked(incident) else None
            if ask_ms is not None and ask_ms <= until_ms:
                spans += [
                    _samples(span)
                    for metric, (_, bound) in self._bounds.items()
                    if metric in incident.away
                    for span in [first_read(_fall(incident, metric, ask_ms), bound)]
                    if span is not None
                ]
            measure_ms = measured_next(incident)
            if measure_ms <= until_ms and incident.recovering_ms is None:
                start_ms = _measured_from(incident, measure_ms)
                spans.append(Interval(start_ms=start_ms, end_ms=until_ms + 1))
        return [Wanted(job=incident.job.id, span=span) for span in spans]


def _ends(batch: Batch) -> dict[str, int]:
    """Return the time of each job's last entry in the batch, ms."""
    last = batch.job.searchsorted(range(len(batch.jobs)), side="right") - 1
    return dict(zip(batch.jobs, batch.times_ms[last].tolist(), strict=True))


def _size(window: Window) -> int:
    """Return how many values a window holds."""
    width = 0 if window.gpus is None else window.gpus.shape[1]
    return len(window.times_ms) * (1 + len(window.fields) + width)


def _samples(span: Interval) -> Interval:
    """Return ``(start, end]`` half-open: a sample's time is the end of what it stands for."""
    return Interval(start_ms=span.start_ms + 1, end_ms=span.end_ms + 1)


def _measured_from(incident: Incident, at_ms: int) -> int:
    return max(incident.onset_high_ms, at_ms - _MEASURED_MS)


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
