"""What the demo plays: a synthetic fleet and real recordings, moved to end about now."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import redis

from detector.demo.synth import fleet
from detector.fleet import Job
from detector.series import ContextEvent, Window
from detector.store.history import History, Sample
from detector.store.keys import Keys
from detector.store.recording import read

RECORDINGS = Path(__file__).parent / "recordings"

# What is known of the real recordings: what happened, after how many seconds, and which kinds
# of incident say it. The times are those of the labels in tests/recordings/real.
_REAL = {
    "ssd_h100x8_r0": ("slows by 26 % for 7 min", 238),
    "flux_gb300x512_r3": ("an evaluation hangs for 3 min", 123),
    "lora70b_gb300x8_r6": ("FP4 to FP8, 35 % slower", 252),
    "unet3d_a100x72_r10": ("sags by 22 %", 100),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One job of the play.

    Attributes
    ----------
    what
        What happens to it, in words; empty for a job in which no alert is right.
    onset_ms
        When that begins; 0 when nothing happens.
    kind
        The incident kind that its evidence supports; empty where a recording has only OFU, so
        that any kind is right.
    phases
        What the job went through besides training.
    """

    job: Job
    window: Window
    what: str = ""
    onset_ms: int = 0
    kind: str = ""
    real: bool = False
    phases: tuple[ContextEvent, ...] = ()


# dcgm-exporter collects every 30 s unless it is told otherwise.
_CADENCE_MS = 30_000


def parts(
    rng: np.random.Generator, *, past_ms: int, start_ms: int, length_ms: int, jobs: int
) -> tuple[Part, ...]:
    """Return the play: ``jobs`` synthetic ones and all real recordings that are packed.

    Parameters
    ----------
    past_ms
        How much history the synthetic jobs have before ``start_ms``; their faults come after.
    """
    whole_ms = past_ms + length_ms
    onset = (past_ms + 0.1 * length_ms) / whole_ms, (past_ms + 0.7 * length_ms) / whole_ms
    made = [
        Part(
            job=item.job,
            window=item.window,
            what="" if item.truth is None else item.truth.cause.replace("_", " "),
            onset_ms=0 if item.truth is None else item.truth.onset_ms,
            kind="" if item.truth is None else item.truth.kind,
            phases=item.phases,
        )
        for item in fleet(
            rng,
            jobs=jobs,
            start_ms=start_ms - past_ms,
            length_ms=whole_ms,
            cadence_ms=_CADENCE_MS,
            onset=onset,
        )
    ]
    recordings = read([RECORDINGS])
    for number, (name, recording) in enumerate(recordings.items()):
        span_ms = int(recording.window.times_ms[-1] - recording.window.times_ms[0])
        latest = max(0, length_ms - span_ms)
        begins_ms = start_ms + latest * (number + 1) // (len(recordings) + 1)
        shift_ms = begins_ms - int(recording.window.times_ms[0])
        what, after_s = _REAL.get(name, ("", 0))
        made.append(
            Part(
                job=_named(recording.job, name),
                window=replace(recording.window, times_ms=recording.window.times_ms + shift_ms),
                what=what,
                onset_ms=begins_ms + 1000 * after_s if what else 0,
                real=True,
            )
        )
    return tuple(made)


def _named(job: Job, name: str) -> Job:
    """Return the job of a recording with the name that it is known by."""
    return msgspec.structs.replace(job, name=name, id=f"real-{name}", cluster="mlperf")


class Feed:
    """Writes the play into Redis as collectors would, and nothing ahead of its time."""

    def __init__(self, play: Sequence[Part]) -> None:
        self._parts = play
        self._next = [0] * len(play)
        self._events: list[tuple[str, ContextEvent]] = sorted(
            ((part.job.id, event) for part in play for event in part.window.events),
            key=lambda item: item[1].span.start_ms,
            reverse=True,
        )
        self.written = 0

    def introduce(self, client: redis.Redis, keys: Keys) -> None:
        """Say who the jobs are."""
        pipeline = client.pipeline(transaction=False)
        for part in self._parts:
            job = part.job
            about = {
                "name": job.name,
                "owner": job.owner,
                "team": job.team,
                "scheduler": job.scheduler,
                "cluster": job.cluster,
                "gpu_model": job.gpu_model,
                "precision": job.precision,
                "gpus": msgspec.json.encode(job.roster).decode() if job.roster else "",
            }
            told = [item for pair in about.items() if pair[1] for item in pair]
            pipeline.hset(keys.about(job.id), items=told)
        pipeline.execute()

    def until(self, time_ms: int, history: History) -> None:
        """Write every entry and announce every event up to ``time_ms``."""
        while self._events and self._events[-1][1].span.start_ms <= time_ms:
            history.announce(*self._events.pop())
        samples: list[Sample] = []
        for number, part in enumerate(self._parts):
            end = int(np.searchsorted(part.window.times_ms, time_ms, side="right"))
            samples += [_sample(part, row) for row in range(self._next[number], end)]
            self._next[number] = end
        history.write_many([item for item in samples if np.isfinite(item.ofu)])
        self.written += len(samples)


def _sample(part: Part, row: int) -> Sample:
    window = part.window
    return Sample(
        job=part.job.id,
        time_ms=int(window.times_ms[row]),
        ofu=float(window.fields["ofu"][row]),
        fields={
            name: float(values[row])
            for name, values in window.fields.items()
            if name != "ofu" and np.isfinite(values[row])
        },
        gpus=None if window.gpus is None else window.gpus[row],
    )
