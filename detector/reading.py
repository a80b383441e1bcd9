"""What a source reads of GPUs at one time, before anybody has judged it.

A reading holds canonical counters: named by :data:`detector.metric.COUNTERS`, in its units, and
past the one filter for blanks and sentinels (:func:`detector.metric.usable`). A counter that is
not there was not read, was blank, or was none; ``Dropped`` says which lines those were.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

# The GPUs before Hopper that can be divided: GA100, as the driver names its boards.
_GA100 = re.compile(r"(?<![A-Z0-9])(A100|A800|A30|PG506)X?(?![0-9])")

# A target whose clock differs by more is told. Chosen: hosts of a job would fall into different
# slots, of 10 s, and HTTP's date has whole seconds.
CLOCK_OFF_MS = 10_000

# Share of its time that a GPU at work is busy at the least. Chosen: monitoring and display stay
# below it.
_AT_WORK = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """One value of a source that must not be stored.

    Attributes
    ----------
    line
        Its line in the source's text, from 1; None where a source has no lines.
    gpu
        Whose it is, as messages call the GPU or instance; "" where its line says it, or where
        it is nobody's alone.
    metric
        The counter's name as the source gave it; "" where even that was unreadable. ``gpu``
        where it is all of a GPU that cannot be read, ``mig`` where MIG leaves nothing of it.
    raw
        The value as it came, at most 60 characters.
    reason
        Why it is none, for people.
    """

    line: int | None = None
    gpu: str = ""
    metric: str
    raw: str
    reason: str

    def __str__(self) -> str:
        """Return it as people read it."""
        where = f"line {self.line}: " if self.line else ""
        raw = ascii(self.raw[:30]) if self.raw else ""
        whose = f"{self.gpu}: " if self.gpu else ""
        what = " ".join(filter(None, (self.metric, raw)))
        return f"{where}{whose}{what}{': ' if what else ''}{self.reason}"


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one GPU, or one MIG instance of it, read at one time.

    A struct, since a fleet makes thousands of them a second: a frozen dataclass takes ten
    times as long to make. Without gc, since what is kept of them would be walked through at
    each of Python's collections; they hold no cycles.

    Attributes
    ----------
    uuid
        The GPU's UUID: what it is known by everywhere.
    instance
        GPU instance id under MIG (``GPU_I_ID``); "" for a whole GPU.
    profile
        MIG profile, such as ``1g.10gb``; "" for a whole GPU.
    index
        The number that its host's source gives it; "" where it gives none.
    time_ms
        When the source read it, by the source's clock where it has one, else when it was asked.
    own_clock
        Whether ``time_ms`` is the source's: then a repeated time is a repeated reading.
    values
        Canonical counter -> value in its unit.
    jobs
        The jobs that the source says it works for; none when idle or unknown, several when
        they share it.
    handover
        The jobs between which the GPU changed hands within the time that the values stand for:
        they are nobody's, and ``jobs`` is empty.
    labels
        What else the source says of it (pod, namespace, partition, ...), as it says it.
    sharing
        The same of those that share the GPU with the first: one more set of labels each.
    reporter
        Whose counters they are: DCGM's, or the driver's own.
    """

    uuid: str
    instance: str = ""
    profile: str = ""
    host: str = ""
    index: str = ""
    model: str = ""
    time_ms: int
    own_clock: bool = False
    values: Mapping[str, float] = msgspec.field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    handover: tuple[str, ...] = ()
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    sharing: tuple[Mapping[str, str], ...] = ()
    reporter: Literal["dcgm", "nvml"] = "dcgm"

    @property
    def label_sets(self) -> tuple[Mapping[str, str], ...]:
        """The labels of all that share the GPU, those of the first before the others'."""
        return (self.labels, *self.sharing)

    @property
    def at_work(self) -> bool:
        """Whether the GPU does anything worth a job."""
        ratio = max(
            self.values.get(name, 0.0) for name in ("tensor_active", "gr_engine_active")
        )
        return ratio >= _AT_WORK or self.values.get("gpu_util_pct", 0.0) >= 100 * _AT_WORK

    @property
    def mig_scaling_uncertain(self) -> bool:
        """Whether nothing says what its ratios are shares of.

        Before Hopper an instance's counters are scaled by the smallest instance beside it, or
        by the one compute instance that works (NVIDIA/DCGM issues 138, 152, 248): two
        instances can't be compared. So it is where the model is unknown.
        """
        return bool(self.instance) and (not self.model or bool(_GA100.search(self.model)))

    @property
    def entity(self) -> str:
        """What holds a history of its own: the UUID, with the instance under MIG."""
        return f"{self.uuid}/{self.instance}" if self.instance else self.uuid


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """What one target answered when it was asked once.

    Attributes
    ----------
    target
        Whom was asked: a URL without secrets, a host, ``localhost``, or a place that names
        targets.
    asked_ms
        When, by our clock.
    time_ms
        The target's own time of its answer, where it says one (HTTP ``Date``); else None.
    error
        Why there are no readings, in one line that says what to do; "" when it answered.
    failing
        Source-wide trouble beside readings: ``no_profiling``, ``contention``, ...; "" for none.
    """

    target: str
    asked_ms: int
    time_ms: int | None = None
    readings: tuple[Reading, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    error: str = ""
    failing: str = ""

    @property
    def refusals(self) -> tuple[Dropped, ...]:
        """Why profiling fails, in the source's words; values that are none have a ``raw``."""
        why = [one for one in self.dropped if one.metric == "tensor_active" and not one.raw]
        return tuple(why) if self.failing else ()

    @property
    def lost(self) -> tuple[Dropped, ...]:
        """The GPUs that cannot be read, and why: there is no reading of these."""
        return tuple(one for one in self.dropped if one.metric == "gpu")
