"""What happens to the jobs of the benchmark: quiet ones, and every class of change.

A class says how long its jobs are, when the change comes and what it is. Names are what the
tables and ``--classes`` use.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["quiet", "drop", "rise", "straggler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeClass:
    """One class of jobs.

    Attributes
    ----------
    hours
        How long a job of the class is.
    factor
        Level after the change over the level before it; of one GPU for a straggler.
    onset_h
        Between which hours of the job the change begins, evenly.
    ramp_min
        Over how many minutes the level slides; 0 is at once.
    lasts_min
        After how many minutes all is well again; None is never.
    at_restart
        The job stops for 2 to 20 minutes at the onset and comes back changed.
    gpus
        How many GPUs the job reports one by one; 0 is its mean alone.
    stress
        The habits are worse than those of the jobs that settings were chosen on: dips twice as
        long, five times as many hiccups, three times as many restarts.
    """

    name: str
    kind: Kind
    hours: float = 12.0
    factor: float = 1.0
    onset_h: tuple[float, float] = (3.0, 9.0)
    ramp_min: float = 0.0
    lasts_min: float | None = None
    at_restart: bool = False
    gpus: int = 0
    stress: bool = False


def _drop(name: str, factor: float) -> ChangeClass:
    return ChangeClass(name=name, kind="drop", factor=factor)


def _straggler(gpus: int, *, hours: float, onset_h: tuple[float, float]) -> ChangeClass:
    return ChangeClass(
        name=f"straggler{gpus}",
        kind="straggler",
        hours=hours,
        factor=0.9,
        onset_h=onset_h,
        gpus=gpus,
    )


_ALL = (
    ChangeClass(name="quiet", kind="quiet", hours=24.0),
    _drop("drop2.5x", 1 / 2.5),
    _drop("drop2x", 1 / 2),
    _drop("drop1.33x", 1 / 1.33),
    _drop("drop10", 0.90),
    _drop("drop5", 0.95),
    _drop("drop3", 0.97),
    ChangeClass(name="ramp25", kind="drop", factor=0.75, ramp_min=10.0),
    ChangeClass(name="ramp10", kind="drop", factor=0.90, ramp_min=10.0),
    ChangeClass(name="restart2.5x", kind="drop", factor=1 / 2.5, at_restart=True),
    ChangeClass(name="restart10", kind="drop", factor=0.90, at_restart=True),
    ChangeClass(name="transient20", kind="drop", factor=0.80, lasts_min=20.0),
    ChangeClass(name="young1.33x", kind="drop", factor=1 / 1.33, hours=4.0, onset_h=(1.0, 1.5)),
    ChangeClass(name="rise1.33x", kind="rise", factor=1.33),
    ChangeClass(name="stress_quiet", kind="quiet", hours=24.0, stress=True),
    ChangeClass(name="stress2.5x", kind="drop", factor=1 / 2.5, stress=True),
    ChangeClass(name="stress10", kind="drop", factor=0.90, stress=True),
    ChangeClass(name="quiet64", kind="quiet", hours=24.0, gpus=64),
    _straggler(8, hours=12.0, onset_h=(3.0, 9.0)),
    _straggler(64, hours=12.0, onset_h=(3.0, 9.0)),
    # Shorter, for the memory that values of so many GPUs take.
    _straggler(512, hours=6.0, onset_h=(3.0, 4.5)),
    _straggler(4096, hours=6.0, onset_h=(3.0, 4.5)),
)

CLASSES = {item.name: item for item in _ALL}

# The classes that a job's mean decides: what all peers can be asked about.
MEAN = tuple(item.name for item in _ALL if item.gpus == 0)
