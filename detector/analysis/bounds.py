"""The two bounds of a model: what is told, what somebody is woken for, and what was measured.

``[notify]`` holds the whole detector to a rate of false alarms with one knob; ``[page]`` is a
second, far stricter test that a confirmed fall must pass. Each carries its calibration: what it
was measured to be worth, on which data, when and how.
"""

import msgspec

from detector.series import Duration


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a bound was measured to be worth.

    Attributes
    ----------
    false_alarms, low, high
        Per job-day, with the exact Poisson interval of 95 % (Garwood 1936).
    events, job_days
        What was counted: false alarms, in so much time of jobs that were well.
    data, date, command
        On what, when (ISO 8601), and how to do it again.
    """

    false_alarms: float
    low: float
    high: float
    events: int
    job_days: float
    data: str
    date: str
    command: str

    def __post_init__(self) -> None:
        """Refuse what no measurement can have given."""
        if not 0 <= self.low <= self.false_alarms <= self.high:
            msg = "false_alarms must lie between low and high, and none below 0"
            raise ValueError(msg)
        if self.events < 0 or self.job_days <= 0:
            msg = "events must not be negative, and job_days be more than 0"
            raise ValueError(msg)


class Notify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is told: one knob for the whole of a model.

    Attributes
    ----------
    caution
        Factor on the evidence that small falls need and on the time that falls of an unknown
        kind must last; 1 is what the model's other settings say.
    """

    caution: float = 1.0
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        """Refuse a knob that turns the detector off, or upside down."""
        if not 0.1 <= self.caution <= 10:
            msg = f"caution must be between 0.1 and 10, not {self.caution:g}"
            raise ValueError(msg)


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody is woken for; see :mod:`detector.analysis.paging` for the test.

    Attributes
    ----------
    least_fall
        Least relative fall. Chosen: what costs a job a fifth of its GPUs.
    after
        How long the job must have been low, phases that go on meanwhile included. Origin:
        evaluations take up to 11 min, and people must be called within 15 min of the onset.
    still_after
        The same for a standstill. Origin: a restart takes up to 20 min, the one after it too,
        and a checkpoint may come before them.
    known
        For how long the level must have held before the fall; where it has not, the fall must
        itself last so long. Origin: at one and a half hours an hourly evaluation was met.
    margin, overtime, longest
        On a level like one that earlier falls went to and came back from, the job must have
        stood ``margin`` times as long as the longest of them, on the very level of one
        ``overtime`` times, but no longer than ``longest``: what takes longer is no phase. So
        long must a fall last too in a job that is younger than twice ``known``. Origin:
        evaluations vary by a tenth, and one in 40 takes up to two and a half times as long.
    """

    least_fall: float = 0.2
    after: Duration = Duration(720_000)
    still_after: Duration = Duration(2_700_000)
    known: Duration = Duration(5_400_000)
    margin: float = 1.1
    overtime: float = 2.5
    longest: Duration = Duration(1_800_000)
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        """Refuse settings that would wake somebody for nothing."""
        if not 0 < self.least_fall < 1:
            msg = f"least_fall must be between 0 and 1, not {self.least_fall:g}"
            raise ValueError(msg)
        for name in ("margin", "overtime"):
            if getattr(self, name) < 1:
                msg = f"{name} must be at least 1, not {getattr(self, name):g}"
                raise ValueError(msg)
        for name in ("after", "still_after", "known"):
            if getattr(self, name) < 60_000:
                msg = f"{name} must be at least 1m, not {getattr(self, name)}"
                raise ValueError(msg)
