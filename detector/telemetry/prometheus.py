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

from detector.analysis.past import pace_ms
from detector.analysis.quality import HELD_MS, never_comes_twice
from detector.metric import COUNTERS, Counter, usable
from detector.reading import Dropped, Reading, Scrape
from detector.series import FloatArray, IntArray
from detector.telemetry import rocm
from detector.telemetry.access import Secret, credential, signing, tls_context
from detector.telemetry.layout import MOST_DROPPED, entity_of
from detector.telemetry.line import Labels, Start
from detector.telemetry.prometheus_api import Api, Series, labels, samples
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.samples import of_gpu
from detector.telemetry.source import SourceError

# What quality, OFU and the histories' fields are made of, and no more: each counter costs the
# server a series a GPU.
LIVE = (
    "tensor_active", "sm_clock_mhz", "max_sm_clock_mhz", "gr_engine_active", "sm_active",
    "dram_active", "gpu_util_pct", "power_w", "power_limit_w", "nvlink_tx_bytes",
    "nvlink_rx_bytes", "pcie_tx_bytes", "pcie_rx_bytes",
)  # fmt: skip

# Samples of one GPU from several exporters belong together within this.
TOGETHER_MS = 60_000

# Series more than that are remembered, where there are few. Chosen: a megabyte of labels.
_FEW = 1_000

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Origin:
    """What a series is of: a counter of one GPU, under one set of labels.

    Attributes
    ----------
    seat
        UUID and instance.
    target
        Who scraped whom: series of one target come with the same times.
    labels
        Without the metric's name and replica labels; those of one GPU's series are one object.
    spelling
        How the label that holds the UUID is written.
    """

    seat: tuple[str, str]
    target: tuple[str, ...]
    metric: str
    counter: Counter
    scale: float
    pooled: bool
    labels: Labels
    spelling: str


@dataclass(frozen=True, slots=True)
class Track:
    """One series over some time.

    Attributes
    ----------
    times_ms, values
        Oldest first; values in the exporter's own unit, NaN for none.
    """

    origin: Origin
    times_ms: IntArray
    values: FloatArray


class Origins:
    """Tells what series are of; what has been told once is known by the series' text."""

    def __init__(self, replica_labels: Sequence[str]) -> None:
        self._replica_labels = tuple(replica_labels)
        self._ignored = {"__name__", *replica_labels}
        self._known: dict[bytes, Origin | None] = {}
        self._labels: dict[tuple[tuple[str, str], ...], Labels] = {}

    def tracks(self, series: Sequence[Series]) -> tuple[Track, ...]:
        """Return what an answer's series are of; others than GPUs' counters are left out.

        Raises
        ------
        SourceError
            When labels or samples are none.
        """
        if len(self._known) > 2 * len(series) + _FEW:  # most are gone
            self._known.clear()
            self._labels.clear()
        found = []
        for one in series:
            text = bytes(one.metric)
            if text in self._known:
                origin = self._known[text]
            else:
                origin = self._known[text] = self._origin(labels(text))
            if origin is not None:
                found.append(Track(origin, *samples(one)))
        return tuple(found)

    def _origin(self, written: dict[str, str]) -> Origin | None:
        metric = written.get("__name__", "")
        replica = tuple(written.get(name, "") for name in self._replica_labels)
        rest = {name: value for name, value in written.items() if name not in self._ignored}
        own = self._labels.setdefault(tuple(rest.items()), Labels(rest))
        if not (known := Start(name=metric, labels=own, end=0, bare=False).counter()):
            return None
        counter, scale, pooled = known
        return Origin(
            seat=(own.uuid, own.instance[0]),
            target=(own.found("job"), own.found("instance"), *replica),
            metric=metric,
            counter=counter,
            scale=scale,
            pooled=pooled,
            labels=own,
            spelling=next(name for name, value in rest.items() if value == own.uuid),
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
            origin = track.origin
            look = looks[origin.seat].setdefault(origin.target, _Look(newest))
            look.time_ms = max(look.time_ms, newest)
    dropped: list[Dropped] = []
    for track in found:
        # A series that was not in the newest scrape has ended: a job's, or a blank counter's.
        if not len(track.times_ms):
            continue
        look = looks[track.origin.seat][track.origin.target]
        if look.time_ms - int(track.times_ms[-1]) <= _SCRAPE_MS:
            dropped += _add(look, track)
    made = {seat: _reading(list(seen.values())) for seat, seen in looks.items()}
    whole = (_completed(reading, made.get((reading.uuid, ""))) for reading in made.values())
    return tuple(whole), tuple(dropped[:MOST_DROPPED])


def _completed(reading: Reading, gpu: Reading | None) -> Reading:
    """Give a MIG instance what only its whole GPU's series say, such as the clock."""
    if not reading.instance or gpu is None or reading.time_ms - gpu.time_ms > TOGETHER_MS:
        return reading
    return msgspec.structs.replace(reading, values={**of_gpu(gpu.values), **reading.values})


def _add(look: _Look, track: Track) -> Iterable[Dropped]:
    origin = track.origin
    if origin.labels not in look.sets:
        look.sets.append(origin.labels)
    name = origin.counter.name
    raw = float(track.values[-1])
    value, reason = usable(origin.counter, raw, origin.scale)
    if reason:
        yield Dropped(metric=origin.metric, raw=f"{raw:.17g}", reason=reason)
    elif name not in look.values:
        look.values[name], look.parts[name] = value, 1
    elif origin.pooled:
        look.parts[name] += 1
        look.values[name] += (value - look.values[name]) / look.parts[name]


def _reading(looks: list[_Look]) -> Reading:
    """Bring together what several targets say of one GPU: the newest counts most."""
    looks.sort(key=lambda look: look.time_ms, reverse=True)
    newest = looks[0]
    values: dict[str, float] = {}
    for look in looks:
        if newest.time_ms - look.time_ms <= TOGETHER_MS:
            values = {**look.values, **values}
    return entity_of(newest.sets).reading(
        values, time_ms=newest.time_ms, own_clock=True, host=host_of(newest.sets[0])
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
        self._origins = Origins(settings.replica_labels)
        self.interval_ms: int | None = None
        self._last: dict[str, Reading] = {}
        self._since: dict[str, int] = {}  # since when a GPU's values are what they are
        # Of the label that holds UUIDs: dcgm-exporter's, and what others are seen to write.
        self.spellings = frozenset({"UUID"})

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
            found = self._origins.tracks(answer.series)
        except SourceError as error:
            return (Scrape(target=self.api.shown, asked_ms=now_ms, error=str(error)),)
        fresh, dropped = readings(found)
        self.learn(found)
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
        self.interval_ms = pace_ms(
            int(times[-1] - times[0]) // (len(times) - 1) for times in several
        )
        self.spellings |= {track.origin.spelling for track in found}

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
            f"no counter of a GPU in the last {self.settings.window}: are the targets of "
            f"dcgm-exporter up there, and does select {self.settings.select} fit?{told}"
        )

    def close(self) -> None:
        """Close the connections."""
        self.api.close()


def _again(last: Reading, reading: Reading) -> bool:
    return (
        never_comes_twice(reading.values)
        and reading.values == last.values
        and reading.label_sets == last.label_sets
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
        credential=credential(settings),
        tls=tls_context(settings),
        timeout_s=settings.timeout / 1000,
    )
    return Prometheus(settings, api)
