"""What of collection works, what is missing, and what mends it: of readings, not of hosts.

:func:`diagnose` looks at one or two rounds of scrapes and what was judged of them. It says what
the readings show; where they show only that one of two things is wrong, the remedy begins with
the command that tells which. What takes two rounds is said to be unknown after one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from detector.analysis.aggregate import gpus_text
from detector.analysis.maxclock import REPORTED
from detector.analysis.quality import Judged, Quality
from detector.metric import counter_named
from detector.reading import CLOCK_OFF_MS, Reading, Scrape
from detector.telemetry import remedies
from detector.telemetry.remedies import NEEDED, ROWS, UNANSWERED, WISHED, Kind

Level = Literal["ok", "note", "trouble"]

# What may be left out of a GPU as a whole -> what that is.
_WHOLE: Mapping[str, tuple[str, Level]] = {
    "gpu": ("gpu_unreadable", "trouble"),
    "mig": ("mig_without_instances", "note"),
}

# Why profiling fails, in words for programs; sources say with each what mends it.
_FAILING = frozenset({"no_profiling", "contention", "paused"})

_SHARED = "the same GPU again for another job"  # as exposition words it

_PROFILING = ("tensor_active", "gr_engine_active", "dram_active", "sm_active")


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One thing that was looked at.

    Attributes
    ----------
    kind
        A word for programs, such as ``max_clock_not_exported``.
    level
        ``ok`` works; ``note`` works, with less than there could be; ``trouble`` does not.
    place
        The target, or the source where it is about all of them.
    reason
        What was seen.
    remedy
        The command or setting that mends it; "" only where there is nothing to mend.
    """

    kind: str
    level: Level
    place: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """All that one target showed: its last answer, and its verdicts of the last round."""

    scrape: Scrape
    judged: tuple[Judged, ...]
    kind: Kind
    twice: bool

    @property
    def place(self) -> str:
        return self.scrape.target

    @property
    def readings(self) -> tuple[Reading, ...]:
        return self.scrape.readings

    @property
    def refused(self) -> set[str]:
        """Counters that came with values that are none: those are exported."""
        named = {line.metric: counter_named(line.metric) for line in self.scrape.dropped}
        return {known[0].name if known else metric for metric, known in named.items()}

    def lacking(self, counter: str) -> int:
        """How many GPUs do not tell a counter."""
        return sum(counter not in reading.values for reading in self.readings)


def diagnose(
    rounds: Sequence[tuple[Sequence[Scrape], Sequence[Judged]]], *, kind: Kind
) -> list[Symptom]:
    """Return what one or two rounds show, target by target, trouble first.

    Parameters
    ----------
    rounds
        Scrapes with jobs filled in and what was judged of them, oldest first, of one source.
    kind
        That source's type: remedies differ.
    """
    scrapes, judged = rounds[-1]
    # A reading belongs to the scrape that holds it; two targets may name one GPU.
    verdicts: dict[int, Judged] = {id(one.reading): one for one in judged}
    before = {scrape.target for earlier, _ in rounds[:-1] for scrape in earlier}
    found: list[Symptom] = []
    for scrape in scrapes:
        if scrape.error and scrape.readings:
            continue  # old ones, beside the answer itself
        here = [verdicts[id(one)] for one in scrape.readings if id(one) in verdicts]
        target = _Target(
            scrape=scrape,
            judged=tuple(here),
            kind=kind,
            twice=scrape.target in before and not scrape.error,
        )
        found += of_target(target) if not scrape.error else [_unanswered(target)]
    order = {"trouble": 0, "note": 1, "ok": 2}
    return sorted(found, key=lambda one: order[one.level])


def _unanswered(target: _Target) -> Symptom:
    error = target.scrape.error
    reason, remedy = divided(error)
    if target.kind == "exporter":
        for begin, command in UNANSWERED.items():
            if error.startswith(begin):
                reason, remedy = error.partition(":")[0], command
    return Symptom(
        kind="no_readings",
        level="trouble",
        place=target.place,
        reason=reason,
        remedy=remedy or "see the log of what was asked there",
    )


def broken(line: str, *, place: str) -> Symptom:
    """Return what is wrong with a source or scheduler as a whole, by its own line."""
    reason, remedy = divided(line)
    return Symptom(
        kind="source_broken",
        level="trouble",
        place=place,
        reason=reason,
        remedy=remedy or "see docs/collection.md, which has a part for each source",
    )


def no_driver() -> Symptom:
    """Return what is wrong where nothing answers on a machine that has no driver."""
    return Symptom(
        kind="no_driver",
        level="trouble",
        place="this machine",
        reason="no driver of a GPU is loaded, and neither exporter nor host engine answers",
        remedy="modprobe nvidia; of another machine ask ofuwatch doctor --target "
        "http://HOST:9400",
    )


def divided(line: str) -> tuple[str, str]:
    """Divide an error of a source into what is wrong and what to do."""
    for mark in ("; ", ": "):
        reason, found, remedy = line.rpartition(mark)
        if found:
            return reason, remedy
    return line, ""


def of_target(target: _Target) -> Iterator[Symptom]:
    """Go through everything that one target's readings can show."""
    looks: Iterable[Callable[[_Target], Iterable[Symptom]]] = (
        _lost, _failing, _verdicts, _counters, _max_clock, _wished, _jobs, _mig,
        _clock, _dropped, _pace, _answered,
    )  # fmt: skip
    for look in looks:
        yield from look(target)


def _answered(target: _Target) -> Iterator[Symptom]:
    usable = sum(one.usable for one in target.judged)
    hosts = sorted({reading.host for reading in target.readings if reading.host})
    where = f" of {', '.join(hosts[:3])}" if hosts else ""
    seen = f"{gpus_text(len(target.readings))}{where}"
    yield Symptom(
        kind="answered",
        level="ok" if usable else "note",
        place=target.place,
        reason=f"{seen}; OFU of {usable}" if usable else f"{seen} answer, none with OFU",
        remedy="" if usable else "see what else is said of this place",
    )


def _counters(target: _Target) -> Iterator[Symptom]:
    every = len(target.readings)
    refused = target.refused
    failing = bool(target.scrape.failing)  # says why there are none, see below
    none = (refused.isdisjoint(_PROFILING) or failing) and all(
        target.lacking(counter) == every for counter in _PROFILING
    )
    if none and not failing:
        yield Symptom(
            kind="no_profiling_counters",
            level="trouble",
            place=target.place,
            reason=f"no profiling counter at all on {gpus_text(every)}",
            remedy=remedies.profile(target.kind),
        )
    for counter in NEEDED:
        lacking = target.lacking(counter)
        if lacking and not ((none or failing) and counter == "tensor_active"):
            # Where some GPUs have it, it is exported; the others' values were none.
            absent = lacking == every and counter not in refused
            yield Symptom(
                kind=f"{counter}_missing" if absent else f"{counter}_blank",
                level="trouble",
                place=target.place,
                reason=f"no {counter} (DCGM field {ROWS[counter][1]}) of {lacking} of "
                f"{gpus_text(every)}",
                remedy=remedies.export(target.kind, (counter,))
                if absent
                else remedies.blank(target.kind, counter),
            )


def _max_clock(target: _Target) -> Iterator[Symptom]:
    lacking = [one for one in target.judged if one.max_clock_source not in REPORTED]
    if not lacking:
        return
    unknown = [one for one in lacking if not one.max_clock_source]
    names = sorted({one.reading.model for one in unknown or lacking})
    models = ", ".join(name or "a model without a name" for name in names)
    setting = f'; or set max_clock_mhz = {{ "{names[-1]}" = MHZ }} under [collect]'
    if unknown:
        reason = (
            f"{gpus_text(len(unknown))} do not tell their maximal clock, and models/gpus.toml "
        )
        reason += f"does not know it of {models}: no OFU"
    else:
        sources = ", ".join(sorted({one.max_clock_source for one in lacking}))
        reason = f"the maximal clock of {models} is not exported; taken from: {sources}"
    yield Symptom(
        kind="max_clock_not_exported",
        level="trouble" if unknown else "note",
        place=target.place,
        reason=reason,
        remedy=remedies.export(target.kind, ("max_sm_clock_mhz",))
        + (setting if names[-1] else ""),
    )


def _wished(target: _Target) -> Iterator[Symptom]:
    every = len(target.readings)
    absent = tuple(name for name in WISHED if every and target.lacking(name) == every)
    if not absent or target.lacking("tensor_active") == every:
        return
    untold = dict.fromkeys(ROWS[name][2] for name in absent)
    yield Symptom(
        kind="counters_not_exported",
        level="note",
        place=target.place,
        reason=f"not told without {', '.join(absent)}: {'; '.join(untold)}",
        remedy=remedies.export(target.kind, absent),
    )


def _jobs(target: _Target) -> Iterator[Symptom]:
    owned = sum(bool(one.jobs or one.reading.handover) for one in target.judged)
    busy = [one for one in target.judged if one.reading.at_work]
    lost = [one for one in busy if one.nameless]
    if lost:
        yield Symptom(
            kind="no_jobs_named",
            level="trouble",
            place=target.place,
            reason=f"{gpus_text(len(lost))} at work for no job that anything names",
            remedy=remedies.naming(target.kind),
        )
    elif not owned:
        yield Symptom(
            kind="idle",
            level="note",
            place=target.place,
            reason="no GPU is at work or has a job: whether jobs are named can't be told",
            remedy="look again while a job runs",
        )


def _failing(target: _Target) -> Iterator[Symptom]:
    word = target.scrape.failing
    if not word:
        return
    kind = word if word in _FAILING else "failing"
    whose: defaultdict[str, list[str]] = defaultdict(list)
    for one in target.scrape.refusals:
        whose[one.reason] += [one.gpu] if one.gpu else []
    for why, gpus in whose.items() or ((word, []),):
        reason, remedy = divided(why)
        yield Symptom(
            kind=kind,
            level="trouble",
            place=target.place,
            reason=f"{kind.replace('_', ' ')}: {reason}{_named(gpus)}",
            remedy=remedy or "see the log of the host engine",
        )


def _verdicts(target: _Target) -> Iterator[Symptom]:
    by_word: defaultdict[Quality, list[Judged]] = defaultdict(list)
    for one in target.judged:
        if one.quality not in ("ok", target.scrape.failing):
            by_word[one.quality].append(one)
    for word, bad in by_word.items():
        yield Symptom(
            kind=word,
            level="note" if word == "handover" else "trouble",
            place=target.place,
            reason=f"{gpus_text(len(bad))}: {bad[0].reason}",
            remedy=remedies.bad(target.kind, word),
        )


def _mig(target: _Target) -> Iterator[Symptom]:
    slices = [reading for reading in target.readings if reading.mig_scaling_uncertain]
    if slices:
        profiles = Counter(reading.profile or "?" for reading in slices)
        yield Symptom(
            kind="mig_scaling_uncertain",
            level="note",
            place=target.place,
            reason=f"{len(slices)} MIG instances ({', '.join(sorted(profiles))}) before "
            "Hopper: their OFU can't be compared with each other's, and is not",
            remedy="nothing to mend; compare an instance with its own past alone",
        )


def _clock(target: _Target) -> Iterator[Symptom]:
    said = target.scrape.time_ms
    if said is not None and abs(off := said - target.scrape.asked_ms) > CLOCK_OFF_MS:
        yield Symptom(
            kind="clock_off",
            level="trouble",
            place=target.place,
            reason=f"its clock is {off / 1000:+.0f} s from the one here",
            remedy="timedatectl set-ntp true (on whichever of the two is wrong)",
        )


def _lost(target: _Target) -> Iterator[Symptom]:
    for one in target.scrape.dropped:
        if one.metric not in _WHOLE:
            continue
        kind, level = _WHOLE[one.metric]
        reason, remedy = divided(one.reason)
        yield Symptom(
            kind=kind,
            level=level,
            place=target.place,
            reason=f"{one.gpu}: {reason}",
            remedy=remedy or "dmesg | grep Xid on the node, then reboot it",
        )


def _dropped(target: _Target) -> Iterator[Symptom]:
    # A shared GPU is listed once for each of its jobs: that is no fault.
    dropped = [
        one
        for one in target.scrape.dropped
        if one.metric not in _WHOLE
        and one not in target.scrape.refusals
        and not one.reason.startswith(_SHARED)
    ]
    if not dropped:
        return
    common, _ = Counter(one.reason for one in dropped).most_common(1)[0]
    first = next(one for one in dropped if one.reason == common)
    yield Symptom(
        kind="values_left_out",
        level="note",
        place=target.place,
        reason=f"{len(dropped)} left out of its values, such as {first}",
        remedy="`ofuwatch collect --once` lists them; counters that a GPU does not have may be "
        "left out of what is collected",
    )


def _pace(target: _Target) -> Iterator[Symptom]:
    busy = [one for one in target.judged if one.reading.at_work]
    if not target.twice:
        yield Symptom(
            kind="pace_unknown",
            level="note",
            place=target.place,
            reason="asked once: whether values repeat, stand still or change hands is unknown",
            remedy="ask a running source, with --wait 10s or more",
        )
    elif busy and all(one.repeat for one in busy):
        yield Symptom(
            kind="slow_collection",
            level="note",
            place=target.place,
            reason="the values are the same as in the round before: it collects more seldom "
            "than it is asked; repeats are not counted as evidence",
            remedy=remedies.pace(target.kind),
        )


def _named(gpus: Sequence[str]) -> str:
    """Return which GPUs something is true of, where that is told."""
    if not gpus:
        return ""
    return f" ({gpus[0]}" + (f" and {len(gpus) - 1} more)" if gpus[1:] else ")")
