"""Entries of many jobs side by side, and how they become a batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detector.series import Batch, FloatArray, IntArray, Reject, SmallArray

BoolArray = npt.NDArray[np.bool_]


class Part(NamedTuple):
    """Entries of some jobs: shape ``(m,)`` each; ``number`` is the job's in this call.

    ``gpus`` are the values of all entries' GPUs, flat, of which ``gpu_counts`` are each one's;
    None where no entry has any.
    """

    number: IntArray
    times_ms: IntArray
    fields: dict[str, FloatArray]
    gpus: SmallArray | None = None
    gpu_counts: IntArray | None = None


def only(part: Part, kept: BoolArray) -> Part:
    """Return the rows that are kept."""
    fields = {name: values[kept] for name, values in part.fields.items()}
    gpus, counts = part.gpus, part.gpu_counts
    if gpus is not None and counts is not None:
        gpus, counts = gpus[np.repeat(kept, counts)], counts[kept]
    return Part(part.number[kept], part.times_ms[kept], fields, gpus, counts)


def assembled(
    jobs: Sequence[str], parts: Sequence[Part], *, rejects: tuple[Reject, ...], more: bool
) -> Batch:
    """Return the parts as one batch, each job's entries together."""
    number = np.concatenate([np.empty(0, np.int64), *(part.number for part in parts)])
    times = np.concatenate([np.empty(0, np.int64), *(part.times_ms for part in parts)])
    names = dict.fromkeys(["ofu", *(name for part in parts for name in part.fields)])
    fields = {}
    for name in names:
        column = np.full(number.size, np.nan)
        at = 0
        for part in parts:
            if name in part.fields:
                column[at : at + part.number.size] = part.fields[name]
            at += part.number.size
        fields[name] = column
    gpus, counts = _gpus(parts)
    if (np.diff(number) < 0).any():
        order = np.argsort(number, kind="stable")
        number, times = number[order], times[order]
        fields = {name: column[order] for name, column in fields.items()}
        if gpus is not None and counts is not None:
            gpus, counts = _reordered(gpus, counts, order), counts[order]
    heads = np.diff(number, prepend=-1) != 0
    return Batch(
        jobs=tuple(jobs[at] for at in number[heads].tolist()),
        job=np.cumsum(heads) - 1,
        times_ms=times,
        fields=fields,
        rejects=rejects,
        more=more,
        gpus=gpus,
        gpu_counts=counts,
    )


def _gpus(parts: Sequence[Part]) -> tuple[SmallArray | None, IntArray | None]:
    """Return all parts' GPUs, flat, and how many are each entry's."""
    flat = [part.gpus for part in parts if part.gpus is not None]
    if not flat:
        return None, None
    counts = [
        np.zeros(part.number.size, np.int64) if part.gpu_counts is None else part.gpu_counts
        for part in parts
    ]
    return np.concatenate(flat), np.concatenate(counts)


def _reordered(gpus: SmallArray, counts: IntArray, order: IntArray) -> SmallArray:
    ends = np.cumsum(counts)
    first, size = (ends - counts)[order], counts[order]
    shift = first - (np.cumsum(size) - size)
    return gpus[np.repeat(shift, size) + np.arange(len(gpus))]
