"""Where in a job's stream its own reports go, which come at any time and any number of times.

A stream takes no entry before its last, and whoever writes scrapes does so by times that have
passed. So a report must stand where it keeps no scrape out, and still be the next scrape's:
behind the last entry where scrapes are to come, and at its own time where none are. Its own
time is in ``at`` where the entry's id is another; by that a report that came before is known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan

from detector.analysis.derived import REPORTED
from detector.metric import METRICS
from detector.store.entries import encode, entry_ms
from detector.store.keys import Keys
from detector.store.letters import Letter
from detector.store.reports import JOIN_MS
from detector.store.samples import Sample, is_scrape, own_ms
from detector.store.server import Command, Reply, Server, pairs

# What is put behind the newest entry stands so much before its own time where that is old.
# Chosen: two collections of 30 s, by whose time somebody may still write a scrape.
_BACK_MS = 60_000
# A report of a job that has no scrapes waits so long for one whose time is before it. Chosen:
# one collection of 30 s.
_HOLD_MS = 30_000
# Entries that tell where a report goes: nearly always the last two scrapes and reports; of an
# hour's reports that are sent again, all of the stream at one entry a second.
_FEW, _MOST = 4, 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What becomes of reports.

    Attributes
    ----------
    samples
        To be written.
    done
        Entries of the inbox that are dealt with once those are written.
    back
        Reports that are older than what is known already, and why they are of no use.
    """

    samples: list[Sample] = field(default_factory=list)
    done: list[bytes] = field(default_factory=list)
    back: list[tuple[Letter, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Known:
    """The end of a job's stream: its last entry, its last scrape, and the reports in it."""

    last_ms: int = -1
    scraped_ms: int = -1
    newest: dict[bytes, int] = field(default_factory=dict)  # of each metric's field, own time
    told: set[tuple[int, bytes, bytes]] = field(default_factory=set)  # own time, field, text

    def add(self, entry: bytes, given: Mapping[bytes, bytes]) -> None:
        self.last_ms = max(self.last_ms, entry_ms(entry))
        at_ms = own_ms(entry, given)
        if is_scrape(given):
            self.scraped_ms = max(self.scraped_ms, at_ms)
        else:
            self.report(at_ms, given)

    def report(self, at_ms: int, given: Mapping[bytes, bytes]) -> None:
        for name in _FIELDS & given.keys():
            self.newest[name] = max(at_ms, self.newest.get(name, -1))
            self.told.add((at_ms, name, given[name]))


class Placing:
    """Holds reports until their place is known.

    Parameters
    ----------
    scrape_ms
        How long after its own time what is reported still belongs to a scrape of hosts.

    Raises
    ------
    StoreError
        From :meth:`ready`, when the server cannot be used; what is held stays in the inbox.
    """

    def __init__(self, server: Server, keys: Keys, *, scrape_ms: int) -> None:
        self._server = server
        self._keys = keys
        self._scrape_ms = scrape_ms
        self._held: dict[str, list[Letter]] = {}

    def __len__(self) -> int:
        """How many reports are held."""
        return sum(map(len, self._held.values()))

    def take(self, report: Letter) -> None:
        """Hold a report."""
        self._held.setdefault(report.job, []).append(report)

    def ready(
        self,
        scraped: Callable[[Letter], bool | None],
        scrapes: Iterable[Sample],
        *,
        now_ms: int,
    ) -> Placed:
        """Return what is held no longer.

        Parameters
        ----------
        scraped
            Whether hosts' scrapes of a report's time are written, this time at the latest;
            None where no hosts are known, so that the stream has to tell.
        scrapes
            Those that will be written with the reports.
        """
        placed = Placed()
        coming: dict[str, list[int]] = {}
        for scrape in scrapes:
            coming.setdefault(scrape.job, []).append(scrape.time_ms)
        known = self._known()
        held, self._held = self._held, {}
        for job, reports in held.items():
            end = known[job]
            for report in sorted(reports, key=lambda report: report.time_ms):
                closed = scraped(report)
                expected = bool(closed) or end.scraped_ms >= report.time_ms - JOIN_MS
                settled = expected if closed is None else closed
                if settled or now_ms >= report.time_ms + _HOLD_MS:
                    over_ms = report.time_ms - self._scrape_ms
                    over = [at for at in coming.get(job, ()) if at <= over_ms]
                    end.last_ms = max(end.last_ms, *over) if over else end.last_ms
                    _place(report, end, placed, expected=expected)
                else:
                    self.take(report)
        return placed

    def _known(self) -> dict[str, _Known]:
        """Return the ends of the streams, of each as much as its reports have to do with."""
        ends = self._ends(self._held, _FEW)
        unclear = [job for job, end in ends.items() if not self._is_clear(job, end)]
        return {job: end for job, (end, _) in {**ends, **self._ends(unclear, _MOST)}.items()}

    def _is_clear(self, job: str, read: tuple[_Known, bool]) -> bool:
        end, whole = read
        return whole or (
            end.scraped_ms >= 0
            and all(
                report.time_ms > end.newest.get(name, report.time_ms)
                for report in self._held[job]
                for name in _texts(report)
            )
        )

    def _ends(self, jobs: Iterable[str], count: int) -> dict[str, tuple[_Known, bool]]:
        """Return the last entries of the streams, and whether those are all that matter."""
        commands: dict[str, Command] = {}
        for job in jobs:
            first = min(report.time_ms for report in self._held[job]) - JOIN_MS
            commands[job] = [
                "XREVRANGE", self._keys.samples(job), "+", max(first, 0), "COUNT", count
            ]  # fmt: skip
        replies = self._server.pipeline(commands.values())
        ends = {}
        for job, reply in zip(commands, replies, strict=True):
            # A key of another type is told when it is written to.
            entries: Sequence[Reply] = reply if isinstance(reply, list) else ()
            end = _Known()
            for entry, flat in entries:
                end.add(entry, dict(pairs(flat)))
            ends[job] = end, len(entries) < count
        return ends


_FIELDS = {METRICS[name].field.encode() for name in REPORTED}


def _texts(report: Letter) -> dict[bytes, bytes]:
    """Return a report's metrics as they stand in an entry."""
    flat = encode(nan, {name: report.fields.get(name, nan) for name in REPORTED})
    texts = [str(text).encode() for text in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _place(report: Letter, end: _Known, placed: Placed, *, expected: bool) -> None:
    """Give a report its place behind all that is known, once; newer ones stay the last."""
    at_ms, texts = report.time_ms, _texts(report)
    placed.done.append(report.id)
    if all((at_ms, name, text) in end.told for name, text in texts.items()):
        return
    news = {name for name in texts if at_ms >= end.newest.get(name, at_ms)}
    if not news:
        newer_ms = min(end.newest[name] for name in texts)
        seconds = (newer_ms - at_ms) / 1000
        placed.back.append((report, f"a report of {seconds:.3f} s later came before"))
        return
    time_ms = max(end.last_ms + 1, at_ms - _BACK_MS if expected else at_ms)
    fields = {
        name: value
        for name in REPORTED
        if METRICS[name].field.encode() in news
        and not isnan(value := report.fields.get(name, nan))
    }
    moved_ms = at_ms if time_ms != at_ms else None
    placed.samples.append(
        Sample(job=report.job, time_ms=time_ms, ofu=nan, fields=fields, at_ms=moved_ms)
    )
    end.last_ms = time_ms
    end.report(at_ms, {name: texts[name] for name in news})
