"""Entries of the inbox: how collectors write a host's part, and how any entry is read.

job J ts T v 0.41 n 8 bad 1        as in a history; with ``host H`` it is that host's part
g <packed OFU> u 0:GPU-1,1:GPU-2   of the host's own GPUs, and which those are
q zero_mismatch:1                  why how many of them cannot be used
held 1                             nothing in it is new: it only stands in for its host
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan, nan

import numpy as np

from detector.analysis.aggregate import Part
from detector.analysis.derived import REPORTED
from detector.fleet import Gpu
from detector.series import FloatArray
from detector.store.about import time_ms
from detector.store.entries import encode, entry_ms, gpu_codes, gpu_values, pack_all
from detector.store.keys import is_job

# A host that its source does not name: its parts are one host's all the same.
NAMELESS = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One readable entry of the inbox.

    Attributes
    ----------
    fields
        By catalogue names; ``ofu`` is always there, NaN for none.
    gpus
        OFU of the GPUs, in the order of ``roster`` where that is told.
    faults
        Verdict -> how many of the GPUs are not usable by it.
    fresh
        Whether anything in it is new.
    """

    id: bytes
    job: str
    host: str
    time_ms: int
    fields: Mapping[str, float]
    gpus: FloatArray | None = None
    roster: tuple[Gpu, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    fresh: bool = True

    @property
    def reports(self) -> bool:
        """Whether it is the job's own report: no OFU, and nobody counted GPUs."""
        counted = ("ofu", "gpus", "unusable")
        return not self.host and all(isnan(self.fields.get(name, nan)) for name in counted)

    @property
    def telling(self) -> tuple[bool, bool]:
        """How much it says of its host, for want of a better one of two: a value, a new one."""
        return not isnan(self.fields["ofu"]), self.fresh

    @property
    def counted(self) -> float:
        """How many GPUs its OFU is the mean of; NaN where it does not say."""
        return self.fields.get("gpus", nan)

    def part(self, roster: Sequence[Gpu]) -> Part:
        """Return it as its host's part; without a count a host weighs as one GPU.

        Parameters
        ----------
        roster
            The host's GPUs, for an entry that does not say whose its values are.
        """
        own = self.roster or tuple(roster)
        values = () if self.gpus is None else tuple(self.gpus.tolist())
        known = len(own) == len(values)
        none = isnan(self.fields["ofu"])
        weight = 0 if none else 1 if isnan(self.counted) else round(self.counted)
        return Part(
            job=self.job,
            host=self.host,
            time_ms=self.time_ms,
            ofu=self.fields["ofu"],
            gpus=weight,
            fields={
                name: value
                for name, value in self.fields.items()
                if name not in ("ofu", "gpus", "unusable") and not isnan(value)
            },
            roster=own if known else (),
            gpu_ofu=values if known else (),
            faults=self.faults,
            fresh=self.fresh,
        )


def written(parts: Sequence[Part]) -> list[list[str | bytes]]:
    """Return the fields of each part's entry, ``[name, text, ...]``."""
    packed = pack_all([np.array(part.gpu_ofu, dtype=np.float64) for part in parts])
    return [_written(part, gpus) for part, gpus in zip(parts, packed, strict=True)]


def _written(part: Part, gpus: bytes) -> list[str | bytes]:
    unusable = sum(part.faults.values())
    fields = {**part.fields, "gpus": float(part.gpus), "unusable": float(unusable)}
    flat: list[str | bytes] = ["job", part.job, "host", part.host or NAMELESS]
    flat += ["ts", str(part.time_ms), *encode(part.ofu, fields)]
    if part.roster:
        flat += ["u", ",".join(_named(gpu) for gpu in part.roster)]
        flat += ["g", gpus]
    if not part.fresh:
        flat += ["held", "1"]
    if part.faults:
        flat += ["q", ",".join(f"{name}:{count}" for name, count in part.faults.items())]
    return flat


def _named(gpu: Gpu) -> str:
    return gpu.uuid if gpu.index is None else f"{gpu.index}:{gpu.uuid}"


def read(
    entry: bytes,
    given: Mapping[bytes, bytes],
    *,
    job: str,
    time_ms: int,
    fields: Mapping[str, float],
    packed: bytes,
) -> Letter:
    """Return an entry whose job, time and metrics have been read."""
    host = given.get(b"host", b"")
    codes = gpu_codes([packed])
    faults = _faults(given.get(b"q", b""))
    unusable = fields.get("unusable", nan)
    if not faults and unusable > 0:
        faults = {"unusable": round(unusable)}
    return Letter(
        id=entry,
        job=job,
        host=host.decode("utf-8", "replace"),
        time_ms=time_ms,
        fields=fields,
        gpus=None if codes is None else gpu_values(codes)[0],
        roster=roster_of(host, given.get(b"u", b"")),
        faults=faults,
        fresh=given.get(b"held") != b"1",
    )


@lru_cache(maxsize=32_768)  # hosts say the same at every scrape; a large fleet has 12,500
def roster_of(host: bytes, text: bytes) -> tuple[Gpu, ...]:
    """Return a host's GPUs as ``u`` names them: UUIDs, each with its number before it."""
    name = host.decode("utf-8", "replace")
    gpus = []
    for item in filter(None, text.decode("utf-8", "replace").split(",")):
        index, colon, uuid = item.partition(":")
        numbered = bool(colon) and index.isascii() and index.isdecimal()
        uuid = uuid if numbered else item
        gpus.append(Gpu(uuid=uuid, host=name, index=int(index) if numbered else None))
    return tuple(gpus)


def _faults(text: bytes) -> dict[str, int]:
    """Return verdicts and counts; what is none is left out."""
    found = {}
    for item in filter(None, text.decode("utf-8", "replace")[:1024].split(",")):
        name, _, count = item.rpartition(":")
        if name and count.isascii() and count.isdecimal() and len(count) < 9 and int(count):
            found[name[:64]] = int(count)
    return found


def job_of(text: bytes) -> str:
    """Return the job's id, or "" when no key can be made of it."""
    job = text.decode("utf-8", "surrogateescape")
    return job if is_job(job) else ""


def time_of(text: bytes | None, entry: bytes) -> int | None:
    """Return the time of an entry, ms: its ``ts``, or else its id's; None for a bad one."""
    if text is None:
        return entry_ms(entry)
    try:
        when = time_ms(text.decode())
    except (ValueError, OverflowError):
        return None
    return when if when > 0 else None


def is_usable(fields: Mapping[str, float], *, faulty: bool) -> bool:
    """Whether an entry says anything: an OFU, that no GPU has one, or what the job reports."""
    if not isnan(fields["ofu"]):
        return True
    told = any(not isnan(fields.get(name, nan)) for name in (*REPORTED, "unusable"))
    return not faulty and (fields.get("gpus") == 0 or told)
