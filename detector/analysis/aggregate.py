"""From GPUs to jobs: a host's part of a job's scrape, and the parts of all its hosts as one.

The mean is over the GPUs that report, whichever hosts they are on; a GPU that several jobs
share counts for each of them. Both steps are pure; the inbox waits for late hosts in between.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from detector.analysis.quality import Judged
from detector.fleet import Gpu
from detector.reading import Reading

# Catalogue metric -> the counters whose sum it is.
COUNTERS_OF: Mapping[str, tuple[str, ...]] = {
    "tensor": ("tensor_active",),
    "clock": ("sm_clock_mhz",),
    "sm": ("sm_active",),
    "dram": ("dram_active",),
    "power": ("power_w",),
    "nvlink": ("nvlink_tx_bytes", "nvlink_rx_bytes"),
    "pcie": ("pcie_tx_bytes", "pcie_rx_bytes"),
}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one host reported of one job at one time.

    Attributes
    ----------
    ofu
        Mean over the GPUs that are usable; NaN where none is.
    gpus
        How many those are.
    fields
        Other metrics by their catalogue names: means over the same GPUs.
    roster
        The job's GPUs on this host, in the order of their index. A MIG instance stands there
        as ``<uuid>/<instance>``.
    gpu_ofu
        OFU of each, in that order; NaN where it is not usable, or can't be held to the others'.
    faults
        Verdict -> how many GPUs are not usable by it. One that lacks a counter is ``blank``.
    fresh
        Whether any of it is new: a part of repeats alone only stands in for its host. That
        no GPU can be used is new each time.
    """

    job: str
    host: str
    time_ms: int
    ofu: float = math.nan
    gpus: int = 0
    fields: Mapping[str, float] = msgspec.field(default_factory=dict)
    roster: tuple[Gpu, ...] = ()
    gpu_ofu: tuple[float, ...] = ()
    faults: Mapping[str, int] = msgspec.field(default_factory=dict)
    fresh: bool = True

    def without(self, uuids: Collection[str]) -> Self:
        """Return the part without some GPUs' OFU, which other parts tell."""
        kept = [
            math.nan if gpu.uuid in uuids else value
            for gpu, value in zip(self.roster, self.gpu_ofu, strict=True)
        ]
        usable = [value for value in kept if not math.isnan(value)]
        return msgspec.structs.replace(
            self, ofu=_mean(usable), gpus=len(usable), gpu_ofu=tuple(kept)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One scrape of a job, of all its hosts.

    Attributes
    ----------
    ofu
        Mean over the usable GPUs of all hosts; NaN where there is none.
    gpus
        How many those are.
    gpu_ofu
        OFU of each GPU in the roster's order, NaN for no data; empty without a roster.
    faults
        Host, verdict, and how many of the host's GPUs are not usable by it.
    """

    ofu: float
    gpus: int
    fields: Mapping[str, float]
    gpu_ofu: tuple[float, ...] = ()
    faults: tuple[tuple[str, str, int], ...] = ()

    @property
    def unusable(self) -> int:
        """How many GPUs answer and cannot be used."""
        return sum(count for _, _, count in self.faults)


def parts(judged: Iterable[Judged], *, time_ms: int) -> tuple[Part, ...]:
    """Return the part of each job and host, from one round's readings.

    Parameters
    ----------
    time_ms
        The round's own time, by our clock: hosts whose clocks differ still come together.
    """
    grouped: defaultdict[tuple[str, str], list[Judged]] = defaultdict(list)
    for (job, _), one in best_of(judged).items():
        grouped[job, one.reading.host].append(one)
    return tuple(
        _part(job, host, sorted(here, key=lambda one: place_of(one.reading)), time_ms=time_ms)
        for (job, host), here in grouped.items()
    )


def best_of(judged: Iterable[Judged]) -> Mapping[tuple[str, str], Judged]:
    """Return job and entity -> the reading that counts: the best, where targets show several.

    Whatever they call its host. An exporter that stands still still names the job of before:
    that counts no longer where another one has a usable reading for the job of now.
    """
    best: dict[tuple[str, str], Judged] = {}
    for one in judged:
        for job in one.jobs:
            key = job, one.reading.entity
            other = best.get(key)
            if other is None or (one.usable, not one.repeat) > (other.usable, not other.repeat):
                best[key] = one
    working = {entity for (_, entity), one in best.items() if one.usable}
    if all(one.usable or key[1] not in working for key, one in best.items()):
        return best
    return {key: one for key, one in best.items() if one.usable or key[1] not in working}


def place_of(reading: Reading) -> tuple[int, str, str]:
    """Return the place of a GPU among its host's: by number where they have one."""
    number = int(reading.index) if reading.index.isdecimal() else 1 << 30
    return number, reading.uuid, reading.instance


def _part(job: str, host: str, here: Sequence[Judged], *, time_ms: int) -> Part:
    usable = [one for one in here if one.usable]
    return Part(
        job=job,
        host=host,
        time_ms=time_ms,
        ofu=_mean([one.ofu for one in usable]),
        gpus=len(usable),
        fields=_fields([one.reading for one in usable]),
        roster=tuple(gpu_of(one.reading) for one in here),
        gpu_ofu=tuple(
            one.ofu if one.usable and not one.reading.mig_scaling_uncertain else math.nan
            for one in here
        ),
        faults=dict(Counter(fault_of(one) for one in here if not one.usable)),
        fresh=any(not one.repeat for one in usable) if usable else True,
    )


def fault_of(one: Judged) -> str:
    """Return why a reading that is not usable is not."""
    return "blank" if one.quality == "ok" else one.quality


def _fields(readings: Sequence[Reading]) -> dict[str, float]:
    found = {}
    told = [reading.values for reading in readings]
    for name, counters in COUNTERS_OF.items():
        sums = []
        for values in told:
            total = 0.0
            for counter in counters:
                total += values.get(counter, math.nan)
            if not math.isnan(total):
                sums.append(total)
        if sums:
            found[name] = _mean(sums)
    return found


def gpu_of(reading: Reading) -> Gpu:
    """Return a reading's GPU or instance, as rosters have it."""
    index = int(reading.index) if reading.index.isdecimal() else None
    return Gpu(uuid=reading.entity, host=reading.host, index=index)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def merge(found: Sequence[Part], roster: Sequence[Gpu] = ()) -> Merged | None:
    """Return a job's scrape from its hosts' parts; None when nothing in them is new.

    A host counts by its usable GPUs; a GPU that two hosts' parts name counts once, by the later
    one. A host without any makes no news of what the others repeat.
    """
    telling = [part for part in found if part.gpus] or found
    if not any(part.fresh for part in telling):
        return None
    latest = {part.host: part for part in sorted(found, key=lambda part: part.time_ms)}
    hosts = _each_once(sorted(latest.values(), key=lambda part: part.host))
    total = sum(part.gpus for part in hosts)
    fields: dict[str, float] = {}
    for name in dict.fromkeys(name for part in hosts for name in part.fields):
        having = [part for part in hosts if part.gpus and name in part.fields]
        counted = sum(part.gpus for part in having)
        if counted:
            fields[name] = math.fsum(part.gpus * part.fields[name] for part in having) / counted
    mean = math.fsum(part.gpus * part.ofu for part in hosts if part.gpus)
    return Merged(
        # A mean of ratios is one, but for the last bit.
        ofu=min(1.0, max(0.0, mean / total)) if total else math.nan,
        gpus=total,
        fields=fields,
        gpu_ofu=_vector(hosts, roster),
        faults=tuple(
            (part.host, quality, count)
            for part in hosts
            for quality, count in sorted(part.faults.items())
        ),
    )


def _each_once(hosts: Sequence[Part]) -> list[Part]:
    """Return the parts with no GPU in two of them: a host may have two names for a while."""
    seen = Counter(gpu.uuid for part in hosts for gpu in part.roster)
    if len(seen) == seen.total():
        return list(hosts)
    taken: set[str] = set()
    kept = []
    for part in sorted(hosts, key=lambda part: part.time_ms, reverse=True):
        own = {gpu.uuid for gpu in part.roster}
        kept.append(part.without(taken) if own & taken else part)
        taken |= own
    return sorted(kept, key=lambda part: part.host)


def _vector(hosts: Sequence[Part], roster: Sequence[Gpu]) -> tuple[float, ...]:
    if not roster:
        return ()
    values = {
        gpu.uuid: value
        for part in hosts
        for gpu, value in zip(part.roster, part.gpu_ofu, strict=True)
        if not math.isnan(value)
    }
    return tuple(values.get(gpu.uuid, math.nan) for gpu in roster)


# What people do about a verdict.
_RESTART = "restart the host engine or exporter, or reset the GPU where there is neither"
_REMEDIES = {
    "unreachable": "the collector's log and ofuwatch doctor say why",
    "stale": "see whether the exporter or host engine still collects",
    "frozen": _RESTART,
    "blank": "see with ofuwatch doctor which counters are missing, and why",
    "zero_mismatch": _RESTART,
    "contention": "end the other profiler on the host",
    "out_of_bounds": "see which maximal clock is right; [collect] max_clock_mhz sets it",
}
_HOSTS_TOLD = 3  # the worst; the others are a number


def in_words(faults: Iterable[tuple[str, str, int]]) -> str:
    """Return which GPUs cannot be used and why, worst first, and what to do: one line."""
    by_quality: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for host, quality, count in faults:
        by_quality[quality].append((count, host))
    told = []
    order = sorted(by_quality.items(), key=lambda item: (-sum(n for n, _ in item[1]), item[0]))
    for quality, hosts in order:
        worst = sorted(hosts, key=lambda host: (-host[0], host[1]))
        where = [f"{gpus_text(count)} of {host}" for count, host in worst[:_HOSTS_TOLD]]
        if rest := worst[_HOSTS_TOLD:]:
            others = "another host" if len(rest) == 1 else f"{len(rest)} hosts more"
            where += [f"{gpus_text(sum(n for n, _ in rest))} of {others}"]
        remedy = _REMEDIES.get(quality)
        told.append(f"{quality}: {', '.join(where)}" + (f" ({remedy})" if remedy else ""))
    return "; ".join(told)


def gpus_text(count: int) -> str:
    """Return a number of GPUs in words."""
    return f"{count} GPU{'s' if count != 1 else ''}"
