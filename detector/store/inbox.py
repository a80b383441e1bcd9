"""The inbox ``ofu:in``: entries that name their job, and hosts that report one by one.

``XADD ofu:in * job J v 0.41`` goes into J's history as it is. With ``host H`` it is one host's
part of a scrape: parts are merged by job and slot of time once all hosts of the job's roster
have reported, or ``wait`` has passed. An entry is deleted only after it has been written or
set aside, so a crash loses nothing; writing twice is harmless, since a slot has one id. One
process drains.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan

import numpy as np
import redis

from detector.analysis.aggregate import Part, merge
from detector.fleet import Gpu
from detector.series import FloatArray
from detector.store.about import time_ms
from detector.store.entries import REPORTED, decode, gpu_codes, gpu_values, safe
from detector.store.errors import StoreError
from detector.store.history import History, Sample
from detector.store.keys import Keys, is_job
from detector.store.server import Command, Server
from detector.store.settings import InboxSettings

_ENTRIES_A_CALL = 20_000  # 100,000 GPUs' hosts report 12,500 in a scrape
_DELETED_A_COMMAND = 1_000
_ROSTER_MS = 300_000  # how long a roster that was read is taken for granted


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxReport:
    """What a call of :meth:`Inbox.drain` did, in entries of the inbox.

    Attributes
    ----------
    written
        Entries of the histories that were written.
    waiting
        Parts that wait for the other hosts of their scrape.
    more
        Whether the inbox has more to read: call again.
    """

    read: int = 0
    written: int = 0
    rejected: int = 0
    waiting: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Letter:
    """One readable entry of the inbox. ``fields`` has catalogue names; ``ofu`` is usable."""

    id: bytes
    job: str
    host: str
    time_ms: int
    fields: dict[str, float]
    gpus: FloatArray | None
    roster: tuple[Gpu, ...] = ()
    fresh: bool = True

    @property
    def reports(self) -> bool:
        """Whether it is the job's own report, which has no GPUs."""
        return not self.host and isnan(self.fields["ofu"])

    def part(self) -> Part:
        """Return it as its host's part; without a count a host weighs as one GPU."""
        count = self.fields.get("gpus", nan)
        roster = self.roster if self.gpus is not None else ()
        values = () if self.gpus is None else tuple(self.gpus.tolist())
        return Part(
            job=self.job,
            host=self.host,
            time_ms=self.time_ms,
            ofu=self.fields["ofu"],
            gpus=1 if isnan(count) else round(count),
            fields={
                name: value
                for name, value in self.fields.items()
                if name not in ("ofu", "gpus") and not isnan(value)
            },
            roster=roster if len(roster) == len(values) else (),
            gpu_ofu=values if len(roster) == len(values) else (),
            fresh=self.fresh,
        )


@dataclass(slots=True)
class _Slot:
    """Parts of one job's scrape: the last of each host, and the entries they came in."""

    parts: dict[str, _Letter] = field(default_factory=dict)
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
        self._key = keys.inbox
        self._history = history
        self._settings = settings
        self._told_type = False
        self._rejected = 0
        self._begin()

    def _begin(self) -> None:
        """Read the inbox from its start: what is still there has not been written."""
        self._position = b"0-0"
        self._slots: dict[tuple[str, int], _Slot] = {}
        self._closed: dict[str, int] = {}
        self._rosters: dict[str, tuple[int, frozenset[str], tuple[Gpu, ...]]] = {}

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
        samples, direct = self._sorted(letters)
        done += direct
        for job, start in self._due(now_ms):
            slot = self._slots.pop((job, start))
            samples += self._merged(job, start, slot)
            done += slot.ids
            self._closed[job] = start
        samples.sort(key=lambda sample: sample.time_ms)
        written = self._history.write_many(samples)
        self._delete(done)
        if entries:
            self._position = entries[-1][0]
        return InboxReport(
            read=len(entries),
            written=sum(written),
            rejected=self._rejected + len(written) - sum(written),
            waiting=sum(len(slot.ids) for slot in self._slots.values()),
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
    ) -> tuple[list[_Letter], list[bytes]]:
        """Return the readable entries, and the ids of those that were refused."""
        ids = [entry[0] for entry in entries]
        decoded = decode(ids, [entry[1] for entry in entries])
        faults: dict[int, list[tuple[str, str]]] = {}
        for row, reason, detail in decoded.faults:
            faults.setdefault(row, []).append((reason, detail))
        columns = {name: values.tolist() for name, values in decoded.fields.items()}
        letters: list[_Letter] = []
        refused: list[bytes] = []
        for row, (entry, flat) in enumerate(entries):
            given = dict(zip(flat[::2], flat[1::2], strict=True))
            job, when = _job(given.get(b"job", b"")), _time(given.get(b"ts"), entry)
            useless = self._useless(given, job, when, now_ms=now_ms)
            for reason, detail in [*useless, *faults.get(row, ())]:
                self._refuse(job, entry, reason, detail)
            values = {name: column[row] for name, column in columns.items()}
            if useless or when is None or not _is_usable(values, row in faults):
                refused.append(entry)
                continue
            letter = _Letter(
                id=entry,
                job=job,
                host=given.get(b"host", b"").decode("utf-8", "replace"),
                time_ms=when,
                fields=values,
                gpus=self._gpus(job, entry, decoded.packed[row]),
                roster=_roster(given),
                fresh=given.get(b"held", b"") != b"1",
            )
            letters.append(letter)
        return letters, refused

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

    def _sorted(self, letters: Iterable[_Letter]) -> tuple[list[Sample], list[bytes]]:
        """File the hosts' parts; return the others, and the ids that are done with."""
        samples = []
        done = []
        for letter in letters:
            if letter.reports and not self._joins(letter):
                samples.append(self._alone(letter))
                done.append(letter.id)
            elif not letter.host and not letter.reports:
                samples.append(_sample(letter))
                done.append(letter.id)
            elif not self._filed(letter):
                self._refuse(letter.job, letter.id, "late", f"host {safe(letter.host)}")
                done.append(letter.id)
        return samples, done

    def _joins(self, report: _Letter) -> bool:
        """Whether hosts report this job too: then its own report goes into their scrape."""
        start = report.time_ms - report.time_ms % self._settings.scrape
        hosts = any(job == report.job for job, _ in self._slots) or report.job in self._closed
        return hosts and start > self._closed.get(report.job, -1)

    def _alone(self, report: _Letter) -> Sample:
        """Return a report as an entry of its own, behind the newest and before any that comes.

        A stream refuses entries before its last: at its own time a report could cost the job's
        next OFU its place.
        """
        newest = self._history.last_seen(report.job)
        time_ms = report.time_ms if newest is None else newest + 1
        fields = {name: value for name, value in report.fields.items() if name in REPORTED}
        return Sample(job=report.job, time_ms=time_ms, ofu=nan, fields=fields)

    def _gpus(self, job: str, entry: bytes, packed: bytes) -> FloatArray | None:
        if len(packed) & 1:
            self._refuse(job, entry, "wrong_length", f"g has {len(packed)} bytes")
        codes = gpu_codes([packed])
        return None if codes is None else gpu_values(codes)[0]

    def _filed(self, letter: _Letter) -> bool:
        """Put a part to its scrape; False when that was merged without it."""
        start = letter.time_ms - letter.time_ms % self._settings.scrape
        if start <= self._closed.get(letter.job, -1):
            return False
        slot = self._slots.setdefault((letter.job, start), _Slot())
        before = slot.parts.get(letter.host)
        if before is None or letter.fresh or not before.fresh:
            slot.parts[letter.host] = letter
        slot.ids.append(letter.id)
        return True

    def _due(self, now_ms: int) -> list[tuple[str, int]]:
        """Scrapes to be merged now: complete or waited for, and all before them of a job."""
        self._read_rosters({job for job, _ in self._slots}, now_ms=now_ms)
        latest: dict[str, int] = {}
        for (job, start), slot in self._slots.items():
            _, hosts, _ = self._rosters[job]
            complete = bool(hosts) and hosts <= slot.parts.keys()
            if complete or now_ms >= start + self._settings.scrape + self._settings.wait:
                latest[job] = max(start, latest.get(job, start))
        # Streams take no entry before their last: an earlier scrape goes with a later one.
        due = [key for key in self._slots if key[1] <= latest.get(key[0], -1)]
        return sorted(due, key=lambda key: key[1])

    def _read_rosters(self, jobs: Iterable[str], *, now_ms: int) -> None:
        known = self._rosters
        old = [job for job in jobs if job not in known or now_ms >= known[job][0]]
        for job, described in self._history.describe_many(old).items():
            hosts = frozenset(gpu.host for gpu in described.roster if gpu.host)
            known[job] = now_ms + _ROSTER_MS, hosts, described.roster

    def _merged(self, job: str, start: int, slot: _Slot) -> list[Sample]:
        """Return the scrape of all hosts: means weighted by their GPUs, one vector of GPUs."""
        reports = [letter for letter in slot.parts.values() if letter.reports]
        hosts = [letter for letter in slot.parts.values() if not letter.reports]
        roster = self._roster_of(job, hosts)
        merged = merge([letter.part() for letter in hosts], roster)
        if merged is None:
            return [self._alone(letter) for letter in reports]
        fields = {**merged.fields, "gpus": merged.gpus}
        counted = [letter.fields.get("gpus", nan) for letter in hosts]
        # What weighs as one GPU without having been counted is no count.
        fields["gpus"] = (
            sum(n for n in counted if not isnan(n))
            if any(not isnan(n) for n in counted)
            else nan
        )
        for letter in reports:
            fields |= {name: value for name, value in letter.fields.items() if name in REPORTED}
        if isnan(merged.ofu) and fields["gpus"] != 0:
            self._refuse(job, slot.ids[-1], "no_value", "no host has a GPU that reports")
            return []
        gpus = np.array(merged.gpu_ofu) if merged.gpu_ofu and _have_gpus(hosts) else None
        return [Sample(job=job, time_ms=start, ofu=merged.ofu, fields=fields, gpus=gpus)]

    def _roster_of(self, job: str, hosts: Sequence[_Letter]) -> tuple[Gpu, ...]:
        """Return the job's roster, with GPUs that are seen for the first time at its end.

        Places of a roster keep their meaning as long as the job runs, so nothing is taken out.
        """
        until_ms, _, roster = self._rosters[job]
        known = {gpu.uuid for gpu in roster}
        new = [
            gpu
            for letter in sorted(hosts, key=lambda letter: letter.host)
            for gpu in letter.roster
            if gpu.uuid not in known
        ]
        if not new:
            return roster
        roster = (*roster, *{gpu.uuid: gpu for gpu in new}.values())
        self._history.enrol(job, roster)
        hosts_of = frozenset(gpu.host for gpu in roster if gpu.host)
        self._rosters[job] = until_ms, hosts_of, roster
        return roster

    def _refuse(self, job: str, entry: bytes, reason: str, detail: str) -> None:
        self._rejected += 1
        self._history.reject(job, f"{self._key}/{entry.decode()}", reason, detail)

    def _delete(self, ids: Sequence[bytes]) -> None:
        commands: list[Command] = [
            ["XDEL", self._key, *ids[at : at + _DELETED_A_COMMAND]]
            for at in range(0, len(ids), _DELETED_A_COMMAND)
        ]
        self._server.pipeline(commands)


def _sample(letter: _Letter) -> Sample:
    fields = {name: value for name, value in letter.fields.items() if name != "ofu"}
    return Sample(
        job=letter.job,
        time_ms=letter.time_ms,
        ofu=letter.fields["ofu"],
        fields=fields,
        gpus=letter.gpus,
    )


def _job(text: bytes) -> str:
    """Return the job's id, or "" when no key can be made of it."""
    job = text.decode("utf-8", "surrogateescape")
    return job if is_job(job) else ""


def _time(text: bytes | None, entry: bytes) -> int | None:
    """Return the time of an entry, ms: its ``ts``, or else its id's; None for a bad one."""
    if text is None:
        return int(entry.partition(b"-")[0])
    try:
        when = time_ms(text.decode())
    except (ValueError, OverflowError):
        return None
    return when if when > 0 else None


def _is_usable(values: Mapping[str, float], faulty: bool) -> bool:
    """Whether an entry says anything: an OFU, that no GPU has one, or what the job reports."""
    if not isnan(values["ofu"]):
        return True
    reported = any(not isnan(values.get(name, nan)) for name in REPORTED)
    return not faulty and (values.get("gpus") == 0 or reported)


def _have_gpus(hosts: Sequence[_Letter]) -> bool:
    return any(letter.gpus is not None for letter in hosts)


def _roster(given: Mapping[bytes, bytes]) -> tuple[Gpu, ...]:
    """GPUs of a host's part: ``u`` has their UUIDs in the order of ``g``, commas between."""
    host = given.get(b"host", b"").decode("utf-8", "replace")
    names = given.get(b"u", b"").decode("utf-8", "replace")
    return tuple(Gpu(uuid=uuid, host=host) for uuid in names.split(",") if uuid)
