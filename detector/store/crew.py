"""What the inbox knows of one job: whom it waits for, its roster, what is wrong with it."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from detector.analysis.aggregate import Part, in_words
from detector.fleet import Gpu, Job
from detector.series import ContextEvent, Interval

# A host that was silent for so long is waited for no more. Chosen: two collections of 30 s.
_GONE_MS = 60_000
# GPUs that cannot be used for so long are told, and no more often than this. Chosen: one
# collection of 30 s may fail; what changes every minute is one trouble all the same, and an
# incident that opens after five minutes is to find its reason told.
_TROUBLE_MS, _TELL_EVERY_MS = 60_000, 240_000


@dataclass(slots=True)
class _Trouble:
    """GPUs that cannot be used: since when, and what was told of them when."""

    since_ms: int | None = None
    told_ms: int | None = None
    told: frozenset[tuple[str, str]] = frozenset()
    note: str = ""

    def step(
        self, faults: Sequence[tuple[str, str, int]], *, start_ms: int
    ) -> ContextEvent | None:
        if not faults:
            return self._over(start_ms)
        if self.since_ms is None:
            self.since_ms = start_ms
        picture = frozenset((host, quality) for host, quality, _ in faults)
        if start_ms - self.since_ms < _TROUBLE_MS or picture == self.told:
            return None
        if self.told_ms is not None and start_ms - self.told_ms < _TELL_EVERY_MS:
            return None
        self.told_ms, self.told, self.note = start_ms, picture, in_words(faults)
        span = Interval(start_ms=self.since_ms, end_ms=self.since_ms)
        return ContextEvent(kind="telemetry", span=span, note=self.note)

    def _over(self, start_ms: int) -> ContextEvent | None:
        since_ms, note, told_ms = self.since_ms, self.note, self.told_ms
        self.since_ms, self.told, self.note = None, frozenset(), ""
        if since_ms is None or not note or told_ms is None:
            return None
        span = Interval(start_ms=since_ms, end_ms=start_ms)
        return ContextEvent(kind="telemetry", span=span, note=note)


@dataclass(slots=True)
class Crew:
    """The hosts and GPUs of one job.

    Attributes
    ----------
    until_ms
        Up to when the roster, as it was read, is taken for granted.
    closed_ms
        Start of the last scrape that was merged; -1 for none.
    """

    until_ms: int = -1
    closed_ms: int = -1
    roster: tuple[Gpu, ...] = ()
    _places: frozenset[str] = frozenset()
    _of_host: dict[str, list[Gpu]] = field(default_factory=dict)
    _heard: dict[str, int] = field(default_factory=dict)
    _news: set[str] = field(default_factory=set)
    _trouble: _Trouble = field(default_factory=_Trouble)

    def describe(self, job: Job, *, until_ms: int, seen_ms: int) -> None:
        """Take over who the job is; hosts of its roster are waited for from ``seen_ms`` on."""
        self.until_ms = until_ms
        if job.roster == self.roster:
            return
        self.roster = job.roster
        self._places = frozenset(gpu.uuid for gpu in job.roster)
        self._of_host = {}
        for gpu in job.roster:
            if gpu.host:
                self._of_host.setdefault(gpu.host, []).append(gpu)
        for host in self._of_host:
            self._heard.setdefault(host, seen_ms)

    def gpus_of(self, host: str) -> Sequence[Gpu]:
        """Return the roster's GPUs on a host."""
        return self._of_host.get(host, ())

    def strangers(self, gpus: Iterable[Gpu]) -> list[Gpu]:
        """Return the GPUs that have no place in the roster yet, each once."""
        new = {gpu.uuid: gpu for gpu in gpus if gpu.uuid not in self._places}
        return list(new.values())

    def hear(self, hosts: Iterable[str], *, start_ms: int) -> None:
        """Note that hosts reported in a scrape; they are waited for in those to come."""
        self._heard.update(dict.fromkeys(hosts, start_ms))

    def is_complete(self, hosts: Collection[str], *, start_ms: int) -> bool:
        """Whether everybody has reported who did lately; False where nobody is known to."""
        awaited = {host for host, heard in self._heard.items() if start_ms - heard <= _GONE_MS}
        return bool(awaited) and awaited <= set(hosts)

    def is_news(self, parts: Sequence[Part]) -> bool:
        """Whether a scrape holds enough that none before it did, which then counts as told.

        Hosts collect at times of their own, so at any time some repeat themselves. A scrape
        is worth an entry when more than half of the hosts have something new since the last
        one: a reading is not counted again each time that another host has a new one.
        """
        usable = [part.host for part in parts if part.gpus]
        self._news.update(part.host for part in parts if part.fresh)
        if usable and 2 * len(self._news.intersection(usable)) <= len(usable):
            return False
        self._news.clear()
        return True

    def trouble(
        self, faults: Sequence[tuple[str, str, int]], *, start_ms: int
    ) -> ContextEvent | None:
        """Return what is to be announced of GPUs that cannot be used; None most of the time."""
        return self._trouble.step(faults, start_ms=start_ms)
