"""Where a page of an exporter has its values: what stays the same from scrape to scrape.

A page's lines are cut into what comes before a value and the value. The first part is read
once: name, labels, which GPU it is. As long as every line begins as it did, only the values
need reading again (:mod:`detector.telemetry.exposition`). Whatever decides how a line is
understood is therefore decided here, from its beginning alone.

Nothing here raises: a line that is none becomes a ``Dropped`` of its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from detector.metric import Counter
from detector.reading import Dropped, Reading
from detector.telemetry import rocm
from detector.telemetry.line import Labels, Reader, Start, name_of, number_follows

# More lines than this are not reported one by one: a page of garbage stays cheap.
MOST_DROPPED = 1_000

# Jobs that one GPU is shared by, at most. Chosen: time slicing goes to a few dozen.
_MOST_CLAIMS = 256

# dcgm-exporter writes fp64 values with six decimals: one that has them is whole.
_WHOLE = re.compile(r"-?\d+\.\d{6}\s*", re.ASCII)

# Labels that belong to one value (what the last Xid was), not to the GPU or its jobs.
_OF_ONE_VALUE = frozenset({"err_code", "err_msg", *rocm.OF_ONE_VALUE})

# Labels whose case changed between versions, or that Prometheus may have renamed.
_LOWERED = frozenset(
    prefix + name
    for prefix in ("", "exported_")
    for name in ("hpc_job", "slurmjobid", "slurm_job_id", "job_id", "job_user",
                 "job_partition", "pod", "pod_uid", "namespace", "container")
)  # fmt: skip

# The exporter's first namespace. Beside one of these, a plain "pod" is the exporter's own.
_OLD = {"pod_name": "pod", "pod_namespace": "namespace", "container_name": "container"}


class Cell(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A value that is ours: what it is, and what of.

    Attributes
    ----------
    entity
        Its GPU or instance, by place in ``Layout.entities``.
    claim
        Which of that GPU's sets of labels it came under: another one is another job's.
    pooled
        Whether several of them are one counter's parts, whose mean counts (a clock for each
        compute die).
    """

    line: int
    metric: str
    counter: Counter
    scale: float
    entity: int
    claim: int
    pooled: bool


class Entity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a page says of one GPU, or one MIG instance of it; see ``Reading``."""

    uuid: str
    instance: str
    profile: str
    host: str
    index: str
    model: str
    labels: Mapping[str, str]
    sharing: tuple[Mapping[str, str], ...]

    def reading(
        self, values: Mapping[str, float], *, time_ms: int, own_clock: bool, host: str
    ) -> Reading:
        """Return a reading of it; of ``host`` where its own labels name none."""
        return Reading(
            uuid=self.uuid,
            instance=self.instance,
            profile=self.profile,
            host=self.host or host,
            index=self.index,
            model=self.model,
            time_ms=time_ms,
            own_clock=own_clock,
            values=values,
            labels=self.labels,
            sharing=self.sharing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A page without its values.

    Attributes
    ----------
    starts
        What each line must begin with.
    length
        Of all starts together.
    exact
        Lines after whose start nothing may follow: blank ones, and those that can't be read.
    bare
        Lines that start with a name alone: a number must follow.
    instances
        Places of MIG instances, and of the whole GPUs that the page has beside them.
    lasting
        Whether it may be remembered; a page that was cut off may not.
    """

    starts: tuple[bytes, ...]
    length: int
    exact: tuple[int, ...]
    bare: tuple[int, ...]
    cells: tuple[Cell, ...]
    entities: tuple[Entity, ...]
    dropped: tuple[Dropped, ...]
    instances: tuple[tuple[int, int], ...]
    lasting: bool

    def rests(self, lines: Sequence[bytes], length: int) -> list[bytes] | None:
        """Return what follows each line's start; None when the page is laid out otherwise.

        Parameters
        ----------
        length
            Of all lines together. A line that begins otherwise stays whole, so the rests are
            longer than they should be: one sum tells that every start was found.
        """
        if len(lines) != len(self.starts):
            return None
        rests = list(map(bytes.removeprefix, lines, self.starts))
        if len(b"".join(rests)) != length - self.length:
            return None
        if all(not rests[i] for i in self.exact) and all(
            number_follows(rests[i].decode("latin-1")) for i in self.bare
        ):
            return rests
        return None


def layout_of(lines: Sequence[bytes]) -> Layout:
    """Return the layout of a page, split at its line feeds: at least one line."""
    building = _Building()
    # Latin-1: a character a byte, so that places in the text are places in the bytes.
    for number, line in enumerate(lines[:-1]):
        building.add(number, line.decode("latin-1"))
    building.add_last(len(lines) - 1, lines[-1].decode("latin-1"))
    return building.layout()


class _Building:
    """A layout while its lines are read, top down."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.exact: list[int] = []
        self.bare: list[int] = []
        self.cells: list[Cell] = []
        self.dropped: list[Dropped] = []
        self.lasting = True
        self._reader = Reader()
        self._places: dict[tuple[str, str], int] = {}
        self._firsts: list[Labels] = []
        self._claims: list[list[dict[str, str]]] = []
        self._seen: dict[Labels, tuple[int, int]] = {}

    def add(self, number: int, line: str) -> None:
        text = line.strip()
        if not text:
            self._keep(number, line)
        elif text.startswith("#"):
            self.starts.append(line[: line.index("#") + 1])
        elif isinstance(start := self._reader.start(line), str):
            self._keep(number, line)
            self._drop(number, "", f"{start}: {text[:40]!a}")
        else:
            self._place(number, line, start)

    def add_last(self, number: int, line: str) -> None:
        """Add what follows the last line feed: nothing, in a page that is whole."""
        text = line.strip()
        if not text or text.startswith("#"):
            self.add(number, line)
            return
        self.lasting = False
        start = self._reader.start(line)
        whole = not isinstance(start, str) and line[start.end :].strip()
        if isinstance(start, str) or not whole:
            self._drop(number, name_of(line), _CUT)
            self._keep(number, line)
        elif start.counter() is None or _WHOLE.fullmatch(line, start.end):
            self._place(number, line, start)
        else:
            self._drop(number, start.name, _CUT)
            self._keep(number, line)

    def _keep(self, number: int, line: str) -> None:
        self.starts.append(line)
        self.exact.append(number)

    def _drop(self, number: int, metric: str, reason: str) -> None:
        self.dropped.append(Dropped(line=number + 1, metric=metric[:60], raw="", reason=reason))

    def _place(self, number: int, line: str, start: Start) -> None:
        self.starts.append(line[: start.end])
        if start.bare:
            self.bare.append(number)
        if not (known := start.counter()):
            return
        counter, scale, pooled = known
        entity, claim = self._entity(start.labels)
        self.cells.append(
            Cell(
                line=number, metric=start.name, counter=counter,
                scale=scale, entity=entity, claim=claim, pooled=pooled,
            )
        )  # fmt: skip

    def _entity(self, labels: Labels) -> tuple[int, int]:
        """Return the place of the labels' GPU, and of the labels among the GPU's sets."""
        if labels not in self._seen:
            key = (labels.uuid, labels.instance[0])
            place = self._places.setdefault(key, len(self._firsts))
            if place == len(self._firsts):
                self._firsts.append(labels)
                self._claims.append([])
            claims, claim = self._claims[place], _claim(labels)
            if claim not in claims and len(claims) < _MOST_CLAIMS:
                claims.append(claim)
            known = claims.index(claim) if claim in claims else len(claims)
            self._seen[labels] = (place, known)
        return self._seen[labels]

    def layout(self) -> Layout:
        return Layout(
            starts=tuple(start.encode("latin-1") for start in self.starts),
            length=sum(map(len, self.starts)),
            exact=tuple(self.exact),
            bare=tuple(self.bare),
            cells=tuple(self.cells),
            entities=tuple(map(_entity, self._firsts, self._claims)),
            dropped=tuple(self.dropped),
            instances=tuple(
                (place, self._places[uuid, ""])
                for (uuid, instance), place in self._places.items()
                if instance and (uuid, "") in self._places
            ),
            lasting=self.lasting,
        )


_CUT = "payload cut off in the middle of the line"


# What a Reading has a place for; all other labels are kept as labels.
_PLACED = frozenset({
    "uuid", "gpu_uuid", "gpu", "gpu_id", "gpu_i_id", "gpu_i_profile", "hostname",
    "modelname", "model_name", "card_model",
})  # fmt: skip


def _claim(labels: Labels) -> dict[str, str]:
    """Return what the labels say beside the GPU itself; none of it empty."""
    claim = {}
    for name, value in labels.written.items():
        low = name.lower()
        if value and low not in _PLACED and low not in _OF_ONE_VALUE and low not in _OLD:
            claim[low if low in _LOWERED else name] = value
    claim.update({new: value for old, new in _OLD.items() if (value := labels.found(old))})
    return claim


def entity_of(sets: Sequence[Labels]) -> Entity:
    """Return a GPU from all sets of labels that it comes under at one time; not empty."""
    claims: list[dict[str, str]] = []
    for labels in sets:
        if (claim := _claim(labels)) not in claims:
            claims.append(claim)
    return _entity(sets[0], claims)


def _entity(labels: Labels, claims: Sequence[dict[str, str]]) -> Entity:
    """Return a GPU by its first labels, and by all sets that it came under."""
    # A set that another one holds whole says nothing of its own (a counter without pod labels).
    sets = [
        claim for claim in claims
        if not any(claim.items() < other.items() for other in claims)
    ]  # fmt: skip
    instance, profile = labels.instance
    return Entity(
        uuid=labels.uuid,
        instance=instance,
        profile=profile,
        host=labels.found("hostname"),
        index=labels.found("gpu", "gpu_id"),
        model=labels.found("modelname", "model_name", "card_model"),
        labels=sets[0],
        sharing=tuple(sets[1:]),
    )
