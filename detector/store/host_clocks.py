"""Hosts whose clocks are off, seen by what they say against when it came.

A host's parts belong to the scrape in which they were made. A clock that is a minute slow makes
every one of them late, and one that is fast puts them into scrapes to come; then the time of
arrival, which is the server's, is the better one.
"""

from dataclasses import dataclass

# Said against arrived: further ahead than this no network brings anything, and further behind
# it would be late for its scrape. Chosen: a slot, and what the inbox waits for.
_AHEAD_MS, _BEHIND_MS = 10_000, 25_000
# Offsets of a wrong clock are the same each time; those of a backlog that is worked off shrink.
_STEADY_MS = 3_000
_STEADY_PARTS = 3
# Entries whose arrival is not about now were not posted just now.
NOW_MS = 60_000


@dataclass(slots=True)
class _Host:
    offset_ms: int
    parts: int = 1


class HostClocks:
    """Remembers each host's offset; hosts with right clocks cost nothing."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}

    def offset_ms(self, host: str, *, said_ms: int, arrived_ms: int, now_ms: int) -> int:
        """Return by how much the host's clock is off, ms: above 0 it is fast, 0 it is right."""
        off_ms = said_ms - arrived_ms
        if -_BEHIND_MS <= off_ms <= _AHEAD_MS or abs(arrived_ms - now_ms) > NOW_MS:
            self._hosts.pop(host, None)
            return 0
        known = self._hosts.get(host)
        if known is None or abs(known.offset_ms - off_ms) > _STEADY_MS:
            self._hosts[host] = _Host(off_ms)
            return 0
        known.offset_ms = off_ms
        known.parts += 1
        return off_ms if known.parts >= _STEADY_PARTS else 0

    def is_news(self, host: str) -> bool:
        """Whether the host was found to be off just now."""
        known = self._hosts.get(host)
        return known is not None and known.parts == _STEADY_PARTS
