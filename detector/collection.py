"""Collection as a part of the service: rounds over the sources, into the inbox.

Two collectors of the same targets do no harm: a host's parts of one slot count once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from detector import log
from detector.analysis.aggregate import Part
from detector.analysis.maxclock import MaxClocks
from detector.analysis.ofu import GpuTable
from detector.config import Config
from detector.reading import Reading
from detector.sources import PATIENCE, register_of, sources
from detector.telemetry.backfill import backfill
from detector.telemetry.collector import Collector, Round, Sink
from detector.telemetry.past import FirstSight, Histories, Past
from detector.telemetry.prometheus import Prometheus
from detector.telemetry.source import Source
from detector.telemetry.whose import Whose

# A target is well after so many rounds without trouble. Chosen: one that fails every other time
# is not well in between.
_WELL_ROUNDS = 3
# Lines in the log for one round: a switch that fails takes hundreds of targets with it.
_MOST_LINES = 20


class Troubles:
    """What is wrong at which place: told once for each reason, and over when it stays well.

    A place that fails now and then, or by turns for several reasons, is one trouble.
    """

    def __init__(self) -> None:
        self._told: dict[str, list[str]] = {}
        self._well: Counter[str] = Counter()

    def step(self, wrong: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
        """Return what is new in a round, and the latest trouble of each place that is well.

        Parameters
        ----------
        wrong
            Place and what is told of it: all that is wrong now.
        """
        new = []
        bad = set()
        for place, line in wrong:
            bad.add(place)
            told = self._told.setdefault(place, [])
            if line not in told:
                told.append(line)
                new.append(line)
        self._well.update(self._told.keys() - bad)
        for place in bad:
            del self._well[place]
        over = [place for place, rounds in self._well.items() if rounds >= _WELL_ROUNDS]
        for place in over:
            del self._well[place]
        return new, [self._told.pop(place)[-1] for place in over]


class Store(Sink, Histories, Protocol):
    """Where the present and the past of jobs go."""


class Collection:
    """Makes rounds; :meth:`run` is one.

    Raises
    ------
    ContentErrors, SourceError
        When a source cannot be built.
    """

    def __init__(
        self, config: Config, gpus: GpuTable, sink: Store, *, clock: Callable[[], int]
    ) -> None:
        self._sink, self._clock = sink, clock
        self._log = log.get()
        self._register = register_of(config)
        asked = sources(config)
        max_clocks = MaxClocks(table=gpus, configured=config.collect.max_clock_mhz)
        self._first_sight = FirstSight(
            _pasts(asked, max_clocks, config.collect.interval),
            sink,
            first_look_ms=config.history.first_look,
            interval_ms=config.collect.interval,
            describe=self._register.describe,
        )
        self._collector = Collector(
            asked,
            self._register,
            max_clocks=max_clocks,
            deadline_s=PATIENCE * config.collect.interval / 1000,
            interval_ms=config.collect.interval,
        )
        self._troubles = Troubles()
        self._nameless = Troubles()
        self._stuck = ""
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Ask all sources once, and hand on what they say."""
        found = self._collector.round(self._clock())
        self.counts.update(found.counts())
        self._tell(found)
        found = replace(found, parts=self._first_sight.admit(found))
        for trouble in self._first_sight.troubles():
            self._log.warning("past_unknown", reason=trouble)
        try:
            self._collector.deliver(found, self._sink)
        except OSError as error:
            if str(error) != self._stuck:
                action = "kept, as far as there is room, until the store is back"
                self._log.error("collected_in_vain", reason=str(error), action=action)
            self._stuck = str(error)
            return
        if self._stuck:
            lost, self._collector.lost = self._collector.lost, 0
            self._log.info("back_to_normal", part="collect", parts_lost=lost)
        self._stuck = ""

    def _tell(self, found: Round) -> None:
        """Say what is wrong, once for each place and reason, and which are well again."""
        new, over = self._troubles.step(
            (line.partition(": ")[0], line) for line in found.troubles
        )
        for trouble in _some(new):
            self._log.warning("source_trouble", reason=trouble)
        for was in _some(over):
            self._log.info("source_recovered", was=was)
        lost = {one.reading.host for one in found.judged if one.nameless}
        hosts, _ = self._nameless.step((host, host) for host in sorted(lost))
        if hosts:
            more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
            self._log.warning(
                "gpus_of_no_job",
                hosts=", ".join(hosts[:3]) + more,
                action="nobody watches them; ofuwatch doctor says how to name their jobs",
            )

    def close(self) -> None:
        """Let go of all sources."""
        self._first_sight.close()
        self._collector.close()
        self._register.close()


def _some(lines: Sequence[str]) -> Iterator[str]:
    """Yield the first lines, and how many more there are."""
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"and {len(lines) - _MOST_LINES} more that are not named here"


def _pasts(asked: Sequence[Source], max_clocks: MaxClocks, interval_ms: int) -> list[Past]:
    """Return where the past of jobs can be read: Prometheus servers."""
    return [
        partial(_past, one, max_clocks=max_clocks, interval_ms=interval_ms)
        for one in asked
        if isinstance(one, Prometheus) and one.settings.past > 0
    ]


def _past(
    server: Prometheus,
    found: Sequence[Reading],
    whose: Whose,
    *,
    start_ms: int,
    end_ms: int,
    max_clocks: MaxClocks,
    interval_ms: int,
) -> Iterator[Part]:
    """Return jobs' past, as much of it as the source's settings want."""
    return backfill(
        server,
        found,
        whose,
        start_ms=max(start_ms, end_ms - int(server.settings.past)),
        end_ms=end_ms,
        every_ms=interval_ms,
        max_clocks=max_clocks,
    )
