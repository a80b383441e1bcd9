"""A fleet of 10,000 jobs as raw Redis commands, made once and cheap to repeat.

Two hundred synthetic jobs with all their nuisances are the templates, and a job for each fault.
Every job of the fleet is one of the templates under an id of its own, turned in time by whole
chunks of five minutes, so that no two jobs checkpoint together. Templates are encoded once, as
the tails of XADD commands and as packed chunks; a job only adds its key and its times.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from detector.demo.faults import INJECTIONS
from detector.demo.synth import SHARES, SIZES, SyntheticJob, scenario
from detector.fleet import Job
from detector.metric import METRICS
from detector.series import ContextEvent, FloatArray, IntArray, Interval
from detector.store.chunks import CHUNK_MS, Stretch, field_name, pack
from detector.store.entries import NO_DATA, CodeArray, pack_gpus
from detector.store.keys import Keys

CADENCE_MS = 10_000
CHUNK_ROWS = CHUNK_MS // CADENCE_MS
TEMPLATES = 200
START_MS = 1_760_000_100_000  # a multiple of CHUNK_MS; any past time will do


@dataclass(frozen=True, slots=True)
class Template:
    """One synthetic job on the grid of ticks; row k is tick k.

    Attributes
    ----------
    offsets_ms
        Time of the sample after its tick's start, shape ``(ticks,)``; -1 where it is missing.
    tails
        What follows key and id in the XADD of each tick, and how many arguments there are.
    chunks
        One packed blob for every CHUNK_ROWS ticks.
    """

    job: Job
    events: tuple[ContextEvent, ...]
    offsets_ms: IntArray
    tails: list[tuple[bytes, bytes]]
    chunks: list[bytes]


@dataclass(frozen=True, slots=True)
class Member:
    """One job of the fleet: its id, its template, and by how many ticks that is turned."""

    id: str
    template: Template
    turn: int


class Fleet:
    """All jobs; see the module.

    Parameters
    ----------
    jobs
        How many.
    ticks
        How many ticks every job can play, a multiple of CHUNK_ROWS.
    live
        The tick at which the faults of a dozen jobs begin.
    """

    def __init__(self, *, jobs: int, ticks: int, live: int) -> None:
        self.ticks = ticks
        rng = np.random.default_rng(20_260)
        faulty, quiet = (
            [_template(rng, cause, gpus=size, ticks=ticks) for cause, size in wanted]
            for wanted in (
                [(cause, injection.gpus) for cause, injection in INJECTIONS.items()],
                [(None, size) for size in _sizes(TEMPLATES)],
            )
        )
        self.members: list[Member] = []
        for number in range(jobs):
            if number < len(faulty):
                template, onset = faulty[number]
                # As near to `live` as whole chunks allow.
                turn = (onset - live) // CHUNK_ROWS * CHUNK_ROWS
            else:
                template, _ = quiet[number % len(quiet)]
                turn = int(rng.integers(ticks // CHUNK_ROWS)) * CHUNK_ROWS
            self.members.append(Member(str(100_000 + number), template, turn))
        keys = Keys()
        self._heads = [_argument(keys.samples(member.id).encode()) for member in self.members]
        self._hashes = [keys.chunks(member.id) for member in self.members]

    @property
    def gpus(self) -> int:
        """How many GPUs the fleet has."""
        return sum(len(member.template.job.roster) for member in self.members)

    @property
    def stream_keys(self) -> list[str]:
        """The jobs' streams."""
        return [Keys().samples(member.id) for member in self.members]

    def entries(self, tick: int) -> tuple[bytes, int]:
        """Return the XADD commands of all jobs at ``tick``, and how many there are."""
        start_ms = START_MS + tick * CADENCE_MS
        parts: list[bytes] = []
        for head, member in zip(self._heads, self.members, strict=True):
            row = (tick + member.turn) % self.ticks
            offset = int(member.template.offsets_ms[row])
            if offset >= 0:
                count, tail = member.template.tails[row]
                parts += (count, head, b"$15\r\n%d-0\r\n" % (start_ms + offset), tail)
        return b"".join(parts), len(parts) // 4

    def descriptions(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield for each job the hash that says who it is."""
        for member in self.members:
            job = member.template.job
            texts = {"name": job.name, "owner": job.owner, "gpu_model": job.gpu_model}
            texts["precision"] = job.precision
            yield (
                Keys().about(member.id),
                {name: text.encode() for name, text in texts.items()},
            )

    def announcements(self) -> Iterator[tuple[str, str, ContextEvent]]:
        """Yield key, entry's id and event of what jobs announced, each as it began."""
        for member in self.members:
            turned = []
            for event in member.template.events:
                tick = (event.span.start_ms - START_MS) // CADENCE_MS - member.turn
                start_ms = START_MS + tick % self.ticks * CADENCE_MS
                span = Interval(start_ms=start_ms, end_ms=start_ms + event.span.length_ms)
                turned.append(replace(event, span=span))
            turned.sort(key=lambda event: event.span.start_ms)
            for number, event in enumerate(turned):
                entry = f"{event.span.start_ms}-{number}"
                yield Keys().events(member.id), entry, event

    def packed(self, *, until: int) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield for each job the hash of its chunks before tick ``until``."""
        for key, member in zip(self._hashes, self.members, strict=True):
            shift, count = member.turn // CHUNK_ROWS, len(member.template.chunks)
            yield (
                key,
                {
                    field_name(START_MS + chunk * CHUNK_MS): member.template.chunks[
                        (chunk + shift) % count
                    ]
                    for chunk in range(until // CHUNK_ROWS)
                },
            )


def _sizes(count: int) -> list[int]:
    """Job sizes in the shares of a real cluster, without the luck of a draw."""
    steps = (np.arange(count) + 0.5) / count
    return [SIZES[place] for place in np.searchsorted(np.cumsum(SHARES), steps)]


def _template(
    rng: np.random.Generator, cause: str | None, *, gpus: int, ticks: int
) -> tuple[Template, int]:
    """Make a job and encode it; returns the tick of its onset too."""
    made = scenario(
        rng,
        cause=cause,
        gpus=gpus,
        start_ms=START_MS,
        length_ms=ticks * CADENCE_MS,
        cadence_ms=CADENCE_MS,
    )
    onset = 0 if made.truth is None else (made.truth.onset_ms - START_MS) // CADENCE_MS
    return _encoded(made, ticks=ticks), onset


def _encoded(made: SyntheticJob, *, ticks: int) -> Template:
    window = made.window
    assert window.gpus is not None
    since = window.times_ms - START_MS
    rows = np.minimum(since // CADENCE_MS, ticks - 1)
    offsets = np.full(ticks, -1, dtype=np.int64)
    offsets[rows] = np.minimum(since - rows * CADENCE_MS, CADENCE_MS - 1)
    offsets[rows[np.isnan(window.fields["ofu"])]] = -1  # an entry without v would be refused
    kept = {name: _on_grid(values, rows, ticks) for name, values in window.fields.items()}
    codes = np.full((ticks, window.gpus.shape[1]), NO_DATA, dtype=np.uint16)
    codes[rows] = np.frombuffer(pack_gpus(window.gpus.ravel()), "<u2").reshape(
        window.gpus.shape
    )
    return Template(
        job=made.job,
        events=window.events,
        offsets_ms=offsets,
        tails=[_tail(row, kept, codes[row].tobytes()) for row in range(ticks)],
        chunks=[_chunk(first, offsets, kept, codes) for first in range(0, ticks, CHUNK_ROWS)],
    )


def _on_grid(values: FloatArray, rows: IntArray, ticks: int) -> FloatArray:
    out = np.full(ticks, np.nan)
    out[rows] = values
    return out


def _tail(row: int, fields: dict[str, FloatArray], codes: bytes) -> tuple[bytes, bytes]:
    """Return the head of the command and its arguments after the id."""
    arguments = []
    for name, values in fields.items():
        if np.isfinite(values[row]):
            arguments += [METRICS[name].field.encode(), b"%.7g" % values[row]]
    arguments += [b"g", codes]
    count = b"*%d\r\n$4\r\nXADD\r\n" % (3 + len(arguments))
    return count, b"".join(map(_argument, arguments))


def _chunk(
    first: int, offsets: IntArray, fields: dict[str, FloatArray], codes: CodeArray
) -> bytes:
    """Pack CHUNK_ROWS ticks from ``first`` on; a blob counts time from its chunk's start."""
    rows = first + np.flatnonzero(offsets[first : first + CHUNK_ROWS] >= 0)
    stretch = Stretch(
        times_ms=(rows - first) * CADENCE_MS + offsets[rows],
        fields={name: values[rows] for name, values in fields.items()},
        codes=codes[rows],
    )
    return pack(stretch, 0)


def _argument(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)
