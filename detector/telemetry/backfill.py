"""The past of jobs that are seen for the first time, out of a Prometheus server.

With it a job has a baseline at once, where it would have to be watched for an hour first. Raw
samples are asked for (a range selector in an instant query), not ``query_range``: they carry
their own times, are no copies of each other, know no limit of 11,000 points, and cost a server
a fifth of the same aggregated there.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from detector.analysis.aggregate import Part
from detector.analysis.past import BoolArray, Past, bring_together
from detector.analysis.quality import MaxClocks
from detector.metric import BLANKS_INT32, Counter
from detector.reading import Reading
from detector.series import FloatArray, IntArray
from detector.telemetry.layout import entity_of
from detector.telemetry.line import Labels
from detector.telemetry.prometheus import (
    Prometheus,
    Track,
    names_of,
    selector,
    tracks,
)

# What a history is made of. Links' counters are left out: nothing is learnt of them yet.
_COUNTERS = ("tensor_active", "sm_clock_mhz", "sm_active", "dram_active", "power_w")

# What tells a dead collector from an idle GPU; asked for only where tensor activity is 0.
_WITNESSES = ("gr_engine_active", "gpu_util_pct", "power_limit_w")

# Samples in one answer: 30 MB of JSON, and as much in arrays. Chosen: a Prometheus server
# refuses queries over 50 million.
_SAMPLES = 2_000_000

# What is read before a slice of time, so that its first readings have a past: longer than
# quality takes to call a reading frozen.
_BEFORE_MS = 360_000

# Where servers' answers are that slow, less is asked at once next time.
_TIMEOUT_S = 60.0

# Where two targets tell of one GPU, the second one's sample fills a gap of the first if it is
# away from all of that one's by this share of the interval: replicas lie within half of it.
_GAP = 0.75

# A counter that only another target has is taken if it is no older than this.
_TOGETHER_MS = 60_000


def backfill(
    source: Prometheus,
    found: Iterable[Reading],
    jobs_of: Callable[[Reading], tuple[str, ...]],
    *,
    start_ms: int,
    end_ms: int,
    max_clocks: MaxClocks,
) -> Iterator[Part]:
    """Return the scrapes of jobs within ``[start_ms, end_ms)``, each job's oldest first.

    Parameters
    ----------
    found
        Readings of the jobs' GPUs as they are now, with their jobs.
    jobs_of
        Whom a reading of the past was for, by its labels.

    Raises
    ------
    SourceError
        When the server doesn't answer; jobs that were handed out before are whole.
    """
    gpus: defaultdict[str, dict[str, Reading]] = defaultdict(dict)
    for reading in found:
        for job in reading.jobs:
            gpus[job][reading.entity] = reading
    every_ms = source.interval_ms or 10_000
    start_ms -= start_ms % every_ms  # so that slices meet between two slots
    for batch in _batches(gpus, (end_ms - start_ms) // every_ms + 1):
        known = {one.entity: one for job in batch for one in gpus[job].values()}
        points = len(known) * len(_COUNTERS)
        span_ms = max(10 * every_ms, _SAMPLES // points * every_ms)
        for begin in range(start_ms, end_ms, span_ms):
            end = min(begin + span_ms, end_ms)
            before = begin if begin == start_ms else begin - _BEFORE_MS
            seen = _asked(source, known, before, end)
            pasts = _pasts(seen, known, jobs_of, slot_ms=every_ms)
            yield from bring_together(
                pasts, max_clocks, start_ms=begin, end_ms=end, slot_ms=every_ms,
                jobs=frozenset(batch),
            )  # fmt: skip


def _batches(gpus: Mapping[str, Mapping[str, Reading]], times: int) -> Iterator[list[str]]:
    """Return the jobs in groups whose samples one answer holds; a large job is one alone."""
    batch: list[str] = []
    size = 0
    for job, own in gpus.items():
        points = len(own) * len(_COUNTERS) * times
        if batch and size + points > _SAMPLES:
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += points
    if batch:
        yield batch


def _asked(
    source: Prometheus, known: Mapping[str, Reading], start_ms: int, end_ms: int
) -> tuple[Track, ...]:
    """Return the series of some GPUs within ``[start_ms, end_ms)``."""
    uuids = "|".join(sorted({_quoted(reading.uuid) for reading in known.values()}))

    def ask(counters: Iterable[str]) -> tuple[Track, ...]:
        found: tuple[Track, ...] = ()
        for label in sorted(source.spellings):
            chosen = selector(names_of(counters), source.settings.select, f'{label}=~"{uuids}"')
            query = f"{chosen}[{end_ms - start_ms}ms]"
            answer = source.api.query(query, at_ms=end_ms - 1, timeout_s=_TIMEOUT_S)
            found += tracks(answer.series, source.settings.replica_labels)
        return found

    seen = ask(_COUNTERS)
    idle = any(
        track.counter.name == "tensor_active" and (track.values == 0).any() for track in seen
    )
    return seen + ask(_WITNESSES) if idle else seen


_PLAIN = re.compile(r"([^0-9A-Za-z_:/ -])")


def _quoted(text: str) -> str:
    """Return a text as a regular expression within a PromQL string."""
    return _PLAIN.sub(r"\\\1", text).replace("\\", "\\\\").replace('"', '\\"')


def _pasts(
    seen: Iterable[Track],
    known: Mapping[str, Reading],
    jobs_of: Callable[[Reading], tuple[str, ...]],
    *,
    slot_ms: int,
) -> list[Past]:
    """Return each GPU's past from its series."""
    seats: defaultdict[tuple[str, str], defaultdict[tuple[str, ...], list[Track]]]
    seats = defaultdict(lambda: defaultdict(list))
    for track in seen:
        if len(track.times_ms):
            seats[track.seat][track.target].append(track)
    found = []
    for (uuid, instance), targets in seats.items():
        who = known.get(f"{uuid}/{instance}" if instance else uuid)
        if who is not None:
            pasts = [_past(own, who, jobs_of) for own in targets.values()]
            found.append(_one(pasts, slot_ms=slot_ms))
    return found


def _past(
    own: Sequence[Track], who: Reading, jobs_of: Callable[[Reading], tuple[str, ...]]
) -> Past:
    """Return what one target tells of a GPU."""
    times_ms = own[0].times_ms
    if not all(np.array_equal(times_ms, track.times_ms) for track in own):
        times_ms = np.unique(np.concatenate([track.times_ms for track in own]))
    values: dict[str, FloatArray] = {}
    shares: dict[str, IntArray] = {}
    sets: dict[frozenset[tuple[str, str]], tuple[Labels, BoolArray]] = {}
    for track in own:
        at = np.searchsorted(times_ms, track.times_ms)
        name = track.counter.name
        column = values.setdefault(name, np.full(len(times_ms), np.nan))
        count = shares.setdefault(name, np.zeros(len(times_ms), np.int64))
        _fill(column, count, at, track)
        key = frozenset(track.labels.written.items())
        _, there = sets.setdefault(key, (track.labels, np.zeros(len(times_ms), bool)))
        there[at] = True
    jobs, whose = _owners(list(sets.values()), who, jobs_of)
    return Past(who=who, times_ms=times_ms, values=values, jobs=jobs, whose=whose)


def _fill(column: FloatArray, count: IntArray, at: IntArray, track: Track) -> None:
    """Put a series' usable values into their places; the first series counts, or the mean."""
    raw = track.values
    value = raw * track.scale
    with np.errstate(invalid="ignore"):
        usable = (value >= track.counter.low) & (value <= track.counter.high)
    if _reaches_blanks(track.counter, track.scale):
        usable &= ~np.isin(raw, list(BLANKS_INT32))
    free = usable if track.pooled else usable & (count[at] == 0)
    at, value = at[free], value[free]
    count[at] += 1
    column[at] = np.where(count[at] == 1, value, column[at] + (value - column[at]) / count[at])


def _reaches_blanks(counter: Counter, scale: float) -> bool:
    return counter.high / scale >= min(BLANKS_INT32)


def _owners(
    sets: Sequence[tuple[Labels, BoolArray]],
    who: Reading,
    jobs_of: Callable[[Reading], tuple[str, ...]],
) -> tuple[tuple[tuple[str, ...], ...], IntArray]:
    """Return the sets of jobs that a GPU had, and which of them at each time.

    Series of several jobs at one time share the GPU; at different times they follow each other.
    """
    matrix = np.stack([there for _, there in sets])
    if matrix.all():
        patterns, which = matrix[:, :1], np.zeros(matrix.shape[1], np.int64)
    else:
        patterns, which = np.unique(matrix, axis=1, return_inverse=True)
    jobs: list[tuple[str, ...]] = []
    code = np.zeros(patterns.shape[1], np.int64)
    for k in range(patterns.shape[1]):
        entity = entity_of([labels for i, (labels, _) in enumerate(sets) if patterns[i, k]])
        owners = jobs_of(
            msgspec.structs.replace(who, labels=entity.labels, sharing=entity.sharing)
        )
        if owners not in jobs:
            jobs.append(owners)
        code[k] = jobs.index(owners)
    return tuple(jobs), code[which.reshape(-1)]


def _one(pasts: Sequence[Past], *, slot_ms: int) -> Past:
    """Return one past from those that several targets tell: the fullest, its gaps filled."""
    ranked = sorted(pasts, key=_fullness, reverse=True)
    one = ranked[0]
    for other in ranked[1:]:
        one = _joined(one, other, gap_ms=_GAP * slot_ms)
    return one


def _fullness(past: Past) -> int:
    tensor = past.values.get("tensor_active")
    return 0 if tensor is None else int(np.count_nonzero(~np.isnan(tensor)))


def _joined(one: Past, other: Past, *, gap_ms: float) -> Past:
    at = np.searchsorted(other.times_ms, one.times_ms, side="right") - 1
    near = (at >= 0) & (one.times_ms - other.times_ms[at] <= _TOGETHER_MS)
    values = dict(one.values)
    for name, column in other.values.items():
        if name not in values:
            values[name] = np.where(near, column[at], np.nan)
    one = replace(one, values=values)
    after = np.searchsorted(one.times_ms, other.times_ms)
    padded = np.concatenate(([-np.inf], one.times_ms, [np.inf]))
    away = np.minimum(other.times_ms - padded[after], padded[after + 1] - other.times_ms)
    extra = away >= gap_ms
    if "tensor_active" not in other.values or not extra.any():
        return one
    times_ms = np.concatenate([one.times_ms, other.times_ms[extra]])
    order = np.argsort(times_ms, kind="stable")
    none = np.full(int(extra.sum()), np.nan)
    jobs = tuple(dict.fromkeys((*one.jobs, *other.jobs)))
    codes = np.array([jobs.index(owners) for owners in other.jobs])
    return Past(
        who=one.who,
        times_ms=times_ms[order],
        values={
            name: np.concatenate(
                [column, other.values[name][extra] if name in other.values else none]
            )[order]
            for name, column in values.items()
        },
        jobs=jobs,
        whose=np.concatenate([one.whose, codes[other.whose[extra]]])[order],
    )
