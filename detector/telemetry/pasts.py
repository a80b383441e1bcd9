"""GPUs' pasts from a Prometheus server's series: one row a scrape, with whose it was."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from detector.analysis.past import BoolArray, Past
from detector.metric import BLANKS_INT32, Counter
from detector.reading import Reading
from detector.series import FloatArray, IntArray
from detector.telemetry.layout import entity_of
from detector.telemetry.line import Labels
from detector.telemetry.prometheus import TOGETHER_MS, Track
from detector.telemetry.samples import OF_GPU
from detector.telemetry.whose import Whose

# Where two targets tell of one GPU, the second one's sample fills a gap of the first if it is
# away from all of that one's by this share of the interval: replicas lie within half of it.
_GAP = 0.75


def pasts_of(seen: Iterable[Track], known: Mapping[str, Reading], whose: Whose) -> list[Past]:
    """Return the past of each GPU that is known, from its series."""
    seats: defaultdict[tuple[str, str], defaultdict[tuple[str, ...], list[Track]]]
    seats = defaultdict(lambda: defaultdict(list))
    for track in seen:
        if len(track.times_ms):
            seats[track.origin.seat][track.origin.target].append(track)
    found = []
    for (uuid, instance), targets in seats.items():
        who = known.get(f"{uuid}/{instance}" if instance else uuid)
        if who is not None:
            told: list[Sequence[Track]] = list(targets.values())
            if instance:
                told += _of_gpu(seats[uuid, ""].values() if (uuid, "") in seats else ())
            found.append(_one([_past(own, who, whose) for own in told]))
    return found


def _of_gpu(targets: Iterable[Sequence[Track]]) -> Iterable[Sequence[Track]]:
    """Return of a whole GPU's series those that hold for each of its MIG instances too."""
    for own in targets:
        if shared := [track for track in own if track.origin.counter.name in OF_GPU]:
            yield shared


def _past(own: Sequence[Track], who: Reading, whose: Whose) -> Past:
    """Return what one target tells of a GPU."""
    times_ms = own[0].times_ms
    if not all(np.array_equal(times_ms, track.times_ms) for track in own):
        times_ms = np.unique(np.concatenate([track.times_ms for track in own]))
    values: dict[str, FloatArray] = {}
    shares: dict[str, IntArray] = {}
    sets: dict[Labels, BoolArray] = {}
    for track in own:
        at = np.searchsorted(times_ms, track.times_ms)
        name = track.origin.counter.name
        column = values.setdefault(name, np.full(len(times_ms), np.nan))
        count = shares.setdefault(name, np.zeros(len(times_ms), np.int64))
        _fill(column, count, at, track)
        there = sets.setdefault(track.origin.labels, np.zeros(len(times_ms), bool))
        there[at] = True
    jobs, code = _owners(sets, times_ms, who, whose)
    return Past(who=who, times_ms=times_ms, values=values, jobs=jobs, whose=code)


def _fill(column: FloatArray, count: IntArray, at: IntArray, track: Track) -> None:
    """Put a series' usable values into their places; the first series counts, or the mean."""
    raw, origin = track.values, track.origin
    value = raw * origin.scale
    with np.errstate(invalid="ignore"):
        usable = (value >= origin.counter.low) & (value <= origin.counter.high)
    if _reaches_blanks(origin.counter, origin.scale):
        usable &= ~np.isin(raw, list(BLANKS_INT32))
    if not origin.pooled:
        usable &= count[at] == 0
    at, value = at[usable], value[usable]
    count[at] += 1
    if origin.pooled:
        value = np.where(count[at] == 1, value, column[at] + (value - column[at]) / count[at])
    column[at] = value


def _reaches_blanks(counter: Counter, scale: float) -> bool:
    return counter.high / scale >= min(BLANKS_INT32)


def _owners(
    sets: Mapping[Labels, BoolArray], times_ms: IntArray, who: Reading, whose: Whose
) -> tuple[tuple[tuple[str, ...], ...], IntArray]:
    """Return the sets of jobs that a GPU had, and which of them at each time.

    Series of several jobs at one time share the GPU; at different times they follow each other.
    What no label says, schedulers do: a reading is of the time just before it.
    """
    matrix = np.stack(list(sets.values()))
    if matrix.all():
        patterns, which = matrix[:, :1], np.zeros(matrix.shape[1], np.int64)
    else:
        patterns, which = np.unique(matrix, axis=1, return_inverse=True)
        which = which.reshape(-1)
    jobs: dict[tuple[str, ...], int] = {}
    code = np.zeros(len(times_ms), np.int64)
    turns = whose.turns(who)
    for k in range(patterns.shape[1]):
        entity = entity_of([labels for i, labels in enumerate(sets) if patterns[i, k]])
        made = msgspec.structs.replace(
            who, labels=entity.labels, sharing=entity.sharing, jobs=()
        )
        rows = np.flatnonzero(which == k)
        named = whose.named(made)
        if named or not turns:
            code[rows] = jobs.setdefault(named, len(jobs))
            continue
        spans = np.searchsorted(turns, times_ms[rows], side="left")
        for span in np.unique(spans):
            own = rows[spans == span]
            at_ms = int(times_ms[own[0]])
            held = whose.held(who, start_ms=at_ms - 1, end_ms=at_ms)
            code[own] = jobs.setdefault(held.jobs, len(jobs))
    return tuple(jobs), code


def _one(pasts: Sequence[Past]) -> Past:
    """Return one past from those that several targets tell: the fullest, its gaps filled."""
    ranked = sorted(pasts, key=_fullness, reverse=True)
    one = ranked[0]
    gap_ms = _GAP * (one.step_ms or 0)
    for other in ranked[1:]:
        one = _joined(one, other, gap_ms=gap_ms)
    return one


def _fullness(past: Past) -> int:
    tensor = past.values.get("tensor_active")
    return 0 if tensor is None else int(np.count_nonzero(~np.isnan(tensor)))


def _joined(one: Past, other: Past, *, gap_ms: float) -> Past:
    at = np.searchsorted(other.times_ms, one.times_ms, side="right") - 1
    near = (at >= 0) & (one.times_ms - other.times_ms[at] <= TOGETHER_MS)
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
