"""Whose a reading is by all that one round knows: its labels, and what schedulers said.

A value: readings of the past are asked of it in a thread of their own, while rounds go on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from detector.fleet import Fleet, Held, Placements
from detector.reading import Reading
from detector.telemetry.identity import (
    IdentitySettings,
    job_of,
    marks,
    pod_of,
    scheduler_job_of,
)


class Said(msgspec.Struct, frozen=True, gc=False):
    """What one set of labels says: a scheduler's job, the pod, and the job by all of them."""

    scheduled: str
    pod: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """What labels and schedulers say.

    Attributes
    ----------
    placements
        Holds of the jobs that run and of those that ended lately, since they began.
    aliases
        Other names that labels may give a job -> its id, as a scheduler's census has them.
    """

    identity: IdentitySettings = field(default_factory=IdentitySettings)
    placements: Placements = field(default_factory=Placements)
    fleet: Fleet = field(default_factory=Fleet)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def said(self, reading: Reading) -> tuple[Said, ...]:
        """Return what each set of a reading's labels says."""
        return tuple(
            Said(
                scheduler_job_of(labels, self.identity),
                pod_of(labels),
                job_of(labels, self.identity),
            )
            for labels in reading.label_sets
        )

    def named(self, reading: Reading, said: Iterable[Said] | None = None) -> tuple[str, ...]:
        """Return the jobs that a reading's labels name, by their scheduler's own ids.

        Parameters
        ----------
        said
            What its labels say, where that is known.
        """
        found = set(reading.jobs)
        for labels in self.said(reading) if said is None else said:
            # A pod's owners say more surely than its labels which job it is of.
            name = labels.scheduled or self.aliases.get(labels.pod, labels.job)
            found.add(self.aliases.get(name, name))
        found.discard("")
        return tuple(sorted(found))

    def is_cut(self, reading: Reading) -> bool:
        """Whether it is of a whole GPU that is read by instance too: that one is nobody's."""
        return not reading.instance and reading.uuid in self.fleet.cut

    def marks(self, reading: Reading) -> set[tuple[str, str]]:
        """Return labels, with their values, of other GPUs that may have the reading's jobs."""
        return {
            mark
            for labels in reading.label_sets
            for mark in marks(labels, self.identity).items()
        }

    def held(self, reading: Reading, *, start_ms: int, end_ms: int) -> Held:
        """Return who held a GPU in ``[start_ms, end_ms)`` by what schedulers say."""
        return self.placements.at(reading, start_ms=start_ms, end_ms=end_ms, fleet=self.fleet)

    def turns(self, reading: Reading) -> tuple[int, ...]:
        """Return the times at which a hold of a GPU began or ended, ascending."""
        return self.placements.turns(reading, fleet=self.fleet)
