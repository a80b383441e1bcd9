"""Samples of one GPU's fields between two scrapes, brought to one value for each counter.

The tensor counter is a mean over the interval that ends at its time, a clock only a glance at
that moment. So clocks are sampled every second and averaged over the very interval that the
tensor counter stands for.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from detector.analysis.quality import HELD_MS
from detector.metric import COUNTERS, usable
from detector.reading import Dropped

# Fields whose newer twin (in Hz, in J) stands in where the older one is blank: DCGM 4.6.1.
TWINS = {100: 1603, 113: 1608, 110: 1606, 156: 1611}
TENSOR, CLOCK, MAX_CLOCK, SM_CYCLES = 1004, 100, 113, 1084

# Samples that are remembered of a field: an hour of seconds bounds the longest interval.
_MOST = 3700
# Clock samples that differ by no more are one clock: a step of it is 15 MHz, half is none.
_STEADY_MHZ = 7.5
# Steady intervals after which the cycles' counter is trusted, and by how much they may differ
# (chosen: a second's error at both ends of ten is what sampling costs).
_TRUSTED, _SPREAD = 5, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one field; ``value`` is NaN and ``reason`` says why where it is none."""

    time_us: int
    value: float
    raw: str = ""
    reason: str = ""


def sample(field_id: int, time_us: int, raw: str | float | None) -> Sample:
    """Return a raw value past the filter of blanks."""
    value, reason = usable(COUNTERS[field_id], raw)
    return Sample(time_us=time_us, value=value, raw=str(raw)[:60], reason=reason)


@dataclass(slots=True)
class Track:
    """What is remembered of one entity.

    Attributes
    ----------
    fields
        Field number -> samples by time, oldest first; none twice.
    until_us
        The time that the last reading stood for; 0 before the first.
    cycles_per_clock
        Sm cycles counted for each cycle of the clock, of the last steady intervals. Nobody
        documents whether the counter sums SMs, so it is measured.
    """

    fields: dict[int, deque[Sample]] = field(default_factory=dict)
    until_us: int = 0
    cycles_per_clock: deque[float] = field(default_factory=lambda: deque(maxlen=60))

    def add(self, field_id: int, samples: Iterable[Sample]) -> None:
        """Take what is newer than all before: caches replay and repeat.

        What ends with a sample that is much older than the newest known one is of a clock that
        was set back: then time begins anew. When it steps back a little, nothing counts until
        it is past.
        """
        known = self.fields.setdefault(field_id, deque(maxlen=_MOST))
        arrived = sorted(samples, key=lambda each: each.time_us)
        if known and arrived and 0 < arrived[-1].time_us < known[-1].time_us - 1000 * HELD_MS:
            known.clear()
        for one in arrived:
            # Time 0: nothing was sampled yet.
            if one.time_us > 0 and (not known or one.time_us > known[-1].time_us):
                known.append(one)

    @property
    def begins(self) -> bool:
        """Whether nothing was read of it yet, nor has its tensor counter a value."""
        tensors = self.fields.get(TENSOR, ())
        return self.until_us == 0 and all(one.reason for one in tensors)

    def last(self, field_id: int) -> Sample | None:
        """Return the newest sample."""
        known = self.fields.get(field_id)
        return known[-1] if known else None

    def within(self, field_id: int, after_us: int, until_us: int) -> list[Sample]:
        """Return the good samples with ``after_us < time <= until_us``."""
        return [
            one
            for one in self.fields.get(field_id, ())
            if after_us < one.time_us <= until_us and not one.reason
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One entity at one time: what a reading is made of."""

    time_us: int
    values: Mapping[str, float]
    dropped: tuple[Dropped, ...]


def summary(track: Track, clocks: Track, *, interval_us: int, fresh: bool) -> Summary | None:
    """Return the values of the time since the last reading; None before any sample.

    Parameters
    ----------
    track
        The entity.
    clocks
        The GPU that its clock, power and bits are of: itself, but for a MIG instance.
    interval_us
        How often profiling fields are sampled, microseconds: what one such sample stands for.
    fresh
        Whether watches began so recently that a blank is no fault.
    """
    tensors = [one for one in track.fields.get(TENSOR, ()) if not one.reason]
    newest = tensors[-1].time_us if tensors else _newest(track, clocks)
    if newest == 0:
        return None
    blank = track.last(TENSOR)
    if blank is not None and blank.reason:
        # It was asked for later and is none: the value before must not stand for it.
        newest, tensors = max(newest, blank.time_us), []
    # What was read since the last reading; a first one, or one after a gap, stands for one
    # interval. When nothing is new, the last reading is repeated, at the same time.
    gap = newest - track.until_us
    after = track.until_us if 0 < gap <= 20 * interval_us else newest - interval_us
    values = _means(track, after, newest)
    if track is not clocks:
        values = of_gpu(_means(clocks, after, newest)) | values
    _clock(clocks, values, after, newest, interval_us)
    if track is clocks:
        _cycles(clocks, values, after, newest)
    if not tensors:
        values.pop("tensor_active", None)
    track.until_us = newest
    _forget(track, clocks, newest - 40 * interval_us)
    return Summary(
        time_us=newest, values=values, dropped=() if fresh else _dropped(track, clocks, values)
    )


# What an instance shares with its GPU and has no other value of: not power or traffic, which
# are the sum of all its instances.
OF_GPU = ("sm_clock_mhz", "max_sm_clock_mhz", "app_sm_clock_mhz", "clock_event_bits",
           "xid_last", "gpu_temp_c", "memory_temp_c")  # fmt: skip


def of_gpu(values: Mapping[str, float]) -> dict[str, float]:
    """Return what of a whole GPU's values holds for each of its instances too."""
    return {name: values[name] for name in OF_GPU if name in values}


def _newest(*tracks: Track) -> int:
    return max(
        (one.time_us for track in tracks for known in track.fields.values() for one in known),
        default=0,
    )


def _means(track: Track, after: int, until: int) -> dict[str, float]:
    values: dict[str, float] = {}
    twins = set(TWINS.values())
    # Twins last: they only fill what is missing.
    for field_id in sorted(track.fields, key=lambda each: (each in twins, each)):
        counter = COUNTERS[field_id]
        if counter.name in values:
            continue
        inside = [one.value for one in track.within(field_id, after, until)]
        last = next(
            (one for one in reversed(track.fields[field_id]) if one.time_us <= until), None
        )
        if counter.name == "clock_event_bits" and inside:
            bits = 0
            for value in inside:
                bits |= int(value)
            values[counter.name] = float(bits)
        elif counter.kind == "gauge" and inside:
            values[counter.name] = fmean(inside)
        elif counter.kind == "event":
            # DCGM keeps the last event for ever: it is news only with a time of its own.
            if inside:
                values[counter.name] = inside[-1]
        elif counter.kind != "total" and field_id not in STATIC:
            continue  # a gauge that was not read in this time
        elif last is not None and not last.reason:
            values[counter.name] = last.value
    return values


# Sampled once a minute: they change when somebody sets them.
STATIC = (113, 1608, 110, 1606, 164)


def _clock(
    track: Track, values: dict[str, float], after: int, until: int, interval: int
) -> None:
    """Take the nearest clock where none was sampled inside; none is nearer than an interval."""
    if "sm_clock_mhz" in values:
        return
    near = [
        one
        for field_id in (CLOCK, TWINS[CLOCK])
        for one in track.within(field_id, after - interval, until + interval)
    ]
    if near:
        values["sm_clock_mhz"] = min(near, key=lambda one: abs(one.time_us - until)).value


def _cycles(track: Track, values: dict[str, float], after: int, until: int) -> None:
    """Refine the mean clock by the counter of SM cycles, where DCGM has it (4.6, Hopper on).

    mean clock = cycles / (k * time), with k measured over intervals of a steady clock. A
    counter that went back (reset, reboot) says nothing.
    """
    # A tenth of a second: fields of one watch are sampled one after the other.
    cycles = track.within(SM_CYCLES, after - 100_000, until)
    seen = [
        one.value
        for field_id in (CLOCK, TWINS[CLOCK])
        for one in track.within(field_id, after, until)
    ]
    if len(cycles) < 2 or len(seen) < 3:
        return
    rise = cycles[-1].value - cycles[0].value
    micros = cycles[-1].time_us - cycles[0].time_us
    if rise <= 0 or micros <= 0 or micros < 0.8 * (until - after):
        return
    known = track.cycles_per_clock
    if max(seen) - min(seen) <= _STEADY_MHZ:
        known.append(rise / (micros * fmean(seen)))
    elif len(known) >= _TRUSTED and max(known) - min(known) <= _SPREAD * fmean(known):
        refined = rise / (micros * fmean(known))
        if min(seen) <= refined <= max(seen):
            values["sm_clock_mhz"] = refined


def _forget(track: Track, clocks: Track, before: int) -> None:
    for each in (track, clocks):
        for field_id, known in each.fields.items():
            while len(known) > 1 and known[0].time_us < before and field_id not in STATIC:
                known.popleft()


def _dropped(track: Track, clocks: Track, values: Mapping[str, float]) -> tuple[Dropped, ...]:
    """Return why what OFU is made of is not there."""
    found = []
    for of, field_id in ((track, TENSOR), (clocks, CLOCK), (clocks, MAX_CLOCK)):
        counter, last = COUNTERS[field_id], of.last(field_id)
        if counter.name not in values and last is not None and last.reason:
            found.append(Dropped(metric=counter.name, raw=last.raw, reason=last.reason))
    return tuple(found)
