"""The past of jobs that are seen for the first time, out of a Prometheus server.

With it a job has a baseline at once, where it would have to be watched for an hour first. Raw
samples are asked for (a range selector in an instant query), not ``query_range``: they carry
their own times, are no copies of each other, and know no limit of 11,000 points
(docs/decisions/0015-pasts-are-raw-samples.md).
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from detector.analysis.aggregate import Part
from detector.analysis.maxclock import MaxClocks
from detector.analysis.past import Past, bring_together, pace_ms
from detector.reading import Reading
from detector.telemetry.background import ahead
from detector.telemetry.layout import entity_of
from detector.telemetry.line import Labels
from detector.telemetry.pasts import pasts_of
from detector.telemetry.prometheus import (
    Origins,
    Prometheus,
    Track,
    host_of,
    names_of,
    selector,
)
from detector.telemetry.source import TooMuch
from detector.telemetry.whose import Whose

# What a history is made of.
_COUNTERS = ("tensor_active", "sm_clock_mhz", "sm_active", "dram_active", "power_w")

# Traffic is evidence of what a fall is, against the hour before it, and teaches no level: it is
# asked for as far back as a fall within the last hour needs.
_TRAFFIC = ("nvlink_tx_bytes", "nvlink_rx_bytes", "pcie_tx_bytes", "pcie_rx_bytes")
_TRAFFIC_MS = 7_200_000

# What tells a dead collector from an idle GPU; asked for only where tensor activity is 0.
_WITNESSES = ("gr_engine_active", "gpu_util_pct", "power_limit_w")

# Samples in one answer: 20 MB of JSON, and as much in arrays. Chosen: the server makes the next
# answer while one is used, so smaller ones are quicker, and each series costs something. Where
# that is too much for a server, half is asked for.
_SAMPLES = 1_000_000

# Samples of all jobs together; beyond that all have a shorter past. 1 h of 100 jobs of 100 GPUs
# has 18 million. Chosen: what two cores do in a minute and a half, while jobs are held back.
_MOST = 40_000_000

# What is read before a slice of time, so that its first readings have a past: longer than
# quality takes to call a reading frozen.
_BEFORE_MS = 360_000

# Slices meet at multiples of this, where slots of all usual intervals do; none is shorter.
_SLICE_MS = 300_000

# Answers that take longer are given up. Chosen: half of what jobs are held back for.
_TIMEOUT_S = 60.0


def backfill(
    source: Prometheus,
    found: Iterable[Reading],
    whose: Whose,
    *,
    start_ms: int,
    end_ms: int,
    every_ms: int,
    max_clocks: MaxClocks,
) -> Iterator[Part]:
    """Return the scrapes of jobs within ``[start_ms, end_ms)``, each job's oldest first.

    Parameters
    ----------
    found
        Readings of the jobs' GPUs as they are now, with their jobs.
    every_ms
        What a job has at most one sample in; where it is scraped more seldom, its interval.

    Raises
    ------
    SourceError
        When the server doesn't answer; what was handed out before stands.
    """
    gpus: defaultdict[str, dict[str, Reading]] = defaultdict(dict)
    for reading in found:
        for job in reading.jobs:
            gpus[job][reading.entity] = reading
    scrape_ms = source.interval_ms or every_ms
    series = len({entity for own in gpus.values() for entity in own}) * len(_COUNTERS)
    start_ms = max(start_ms, end_ms - _MOST // max(1, series) * scrape_ms)
    start_ms -= start_ms % every_ms
    slices = _slices(source, gpus, whose, start_ms=start_ms, end_ms=end_ms, scrape_ms=scrape_ms)
    paces: dict[str, int] = {}
    for one in ahead(slices, name="past:ask"):
        pasts = pasts_of(one.seen, one.known, whose)
        for slot_ms, jobs in _by_pace(pasts, one.jobs, paces, every_ms).items():
            yield from bring_together(
                pasts, max_clocks, start_ms=one.start_ms, end_ms=one.end_ms, slot_ms=slot_ms,
                jobs=frozenset(jobs),
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """What the server has of some jobs for some time, and of a while before it."""

    jobs: Sequence[str]
    known: Mapping[str, Reading]
    start_ms: int
    end_ms: int
    seen: tuple[Track, ...]


def _slices(
    source: Prometheus,
    gpus: Mapping[str, Mapping[str, Reading]],
    whose: Whose,
    *,
    start_ms: int,
    end_ms: int,
    scrape_ms: int,
) -> Iterator[_Slice]:
    """Ask for all jobs' GPUs, for as many and as long at once as the server answers."""
    most, origins = _SAMPLES, Origins(source.settings.replica_labels)
    for jobs in _batches(gpus, (end_ms - start_ms) // scrape_ms + 1):
        known = {one.entity: one for job in jobs for one in gpus[job].values()}
        known |= _former(source, known, whose, jobs, start_ms=start_ms, end_ms=end_ms)
        points = len(known) * len(_COUNTERS)
        begin = start_ms
        while begin < end_ms:
            upto = begin + max(_SLICE_MS, most // points * scrape_ms)
            end = min(upto - upto % _SLICE_MS, end_ms)
            counters = _COUNTERS + (_TRAFFIC if end > end_ms - _TRAFFIC_MS else ())
            try:
                seen = _asked(
                    source, origins, known, counters, start_ms=begin - _BEFORE_MS, end_ms=end
                )
            except TooMuch:
                if end - begin <= _SLICE_MS:
                    raise
                most = (end - begin) // scrape_ms * points // 2
                continue
            yield _Slice(jobs=jobs, known=known, start_ms=begin, end_ms=end, seen=seen)
            begin = end


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


def _former(
    source: Prometheus,
    known: Mapping[str, Reading],
    whose: Whose,
    jobs: Collection[str],
    *,
    start_ms: int,
    end_ms: int,
) -> dict[str, Reading]:
    """Return the GPUs that the jobs had at some time and do not have now, by their labels."""
    marks: defaultdict[str, set[str]] = defaultdict(set)
    for reading in known.values():
        for label, value in whose.marks(reading):
            if _LABEL.fullmatch(label):
                marks[label].add(_quoted(value))
    if not marks:
        return {}
    names, select = names_of(("tensor_active",)), source.settings.select
    asked = [
        selector(names, select, f'{label}=~"{"|".join(sorted(values))}"')
        for label, values in sorted(marks.items())
    ]
    # Of a GPU's maximal clock its own word is lost; others of the model have the same.
    alike = {one.model: one.values for one in known.values()}
    found: dict[str, Reading] = {}
    for written in source.api.series(asked, start_ms=start_ms, end_ms=end_ms):
        labels = Labels(written)
        entity = entity_of([labels])
        reading = entity.reading(
            alike.get(entity.model, {}),
            time_ms=start_ms,
            own_clock=False,
            host=host_of(labels),
        )
        if entity.uuid and reading.entity not in known and not whose.is_cut(reading):
            owners = whose.named(reading)
            if not set(owners).isdisjoint(jobs):
                found[reading.entity] = msgspec.structs.replace(reading, jobs=owners)
    return found


def _asked(
    source: Prometheus,
    origins: Origins,
    known: Mapping[str, Reading],
    counters: Iterable[str],
    *,
    start_ms: int,
    end_ms: int,
) -> tuple[Track, ...]:
    """Return the series of some GPUs within ``[start_ms, end_ms)``."""
    uuids = "|".join(sorted({_quoted(reading.uuid) for reading in known.values()}))

    def ask(wanted: Iterable[str]) -> tuple[Track, ...]:
        found: tuple[Track, ...] = ()
        for label in sorted(source.spellings):
            chosen = selector(names_of(wanted), source.settings.select, f'{label}=~"{uuids}"')
            query = f"{chosen}[{end_ms - start_ms}ms]"
            answer = source.api.query(query, at_ms=end_ms - 1, timeout_s=_TIMEOUT_S)
            found += origins.tracks(answer.series)
        return found

    seen = ask(counters)
    tensors = (one for one in seen if one.origin.counter.name == "tensor_active")
    idle = any((one.values == 0).any() for one in tensors)
    return seen + ask(_WITNESSES) if idle else seen


_LABEL = re.compile(r"[a-zA-Z_]\w*", re.ASCII)
_PLAIN = re.compile(r"([^0-9A-Za-z_:/ -])")


def _quoted(text: str) -> str:
    """Return a text as a regular expression within a PromQL string."""
    return _PLAIN.sub(r"\\\1", text).replace("\\", "\\\\").replace('"', '\\"')


def _by_pace(
    pasts: Sequence[Past], jobs: Iterable[str], known: dict[str, int], least_ms: int
) -> dict[int, list[str]]:
    """Return the jobs by the interval at which their GPUs are scraped, now or lately."""
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for past in pasts:
        if (step_ms := past.step_ms) is not None:
            for job in {job for owners in past.jobs for job in owners}:
                steps[job].append(step_ms)
    found: defaultdict[int, list[str]] = defaultdict(list)
    for job in jobs:
        if (pace := pace_ms(steps[job])) is not None:
            known[job] = max(pace, least_ms)
        found[known.get(job, least_ms)].append(job)
    return found
