"""The inbox ``ofu:in``: entries that name their job, and hosts that report one by one.

``XADD ofu:in * job J v 0.41`` goes into J's history as it is. With ``host H`` it is one host's
part of a scrape: parts are merged by job and slot of time once all hosts that report the job
have reported, or ``wait`` has passed. An entry is deleted only after it has been written or
set aside, so a crash loses nothing; writing twice is harmless, since a slot is written once,
and so is each report of a job about itself. One process drains.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan

import numpy as np
import redis

from detector.analysis.aggregate import Merged, Part, merge
from detector.store.crew import Crew
from detector.store.entries import decode, entry_ms, safe
from detector.store.errors import StoreError
from detector.store.history import History, Sample
from detector.store.host_clocks import NOW_MS, HostClocks
from detector.store.keys import Keys
from detector.store.letters import Letter, is_usable, job_of, read, time_of
from detector.store.placing import Placing
from detector.store.server import Command, Server
from detector.store.settings import InboxSettings

_ENTRIES_A_CALL = 20_000  # 100,000 GPUs' hosts report 12,500 in a scrape
_DELETED_A_COMMAND = 1_000
_ROSTER_MS = 300_000  # how long a roster that was read is taken for granted
_FORGET_MS = 3_600_000  # what is known of a job that nobody reports any more


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxReport:
    """What a call of :meth:`Inbox.drain` did, in entries of the inbox.

    Attributes
    ----------
    written
        Entries of the histories that were written.
    waiting
        Parts that wait for the other hosts of their scrape, and reports for their place.
    more
        Whether the inbox has more to read: call again.
    """

    read: int = 0
    written: int = 0
    rejected: int = 0
    waiting: int = 0
    more: bool = False


@dataclass(slots=True)
class _Slot:
    """One job's scrape: the last part of each host, and the entries of all.

    Attributes
    ----------
    since_ms
        When the first of them came.
    """

    since_ms: int
    parts: dict[str, Letter] = field(default_factory=dict)
    ids: list[bytes] = field(default_factory=list)


class Inbox:
    """Empties the inbox into the jobs' histories.

    Raises
    ------
    StoreError
        From :meth:`drain`, when the server cannot be used; nothing is lost by it.
    """

    def __init__(
        self, client: redis.Redis, keys: Keys, history: History, settings: InboxSettings
    ) -> None:
        self._server = Server(client)
        self._key, self._keys = keys.inbox, keys
        self._history = history
        self._settings = settings
        self._told_type = False
        self._rejected = 0
        self._begin()

    def _begin(self) -> None:
        """Read the inbox from its start: what is still there has not been written."""
        self._position = b"0-0"
        self._slots: dict[tuple[str, int], _Slot] = {}
        self._crews: dict[str, Crew] = {}
        self._clocks = HostClocks()
        self._placing = Placing(self._server, self._keys, scrape_ms=self._settings.scrape)
        self._tidied_ms = 0

    def drain(self, now_ms: int) -> InboxReport:
        """Read what came, write what is complete, delete what is done with."""
        try:
            return self._drain(now_ms)
        except StoreError:
            self._begin()
            raise

    def _drain(self, now_ms: int) -> InboxReport:
        self._rejected = 0
        self._bound()
        entries = self._server.run(
            "XRANGE", self._key, b"(" + self._position, "+", "COUNT", _ENTRIES_A_CALL
        )
        if isinstance(entries, redis.RedisError):
            if not self._told_type:
                self._history.reject("", self._key, "wrong_type")
            self._told_type = True
            return InboxReport(rejected=1)
        self._told_type = False
        letters, done = self._opened(entries, now_ms=now_ms)
        samples, direct = self._sorted(letters, now_ms=now_ms)
        done += direct
        for job, start in self._due(now_ms):
            slot = self._slots.pop((job, start))
            samples += self._merged(job, start, slot)
            done += slot.ids
        # After the scrapes were merged: a report that was waiting for one goes before it.
        placed = self._placing.ready(self._scraped, samples, now_ms=now_ms)
        for report, why in placed.back:
            self._refuse(report.job, report.id, "went_back", why)
        samples += placed.samples
        done += placed.done
        samples.sort(key=lambda sample: sample.time_ms)
        written = self._history.write_many(samples)
        self._delete(done)
        if entries:
            self._position = entries[-1][0]
        self._tidy(now_ms)
        return InboxReport(
            read=len(entries),
            written=sum(written),
            rejected=self._rejected + len(written) - sum(written),
            waiting=sum(len(slot.ids) for slot in self._slots.values()) + len(self._placing),
            more=len(entries) == _ENTRIES_A_CALL,
        )

    def _bound(self) -> None:
        """Cut an inbox that nobody emptied to its bound, and say how much was lost."""
        length = self._server.run("XLEN", self._key)
        if isinstance(length, int) and length > self._settings.longest:
            lost = self._server.run("XTRIM", self._key, "MAXLEN", self._settings.longest)
            self._refuse("", b"", "inbox_full", f"{lost} entries lost")

    def _opened(
        self, entries: Sequence[tuple[bytes, list[bytes]]], *, now_ms: int
    ) -> tuple[list[Letter], list[bytes]]:
        """Return the readable entries, and the ids of those that were refused."""
        ids = [entry[0] for entry in entries]
        decoded = decode(ids, [entry[1] for entry in entries])
        faults: dict[int, list[tuple[str, str]]] = {}
        for row, reason, detail in decoded.faults:
            faults.setdefault(row, []).append((reason, detail))
        columns = {name: values.tolist() for name, values in decoded.fields.items()}
        letters: list[Letter] = []
        refused: list[bytes] = []
        for row, (entry, flat) in enumerate(entries):
            given = dict(zip(flat[::2], flat[1::2], strict=True))
            job, when = job_of(given.get(b"job", b"")), time_of(given.get(b"ts"), entry)
            when = self._by_our_clock(job, given, when, entry, now_ms=now_ms)
            useless = self._useless(given, job, when, now_ms=now_ms)
            for reason, detail in [*useless, *faults.get(row, ())]:
                self._refuse(job, entry, reason, detail)
            values = {name: column[row] for name, column in columns.items()}
            if useless or when is None or not is_usable(values, faulty=row in faults):
                refused.append(entry)
                continue
            packed = decoded.packed[row]
            if len(packed) & 1:
                self._refuse(job, entry, "wrong_length", f"g has {len(packed)} bytes")
            letters.append(
                read(entry, given, job=job, time_ms=when, fields=values, packed=packed)
            )
        return letters, refused

    def _by_our_clock(
        self,
        job: str,
        given: Mapping[bytes, bytes],
        when: int | None,
        entry: bytes,
        *,
        now_ms: int,
    ) -> int | None:
        """Return an entry's time, without what the clock of its host is off; told once."""
        host = given.get(b"host")
        if when is None or not host or b"ts" not in given:
            return when
        name = f"{safe(host)} {job}"
        arrived_ms = entry_ms(entry)
        off_ms = self._clocks.offset_ms(
            name, said_ms=when, arrived_ms=arrived_ms, now_ms=now_ms
        )
        if off_ms and self._clocks.is_news(name):
            detail = f"host {safe(host)}: {off_ms / 1000:+.0f} s"
            self._history.reject(job, f"{self._key}/{entry.decode()}", "clock_off", detail)
        return when - off_ms

    def _useless(
        self, given: Mapping[bytes, bytes], job: str, when: int | None, *, now_ms: int
    ) -> list[tuple[str, str]]:
        """Reasons for which a whole entry is of no use, beside those of its value."""
        if job == "":
            return [("no_job", safe(given.get(b"job", b"")))]
        if when is None:
            return [("bad_time", safe(given.get(b"ts", b"")))]
        # Written, it would make the stream refuse every sane entry after it.
        if when > now_ms + self._history.settings.future:
            return [("from_the_future", safe(given.get(b"ts", b"")))]
        return []

    def _sorted(
        self, letters: Iterable[Letter], *, now_ms: int
    ) -> tuple[list[Sample], list[bytes]]:
        """File the hosts' parts and jobs' reports; return the others, and ids done with."""
        samples = []
        done = []
        for letter in letters:
            if letter.reports:
                self._placing.take(letter)
                continue
            if letter.host:
                if not self._filed(letter, now_ms=now_ms):
                    self._refuse(letter.job, letter.id, "late", f"host {safe(letter.host)}")
                    done.append(letter.id)
                continue
            samples.append(_sample(letter))
            done.append(letter.id)
        return samples, done

    def _start(self, letter: Letter) -> int:
        return letter.time_ms - letter.time_ms % self._settings.scrape

    def _crew(self, job: str) -> Crew:
        if job not in self._crews:
            self._crews[job] = Crew()
        return self._crews[job]

    def _scraped(self, report: Letter) -> bool | None:
        """Whether its hosts' scrape of a report's time is merged; None of a job without."""
        crew = self._crews.get(report.job)
        return None if crew is None else self._start(report) <= crew.closed_ms

    def _filed(self, letter: Letter, *, now_ms: int) -> bool:
        """Put a part to its scrape; False when that was merged without it."""
        start, crew = self._start(letter), self._crew(letter.job)
        if start <= crew.closed_ms:
            crew.hear([letter.host], start_ms=start)
            return False
        came_ms = entry_ms(letter.id)
        known = came_ms - now_ms <= NOW_MS  # else the server's clock is another
        slot = self._slots.setdefault(
            (letter.job, start), _Slot(since_ms=came_ms if known else 0)
        )
        slot.ids.append(letter.id)
        before = slot.parts.get(letter.host)
        if before is None or letter.telling >= before.telling:
            slot.parts[letter.host] = letter
        return True

    def _due(self, now_ms: int) -> list[tuple[str, int]]:
        """Scrapes to be merged now: complete or waited for, and all before them of a job."""
        self._describe({job for job, _ in self._slots}, now_ms=now_ms)
        latest: dict[str, int] = {}
        for (job, start), slot in self._slots.items():
            complete = self._crews[job].is_complete(slot.parts, start_ms=start)
            # Hosts that could not report for a while bring old parts, each in its own time.
            over_ms = max(start + self._settings.scrape, slot.since_ms)
            if complete or now_ms >= over_ms + self._settings.wait:
                latest[job] = max(start, latest.get(job, start))
        # Streams take no entry before their last: an earlier scrape goes with a later one.
        due = [key for key in self._slots if key[1] <= latest.get(key[0], -1)]
        return sorted(due, key=lambda key: key[1])

    def _describe(self, jobs: Iterable[str], *, now_ms: int) -> None:
        """Read who the jobs are, where that was not done lately."""
        old = [job for job in jobs if now_ms >= self._crew(job).until_ms]
        for job, described in self._history.describe_many(old).items():
            seen_ms = min(start for name, start in self._slots if name == job)
            self._crews[job].describe(described, until_ms=now_ms + _ROSTER_MS, seen_ms=seen_ms)

    def _merged(self, job: str, start: int, slot: _Slot) -> list[Sample]:
        """Return the scrape of all hosts: means weighted by their GPUs, one vector of GPUs."""
        crew = self._crews[job]
        crew.closed_ms = start
        crew.hear(slot.parts, start_ms=start)
        letters = [slot.parts[host] for host in sorted(slot.parts)]
        self._enrol(job, crew, letters, start_ms=start)
        parts = [letter.part(crew.gpus_of(letter.host)) for letter in letters]
        self._tell_misfits(letters, parts)
        merged = merge(parts, crew.roster)
        if merged is None or not crew.is_news(parts):
            return []
        event = crew.trouble(merged.faults, start_ms=start)
        if event is not None:
            self._history.announce(job, event)
        fields = _fields(merged, letters)
        if isnan(merged.ofu) and fields["gpus"] != 0 and not merged.unusable:
            self._refuse(job, slot.ids[-1], "no_value", "no host has a GPU that reports")
            return []
        gpus = None
        if crew.roster and any(letter.gpus is not None for letter in letters):
            gpus = np.array(merged.gpu_ofu)
        return [
            Sample(
                job=job, time_ms=start, ofu=merged.ofu, fields=fields, gpus=gpus, movable=True
            )
        ]

    def _enrol(self, job: str, crew: Crew, letters: Iterable[Letter], *, start_ms: int) -> None:
        """Give GPUs that are seen for the first time places at the end of the job's roster.

        Places keep their meaning as long as the job runs, so nothing is taken out: a GPU that
        was replaced has no data from then on.
        """
        new = crew.strangers(gpu for letter in letters for gpu in letter.roster)
        if new:
            described = self._history.enrol(job, new)
            crew.describe(described, until_ms=crew.until_ms, seen_ms=start_ms)

    def _tell_misfits(self, letters: Sequence[Letter], parts: Sequence[Part]) -> None:
        for letter, part in zip(letters, parts, strict=True):
            if letter.gpus is not None and part.host and not part.roster:
                known = len(letter.roster) or len(self._crews[letter.job].gpus_of(letter.host))
                if known:
                    detail = f"g has {len(letter.gpus)} values, the host {known} GPUs"
                    self._refuse(letter.job, letter.id, "wrong_length", detail)

    def _tidy(self, now_ms: int) -> None:
        """Forget jobs that nobody reports any more."""
        if 0 <= now_ms - self._tidied_ms < _ROSTER_MS:
            return
        self._tidied_ms = now_ms
        busy = {job for job, _ in self._slots}
        self._crews = {
            job: crew
            for job, crew in self._crews.items()
            if job in busy or crew.closed_ms > now_ms - _FORGET_MS
        }

    def _refuse(self, job: str, entry: bytes, reason: str, detail: str) -> None:
        self._rejected += 1
        self._history.reject(job, f"{self._key}/{entry.decode()}", reason, detail)

    def _delete(self, ids: Sequence[bytes]) -> None:
        commands: list[Command] = [
            ["XDEL", self._key, *ids[at : at + _DELETED_A_COMMAND]]
            for at in range(0, len(ids), _DELETED_A_COMMAND)
        ]
        self._server.pipeline(commands)


def _fields(merged: Merged, letters: Sequence[Letter]) -> dict[str, float]:
    """Return a scrape's metrics beside its OFU."""
    counted = [letter.counted for letter in letters if not isnan(letter.counted)]
    # What weighs as one GPU without having been counted is no count.
    fields = {**merged.fields, "gpus": sum(counted) if counted else nan}
    if merged.unusable or any("unusable" in letter.fields for letter in letters):
        fields["unusable"] = float(merged.unusable)
    return fields


def _sample(letter: Letter) -> Sample:
    fields = {name: value for name, value in letter.fields.items() if name != "ofu"}
    return Sample(
        job=letter.job,
        time_ms=letter.time_ms,
        ofu=letter.fields["ofu"],
        fields=fields,
        gpus=letter.gpus,
        movable=True,
    )
