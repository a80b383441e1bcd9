"""Collection as a part of the service: rounds over the sources, into the inbox.

Two collectors of the same targets do no harm: a host's parts of one slot count once.
"""

from collections import Counter
from collections.abc import Callable

from detector import log
from detector.analysis.ofu import GpuTable
from detector.analysis.quality import MaxClocks
from detector.config import Config
from detector.sources import register_of, sources
from detector.telemetry.collector import Collector, Sink


class Collection:
    """Makes rounds; :meth:`run` is one.

    Raises
    ------
    ContentErrors, SourceError
        When a source cannot be built.
    """

    def __init__(
        self, config: Config, gpus: GpuTable, sink: Sink, *, clock: Callable[[], int]
    ) -> None:
        self._sink, self._clock = sink, clock
        self._log = log.get()
        self._register = register_of(config)
        self._collector = Collector(
            sources(config),
            self._register,
            max_clocks=MaxClocks(table=gpus, configured=config.collect.max_clock_mhz),
            deadline_s=0.9 * config.collect.interval / 1000,
            interval_ms=config.collect.interval,
        )
        self._troubles: frozenset[str] = frozenset()
        self._stuck = ""
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Ask all sources once, and hand on what they say."""
        found = self._collector.round(self._clock())
        self.counts.update(found.counts())
        self._tell(frozenset(found.troubles))
        try:
            self._collector.deliver(found, self._sink)
        except OSError as error:
            if str(error) != self._stuck:
                self._log.error("collected_in_vain", reason=str(error), action="trying again")
            self._stuck = str(error)
            return
        if self._stuck:
            self._log.info("back_to_normal", part="collect")
        self._stuck = ""

    def _tell(self, troubles: frozenset[str]) -> None:
        """Say what is wrong, once for each trouble, and when it is over."""
        for trouble in sorted(troubles - self._troubles):
            self._log.warning("source_trouble", reason=trouble)
        for trouble in sorted(self._troubles - troubles):
            self._log.info("source_recovered", was=trouble)
        self._troubles = troubles

    def close(self) -> None:
        """Let go of all sources."""
        self._collector.close()
        self._register.close()
