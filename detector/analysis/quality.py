"""Whether a reading is evidence: a broken collector is told from a slow job here alone.

    reading, what was remembered of its GPU -> OFU, verdict, reason

A fold over readings: :func:`judge` takes what was remembered and gives it back. Only what is
``ok`` feeds a baseline. What is remembered is of a GPU as one target shows it, since two
exporters of one host hand out their collections at times of their own. All spans are measured
by our clock: a source's own clock only tells whether a reading is a new one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import msgspec
from msgspec.structs import replace

from detector.analysis.maxclock import ClockSource, MaxClocks, Observed, observe
from detector.analysis.ofu import MAX_RATIO
from detector.metric import COUNTERS
from detector.reading import Reading, Scrape

Quality = Literal[
    "ok", "stale", "frozen", "blank", "zero_mismatch", "contention",
    "clock_source_changed", "out_of_bounds", "handover", "unreachable",
]  # fmt: skip

# What is repeated for longer than this was not collected anew. dcgm-exporter collects every
# 30 s by default, and one collection may fail.
HELD_MS = 75_000

# No mean is of a longer time, from its beginning until it is seen: a collection of 60 s, and
# what two rounds take. Chosen, above the interval of any exporter that is known.
MEAN_MS = 90_000

# Ratios of a busy GPU have six digits each: that all of them stay while its other counters move
# is a coincidence for a while. Chosen: five minutes, and ten readings where those are rare.
_FROZEN_MS, _FROZEN_READINGS = 300_000, 10

# A GPU is busy at half of its time (GPU_UTIL), or at this power where that is not told: half of
# its limit, or 300 W where that is not told either. Chosen: idle boards draw up to 200 W, a
# quarter of their limit, and busy ones at least half of it.
_BUSY_PCT = 50.0
_BUSY_W = 300.0
_BUSY_SHARE = 0.5

# What is forgotten of GPUs that are gone. Chosen: a node that is rebooted is back sooner.
_FORGET_MS = 3_600_000

# The one that moves most comes first: it alone tells of most readings that they moved.
_RATIOS = (
    "tensor_active",
    *sorted(counter.name for counter in COUNTERS.values() if counter.name.endswith("_active")),
)
# Counters that cannot be 0 on a GPU that is busy: the first that there is tells.
ENGINES = ("gr_engine_active", "sm_active")
_NEVER_MS = -1


class Judged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A reading with its verdict; a struct for the same reason as the reading is.

    Attributes
    ----------
    jobs
        Whom it counts for; none where it counts for nobody.
    ofu
        0..1; NaN where it cannot be computed.
    reason
        Why the verdict is not ``ok``; else why there is no OFU all the same, or what its OFU
        can't be compared with; "" otherwise.
    repeat
        The very reading that was judged before: it stands for its GPU and is no new evidence.
    """

    reading: Reading
    jobs: tuple[str, ...]
    ofu: float
    quality: Quality
    reason: str = ""
    max_clock_mhz: float = math.nan
    max_clock_source: ClockSource = ""
    repeat: bool = False

    @property
    def usable(self) -> bool:
        """Whether it may feed a baseline."""
        return self.quality == "ok" and not math.isnan(self.ofu)

    @property
    def nameless(self) -> bool:
        """Whether the GPU works and nothing says for whom."""
        return not self.jobs and self.quality != "handover" and self.reading.at_work


class Known(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is remembered of one GPU or instance; all times are ours but ``time_ms``.

    Attributes
    ----------
    time_ms
        The latest reading's own time.
    seen_ms
        When the latest reading was made.
    fresh_ms
        When its values were met first.
    without_ms
        When it was last seen without them: they were collected since then, and what those
        after them are a mean of began then at the earliest.
    began_ms
        The same of those before them: what these are a mean of began then at the earliest.
    frozen_ms, frozen_readings
        Since when, and for how many new readings, the ratios are bit for bit the same.
    handed_ms
        When it was last seen to have changed hands; -1 for never.
    jobs
        Whose it was; None where the reading itself said that it changed hands: its successor is
        the new tenant's then, and no change.
    complete
        Whether it has ever had all that OFU needs.
    reported_mhz
        The maximal clock that it last reported itself.
    """

    time_ms: int
    seen_ms: int
    fresh_ms: int
    without_ms: int
    began_ms: int
    frozen_ms: int
    frozen_readings: int
    handed_ms: int
    values: Mapping[str, float]
    jobs: tuple[str, ...] | None
    complete: bool
    reported_mhz: float
    max_clock_mhz: float
    max_clock_source: ClockSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered between readings.

    Attributes
    ----------
    known
        Target and entity -> what is known of it there.
    observed
        The highest clocks that were read, see :data:`detector.analysis.maxclock.Observed`.
    """

    known: Mapping[tuple[str, str], Known] = field(default_factory=dict)
    observed: Observed = field(default_factory=dict)


NOTHING = Memory()


def judge(
    memory: Memory, scrapes: Iterable[Scrape], *, now_ms: int, max_clocks: MaxClocks
) -> tuple[tuple[Judged, ...], Memory]:
    """Return a verdict on each reading of one round, and what to remember.

    Parameters
    ----------
    scrapes
        With their readings' jobs filled in. Readings of a target that did not answer are old.
    now_ms
        When the round was made, by our clock.
    """
    known = {
        key: one for key, one in memory.known.items() if now_ms - one.seen_ms <= _FORGET_MS
    }
    rounds = [(scrape, _once(scrape.readings)) for scrape in scrapes]
    observed = observe(memory.observed, chain.from_iterable(each for _, each in rounds))
    judged = []
    for scrape, readings in rounds:
        if scrape.error:
            judged += [_unreachable(reading, scrape.error) for reading in readings]
            continue
        for reading in readings:
            key = scrape.target, reading.entity
            before = known.get(key)
            said = math.nan if before is None else before.reported_mhz
            top = max_clocks.find(reading, observed, reported_mhz=said)
            at = _Moment(reading, before, now_ms)
            one = _judged(at, top, failing=scrape.failing)
            judged.append(one)
            known[key] = _remembered(at, one)
    return tuple(judged), Memory(known=known, observed=observed)


def _unreachable(reading: Reading, error: str) -> Judged:
    return Judged(
        reading=reading, jobs=reading.jobs, ofu=math.nan, quality="unreachable", reason=error
    )


def _once(readings: tuple[Reading, ...]) -> Iterable[Reading]:
    """Return each entity once: what is told of it twice at one time is one reading."""
    by_entity = {reading.entity: reading for reading in reversed(readings)}
    if len(by_entity) == len(readings):
        return readings
    for reading in readings:
        kept = by_entity[reading.entity]
        if kept is not reading:
            by_entity[reading.entity] = replace(
                kept,
                values={**reading.values, **kept.values},
                jobs=tuple(dict.fromkeys((*kept.jobs, *reading.jobs))),
            )
    return by_entity.values()


class _Moment:
    """A reading beside what was known before it.

    Attributes
    ----------
    fresh
        Whether it is a new reading, not the one before handed out once more.
    began_ms
        When what its values are a mean of began at the earliest, by our clock. A page hands out
        what was collected up to one collection ago, with the labels of now.
    without_ms
        When it was last seen without these values.
    handed_ms
        When it was last seen to have changed hands; -1 for never.
    frozen
        Whether its ratios are those of the reading before, bit for bit.
    """

    __slots__ = (
        "before", "began_ms", "fresh", "frozen", "handed_ms", "now_ms", "reading", "without_ms",
    )  # fmt: skip

    def __init__(self, reading: Reading, before: Known | None, now_ms: int) -> None:
        self.reading, self.before, self.now_ms = reading, before, now_ms
        if before is None:
            self.fresh, self.frozen = True, False
            self.began_ms = self.without_ms = now_ms - 1  # some time ago
            self.handed_ms = now_ms if reading.handover else _NEVER_MS
            return
        changed = reading.values != before.values
        self.fresh = _is_fresh(reading, before, changed=changed)
        self.without_ms = before.seen_ms if changed else before.without_ms
        self.began_ms = before.without_ms if changed else before.began_ms
        # An idle GPU may read the same for ever: that is not one long mean.
        oldest_ms = now_ms - MEAN_MS
        if self.began_ms < oldest_ms and (changed or not is_busy(reading.values)):
            self.began_ms = oldest_ms
        other = before.jobs is not None and reading.jobs != before.jobs
        self.handed_ms = now_ms if reading.handover or other else before.handed_ms
        self.frozen = _are_same(reading.values, before.values)


def _is_fresh(reading: Reading, before: Known, *, changed: bool) -> bool:
    """Whether a reading is a new one.

    By the source's clock where it has one: it advanced, or was set back by far. Else by the
    values of all counters, where those tell.
    """
    if reading.own_clock:
        advanced = reading.time_ms - before.time_ms
        return advanced > 0 or advanced < -HELD_MS
    return changed or not never_comes_twice(reading.values)


def never_comes_twice(values: Mapping[str, float]) -> bool:
    """Whether the same values once more are the same collection once more.

    Ratios of a busy GPU have six digits, and the energy it used only grows; an idle GPU may
    read the same for ever.
    """
    return is_busy(values) or bool(values.get("energy_j"))


def is_busy(values: Mapping[str, float]) -> bool:
    """Whether some ratio is neither 0 nor 1: all values don't come twice then."""
    return any(0.0 < values.get(name, 0.0) < 1.0 for name in _RATIOS)


def _are_same(values: Mapping[str, float], before: Mapping[str, float]) -> bool:
    """Whether all ratios are bit for bit what they were."""
    for name in _RATIOS:  # noqa: SIM110 - it ends at the first one, before all() has begun
        if values.get(name) != before.get(name):
            return False
    return True


def _judged(at: _Moment, top: tuple[float, ClockSource], *, failing: str) -> Judged:
    reading = at.reading
    value, missing = _ofu(reading, top[0])
    quality, reason = _verdict(at, top, missing, failing=failing)
    return Judged(
        reading=reading,
        jobs=() if quality == "handover" else reading.jobs,
        ofu=value if quality == "ok" else math.nan,
        quality=quality,
        reason=reason or _remark(reading, missing, failing=failing),
        max_clock_mhz=top[0],
        max_clock_source=top[1],
        repeat=not at.fresh,
    )


def _remark(reading: Reading, missing: tuple[str, ...], *, failing: str) -> str:
    """Return what is to be known of a reading that is well."""
    if missing:
        return f"missing: {', '.join(missing)}" + (f" ({failing})" if failing else "")
    if reading.mig_scaling_uncertain:
        return (
            "mig_scaling_uncertain: before Hopper, OFU of an instance compares with its own "
            "past alone"
        )
    return ""


def _ofu(reading: Reading, max_clock_mhz: float) -> tuple[float, tuple[str, ...]]:
    """Return OFU, NaN where counters are missing, and which those are."""
    tensor = reading.values.get("tensor_active", math.nan)
    clock = reading.values.get("sm_clock_mhz", math.nan)
    value = tensor * clock / max_clock_mhz
    if not math.isnan(value):
        return min(1.0, value), ()
    needed = {
        "tensor_active": tensor, "sm_clock_mhz": clock, "max_sm_clock_mhz": max_clock_mhz,
    }  # fmt: skip
    return math.nan, tuple(name for name, one in needed.items() if math.isnan(one))


def _verdict(
    at: _Moment, top: tuple[float, ClockSource], missing: tuple[str, ...], *, failing: str
) -> tuple[Quality, str]:
    """Return the first verdict that holds, the surest first."""
    reading, before = at.reading, at.before
    if at.handed_ms > at.began_ms or reading.handover:
        now = ", ".join(reading.handover or reading.jobs) or "nobody"
        return "handover", f"changed hands within the interval, now {now}"
    counters = missing and [name for name in missing if name != "max_sm_clock_mhz"]
    if counters and failing == "contention":
        return "contention", "another profiler holds the counters of this host"
    if counters and before is not None and before.complete:
        return "blank", f"{', '.join(counters)} came before and does not now"
    clock = reading.values.get("sm_clock_mhz", 0.0)
    if clock > MAX_RATIO * top[0]:
        return "out_of_bounds", f"SM clock {clock:g} MHz is above the maximum of {top[0]:g} MHz"
    if _is_mismatch(reading):
        return "zero_mismatch", (
            "the GPU is busy, yet its engine or SMs were active for exactly 0"
        )
    return _against(at, top)


def _against(at: _Moment, top: tuple[float, ClockSource]) -> tuple[Quality, str]:
    """Return the verdict by what was read before."""
    reading, before, now_ms = at.reading, at.before, at.now_ms
    if before is None:
        # Nothing is known of its clock yet, so a much older time may also be a wrong one.
        age_ms = now_ms - reading.time_ms if reading.own_clock else 0
        return ("stale", f"read {age_ms / 1000:.0f} s ago") if age_ms > HELD_MS else ("ok", "")
    if reading.own_clock and reading.time_ms < before.time_ms:
        late_s = (before.time_ms - reading.time_ms) / 1000
        return "stale", f"its clock went back by {late_s:.0f} s"
    if not at.fresh and now_ms - before.fresh_ms > HELD_MS:
        return "stale", f"the same reading for {(now_ms - before.fresh_ms) / 1000:.0f} s"
    frozen_ms = now_ms - before.frozen_ms
    long = frozen_ms > _FROZEN_MS and before.frozen_readings >= _FROZEN_READINGS
    # A hang may stand still at 0, and so may its ratios.
    if at.frozen and long and 0.0 < reading.values.get("tensor_active", 0.0) < 1.0:
        return "frozen", f"all ratios bit for bit the same for {frozen_ms / 1000:.0f} s"
    known = before.max_clock_mhz, before.max_clock_source
    if before.max_clock_source and top != known:
        return "clock_source_changed", (
            f"the maximal clock is now {top[0]:g} MHz ({top[1] or 'unknown'}), "
            f"was {known[0]:g} MHz ({known[1]})"
        )
    return "ok", ""


def _is_mismatch(reading: Reading) -> bool:
    """Whether the engine's counter is dead: exactly 0 while the GPU is busy.

    A job that hangs and spins keeps the engine active, and an idle GPU is not busy. Whatever
    the other counters say then: nothing works on an engine that does not.
    """
    values = reading.values
    if next((values[name] for name in ENGINES if name in values), math.nan) != 0.0:
        return False
    if "gpu_util_pct" in values:
        return values["gpu_util_pct"] >= _BUSY_PCT
    if reading.instance:
        return False  # power is the whole board's, and other instances may use it
    limit = values.get("power_limit_w", 0.0)
    return values.get("power_w", 0.0) >= (_BUSY_SHARE * limit if limit else _BUSY_W)


def _remembered(at: _Moment, one: Judged) -> Known:
    reading, before, now_ms = at.reading, at.before, at.now_ms
    reported = reading.values.get("max_sm_clock_mhz", math.nan)
    if math.isnan(reported) and before is not None:
        reported = before.reported_mhz
    frozen = before if at.frozen else None
    time_ms = reading.time_ms
    if before is not None and not at.fresh:
        time_ms = max(time_ms, before.time_ms)
    return Known(
        time_ms=time_ms,
        seen_ms=now_ms,
        fresh_ms=now_ms if at.fresh or before is None else before.fresh_ms,
        without_ms=at.without_ms,
        began_ms=at.began_ms,
        frozen_ms=now_ms if frozen is None else frozen.frozen_ms,
        frozen_readings=0 if frozen is None else frozen.frozen_readings + at.fresh,
        handed_ms=at.handed_ms,
        values=reading.values,
        jobs=None if reading.handover else reading.jobs,
        complete=(before is not None and before.complete)
        or {"tensor_active", "sm_clock_mhz"} <= reading.values.keys(),
        reported_mhz=reported,
        max_clock_mhz=one.max_clock_mhz,
        max_clock_source=one.max_clock_source,
    )
