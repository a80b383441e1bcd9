"""What one scheduler said, when, and what it still owes: it is asked beside the rounds."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import msgspec

from detector.fleet import Placement
from detector.series import Duration, iso
from detector.telemetry.background import in_background
from detector.telemetry.scheduler import Census, Run, Scheduler, SchedulerError

# Rounds come a little early or late: one that is early by so much still asks. Chosen: a fifth
# of the usual interval; one round with old news counts a handover for the wrong job.
_EARLY_MS = 2_000
# Ended holds are remembered so long: longer than any scrape waits to be looked at.
_REMEMBER_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a scheduler says now, and of the runs before our time; why, where it does not.

    Attributes
    ----------
    asked_ms
        When it was asked: what changed since then, it need not know.
    before_ms
        When it was asked what it answered before this; what is gone now was there then.
    """

    asked_ms: int
    before_ms: int
    census: Census | None = None
    error: str = ""
    past: tuple[Run, ...] = ()
    no_past: str = ""


@dataclass(slots=True, kw_only=True)
class Heard:
    """One scheduler.

    Attributes
    ----------
    asked
        Whether it was ever asked: the runs before our time are asked for once.
    as_of_ms
        When it was asked what it answered last; None before it answered.
    error, no_past
        Why it does not say who runs where, or who ran before; "" where it does.
    aliases
        Other name -> the job's id, and when that was told last.
    """

    scheduler: Scheduler
    under_way: Future[Answer] | None = None
    asked_ms: int | None = None
    as_of_ms: int | None = None
    error: str = ""
    no_past: str = ""
    holds: dict[Placement, Placement] = field(default_factory=dict)
    aliases: dict[str, tuple[str, int]] = field(default_factory=dict)

    def ask(self, now_ms: int) -> bool:
        """Ask if it is time to, and it owes nothing; return whether that was the first time."""
        early_ms = self.scheduler.every_ms - _EARLY_MS
        early = self.asked_ms is not None and 0 <= now_ms - self.asked_ms < early_ms
        if self.under_way is not None or early:
            return False
        first, self.asked_ms = self.asked_ms is None, now_ms
        before_ms = now_ms if self.as_of_ms is None else self.as_of_ms
        look = partial(_answer, self.scheduler, now_ms, before_ms=before_ms, past=first)
        self.under_way = in_background(look, name=f"scheduler:{self.scheduler.name}")
        return first

    def hear(self) -> Answer | None:
        """Take the answer that it owes; None where there is none, or none yet."""
        if self.under_way is None:
            return None
        if not self.under_way.done():
            self.error = "it takes long to answer; see whether its host is busy"
            return None
        answer, self.under_way = self.under_way.result(), None
        self.error, self.no_past = answer.error, answer.no_past or self.no_past
        if answer.census is not None:
            self._take(answer.census, as_of_ms=answer.asked_ms)
        return answer

    def fresh(self, now_ms: int) -> bool:
        """Whether the last answer still counts."""
        return self.as_of_ms is not None and now_ms - self.as_of_ms <= self.scheduler.keep_ms

    def troubles(self, now_ms: int) -> tuple[str, ...]:
        """Return one line for all that it does not answer: why, and what counts meanwhile."""
        found = []
        if self.error:
            found.append((self.error, self._standing(now_ms)))
        if self.no_past:
            none = "runs that ended before this process began are continued by none"
            found.append((self.no_past, none))
        return tuple(f"{self.scheduler.name}: {_meaning(*one)}" for one in found)

    def _standing(self, now_ms: int) -> str:
        """Return what counts meanwhile; the same words in each round, for a log to say once."""
        if self.as_of_ms is None:
            return "nothing is known of who runs where but what labels say"
        last = f"its answer of {iso(self.as_of_ms // 1000 * 1000)}"
        keep = Duration(self.scheduler.keep_ms)
        if self.fresh(now_ms):
            return f"{last} counts until it is {keep} old"
        return f"{last} counts no longer"

    def _take(self, census: Census, *, as_of_ms: int) -> None:
        """File an answer: a hold that it no longer lists ended somewhere since the last one.

        And one that is new began since then, whatever its job's beginning: the job grew, or
        was stopped meanwhile.
        """
        holds: dict[Placement, Placement] = {}
        for one in census.placements:
            key = _begun(one)
            met = self.holds.get(key)
            since_ms = one.start_ms if self.as_of_ms is None else self.as_of_ms + 1
            start_ms = max(one.start_ms, since_ms) if met is None else met.start_ms
            holds[key] = msgspec.structs.replace(one, start_ms=start_ms)
        for key, one in self.holds.items():
            if key in holds:
                continue
            end_ms = one.end_ms
            if end_ms is None:
                end_ms = max(one.start_ms, self.as_of_ms or as_of_ms)
            if as_of_ms - end_ms <= _REMEMBER_MS:
                holds[key] = msgspec.structs.replace(one, end_ms=end_ms)
        self.holds = holds
        self.aliases = {
            name: told
            for name, told in self.aliases.items()
            if as_of_ms - told[1] <= _REMEMBER_MS
        } | {name: (job, as_of_ms) for name, job in census.aliases.items()}
        self.as_of_ms = as_of_ms


def _answer(scheduler: Scheduler, now_ms: int, *, before_ms: int, past: bool) -> Answer:
    """Ask a scheduler; without the runs before our time new ones just have no past."""
    runs: tuple[Run, ...] = ()
    no_past, error, census = "", "", None
    if past:
        try:
            runs = scheduler.past(now_ms)
        except SchedulerError as why:
            no_past = str(why)
    try:
        census = scheduler.look(now_ms)
    except SchedulerError as why:
        error = str(why)
    except Exception as why:  # one odd answer must not cost the readings
        error = f"a mistake of ofuwatch's: {type(why).__name__}: {why}"
    return Answer(
        asked_ms=now_ms, before_ms=before_ms, census=census, error=error, past=runs,
        no_past=no_past,
    )  # fmt: skip


def _meaning(error: str, consequence: str) -> str:
    """Return an error with what follows from it, and last what is to be done."""
    what, mark, remedy = error.rpartition("; ")
    return f"{what}, and {consequence}; {remedy}" if mark else f"{error}, and {consequence}"


def _begun(placement: Placement) -> Placement:
    """Return a hold as it was when it began: what it is known by from answer to answer."""
    return msgspec.structs.replace(placement, end_ms=None)
