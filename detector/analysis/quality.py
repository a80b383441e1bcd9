"""Whether a reading is evidence: a broken collector is told from a slow job here alone.

    reading, what was remembered of its GPU -> OFU, verdict, reason

A fold over readings: :func:`judge` takes what was remembered and gives it back. Only what is
``ok`` feeds a baseline. A verdict that needs more than one reading (stale, frozen, handover,
blank) is never given for the first.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from detector.analysis.ofu import MAX_RATIO, GpuTable
from detector.reading import Reading, Scrape

Quality = Literal[
    "ok", "stale", "frozen", "blank", "zero_mismatch", "contention",
    "clock_source_changed", "out_of_bounds", "handover",
]  # fmt: skip
ClockSource = Literal["dcgm", "config", "table", "observed", ""]

# Values that are repeated for longer than this were not collected anew. dcgm-exporter collects
# every 30 s by default, and one collection may fail.
_HELD_MS = 75_000

# By clocks that advance, equal values of a busy GPU are a coincidence for a while. Chosen: five
# minutes, six digits each, of a mean over seconds.
_FROZEN_MS = 300_000

# A GPU is busy at half of its time (GPU_UTIL), or at this power where that is not told. 300 W:
# chosen, idle boards draw up to 200 W, and a busy one at least half of its limit.
_BUSY_PCT = 50.0
_BUSY_W = 300.0
_BUSY_SHARE = 0.5

# A maximum that was only observed stands for nothing before so many readings of a model.
_OBSERVED_READINGS = 100

# What is forgotten of GPUs that are gone. Chosen: a node that is rebooted is back sooner.
_FORGET_MS = 3_600_000

_ENGINES = ("gr_engine_active", "sm_active", "dram_active")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A reading with its verdict.

    Attributes
    ----------
    jobs
        Whom it counts for; none where it counts for nobody.
    ofu
        0..1; NaN where it cannot be computed.
    reason
        Why the verdict is not ``ok``, or why there is no OFU all the same; "" otherwise.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is remembered of one GPU or instance.

    Attributes
    ----------
    changed_ms
        Since when its values are what they are.
    jobs
        Whose it was; None where the reading itself said that it changed hands: its successor is
        the new tenant's then, and no change.
    complete
        Whether it has ever had all that OFU needs.
    given
        Whether it changed hands within this reading.
    """

    time_ms: int
    seen_ms: int
    changed_ms: int
    values: Mapping[str, float]
    jobs: tuple[str, ...] | None
    complete: bool
    given: bool
    reported_mhz: float
    max_clock_mhz: float
    max_clock_source: ClockSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered between readings.

    Attributes
    ----------
    observed
        GPU model -> highest clock that was read on any GPU of it, and of how many readings.
    """

    known: Mapping[str, Known] = field(default_factory=dict)
    observed: Mapping[str, tuple[float, int]] = field(default_factory=dict)


NOTHING = Memory()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxClocks:
    """Maximal clocks of GPU models that do not report their own.

    Attributes
    ----------
    configured
        What the operator says: a model's name, as the driver reports it -> MHz.
    """

    table: GpuTable
    configured: Mapping[str, float] = field(default_factory=dict)

    def find(
        self, reading: Reading, known: Known | None, observed: tuple[float, int]
    ) -> tuple[float, ClockSource]:
        """Return the maximal clock, MHz, by the best source there is; NaN and "" for none."""
        if reading.model in self.configured:
            return self.configured[reading.model], "config"
        reported = reading.values.get("max_sm_clock_mhz", math.nan)
        if math.isnan(reported) and known is not None:
            reported = known.reported_mhz  # it is static, and some sources tell it seldom
        if not math.isnan(reported):
            return reported, "dcgm"
        model = self.table.find(reading.model) if reading.model else None
        if model is not None and model.max_clock is not None:
            return model.max_clock.in_mhz, "table"
        if observed[1] >= _OBSERVED_READINGS:
            return observed[0], "observed"
        return math.nan, ""


def judge(
    memory: Memory, scrapes: Iterable[Scrape], *, now_ms: int, max_clocks: MaxClocks
) -> tuple[tuple[Judged, ...], Memory]:
    """Return a verdict on each reading of one round, and what to remember.

    Parameters
    ----------
    scrapes
        With their readings' jobs filled in.
    now_ms
        When the round was made, by our clock.
    """
    known = {
        entity: one
        for entity, one in memory.known.items()
        if now_ms - one.seen_ms <= _FORGET_MS
    }
    observed = dict(memory.observed)
    judged = []
    for scrape in scrapes:
        for reading in scrape.readings:
            before = known.get(reading.entity)
            clock = reading.values.get("sm_clock_mhz", 0.0)
            high, count = observed.get(reading.model, (0.0, 0))
            observed[reading.model] = max(high, clock), min(count + 1, _OBSERVED_READINGS)
            found = max_clocks.find(reading, before, observed[reading.model])
            one = _judged(reading, before, found, failing=scrape.failing, now_ms=now_ms)
            judged.append(one)
            known[reading.entity] = _remembered(one, before, now_ms=now_ms)
    return tuple(judged), Memory(known=known, observed=observed)


def _judged(
    reading: Reading,
    before: Known | None,
    top: tuple[float, ClockSource],
    *,
    failing: str,
    now_ms: int,
) -> Judged:
    value, missing = _ofu(reading, top[0])
    quality, reason = _verdict(reading, before, top, missing, failing=failing, now_ms=now_ms)
    return Judged(
        reading=reading,
        jobs=() if quality == "handover" else reading.jobs,
        ofu=value if quality == "ok" else math.nan,
        quality=quality,
        reason=reason or (f"missing: {', '.join(missing)}" if missing else ""),
        max_clock_mhz=top[0],
        max_clock_source=top[1],
        repeat=_is_repeat(reading, before),
    )


def _ofu(reading: Reading, max_clock_mhz: float) -> tuple[float, tuple[str, ...]]:
    """Return OFU, NaN where counters are missing, and which those are."""
    tensor = reading.values.get("tensor_active", math.nan)
    clock = reading.values.get("sm_clock_mhz", math.nan)
    needed = {
        "tensor_active": tensor, "sm_clock_mhz": clock, "max_sm_clock_mhz": max_clock_mhz,
    }  # fmt: skip
    missing = tuple(name for name, value in needed.items() if math.isnan(value))
    if missing:
        return math.nan, missing
    return min(1.0, tensor * clock / max_clock_mhz), ()


def _verdict(
    reading: Reading,
    before: Known | None,
    top: tuple[float, ClockSource],
    missing: tuple[str, ...],
    *,
    failing: str,
    now_ms: int,
) -> tuple[Quality, str]:
    """Return the first verdict that holds, the surest first."""
    counters = [name for name in missing if name != "max_sm_clock_mhz"]
    if counters and failing == "contention":
        return "contention", "another profiler holds the counters of this host"
    if counters and before is not None and before.complete:
        return "blank", f"{', '.join(counters)} came before and does not now"
    if reading.values.get("sm_clock_mhz", 0.0) > MAX_RATIO * top[0]:
        clock = reading.values["sm_clock_mhz"]
        return "out_of_bounds", f"SM clock {clock:g} MHz is above the maximum of {top[0]:g} MHz"
    if _is_mismatch(reading):
        return "zero_mismatch", (
            "the GPU is busy, yet all its profiling counters are exactly 0; "
            "restart its host engine or exporter"
        )
    if before is None:
        return "ok", ""
    return _against(reading, before, top, now_ms=now_ms)


def _against(
    reading: Reading, before: Known, top: tuple[float, ClockSource], *, now_ms: int
) -> tuple[Quality, str]:
    """Return the verdict by what was read before."""
    given = before.given and _is_repeat(reading, before)
    other = before.jobs is not None and reading.jobs != before.jobs
    if reading.handover or other or given:
        now = ", ".join(reading.handover or reading.jobs) or "nobody"
        return "handover", f"changed hands within the interval, now {now}"
    if reading.own_clock and reading.time_ms < before.time_ms:
        late = (before.time_ms - reading.time_ms) / 1000
        return "stale", f"its clock went back by {late:.0f} s"
    if _is_repeat(reading, before):
        # By the source's own clock, its age; else since when the same values come.
        since = reading.time_ms if reading.own_clock else before.changed_ms
        if now_ms - since > _HELD_MS:
            word: Quality = "stale" if reading.own_clock else "frozen"
            return word, f"the same reading for {(now_ms - since) / 1000:.0f} s"
    elif _same(reading, before) and now_ms - before.changed_ms > _FROZEN_MS:
        since_s = (now_ms - before.changed_ms) / 1000
        return "frozen", f"all values bit for bit the same for {since_s:.0f} s"
    known = before.max_clock_mhz, before.max_clock_source
    if before.max_clock_source and top != known and top[1] != "observed":
        return "clock_source_changed", (
            f"the maximal clock is now {top[0]:g} MHz ({top[1] or 'unknown'}), "
            f"was {known[0]:g} MHz ({known[1]})"
        )
    return "ok", ""


def _is_mismatch(reading: Reading) -> bool:
    values = reading.values
    engines = [values[name] for name in _ENGINES if name in values]
    if not engines or any(engines) or values.get("tensor_active", 0.0) != 0.0:
        return False
    if "gpu_util_pct" in values:
        return values["gpu_util_pct"] >= _BUSY_PCT
    if reading.instance:
        return False  # power is the whole board's, and other instances may use it
    limit = values.get("power_limit_w", _BUSY_W / _BUSY_SHARE)
    return values.get("power_w", 0.0) >= max(_BUSY_W, _BUSY_SHARE * limit)


def _is_repeat(reading: Reading, before: Known | None) -> bool:
    """Whether this is the reading that was made before, handed out once more."""
    if before is None:
        return False
    if reading.own_clock:
        return reading.time_ms <= before.time_ms
    return _same(reading, before)


def _same(reading: Reading, before: Known) -> bool:
    """Whether a GPU that does something shows the very values of before.

    An idle one may: zeros, a parked clock, and a power that some meters round.
    """
    busy = any(
        0.0 < value < 1.0 for name, value in reading.values.items() if name.endswith("_active")
    )
    return busy and reading.values == before.values


def _remembered(one: Judged, before: Known | None, *, now_ms: int) -> Known:
    reading = one.reading
    unchanged = before is not None and reading.values == before.values
    reported = reading.values.get("max_sm_clock_mhz", math.nan)
    if math.isnan(reported) and before is not None:
        reported = before.reported_mhz
    complete = {"tensor_active", "sm_clock_mhz"} <= reading.values.keys()
    return Known(
        time_ms=max(reading.time_ms, before.time_ms) if before is not None else reading.time_ms,
        seen_ms=now_ms,
        changed_ms=before.changed_ms if before is not None and unchanged else reading.time_ms,
        values=reading.values,
        jobs=None if reading.handover else reading.jobs,
        given=one.quality == "handover",
        complete=complete or (before is not None and before.complete),
        reported_mhz=reported,
        max_clock_mhz=one.max_clock_mhz,
        max_clock_source=one.max_clock_source,
    )
