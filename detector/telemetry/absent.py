"""Hosts of which nothing is heard: their GPUs' last readings stand in for them.

That nobody answers for a host does not say that its GPUs have left their jobs. So its last
readings come again with what is wrong, to be judged ``unreachable``: the job keeps its GPUs,
and who cares for it hears that nobody watches them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from detector.reading import Reading, Scrape

# Chosen: somebody has looked by then, or nobody misses the host.
_FORGET_MS = 86_400_000

# More silent hosts than these, and more than answer, are no trouble of theirs: it is this side
# that hears nothing. The log says so, and not an incident of each job that is dark.
_FEW_HOSTS = 10


@dataclass(slots=True)
class _Host:
    """What was heard last of a host, and since it fell silent: why, and its jobs elsewhere."""

    source: int
    heard_ms: int
    readings: tuple[Reading, ...]
    why: str = ""
    elsewhere: set[str] = field(default_factory=set)


class Absent:
    """The hosts that targets showed: those that they still do, and those that they do not."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, str], _Host] = {}
        self._deaf: set[int] = set()  # sources of which most hosts are silent

    def standing_in(
        self, source: int, scrapes: Sequence[Scrape], *, now_ms: int, failure: str = ""
    ) -> tuple[Scrape, ...]:
        """Return a scrape for each host that a target showed before and does not now.

        A target that is asked no more is forgotten.

        Parameters
        ----------
        source
            Which source was asked.
        scrapes
            As it gave them, before anybody says whose the readings are.
        failure
            Why the source as a whole gave nothing.
        """
        asked = {scrape.target: scrape.error for scrape in scrapes}
        heard = {
            (scrape.target, host): _Host(source, now_ms, readings)
            for scrape in scrapes
            for host, readings in _by_host(scrape.readings).items()
        }
        others = {key: host for key, host in self._hosts.items() if host.source != source}
        silent = {
            key: host
            for key, host in self._hosts.items()
            if host.source == source
            and key not in heard
            and (failure or key[0] in asked)
            and now_ms - host.heard_ms <= _FORGET_MS
        }
        telling = {target for target, _ in heard}
        for (target, name), host in silent.items():
            # A worker that was started again has no reading at first: what was wrong, stands.
            before = "" if target in telling else host.why
            host.why = failure or asked[target] or before or f"nothing of host {name} any more"
        self._hosts = {**others, **silent, **heard}
        self._deaf.discard(source)
        if len(silent) > max(_FEW_HOSTS, len(heard)):
            self._deaf.add(source)
        return tuple(
            Scrape(
                target=target,
                asked_ms=now_ms,
                readings=_again(host.readings, now_ms),
                error=host.why,
            )
            for (target, _), host in silent.items()
        )

    def kept(self, scrapes: Iterable[Scrape], answered: Iterable[Scrape]) -> tuple[Scrape, ...]:
        """Return those that stand in for a job which may go on; the others are of no use.

        A job is over when a host that went on answering has it no longer. Where most hosts are
        silent, only jobs that others answer for are sure to go on.

        Parameters
        ----------
        scrapes
            Those of :meth:`standing_in`, with the jobs of each reading.
        answered
            Those of all hosts that answer, with theirs.
        """
        alive = set().union(*map(_jobs, answered))
        # One has none left where its whole GPUs are read by instance elsewhere.
        found = [(self._host_of(scrape), scrape) for scrape in scrapes if scrape.readings]
        going = alive | {
            job
            for host, scrape in found
            if host.source not in self._deaf
            for job in _jobs(scrape) - host.elsewhere
        }
        for host, scrape in found:
            host.elsewhere |= alive & _jobs(scrape)
        made = (
            msgspec.structs.replace(
                scrape,
                readings=tuple(one for one in scrape.readings if going.intersection(one.jobs)),
            )
            for _, scrape in found
        )
        return tuple(scrape for scrape in made if scrape.readings)

    def _host_of(self, scrape: Scrape) -> _Host:
        return self._hosts[scrape.target, scrape.readings[0].host]


def _by_host(readings: Iterable[Reading]) -> Mapping[str, tuple[Reading, ...]]:
    found: defaultdict[str, list[Reading]] = defaultdict(list)
    for reading in readings:
        found[reading.host].append(reading)
    return {host: tuple(own) for host, own in found.items()}


def _again(readings: Iterable[Reading], now_ms: int) -> tuple[Reading, ...]:
    """Return readings as if they were of now: whose GPUs they are is asked of now."""
    return tuple(
        msgspec.structs.replace(reading, time_ms=now_ms, own_clock=False)
        for reading in readings
    )


def _jobs(scrape: Scrape) -> set[str]:
    return set(chain.from_iterable(reading.jobs for reading in scrape.readings))
