"""From rows as files hold them to one window a job: what a collector would have written."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detector.fleet import Gpu, Job
from detector.series import FloatArray, IntArray, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """A column of few names and many rows: ``names[codes[k]]`` is the name of row k."""

    codes: IntArray
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one file, in its order. Shapes ``(n,)``.

    Attributes
    ----------
    metric
        Catalogue names; None where the file has no such column: all OFU.
    gpu
        Names of GPUs, empty for the job as a whole; None where there is no such column.
    """

    times_ms: IntArray
    values: FloatArray
    job: Labels
    metric: Labels | None = None
    gpu: Labels | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The samples of one metric of one job or GPU, sorted by time, each time once."""

    metric: str
    gpu: str
    times_ms: IntArray
    values: FloatArray


def gathered(files: Iterable[Rows]) -> dict[str, tuple[Job, Window]]:
    """Return each job's history by its id, jobs in order of their ids.

    A job may be spread over several files. A time that is there twice keeps its first value,
    as a stream would.

    Raises
    ------
    ValueError
        When a job has no OFU.
    """
    found: dict[str, dict[tuple[str, str], list[tuple[IntArray, FloatArray]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rows in files:
        for job, metric, gpu, at in _series(rows):
            found[job][metric, gpu].append((rows.times_ms[at], rows.values[at]))
    return {
        job: _history(job, [_part(*key, pieces) for key, pieces in sorted(found[job].items())])
        for job in sorted(found)
    }


def _series(rows: Rows) -> Iterator[tuple[str, str, str, IntArray]]:
    """Yield job, metric, GPU and the places of their rows, for each that has any."""
    alone = Labels(codes=np.zeros(1, np.int64), names=("ofu",))
    metric, gpu = rows.metric or alone, rows.gpu or Labels(codes=alone.codes, names=("",))
    code = (rows.job.codes * len(metric.names) + metric.codes) * len(gpu.names) + gpu.codes
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    for first, end in zip(starts, np.append(starts[1:], len(code)), strict=True):
        rest, of_gpu = divmod(int(code[order[first]]), len(gpu.names))
        of_job, of_metric = divmod(rest, len(metric.names))
        names = rows.job.names[of_job], metric.names[of_metric], gpu.names[of_gpu]
        yield *names, order[first:end]


def _part(metric: str, gpu: str, pieces: Sequence[tuple[IntArray, FloatArray]]) -> _Part:
    times, values = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    times, first = np.unique(times, return_index=True)
    return _Part(metric=metric, gpu=gpu, times_ms=times, values=values[first])


def _history(job: str, parts: Sequence[_Part]) -> tuple[Job, Window]:
    """Put the series of one job on the time axis of its OFU.

    Another series' sample belongs to the OFU entry at its time or the next one after it, as if
    one collector had written both; the latest one where there are several.
    """
    whole = [part for part in parts if part.metric == "ofu" and not part.gpu]
    each = [part for part in parts if part.metric == "ofu" and part.gpu]
    if not whole and not each:
        msg = (
            f"job {job[:80]!r} has no OFU: it needs rows of the metric ofu "
            "(or no metric column, which means OFU)"
        )
        raise ValueError(msg)
    axis = whole[0].times_ms if whole else _scrapes([part.times_ms for part in each])
    fields = {part.metric: _onto(axis, part) for part in parts if not part.gpu}
    fields = {**_means(axis, parts), **fields}
    if not each:
        return Job(id=job), Window(times_ms=axis, fields=fields)
    each.sort(key=lambda part: _natural(part.gpu))
    matrix = np.column_stack([_onto(axis, part) for part in each])
    reporting = np.isfinite(matrix).sum(axis=1).astype(np.float64)
    roster = tuple(Gpu(uuid=part.gpu, index=k) for k, part in enumerate(each))
    return Job(id=job, roster=roster), Window(
        times_ms=axis, fields={"gpus": reporting, **fields}, gpus=matrix
    )


def _scrapes(clocks: Sequence[IntArray]) -> IntArray:
    """Return the ends of the scrapes that a job's GPUs were read in.

    Hosts are rarely read in the same millisecond. Times that lie within half of a GPU's usual
    step are one scrape; without that, each entry would hold one GPU and miss all others.
    """
    axis = np.unique(np.concatenate(clocks))
    steps = [float(np.median(np.diff(clock))) for clock in clocks if len(clock) > 1]
    if not steps or len(axis) == max(len(clock) for clock in clocks):
        return axis
    half = np.median(steps) / 2
    ends, first = [], 0
    while first < len(axis):
        first = int(np.searchsorted(axis, axis[first] + half))
        ends.append(first - 1)
    return axis[ends]


def _onto(axis: IntArray, part: _Part) -> FloatArray:
    """Return the part's values at the entries of ``axis``; NaN where it has none."""
    column = np.full(len(axis), np.nan)
    place = np.searchsorted(axis, part.times_ms)
    inside = place < len(axis)
    column[place[inside]] = part.values[inside]
    return column


def _means(axis: IntArray, parts: Iterable[_Part]) -> Mapping[str, FloatArray]:
    """Return the mean over the GPUs of every metric that was recorded by GPU."""
    by_metric: dict[str, list[FloatArray]] = defaultdict(list)
    for part in parts:
        if part.gpu:
            by_metric[part.metric].append(_onto(axis, part))
    means = {}
    for metric, columns in by_metric.items():
        matrix = np.column_stack(columns)
        known = np.isfinite(matrix)
        total, count = np.where(known, matrix, 0.0).sum(axis=1), known.sum(axis=1)
        # Rounded to float32 as every value is, so that a replay sees what a stream would hold.
        mean = np.divide(total, count, out=np.full(len(axis), np.nan), where=count > 0)
        means[metric] = mean.astype(np.float32).astype(np.float64)
    return means


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key by which ``w2`` comes before ``w10``."""
    key, digits = [], ""
    for character in name:
        if character.isdecimal() and character.isascii():
            digits += character
            continue
        if digits:
            key.append((int(digits[:18]), ""))
            digits = ""
        key.append((-1, character))
    return (*key, (int(digits[:18]), "")) if digits else tuple(key)
