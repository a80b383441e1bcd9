"""Counters out of a Prometheus server that scrapes the fleet's exporters already.

One query a round for all counters of all GPUs; a range selector, since only that tells when
each sample was made: an instant selector hands the last one out for five minutes, as if it
were of now. What the server says of one GPU through several series is brought together here:
replicas of one scrape, jobs that share the GPU, exporters of different generations.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from detector.analysis.past import pace_ms
from detector.analysis.quality import HELD_MS, is_busy
from detector.metric import COUNTERS, Counter, usable
from detector.reading import Dropped, Reading, Scrape
from detector.series import FloatArray, IntArray
from detector.telemetry import rocm
from detector.telemetry.access import Secret, signing, tls_context
from detector.telemetry.layout import MOST_DROPPED, entity_of
from detector.telemetry.line import Labels, Start
from detector.telemetry.prometheus_api import Api, Series, samples
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.source import SourceError

# What quality, OFU and the histories' fields are made of, and no more: each counter costs the
# server a series a GPU.
LIVE = (
    "tensor_active", "sm_clock_mhz", "max_sm_clock_mhz", "gr_engine_active", "sm_active",
    "dram_active", "gpu_util_pct", "power_w", "power_limit_w", "nvlink_tx_bytes",
    "nvlink_rx_bytes", "pcie_tx_bytes", "pcie_rx_bytes",
)  # fmt: skip

# Samples of one GPU from several exporters belong together within this.
_TOGETHER_MS = 60_000

# Samples of one scrape share one time; some agents stamp each series by itself.
_SCRAPE_MS = 500


def names_of(counters: Iterable[str]) -> tuple[str, ...]:
    """Return all names that exporters give to counters, of all generations, sorted."""
    wanted = frozenset(counters)
    known: set[str] = set()
    for counter in COUNTERS.values():
        if counter.name in wanted:
            known.update(counter.names)
    for name, (number, _) in rocm.NAMED.items():
        if COUNTERS[number].name in wanted:
            known |= {name, f"amd_{name}"}
    return tuple(sorted(known))


def selector(names: Iterable[str], select: str, *more: str) -> str:
    """Return the selector of series of these names that meet all matchers."""
    own = select.strip()[1:-1].strip().rstrip(",").strip()
    matchers = [f'__name__=~"{"|".join(names)}"', *([own] if own else []), *more]
    return f"{{{','.join(matchers)}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One series: a counter of one GPU, under one set of labels, over some time.

    Attributes
    ----------
    seat
        UUID and instance.
    target
        Who scraped whom: series of one target come with the same times.
    labels
        Without the metric's name and replica labels.
    times_ms, values
        Oldest first; values in the counter's unit, NaN for none.
    """

    seat: tuple[str, str]
    target: tuple[str, ...]
    metric: str
    counter: Counter
    scale: float
    pooled: bool
    labels: Labels
    times_ms: IntArray
    values: FloatArray


def tracks(series: Iterable[Series], replica_labels: Sequence[str]) -> tuple[Track, ...]:
    """Return what an answer's series are of; others than GPUs' counters are left out.

    Raises
    ------
    SourceError
        When the samples are none.
    """
    made = (_track(one, replica_labels) for one in series)
    return tuple(track for track in made if track is not None)


def _track(series: Series, replica_labels: Sequence[str]) -> Track | None:
    metric = series.metric.get("__name__", "")
    replica = tuple(series.metric.get(name, "") for name in replica_labels)
    ignored = {"__name__", *replica_labels}
    labels = Labels(
        {name: value for name, value in series.metric.items() if name not in ignored}
    )
    if not (known := Start(name=metric, labels=labels, end=0, bare=False).counter()):
        return None
    counter, scale, pooled = known
    times_ms, values = samples(series)
    return Track(
        seat=(labels.uuid, labels.instance[0]),
        target=(labels.found("job"), labels.found("instance"), *replica),
        metric=metric,
        counter=counter,
        scale=scale,
        pooled=pooled,
        labels=labels,
        times_ms=times_ms,
        values=values,
    )


@dataclass(slots=True)
class _Look:
    """What one target's newest scrape says of one GPU."""

    time_ms: int
    values: dict[str, float] = field(default_factory=dict)
    sets: list[Labels] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)


def readings(found: Sequence[Track]) -> tuple[tuple[Reading, ...], tuple[Dropped, ...]]:
    """Return the newest reading of each GPU, and what was no value in it."""
    looks: dict[tuple[str, str], dict[tuple[str, ...], _Look]] = defaultdict(dict)
    for track in found:
        if len(track.times_ms):
            newest = int(track.times_ms[-1])
            look = looks[track.seat].setdefault(track.target, _Look(newest))
            look.time_ms = max(look.time_ms, newest)
    dropped: list[Dropped] = []
    for track in found:
        # A series that was not in the newest scrape has ended: a job's, or a blank counter's.
        if not len(track.times_ms):
            continue
        look = looks[track.seat][track.target]
        if look.time_ms - int(track.times_ms[-1]) <= _SCRAPE_MS:
            dropped += _add(look, track)
    made = [_reading(list(seen.values())) for seen in looks.values()]
    return tuple(made), tuple(dropped[:MOST_DROPPED])


def _add(look: _Look, track: Track) -> Iterable[Dropped]:
    look.sets.append(track.labels)
    name = track.counter.name
    raw = float(track.values[-1])
    value, reason = usable(track.counter, raw, track.scale)
    if reason:
        yield Dropped(metric=track.metric, raw=f"{raw:.17g}", reason=reason)
    elif name not in look.values:
        look.values[name], look.parts[name] = value, 1
    elif track.pooled:
        look.parts[name] += 1
        look.values[name] += (value - look.values[name]) / look.parts[name]


def _reading(looks: list[_Look]) -> Reading:
    """Bring together what several targets say of one GPU: the newest counts most."""
    looks.sort(key=lambda look: look.time_ms, reverse=True)
    newest = looks[0]
    values: dict[str, float] = {}
    for look in looks:
        if newest.time_ms - look.time_ms <= _TOGETHER_MS:
            values = {**look.values, **values}
    entity = entity_of(newest.sets)
    return Reading(
        uuid=entity.uuid,
        instance=entity.instance,
        profile=entity.profile,
        host=entity.host or host_of(newest.sets[0]),
        index=entity.index,
        model=entity.model,
        time_ms=newest.time_ms,
        own_clock=True,
        values=values,
        labels=entity.labels,
        sharing=entity.sharing,
    )


def host_of(labels: Labels) -> str:
    """Return the host that a target's address names, where no label says it."""
    instance = labels.found("instance")
    host, colon, port = instance.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() else instance


class Prometheus:
    """Asks a server each round; made by :func:`build`, ended by :meth:`close`."""

    def __init__(self, settings: PrometheusSettings, api: Api) -> None:
        self.settings, self.api = settings, api
        self._live = names_of(LIVE)
        self.interval_ms: int | None = None
        self._last: dict[str, Reading] = {}
        self._since: dict[str, int] = {}  # since when a GPU's values are what they are
        self.spellings: frozenset[str] = frozenset()  # of the label that holds UUIDs

    @property
    def name(self) -> str:
        """The source's name."""
        return self.settings.name

    @property
    def settle_s(self) -> float:
        """Nothing: the first answer has all counters."""
        return 0.0

    def scrape(self, now_ms: int) -> Sequence[Scrape]:
        """Return the newest reading of every GPU that the server knows."""
        query = f"{selector(self._live, self.settings.select)}[{self._window_ms()}ms]"
        try:
            answer = self.api.query(query)
            found = tracks(answer.series, self.settings.replica_labels)
        except SourceError as error:
            return (Scrape(target=self.api.shown, asked_ms=now_ms, error=str(error)),)
        fresh, dropped = readings(found)
        self.learn(found)
        if not fresh and self._window_ms() < self.settings.window:
            self.interval_ms = None
        self._keep(fresh, now_ms)
        return (
            Scrape(
                target=self.api.shown,
                asked_ms=now_ms,
                time_ms=answer.time_ms,
                readings=tuple(self._last.values()),
                dropped=dropped,
                error="" if self._last else self._nothing(answer.warnings),
                failing="; ".join(answer.warnings) if self._last else "",
            ),
        )

    def learn(self, found: Sequence[Track]) -> None:
        """Note what the server's series are like: how often they come, what UUIDs are named."""
        several = (one.times_ms for one in found if len(one.times_ms) > 1)
        self.interval_ms = pace_ms(int(np.median(np.diff(times))) for times in several)
        self.spellings |= _spellings(found)

    def _window_ms(self) -> int:
        """Two samples of each series, once it is known how often they come."""
        if self.interval_ms is None:
            return int(self.settings.window)  # a duration is written as people write it
        return min(int(self.settings.window), 2 * self.interval_ms + 1_000)

    def _keep(self, fresh: Iterable[Reading], now_ms: int) -> None:
        """Remember the newest reading of each GPU until it is too old.

        A busy GPU's values that come again are the collection they were: it keeps its time.
        """
        for reading in fresh:
            last = self._last.get(reading.entity)
            if last is not None and last.time_ms > reading.time_ms:
                continue  # by another replica, which lags
            since = reading.time_ms
            if last is not None and _again(last, reading):
                since = self._since[reading.entity]
            self._since[reading.entity] = since
            held = reading.time_ms - since <= HELD_MS
            self._last[reading.entity] = (
                msgspec.structs.replace(reading, time_ms=since) if held else reading
            )
        newest = max((one.time_ms for one in self._last.values()), default=0)
        oldest = min(newest, now_ms) - self.settings.window
        self._last = {key: one for key, one in self._last.items() if one.time_ms >= oldest}
        self._since = {key: self._since[key] for key in self._last}

    def _nothing(self, warnings: Sequence[str]) -> str:
        told = f" ({'; '.join(warnings)})" if warnings else ""
        return (
            f"no counter of a GPU in the last {self.settings.window}: does it scrape "
            f"dcgm-exporter, and does select {self.settings.select} fit?{told}"
        )

    def close(self) -> None:
        """Close the connections."""
        self.api.close()


def _spellings(found: Iterable[Track]) -> frozenset[str]:
    """Return the names of the labels that hold UUIDs, as these exporters spell them."""
    return frozenset(
        next(name for name, value in track.labels.written.items() if value == track.seat[0])
        for track in found
    )


def _again(last: Reading, reading: Reading) -> bool:
    return (
        is_busy(reading.values)
        and reading.values == last.values
        and (reading.labels, reading.sharing) == (last.labels, last.sharing)
    )


def build(settings: PrometheusSettings, *, secret: Secret) -> Prometheus:
    """Return the source.

    Raises
    ------
    ContentErrors, SourceError
        When the secret or the certificates cannot be read.
    """
    api = Api(
        settings.url,
        headers=settings.headers,
        sign_in=signing(settings, secret),
        tls=tls_context(settings),
        timeout_s=settings.timeout / 1000,
    )
    return Prometheus(settings, api)
