"""The past of jobs at first sight: fetched and written before their first live sample.

A stream takes nothing older than its newest entry, so a new job's live parts are held back
until its past is there. That happens in a thread of its own: the others' rounds go on
meanwhile. What is there already is not fetched again: after a restart only the gap is filled.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from threading import Event, Thread
from typing import Protocol

from detector.analysis.aggregate import Part
from detector.fleet import Job
from detector.reading import Reading
from detector.series import Interval
from detector.telemetry.collector import Round
from detector.telemetry.source import SourceError
from detector.telemetry.whose import Whose

# Parts written at once. Chosen: some MB, and a stop is noticed within a fraction of a second.
_A_WRITE = 2_000

# How long live parts are held back. 100 jobs' 6 h take a few seconds; a server that needs
# longer costs its jobs their past, not their present.
_LONGEST_MS = 120_000

_EVER = 0  # since when a job is missing that has no history

# Before a server that does not answer is asked again. Chosen: longer than it is left alone for
# where it says nothing (10 s), and both within what jobs are held back.
_RETRIES_S = (15.0, 45.0)

# Jobs that were gone for so long are looked up anew. Chosen: as quality forgets GPUs.
_FORGET_MS = 3_600_000


class Past(Protocol):
    """Where the past of jobs can be read."""

    def __call__(
        self, found: Sequence[Reading], whose: Whose, *, start_ms: int, end_ms: int
    ) -> Iterator[Part]:
        """Return jobs' parts within ``[start_ms, end_ms)``, each job's oldest first.

        Parameters
        ----------
        found
            Readings of the jobs' GPUs as they are now, with their jobs.
        whose
            Whom readings of the past were for.

        Raises
        ------
        SourceError
            When the server does not answer.
        """
        ...


class Histories(Protocol):
    """Where it is written. Raises OSError when the store is out of reach."""

    def newest(self, jobs: Sequence[str]) -> Mapping[str, int]:
        """Return the time of the newest entry, ms, of the jobs that have one."""
        ...

    def introduce(self, jobs: Sequence[Job]) -> None:
        """Write who the jobs are."""
        ...

    def fill(self, parts: Sequence[Part]) -> None:
        """Write parts that are whole scrapes, each job's oldest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The jobs whose past is wanted.

    Attributes
    ----------
    gpus
        Job -> entity -> the reading that it was first seen with.
    until_ms
        Where their live parts begin.
    stop
        Set when it is wanted no more.
    """

    gpus: Mapping[str, Mapping[str, Reading]]
    whose: Whose
    until_ms: int
    stop: Event = field(default_factory=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetching:
    """A past that is being fetched."""

    wanted: _Wanted
    began_ms: int
    thread: Thread


class FirstSight:
    """Holds back new jobs' parts until their past is written.

    Parameters
    ----------
    first_look_ms
        How far back a job is fetched that has no history.
    interval_ms
        Time between two rounds: a gap of no more than two is none.
    retries_s
        How long is waited before each other try, where a server does not answer.
    describe
        Says who jobs are, which goes before their first sample.
    """

    def __init__(
        self,
        pasts: Sequence[Past],
        histories: Histories,
        *,
        first_look_ms: int,
        interval_ms: int,
        describe: Callable[[Iterable[str]], Sequence[Job]],
        retries_s: Sequence[float] = _RETRIES_S,
    ) -> None:
        self._retries_s = retries_s
        self._pasts, self._histories, self._describe = pasts, histories, describe
        self._first_look_ms, self._interval_ms = first_look_ms, interval_ms
        self._known: dict[str, int] = {}
        self._waiting: dict[str, dict[str, Reading]] = {}
        self._held: list[Part] = []
        self._fetching: _Fetching | None = None
        self._troubles: list[str] = []

    def admit(self, found: Round) -> tuple[Part, ...]:
        """Return the parts that may be written now, those held back earlier first."""
        if not self._pasts:
            return found.parts
        now_ms = found.time_ms
        self._note(found)
        self._end(now_ms)
        if self._fetching is None and self._waiting:
            self._begin(found, min(part.time_ms for part in (*self._held, *found.parts)))
        closed = {*self._waiting, *(self._fetching.wanted.gpus if self._fetching else ())}
        parts = (*self._held, *found.parts)
        self._held = [part for part in parts if part.job in closed]
        return tuple(part for part in parts if part.job not in closed)

    def troubles(self) -> tuple[str, ...]:
        """Return what went wrong since the last call, one line each."""
        told, self._troubles = tuple(self._troubles), []
        return told

    def join(self, timeout_s: float) -> None:
        """Wait for what is being fetched."""
        if self._fetching is not None:
            self._fetching.thread.join(timeout_s)

    def close(self) -> None:
        """End what is being fetched after its present write."""
        if self._fetching is not None:
            self._fetching.wanted.stop.set()

    def _note(self, found: Round) -> None:
        """Remember who is new, with the GPUs that it has."""
        jobs = {part.job for part in found.parts}
        new = jobs - self._known.keys()
        for one in found.judged:
            for job in new.intersection(one.jobs):
                self._waiting.setdefault(job, {})[one.reading.entity] = one.reading
        self._known |= dict.fromkeys(jobs, found.time_ms)
        oldest = found.time_ms - _FORGET_MS
        self._known = {job: seen for job, seen in self._known.items() if seen >= oldest}

    def _begin(self, found: Round, until_ms: int) -> None:
        wanted = _Wanted(gpus=self._waiting, whose=found.whose, until_ms=until_ms)
        self._waiting = {}
        described = self._describe(sorted(wanted.gpus))
        thread = Thread(target=self._fetch, args=(wanted, described), name="past", daemon=True)
        self._fetching = _Fetching(wanted=wanted, began_ms=found.time_ms, thread=thread)
        thread.start()

    def _end(self, now_ms: int) -> None:
        """Let jobs go whose past is written, or took too long."""
        fetching = self._fetching
        if fetching is None:
            return
        late = now_ms - fetching.began_ms > _LONGEST_MS
        if late and fetching.thread.is_alive():
            fetching.wanted.stop.set()
            self._troubles.append(
                f"the past of {len(fetching.wanted.gpus)} jobs took longer than "
                f"{_LONGEST_MS / 1000:.0f} s: they begin with what is written of it by now"
            )
        if late or not fetching.thread.is_alive():
            self._fetching = None

    def _fetch(self, wanted: _Wanted, described: Sequence[Job]) -> None:
        told: list[str] = []
        try:
            self._histories.introduce(described)
            for wait_s in (0.0, *self._retries_s):
                if wanted.stop.wait(wait_s):
                    break
                told = []
                if self._fetch_once(wanted, told):
                    break
        except OSError as error:
            told.append(f"the past of new jobs cannot be written: {error}")
        self._troubles += told

    def _fetch_once(self, wanted: _Wanted, told: list[str]) -> bool:
        """Write what is missing; return whether another try could bring no more."""
        spans = self._missing(wanted)
        todo = set(spans)
        new = {job for job in todo if spans[job].start_ms == _EVER}
        # Gaps first: they are short, and need not be asked for as far back as new jobs.
        groups = todo - new, new
        for past, some in product(self._pasts, groups):
            missing = {job: spans[job] for job in some & todo}
            todo -= self._fetch_from(past, wanted, missing, told)
        return not told or not self._missing(wanted)

    def _missing(self, wanted: _Wanted) -> dict[str, Interval]:
        """Return what of the past of each job is not in its history; of none where all is."""
        newest = self._histories.newest(sorted(wanted.gpus))
        spans = {
            job: Interval(
                start_ms=newest[job] + 1 if job in newest else _EVER,
                end_ms=_until(own, wanted.until_ms),
            )
            for job, own in wanted.gpus.items()
        }
        open_ms = wanted.until_ms - 2 * self._interval_ms
        return {job: span for job, span in spans.items() if span.start_ms < open_ms}

    def _fetch_from(
        self, past: Past, wanted: _Wanted, missing: Mapping[str, Interval], told: list[str]
    ) -> set[str]:
        """Write what one server has; return of which jobs it had anything."""
        found: set[str] = set()
        if not missing or wanted.stop.is_set():
            return found
        gpus = {entity: one for job in missing for entity, one in wanted.gpus[job].items()}
        first_ms = wanted.until_ms - self._first_look_ms
        start_ms = max(first_ms, min(span.start_ms for span in missing.values()))
        batch: list[Part] = []
        try:
            for part in past(
                list(gpus.values()), wanted.whose, start_ms=start_ms, end_ms=wanted.until_ms
            ):
                if wanted.stop.is_set():
                    return found
                if part.job in missing and missing[part.job].covers(part.time_ms):
                    found.add(part.job)
                    batch.append(part)
                if len(batch) >= _A_WRITE:
                    self._histories.fill(batch)
                    batch = []
        except SourceError as error:
            told.append(f"the past of new jobs cannot be read: {error}")
        if not wanted.stop.is_set():
            self._histories.fill(batch)
        return found


def _until(readings: Mapping[str, Reading], until_ms: int) -> int:
    """Return where a job's past ends: before what its first live sample is made of."""
    own = (one.time_ms for one in readings.values() if one.own_clock)
    return min(until_ms, max(own, default=until_ms))
