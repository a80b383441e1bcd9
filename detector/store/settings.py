"""Settings of the histories and of the inbox, as ``config.toml`` gives them."""

from collections.abc import Iterator

import msgspec

from detector.series import Duration, below, refuse


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How histories are read and kept.

    Attributes
    ----------
    stream
        What stays in a job's stream; older entries go into chunks.
    keep
        How long chunks are kept, and a job's keys after its last entry. Two days: an incident
        of Saturday is still there on Monday, and 100,000 GPUs take 5 GB.
    first_look
        How far back a job is read that the service sees for the first time.
    discover
        How often new jobs are looked for.
    future
        Entries further ahead of this machine's clock than this are set aside.
    slice
        At most so many entries of one job in one call; 360 are an hour at one in 10 s.
    """

    stream: Duration = Duration.parse("1h")
    keep: Duration = Duration.parse("2d")
    first_look: Duration = Duration.parse("6h")
    discover: Duration = Duration.parse("30s")
    future: Duration = Duration.parse("60s")
    slice: int = 360

    def __post_init__(self) -> None:
        """Refuse what would lose histories before they are read, or never read any."""
        refuse(self._wrong())

    def _wrong(self) -> Iterator[str]:
        for name in ("stream", "first_look"):
            needed = getattr(self, name)
            if self.keep < needed:
                yield (
                    f"keep must be at least {name} ({needed}), not {self.keep}: what is not "
                    "kept cannot be read"
                )
        yield from below("stream", self.stream, Duration(60_000))
        yield from below("discover", self.discover, Duration(1_000))
        yield from below("slice", self.slice, 1)


class InboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the inbox merges what the hosts of a job report one by one.

    Attributes
    ----------
    scrape
        Entries of several hosts belong together when their times fall into one slot of this
        length.
    wait
        How long after its slot's end a job's hosts are waited for.
    longest
        Bound of the inbox stream; what is older than that many entries is lost, and counted.
    """

    scrape: Duration = Duration.parse("10s")
    wait: Duration = Duration.parse("15s")
    # Chosen: 100,000 GPUs on 12,500 hosts fill that in 13 minutes; about 150 MB.
    longest: int = 1_000_000

    def __post_init__(self) -> None:
        """Refuse slots that hold nothing."""
        refuse((*below("scrape", self.scrape, Duration(1)), *below("longest", self.longest, 1)))
