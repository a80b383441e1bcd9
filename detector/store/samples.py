"""Samples into the jobs' streams, each once, in the order of their times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan

import redis

from detector.analysis.derived import REPORTED
from detector.series import FloatArray
from detector.store.discovery import Discovery
from detector.store.entries import EARLIEST_MS, encode, entry_ms, pack_all, safe
from detector.store.keys import Keys, is_job
from detector.store.rejects import Rejects
from detector.store.server import Command, Reply, Server, pairs
from detector.store.settings import HistorySettings

# Bound of a stream that nobody rolls up: 6 h at one entry a second. Chosen.
_LONGEST_STREAM = 21_600

# Reports that may have come while a scrape was waited for: ten a second for 100 s. Chosen.
_LATER = 1_000
# A sample that is further behind is none of now. Chosen: the longest that hosts are waited for,
# and as much for a clock that is off.
_LATE_MS = 120_000
_WRITES_A_PIPELINE = 5_000

# Who says how many GPUs there are, or their OFU, is no job that reports of itself.
_COUNTED = frozenset((b"v", b"n", b"bad"))
_DIGITS = 20  # of an entry's id, which goes up to 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One scrape of one job, to be written.

    Attributes
    ----------
    ofu
        Mean over the job's GPUs, 0..1; NaN where no GPU was usable (``gpus`` is 0 then), or
        where only the job itself reports. Any other scrape without data is not written.
    fields
        Other metrics by their catalogue names; NaN is left out.
    gpus
        OFU of each GPU in the roster's order, shape ``(g,)``; NaN is no data.
    movable
        Whether it may stand behind reports of the job itself that came in the meantime, at a
        time a little later than its own.
    at_ms
        Its own time where ``time_ms`` is another: a report that stands before a scrape to come.
    """

    job: str
    time_ms: int
    ofu: float
    fields: Mapping[str, float] = field(default_factory=dict)
    gpus: FloatArray | None = None
    movable: bool = False
    at_ms: int | None = None

    @property
    def reports(self) -> bool:
        """Whether it is a job's own report alone, of which any number may come."""
        nobody = "gpus" not in self.fields and "unusable" not in self.fields
        return isnan(self.ofu) and nobody and any(name in self.fields for name in REPORTED)

    @property
    def moves(self) -> bool:
        """Whether it may stand behind what came in the meantime; a report always may."""
        return self.movable or self.reports

    @property
    def meant_without(self) -> bool:
        """Whether a sample may have no OFU."""
        told = self.fields.get("unusable", 0) > 0 or self.fields.get("gpus") == 0
        return isnan(self.ofu) and (told or any(name in self.fields for name in REPORTED))


class Writer:
    """Writes samples; see :meth:`detector.store.history.History.write_many`."""

    def __init__(
        self,
        server: Server,
        keys: Keys,
        settings: HistorySettings,
        discovery: Discovery,
        rejects: Rejects,
    ) -> None:
        self._server = server
        self._keys = keys
        self._settings = settings
        self._discovery = discovery
        self._rejects = rejects

    def write(self, samples: Sequence[Sample]) -> list[bool]:
        """Write samples and return for each whether it is in its history."""
        good = [at for at, sample in enumerate(samples) if self._possible(sample)]
        commands = self._additions([samples[at] for at in good])
        written = [False] * len(samples)
        for start in range(0, len(good), _WRITES_A_PIPELINE):
            batch = good[start : start + _WRITES_A_PIPELINE]
            some = commands[start : start + _WRITES_A_PIPELINE]
            judged = self._judged([samples[at] for at in batch], some)
            for at, done in zip(batch, judged, strict=True):
                written[at] = done
                if done:
                    self._discovery.add(samples[at].job)
        return written

    def _possible(self, sample: Sample) -> bool:
        """Whether a sample can be written at all; it is set aside if not."""
        entry, detail = f"{sample.time_ms}-0", f"v={sample.ofu:g}"
        if not is_job(sample.job):
            self._rejects.add("", entry, "no_job", safe(sample.job))
        elif sample.time_ms < EARLIEST_MS:
            self._rejects.add(sample.job, entry, "not_milliseconds")
        elif not isfinite(sample.ofu) and not sample.meant_without:
            self._rejects.add(sample.job, entry, "not_a_number", detail)
        elif not isnan(sample.ofu) and not 0 <= sample.ofu <= 1:
            self._rejects.add(sample.job, entry, "out_of_range", detail)
        else:
            return True
        return False

    def _additions(self, samples: Sequence[Sample]) -> list[Command]:
        given = [sample.gpus for sample in samples if sample.gpus is not None]
        packed = iter(pack_all(given))
        commands: list[Command] = []
        for sample in samples:
            flat = encode(sample.ofu, sample.fields)
            if sample.gpus is not None:
                flat += ["g", next(packed)]
            if sample.at_ms is not None:
                flat += ["at", str(sample.at_ms)]
            key, entry = self._keys.samples(sample.job), f"{sample.time_ms}-0"
            commands.append(["XADD", key, "MAXLEN", "~", _LONGEST_STREAM, entry, *flat])
        return commands

    def _judged(self, samples: Sequence[Sample], commands: Sequence[Command]) -> list[bool]:
        """Write, and return whether each is there; a refused id may be a repeated write."""
        replies = self._server.pipeline(commands)
        refused = [
            at for at, reply in enumerate(replies) if isinstance(reply, redis.RedisError)
        ]
        found = self._server.pipeline(self._look_up(samples[at]) for at in refused)
        there = [True] * len(samples)
        for at, reply in zip(refused, found, strict=True):
            sample, entry = samples[at], f"{samples[at].time_ms}-0"
            if not isinstance(reply, list):
                there[at] = False
                self._rejects.add(sample.job, entry, "wrong_type")
            elif not (reply and reply[0][0] == entry.encode()):
                there[at] = sample.moves and self._moved(sample, reply, commands[at])
                if not there[at]:
                    self._rejects.add(sample.job, entry, "went_back")
        return there

    def _look_up(self, sample: Sample) -> Command:
        entry = f"{sample.time_ms}-0"
        last = "+" if sample.moves else entry
        return ["XRANGE", self._keys.samples(sample.job), entry, last, "COUNT", _LATER]

    def _moved(self, sample: Sample, later: Sequence[Reply], command: Command) -> bool:
        """Write a sample behind what came in the meantime; False if it really went back.

        Reports of the job come at any time, while a scrape is written once all hosts were
        waited for. A scrape goes behind reports, and behind scrapes that were before it and
        went behind reports themselves: those say in ``at`` whose time they have.
        """
        if not later or len(later) == _LATER:
            return False
        if not sample.reports:
            told = [(entry, dict(pairs(flat))) for entry, flat in later]
            for at in (own_ms(entry, given) for entry, given in told if is_scrape(given)):
                if at == sample.time_ms:
                    return True  # written by an earlier try
                if at > sample.time_ms:
                    return False
        last_ms = entry_ms(later[-1][0])
        if last_ms > sample.time_ms + _LATE_MS:
            return False
        moved = [*command[:5], f"{last_ms + 1}-0", *command[6:]]
        if sample.at_ms is None:
            moved += ["at", sample.time_ms]
        return not isinstance(self._server.run(*moved), redis.RedisError)


def is_scrape(given: Mapping[bytes, bytes]) -> bool:
    """Whether a stream's entry is a scrape, and no report of the job itself."""
    return not _COUNTED.isdisjoint(given)


def own_ms(entry: bytes, given: Mapping[bytes, bytes]) -> int:
    """Return the time that an entry is of, ms: its ``at`` where its id is another."""
    said = given.get(b"at", b"")
    return int(said) if said.isdigit() and len(said) <= _DIGITS else entry_ms(entry)
