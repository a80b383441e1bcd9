"""A clock that knows its unit, so that MHz and Hz can't be mixed.

DCGM reports the same clock in MHz (fields 100, 113) and, since 4.6.1, in Hz (fields 1603,
1608): mixed, they give an OFU that is off by a million. Two clocks compare and divide whatever
they were written in; a bare number does not become one.
"""

import re
from dataclasses import dataclass
from typing import Self

from detector.metric import METRICS

# No SM boosts above 3 GHz: a larger number of "MHz" is one of Hz, or a blank. And none idles
# below 100 MHz: fewer Hz than a megahertz are a number of MHz.
_MIN_HERTZ = METRICS["clock"].low * 1e6
_MAX_HERTZ = METRICS["clock"].high * 1e6

# What people write is held to that: "1.71 MHz" is most likely one of GHz.
_MIN_WRITTEN_HERTZ = 100e6

_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_UNITS = {"hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Clock:
    """A clock that knows its unit; made by :meth:`mhz`, :meth:`hertz` or :meth:`parse`."""

    in_hertz: float

    def __post_init__(self) -> None:
        if not _MIN_HERTZ <= self.in_hertz <= _MAX_HERTZ:  # NaN fails as well
            msg = (
                f"{self.in_hertz:g} Hz is no SM clock: they lie between "
                f"{_MIN_HERTZ / 1e6:g} and {_MAX_HERTZ / 1e6:g} MHz; "
                "is the unit MHz where it should be Hz, or the reverse?"
            )
            raise ValueError(msg)

    @classmethod
    def mhz(cls, value: float) -> Self:
        """Return the clock of ``value`` megahertz, as DCGM's fields 100 and 113 report."""
        return cls(in_hertz=value * 1e6)

    @classmethod
    def hertz(cls, value: float) -> Self:
        """Return the clock of ``value`` hertz, as DCGM's fields 1603 and 1608 report."""
        return cls(in_hertz=value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the clock that ``text`` names: ``1830 MHz``, ``1.83 GHz``, ``1830000000 Hz``.

        Raises
        ------
        ValueError
            When the unit is missing or unknown, or when no SM runs at such a clock.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            msg = f"{text!r} is no clock; write for example '1830 MHz' or '1.83 GHz'"
            raise ValueError(msg)
        number, unit = match.groups()
        if not unit:
            msg = f"{text!r} has no unit; write '{number} MHz' (or GHz, Hz)"
            raise ValueError(msg)
        if unit.lower() not in _UNITS:
            msg = f"{text!r} has the unknown unit {unit!r}; write '{number} MHz' (or GHz, Hz)"
            raise ValueError(msg)
        clock = cls(in_hertz=float(number) * _UNITS[unit.lower()])
        if clock.in_hertz < _MIN_WRITTEN_HERTZ:
            msg = f"{text!r} is below what any SM runs at, 100 MHz; is the unit another one?"
            raise ValueError(msg)
        return clock

    @property
    def in_mhz(self) -> float:
        """The clock in megahertz."""
        return self.in_hertz / 1e6

    def __str__(self) -> str:
        """Return the clock as people write it: ``1830 MHz``."""
        return f"{self.in_mhz:.6g} MHz"


MIN_CLOCK = Clock(in_hertz=_MIN_HERTZ)
MAX_CLOCK = Clock(in_hertz=_MAX_HERTZ)
