"""One round of collection: ask every source, say whose each reading is, judge, bring together.

    Source.scrape -> Register.identify -> quality.judge -> aggregate.parts -> Sink.post

The same round for every source, live or once. A source or target that fails costs no other; it
is named, counted, and asked again in the next round.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from detector.analysis.aggregate import Part, parts
from detector.analysis.maxclock import MaxClocks
from detector.analysis.quality import NOTHING, Judged, Memory, judge
from detector.fleet import Job
from detector.reading import CLOCK_OFF_MS, Scrape
from detector.series import ContextEvent, Interval
from detector.telemetry.absent import Absent
from detector.telemetry.background import in_background
from detector.telemetry.register import Register
from detector.telemetry.source import Source, SourceError
from detector.telemetry.whose import Whose

# Another maximal clock is announced no more often than this.
_TELL_AGAIN_MS = 3_600_000

# Parts that are kept while the store is away: ten minutes of 300 hosts, or 40 MB.
_MOST_OWED = 20_000


class Sink(Protocol):
    """Where the parts go. Raises OSError when the store is out of reach."""

    def post(self, parts: Sequence[Part]) -> None:
        """Take the parts of one round; taking them again is harmless."""
        ...

    def introduce(self, jobs: Sequence[Job]) -> None:
        """Take who the jobs are."""
        ...

    def announce(self, events: Sequence[tuple[str, ContextEvent]]) -> None:
        """Take what happened to jobs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round found.

    Attributes
    ----------
    silent
        Sources and schedulers that gave nothing, one line each.
    troubles
        What is wrong now, one line each: sources, targets, lost GPUs, schedulers, clocks.
    whose
        What told whose the readings are.
    """

    time_ms: int
    scrapes: tuple[Scrape, ...] = ()
    judged: tuple[Judged, ...] = ()
    parts: tuple[Part, ...] = ()
    silent: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    whose: Whose = field(default_factory=Whose)

    def counts(self) -> Counter[str]:
        """Return how many targets answered, readings there were, and verdicts were given."""
        found: Counter[str] = Counter()
        found["targets"] = len({scrape.target for scrape in self.scrapes})
        found["targets_down"] = len({one.target for one in self.scrapes if one.error})
        found["readings"] = len(self.judged)
        found["dropped"] = sum(len(scrape.dropped) for scrape in self.scrapes)
        found.update(one.quality for one in self.judged)
        return found


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A source, the answer that it still owes, and whether a round ended without it."""

    source: Source
    under_way: Future[Sequence[Scrape]] | None = None
    late: bool = False


class Collector:
    """Makes rounds over all sources.

    Parameters
    ----------
    deadline_s
        How long a round waits for a source; one that takes longer is left behind, and asked
        again once it has come back.
    interval_ms
        Time between two rounds; parts have the nearest multiple of it as their time.

    Attributes
    ----------
    owed
        Parts that the store has not taken yet, oldest first.
    lost
        How many were given up since, because they were too many.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        register: Register,
        *,
        max_clocks: MaxClocks,
        deadline_s: float,
        interval_ms: int = 1,
    ) -> None:
        self._asked = [_Asked(source=source) for source in sources]
        self._register, self._max_clocks, self._deadline_s = register, max_clocks, deadline_s
        self._interval_ms = interval_ms
        self._memory: Memory = NOTHING
        self._absent = Absent()
        self._introduced: frozenset[str] = frozenset()
        self._met: frozenset[str] = frozenset()
        self._events: tuple[tuple[str, ContextEvent], ...] = ()
        self._clocks_off: dict[str, str] = {}
        self._told_ms: dict[str, int] = {}
        self.owed: tuple[Part, ...] = ()
        self.lost = 0

    def round(self, now_ms: int) -> Round:
        """Ask every source once and return what was found."""
        answered, missing, silent = self._scraped(now_ms)
        self._register.refresh(now_ms)
        scrapes = self._identified(answered, missing)
        before = self._memory
        judged, self._memory = judge(
            before, scrapes, now_ms=now_ms, max_clocks=self._max_clocks
        )
        self._events += self._rescaled(before, scrapes, judged, now_ms=now_ms)
        silent = [*silent, *self._register.troubles]
        troubles = [f"{one.target}: {trouble}" for one in scrapes for trouble in _troubles(one)]
        self._compare_clocks(scrapes)
        troubles += self._clocks_off.values()
        return Round(
            time_ms=now_ms,
            scrapes=tuple(scrapes),
            judged=judged,
            # A round that starts a little early or late is still that of its slot.
            parts=parts(judged, time_ms=round(now_ms / self._interval_ms) * self._interval_ms),
            silent=tuple(silent),
            troubles=tuple(dict.fromkeys((*silent, *troubles))),
            whose=self._register.whose,
        )

    def deliver(self, found: Round, sink: Sink) -> None:
        """Hand a round's parts on; who a job is goes before its first sample.

        Raises
        ------
        OSError
            When the store is out of reach: then its parts go with those of the next round.
        """
        self._events += self._register.restarts()
        parts = (*self.owed, *found.parts)
        self.owed = parts[-_MOST_OWED:]
        self.lost += len(parts) - len(self.owed)
        jobs = frozenset(part.job for part in self.owed)
        # Labels may name a job before its scheduler says who that is.
        self._met |= self._register.met()
        if new := (jobs - self._introduced) | (jobs & self._met):
            sink.introduce(_measured(self._register.describe(sorted(new)), found.judged))
        self._met = frozenset()
        # Who was gone is introduced again: that is rare, and what is remembered stays bounded.
        self._introduced = jobs
        if self._events:
            sink.announce(self._events)
            self._events = ()
        sink.post(self.owed)
        self.owed = ()

    def _rescaled(
        self,
        before: Memory,
        scrapes: Sequence[Scrape],
        judged: Sequence[Judged],
        *,
        now_ms: int,
    ) -> tuple[tuple[str, ContextEvent], ...]:
        """Return which jobs' OFU counts against another maximal clock from now on.

        All of it moves by as much, and nothing has become slower. Told once an hour at most: a
        maximum that goes to and fro is never used.
        """
        changed = {
            id(one.reading): one for one in judged if one.quality == "clock_source_changed"
        }
        if not changed:
            return ()
        told: dict[str, str] = {}
        for scrape in scrapes:
            for reading in scrape.readings:
                one = changed.get(id(reading))
                known = before.known.get((scrape.target, reading.entity))
                if one and known and one.max_clock_mhz != known.max_clock_mhz:
                    told |= dict.fromkeys(one.jobs, one.reason)
        self._told_ms = {
            job: at for job, at in self._told_ms.items() if now_ms - at < _TELL_AGAIN_MS
        }
        new = told.keys() - self._told_ms.keys()
        self._told_ms |= dict.fromkeys(new, now_ms)
        span = Interval(start_ms=now_ms, end_ms=now_ms)
        return tuple(
            (
                job,
                ContextEvent(
                    kind="planned_change",
                    span=span,
                    note=f"OFU is measured anew: {told[job]}",
                    told_ms=now_ms,
                ),
            )
            for job in sorted(new)
        )

    def _identified(
        self, scrapes: Sequence[Scrape], missing: Sequence[Scrape]
    ) -> tuple[Scrape, ...]:
        """Return what was scraped with its jobs, and what is missing of jobs that go on."""
        found = self._register.identify((*scrapes, *missing))
        answered, missing = found[: len(scrapes)], found[len(scrapes) :]
        return (*answered, *self._absent.kept(missing, answered))

    def _compare_clocks(self, scrapes: Iterable[Scrape]) -> None:
        """Note whose clock is off; a target says its time now and then only."""
        for scrape in scrapes:
            said_ms = _said_ms(scrape)
            if said_ms is None:
                continue
            self._clocks_off.pop(scrape.target, None)
            off = said_ms - scrape.asked_ms
            if abs(off) > CLOCK_OFF_MS:
                # In tens of seconds: the same trouble has the same words in the next round.
                way = "ahead of" if off > 0 else "behind"
                told = f"about {abs(off) / 1e4:.0f}0 s {way} the one here"
                self._clocks_off[scrape.target] = (
                    f"clock of {scrape.target}: {told}; run NTP there"
                )

    def _scraped(self, now_ms: int) -> tuple[list[Scrape], list[Scrape], list[str]]:
        """Return what sources gave, what is missing in it, and which gave nothing, and why."""
        for one in self._asked:
            # What came too late is of no use: its readings would be taken for new ones.
            if one.under_way is None or one.under_way.done():
                one.under_way = in_background(
                    partial(one.source.scrape, now_ms), name=f"source:{one.source.name}"
                )
                one.late = False
        asked = [one.under_way for one in self._asked if one.under_way and not one.late]
        wait(asked, timeout=self._deadline_s)
        scrapes: list[Scrape] = []
        missing: list[Scrape] = []
        troubles: list[str] = []
        for number, one in enumerate(self._asked):
            given, why = self._given(one)
            scrapes += given
            missing += self._absent.standing_in(number, given, now_ms=now_ms, failure=why)
            troubles += [f"{one.source.name}: {why}"] if why else []
        return scrapes, missing, troubles

    def _given(self, one: _Asked) -> tuple[Sequence[Scrape], str]:
        """Return what a source gave, or why it gave nothing."""
        assert one.under_way is not None
        if one.late or not one.under_way.done():
            one.late = True
            return (), f"no answer within {self._deadline_s:g} s; not asked again yet"
        answer, one.under_way = one.under_way, None
        try:
            return answer.result(), ""
        except SourceError as error:
            return (), str(error)
        except Exception as error:  # one odd source must not cost the others
            return (), f"a mistake of ofuwatch's: {type(error).__name__}: {error}"

    def close(self) -> None:
        """Let go of all sources."""
        for one in self._asked:
            one.source.close()


def _troubles(scrape: Scrape) -> Iterator[str]:
    if scrape.error:
        yield scrape.error
    if scrape.failing:
        whys = [f": {why.reason}" for why in scrape.refusals] or [""]
        yield from (f"{scrape.failing}{why}" for why in whys)
    for lost in scrape.lost:
        yield f"{lost.gpu}: {lost.reason}"


def _measured(jobs: Iterable[Job], judged: Iterable[Judged]) -> tuple[Job, ...]:
    """Return jobs with whence the maximal clocks are that their OFU is a share of."""
    sources: defaultdict[str, set[str]] = defaultdict(set)
    for one in judged:
        for job in one.jobs if one.max_clock_source else ():
            sources[job].add(one.max_clock_source)
    return tuple(
        replace(
            job,
            labels={**job.labels, "max_clock_source": ", ".join(sorted(sources[job.id]))},
        )
        if job.id in sources
        else job
        for job in jobs
    )


def _said_ms(scrape: Scrape) -> int | None:
    """Return the target's own time; None where it says none.

    Times of readings tell a clock that is fast: one may be old, but none is of the future.
    """
    if scrape.time_ms is not None:
        return scrape.time_ms
    own = [reading.time_ms for reading in scrape.readings if reading.own_clock]
    return max(*own, scrape.asked_ms) if own else None
