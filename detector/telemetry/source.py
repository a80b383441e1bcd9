"""What every source of readings is."""

from collections.abc import Sequence
from typing import Protocol

from detector.reading import Scrape


class SourceError(Exception):
    """A source cannot work at all: one line that says what is wrong, where, and what to do."""


class TooMuch(SourceError):
    """A source can't answer so much at once, or not in time: it may be asked for less."""


def one_line(error: Exception) -> str:
    """Return what an exception is and says, for the message of an error that holds it."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class Source(Protocol):
    """Asks its targets for readings.

    Attributes
    ----------
    name
        As configured; unique.
    settle_s
        How long after its first scrape it has all counters, s: some are differences of two
        samples. 0 where the first scrape has them.
    """

    @property
    def settle_s(self) -> float:
        """Seconds between the first scrape and one with all counters."""
        ...

    @property
    def name(self) -> str:
        """The source's name in messages."""
        ...

    def scrape(self, now_ms: int) -> Sequence[Scrape]:
        """Ask every target once; one that fails has its ``error`` and costs no other.

        Raises
        ------
        SourceError
            When the source as a whole cannot work.
        """
        ...

    def close(self) -> None:
        """Let go of connections and processes."""
        ...
