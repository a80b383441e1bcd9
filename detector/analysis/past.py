"""Hours of many GPUs' readings at once: judged as one by one, brought together as live.

Nearly all readings of the past are plain: like the one before, only newer. For those the
verdict is known without asking, and arrays do the work. Every other one goes through
:func:`detector.analysis.quality.judge` with its predecessor, as it would have live; that both
ways give the same is a law that tests hold.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec
import numpy as np
import numpy.typing as npt

from detector.analysis.aggregate import COUNTERS_OF, Part, fault_of, gpu_of, place_of
from detector.analysis.maxclock import MaxClocks, Observed
from detector.analysis.ofu import MAX_RATIO
from detector.analysis.quality import ENGINES, HELD_MS, MEAN_MS, Judged, Memory, judge
from detector.fleet import Gpu
from detector.reading import Reading, Scrape
from detector.series import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What one GPU or instance read over some time.

    Attributes
    ----------
    who
        A reading of it: who and where it is, and the maximal clock if it reports one.
    times_ms
        Ascending. Shape ``(n,)``.
    values
        Canonical counter -> values in its unit, NaN where it was not read. Shape ``(n,)``.
    jobs
        The sets of jobs that it has worked for.
    whose
        Which of ``jobs`` a reading is of. Shape ``(n,)``.
    """

    who: Reading
    times_ms: IntArray
    values: Mapping[str, FloatArray]
    jobs: tuple[tuple[str, ...], ...]
    whose: IntArray

    @property
    def step_ms(self) -> int | None:
        """From one reading to the next, as most are; None where there are not two."""
        if len(self.times_ms) < 2:
            return None
        return int(np.median(np.diff(self.times_ms)))

    def reading(self, i: int, time_ms: int) -> Reading:
        """Return one reading, as a source would have made it."""
        values = {
            name: float(column[i])
            for name, column in self.values.items()
            if not math.isnan(column[i])
        }
        if "max_sm_clock_mhz" in self.who.values:
            values.setdefault("max_sm_clock_mhz", self.who.values["max_sm_clock_mhz"])
        return msgspec.structs.replace(
            self.who, time_ms=time_ms, own_clock=True, values=values,
            jobs=self.jobs[self.whose[i]], handover=(), labels={}, sharing=(),
        )  # fmt: skip


def pace_ms(steps: Iterable[int]) -> int | None:
    """Return the interval at which most GPUs are read; None when none has two readings."""
    found = list(steps)
    if not found:
        return None
    step = max(1, round(median(found)))
    whole = round(step, -3)  # scrapes may come some milliseconds early or late
    return whole if abs(whole - step) <= 0.05 * step else step


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The verdicts on a GPU's past, as far as they matter to its jobs. Shapes ``(n,)``.

    Attributes
    ----------
    ofu
        NaN where the reading is not usable.
    fresh
        False for a collection that was read again.
    faults
        Why it is not usable, in quality's words; "" where it is.
    """

    ofu: FloatArray
    fresh: BoolArray
    faults: npt.NDArray[np.object_]


def verdicts(past: Past, max_clocks: MaxClocks, observed: Observed) -> Verdicts:
    """Return the verdicts on a GPU's past.

    Parameters
    ----------
    observed
        The highest clocks of all pasts, by model.
    """
    n = len(past.times_ms)
    top, source = max_clocks.find(past.who, observed)
    if not source:
        blank = np.full(n, "blank", object)
        return Verdicts(ofu=np.full(n, np.nan), fresh=np.ones(n, bool), faults=blank)
    tensor, clock = (past.values.get(key, np.full(n, np.nan)) for key in
                     ("tensor_active", "sm_clock_mhz"))  # fmt: skip
    ofu = np.minimum(1.0, tensor * clock / top)
    again, still = _again(past)
    head = _heads(again)
    held = again & (past.times_ms - past.times_ms[head] <= HELD_MS)
    with np.errstate(invalid="ignore"):
        plain = ~still & ~np.isnan(ofu) & (clock <= MAX_RATIO * top) & ~_may_mismatch(past)
    plain &= ~_handed(past)
    known = plain | (held & plain[head])
    memory = Memory(observed=observed)
    seen_ms = np.where(held, past.times_ms[head], past.times_ms)
    stood, faults = _heads(still), np.full(n, "", object)
    for start, end in _runs(~known):
        # From before it began to stand still: how long it does decides.
        first = max(0, min(start - 1, int(stood[start])))
        places = range(first, end)
        judged = [*_one_by_one(past, places, seen_ms, memory, max_clocks)][start - first :]
        ofu[start:end][[not one.usable for one in judged]] = np.nan
        faults[start:end] = ["" if one.usable else fault_of(one) for one in judged]
    return Verdicts(ofu=ofu, fresh=~held, faults=faults)


def _again(past: Past) -> tuple[BoolArray, BoolArray]:
    """Return where a busy GPU's values, for the same jobs, and where a GPU's ratios stay."""
    n = len(past.times_ms)
    same, still, busy = np.ones(n, bool), np.ones(n, bool), np.zeros(n, bool)
    same[:1] = still[:1] = False
    for name, column in past.values.items():
        before, now = column[:-1], column[1:]
        equal = (before == now) | (np.isnan(before) & np.isnan(now))
        same[1:] &= equal
        if name.endswith("_active"):
            busy |= (column > 0.0) & (column < 1.0)
            still[1:] &= equal
    same[1:] &= past.whose[1:] == past.whose[:-1]
    return same & busy, still


def _handed(past: Past) -> BoolArray:
    """Return where a GPU changed hands within what a reading may be a mean of."""
    moved_ms = past.times_ms[1:][past.whose[1:] != past.whose[:-1]]
    since = np.searchsorted(moved_ms, past.times_ms, side="right") - 1
    found = np.zeros(len(past.times_ms), bool)
    after = since >= 0
    found[after] = past.times_ms[after] - moved_ms[since[after]] <= MEAN_MS
    return found


def _heads(again: BoolArray) -> IntArray:
    """Return for each place the last one at or before it that begins something."""
    places = np.where(again, 0, np.arange(len(again)))
    return np.maximum.accumulate(places) if len(again) else places


def _may_mismatch(past: Past) -> BoolArray:
    engine = np.full(len(past.times_ms), np.nan)
    for name in reversed(ENGINES):  # the first that there is tells
        if name in past.values:
            engine = np.where(np.isnan(past.values[name]), engine, past.values[name])
    found: BoolArray = engine == 0.0
    return found


def _runs(mask: BoolArray) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _one_by_one(
    past: Past, places: range, seen_ms: IntArray, memory: Memory, max_clocks: MaxClocks
) -> Iterator[Judged]:
    """Judge some readings, each after its predecessor, with the times that a source gives."""
    for i in places:
        made = past.reading(i, int(seen_ms[i]))
        now_ms = int(past.times_ms[i])
        scrape = Scrape(target="", asked_ms=now_ms, readings=(made,))
        judged, memory = judge(memory, [scrape], now_ms=now_ms, max_clocks=max_clocks)
        yield judged[0]


def observed_clocks(pasts: Iterable[Past]) -> dict[str, tuple[float, int]]:
    """Return the highest clock of each GPU model, MHz, and of how many readings."""
    found: dict[str, tuple[float, int]] = {}
    for past in pasts:
        clock = past.values.get("sm_clock_mhz")
        if clock is not None and not np.isnan(clock).all():
            model = past.who.model or past.who.uuid
            high, count = found.get(model, (0.0, 0))
            found[model] = max(high, float(np.nanmax(clock))), count + len(clock)
    return found


@dataclass(slots=True)
class _Sums:
    """A job's GPUs summed up by slot; shapes ``(slots,)``.

    Attributes
    ----------
    fresh_ms, seen_ms
        The newest time in the slot of a usable GPU's new reading, and of any GPU's; else -1.
    """

    ofu: FloatArray
    gpus: FloatArray
    fresh_ms: IntArray
    seen_ms: IntArray
    fields: dict[str, tuple[FloatArray, FloatArray]] = field(default_factory=dict)
    columns: dict[str, tuple[Gpu, FloatArray]] = field(default_factory=dict)
    faults: dict[str, IntArray] = field(default_factory=dict)


def bring_together(
    pasts: Sequence[Past],
    max_clocks: MaxClocks,
    *,
    start_ms: int,
    end_ms: int,
    slot_ms: int,
    jobs: frozenset[str],
) -> Iterator[Part]:
    """Return the jobs' scrapes of ``[start_ms, end_ms)``, each job's oldest first.

    A job has at most one in a slot, at the time of the newest reading in it. A GPU without a
    reading in a slot counts with that of the slot before, as it would live. Each part is of all
    hosts.
    """
    first = start_ms // slot_ms
    slots_ms = np.arange(first, -(-end_ms // slot_ms), dtype=np.int64) * slot_ms
    observed = observed_clocks(pasts)
    sums: dict[str, _Sums] = {}
    for past in sorted(pasts, key=lambda past: (past.who.host, place_of(past.who))):
        if not any(job in jobs for owners in past.jobs for job in owners):
            continue
        judged = verdicts(past, max_clocks, observed)
        _sum_up(sums, past, judged, slots_ms, slot_ms=slot_ms, jobs=jobs)
    for job, found in sums.items():
        yield from _parts(job, found, slots_ms)


def _sum_up(
    sums: dict[str, _Sums],
    past: Past,
    judged: Verdicts,
    slots_ms: IntArray,
    *,
    slot_ms: int,
    jobs: frozenset[str],
) -> None:
    at = np.searchsorted(past.times_ms, slots_ms + slot_ms, side="left") - 1
    there = at >= 0
    at = np.maximum(at, 0)
    there &= past.times_ms[at] >= slots_ms - slot_ms
    own_ms = np.where(there & (past.times_ms[at] >= slots_ms), past.times_ms[at], -1)
    fresh_ms = np.where(judged.fresh[at], own_ms, -1)
    ofu = np.where(there, judged.ofu[at], np.nan)
    owners: defaultdict[str, BoolArray] = defaultdict(lambda: np.zeros(len(slots_ms), bool))
    for code, names in enumerate(past.jobs):
        for job in jobs.intersection(names):
            owners[job] |= past.whose[at] == code
    for job, own in owners.items():
        found = sums.get(job)
        if found is None:
            empty, never = np.zeros(len(slots_ms)), np.full(len(slots_ms), -1, np.int64)
            found = _Sums(empty, empty.copy(), never, never.copy())
            sums[job] = found
        mine = np.where(own, ofu, np.nan)
        usable = ~np.isnan(mine)
        found.ofu += np.where(usable, mine, 0.0)
        found.gpus += usable
        found.fresh_ms = np.maximum(found.fresh_ms, np.where(usable, fresh_ms, -1))
        found.seen_ms = np.maximum(found.seen_ms, np.where(own, own_ms, -1))
        _count_faults(found, np.where(own & there, judged.faults[at], ""))
        alone = past.who.mig_scaling_uncertain  # not to be held to the others
        column = np.full_like(mine, np.nan) if alone else mine
        found.columns[past.who.entity] = gpu_of(past.who), column
        _sum_fields(found, past, at, usable)


def _count_faults(found: _Sums, faults: npt.NDArray[np.object_]) -> None:
    """Count a GPU where it can't be used; one that changed hands is nobody's."""
    for fault in set(faults) - {"", "handover"}:
        count = found.faults.setdefault(fault, np.zeros(len(faults), np.int64))
        count += faults == fault


def _sum_fields(found: _Sums, past: Past, at: IntArray, usable: BoolArray) -> None:
    for name, counters in COUNTERS_OF.items():
        if all(counter in past.values for counter in counters):
            value = sum((past.values[counter][at] for counter in counters), np.zeros(len(at)))
            having = usable & ~np.isnan(value)
            total, count = found.fields.setdefault(name, (np.zeros(len(at)), np.zeros(len(at))))
            total += np.where(having, value, 0.0)
            count += having


def _parts(job: str, found: _Sums, slots_ms: IntArray) -> Iterator[Part]:
    faulty = sum(found.faults.values(), np.zeros(len(slots_ms), np.int64)) > 0
    # That no GPU can be used is new each time.
    times_ms = np.where(found.gpus > 0, found.fresh_ms, np.where(faulty, found.seen_ms, -1))
    keep = np.flatnonzero(times_ms >= 0)
    if not len(keep):
        return
    roster = tuple(gpu for gpu, _ in found.columns.values())
    vectors = np.stack([column[keep] for _, column in found.columns.values()], axis=1).tolist()
    with np.errstate(invalid="ignore"):
        means = np.clip(found.ofu[keep] / found.gpus[keep], 0.0, 1.0).tolist()
        fields = {
            name: (total[keep] / count[keep]).tolist()
            for name, (total, count) in found.fields.items()
        }
    faults = {name: count[keep].tolist() for name, count in found.faults.items()}
    counts, times = found.gpus[keep].tolist(), times_ms[keep].tolist()
    for k, time_ms in enumerate(times):
        values = {name: column[k] for name, column in fields.items()}
        yield Part(
            job=job,
            host="",
            time_ms=time_ms,
            ofu=means[k],
            gpus=int(counts[k]),
            fields={name: value for name, value in values.items() if not math.isnan(value)},
            roster=roster,
            gpu_ofu=tuple(vectors[k]),
            faults={name: column[k] for name, column in faults.items() if column[k]},
        )
