"""``ofuwatch doctor``: what of collection works, what is missing, and what mends it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from detector.cli import EXIT_PROBLEM, fail
from detector.cli.opening import config_option, read_config
from detector.cli.sourcing import chosen, files_only, rounds, source_option, target_option

if TYPE_CHECKING:
    from detector.cli.sourcing import Chosen
    from detector.config import Config
    from detector.telemetry.diagnosis import Symptom

# What a node may have, when nothing says what is to be asked.
_ON_NODE = (("exporter", ("localhost:9400",)), ("dcgm", ()), ("nvml", ()))

# NVIDIA's driver and AMD's, where they are loaded; in containers too.
_DRIVERS = ("/proc/driver/nvidia", "/dev/kfd")

_MARKS = {"ok": "ok     ", "note": "note   ", "trouble": "TROUBLE"}


@click.command(
    short_help="Say of a node or a target what works, what is missing, what mends it."
)
@config_option
@source_option
@target_option
@click.option(
    "--wait", "wait", default="10s", show_default=True, metavar="DURATION",
    help="Time between the two rounds; 0s makes one only.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line a finding.")
def command(
    *,
    config_file: Path | None,
    kind: str | None,
    targets: tuple[str, ...],
    wait: str,
    as_json: bool,
) -> None:
    """Ask sources twice; say what works, what is missing, and the one thing that mends it.

    Without options: the configured sources; where there are none, what this node has (an
    exporter on port 9400, a DCGM host engine, the driver). Writes nothing. Exit code 0 when
    nothing is in trouble, 1 when something is.
    """
    from detector.series import Duration

    try:
        wait_s = Duration.parse(wait) / 1000
    except ValueError as error:
        fail(f"--wait: {error}")
    config = read_config(config_file)
    if kind or targets or config.sources:
        found = _asked(config, kind, targets, wait_s=wait_s)
    else:
        found = _node(config, wait_s=wait_s)
    told = (msgspec.json.encode(one).decode() for one in found) if as_json else _table(found)
    for line in told:
        click.echo(line)
    if any(symptom.level == "trouble" for symptom in found):
        raise SystemExit(EXIT_PROBLEM)


def _asked(
    config: "Config", kind: str | None, targets: tuple[str, ...], *, wait_s: float
) -> list["Symptom"]:
    from detector.telemetry.diagnosis import broken, diagnose
    from detector.telemetry.source import SourceError

    try:
        sources = chosen(config, kind, targets)
    except SourceError as error:
        return [broken(str(error), place=kind or "sources")]
    # A file says the same twice.
    waits = () if wait_s == 0 or files_only(targets) else (wait_s,)

    def look(one: "Chosen") -> list["Symptom"]:
        found = rounds(config, [one.source], waits_s=waits)
        silent = [broken(line, place="") for line in found[-1].silent]
        return silent + diagnose([(made.scrapes, made.judged) for made in found], kind=one.kind)

    with ThreadPoolExecutor(max_workers=len(sources)) as pool:
        return [symptom for found in pool.map(look, sources) for symptom in found]


def _node(config: "Config", *, wait_s: float) -> list["Symptom"]:
    """Look at whatever this node may have; what is not there matters only if nothing is."""
    from detector.telemetry.diagnosis import no_driver

    def look(one: tuple[str, tuple[str, ...]]) -> list["Symptom"]:
        return _asked(config, one[0], one[1], wait_s=wait_s)

    with ThreadPoolExecutor(max_workers=len(_ON_NODE)) as pool:
        groups = list(pool.map(look, _ON_NODE))
    if any(_answers(group) for group in groups):
        groups = [group for group in groups if _answers(group)]
    elif not any(Path(one).exists() for one in _DRIVERS):
        groups = [[no_driver()]]
    return [symptom for group in groups for symptom in group]


def _answers(group: "Sequence[Symptom]") -> bool:
    return any(symptom.kind == "answered" for symptom in group)


def _table(found: "Sequence[Symptom]") -> Iterator[str]:
    """Yield what was found place by place, those in trouble first; commands in one piece."""
    from detector.log import printable

    by_place: defaultdict[str, list[Symptom]] = defaultdict(list)
    for symptom in found:
        by_place[symptom.place].append(symptom)
    for place, symptoms in by_place.items():
        yield printable(place or "all sources")
        for symptom in symptoms:
            yield printable(f"  {_MARKS[symptom.level]}  {symptom.reason}")
            if symptom.remedy:
                yield printable(f"           -> {symptom.remedy}")
    counts = Counter(symptom.level for symptom in found)
    yield f"{counts['trouble']} in trouble, {counts['note']} to note, {counts['ok']} ok"
