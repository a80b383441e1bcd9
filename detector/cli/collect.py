"""``ofuwatch collect``: one round over sources, shown; nothing is written."""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from detector.cli import EXIT_PROBLEM, fail
from detector.cli.opening import config_option, config_path, read_config, refused

if TYPE_CHECKING:
    from detector.analysis.quality import Judged
    from detector.config import Config, SourceSettings
    from detector.telemetry.collector import Round
    from detector.telemetry.source import Source

_TYPES = ("exporter", "prometheus", "dcgm", "nvml")


@click.command(name="collect")
@config_option
@click.option("--once", is_flag=True, help="Make one round, print it, write nothing.")
@click.option(
    "--source", "kind", metavar="NAME",
    help="A configured source; with --target, a type: exporter, prometheus, dcgm or nvml.",
)  # fmt: skip
@click.option(
    "--target", "targets", multiple=True, metavar="URL",
    help="Whom to ask: a URL, host:port, or a file that holds a page. Repeatable.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line a job.")
def command(
    *,
    config_file: Path | None,
    once: bool,
    kind: str | None,
    targets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Collect counters from the sources; with --once show what one round finds."""
    from detector.telemetry.source import SourceError

    config = read_config(config_file)
    if not once:
        if kind or targets or as_json:
            fail("--source, --target and --json go with --once; sources are in config.toml")
        _run(config, config_path(config_file).absolute())
        return
    now_ms = time.time_ns() // 1_000_000
    try:
        found = _round(config, kind, targets, now_ms=now_ms)
    except SourceError as error:
        fail(str(error), code=EXIT_PROBLEM)
    for trouble in found.troubles:
        click.echo(f"ofuwatch: {trouble}", err=True)
    lines = _records(found) if as_json else _table(found)
    for line in lines:
        click.echo(line)
    if not found.judged:
        raise SystemExit(EXIT_PROBLEM)


def _run(config: "Config", file: Path) -> None:
    from detector.cli.serve import watch

    if not config.sources:
        fail("no [[source]] is configured: there is nothing to collect; see docs/collection.md")
    watch(config, file=file, only=("collect",))


def _round(
    config: "Config", kind: str | None, targets: tuple[str, ...], *, now_ms: int
) -> "Round":
    from detector.sources import register_of
    from detector.telemetry.collector import Collector

    sources = _sources(config, kind, targets)
    register = register_of(config)
    collector = Collector(sources, register, max_clocks=max_clocks(config), deadline_s=30.0)
    try:
        found = collector.round(now_ms)
        settle_s = max((getattr(one, "settle_s", 0.0) for one in sources), default=0.0)
        if settle_s and found.judged:
            # The driver's counters are differences of two samples: a first round has none.
            time.sleep(settle_s)
            found = collector.round(time.time_ns() // 1_000_000)
        return found
    finally:
        collector.close()
        register.close()


def max_clocks(config: "Config") -> Any:
    """Return where maximal clocks come from that GPUs do not report."""
    from detector.analysis.quality import MaxClocks
    from detector.cli.opening import read_content

    content = read_content(config.content.models, config.content.rules)
    return MaxClocks(table=content.gpus, configured=config.collect.max_clock_mhz)


def _sources(
    config: "Config", kind: str | None, targets: tuple[str, ...]
) -> "Sequence[Source]":
    """Return what the options name: configured sources, or one made for the targets."""
    from detector import sources
    from detector.tables import ContentErrors

    chosen: Iterable[SourceSettings]
    if targets or (kind in _TYPES and not any(one.name == kind for one in config.sources)):
        files = [target for target in targets if _is_file(target)]
        if files:
            return [_Pages(files), *_sources_of(kind, targets, files)]
        chosen = [_made(kind or "exporter", targets)]
    elif kind is not None:
        chosen = [one for one in config.sources if one.name == kind]
        if not chosen:
            names = ", ".join(one.name for one in config.sources) or "none"
            fail(
                f"--source {kind!r} is not configured (there are: {names}); give a --target too"
            )
    else:
        chosen = config.sources
        if not chosen:
            fail("no [[source]] is configured: name one with --source exporter --target URL")
    try:
        return list(sources.built(map(_hurried, chosen)))
    except ContentErrors as errors:
        refused(errors)


def _hurried(settings: "SourceSettings") -> "SourceSettings":
    """Let counters be sampled every second: one round is not worth two intervals' wait."""
    from detector.series import Duration
    from detector.telemetry.dcgm import DcgmSettings

    if isinstance(settings, DcgmSettings):
        return msgspec.structs.replace(settings, interval=Duration.parse("1s"))
    return settings


def _sources_of(
    kind: str | None, targets: tuple[str, ...], files: Sequence[str]
) -> "Sequence[Source]":
    from detector import sources

    others = tuple(target for target in targets if target not in files)
    return [sources.source(_made(kind or "exporter", others))] if others else []


def _is_file(target: str) -> bool:
    return "://" not in target and (target.endswith(".prom") or Path(target).is_file())


def _made(kind: str, targets: tuple[str, ...]) -> "SourceSettings":
    from detector.config import SourceSettings

    if kind not in _TYPES:
        fail(f"--source {kind!r} is no type of source; there are {', '.join(_TYPES)}")
    table: dict[str, Any] = {"type": kind}
    if kind == "exporter":
        table["targets"] = list(targets)
        if not targets:
            fail("--source exporter needs a --target, such as http://gpu-a-07:9400")
    elif kind == "nvml" and targets:
        fail("--source nvml reads this node and takes no --target")
    elif len(targets) > 1:
        fail(f"--source {kind} takes one --target, not {len(targets)}")
    elif targets:
        table["url" if kind == "prometheus" else "address"] = targets[0]
    elif kind == "prometheus":
        fail("--source prometheus needs a --target, such as http://prometheus:9090")
    try:
        made: SourceSettings = msgspec.convert(table, SourceSettings)
    except msgspec.ValidationError as error:
        fail(f"--target: {error}")
    return made


class _Pages:
    """Pages of exporters that were saved to files."""

    name = "file"

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def scrape(self, now_ms: int) -> "Sequence[Any]":
        from detector.telemetry.exporter import read_page

        return [read_page(Path(file), now_ms=now_ms) for file in self._files]

    def close(self) -> None:
        """Nothing is open."""


def _by_job(found: "Round") -> dict[str | None, list["Judged"]]:
    grouped: defaultdict[str | None, list[Judged]] = defaultdict(list)
    for one in found.judged:
        for job in one.jobs or (None,):
            grouped[job].append(one)
    return dict(sorted(grouped.items(), key=lambda item: (item[0] is None, item[0] or "")))


def _records(found: "Round") -> Iterable[str]:
    for job, judged in _by_job(found).items():
        usable = [one.ofu for one in judged if one.usable]
        record = {
            "job": job,
            "timestamp": found.time_ms / 1000,
            "ofu": _rounded(math.fsum(usable) / len(usable)) if usable else None,
            "n": len(usable),
            "gpus": [_gpu(one) for one in judged],
        }
        yield msgspec.json.encode(record).decode()


def _gpu(one: "Judged") -> dict[str, Any]:
    reading = one.reading
    return {
        "uuid": reading.uuid,
        "ofu": _rounded(one.ofu),
        "tensor": reading.values.get("tensor_active"),
        "clock": reading.values.get("sm_clock_mhz"),
        "quality": one.quality,
        "reason": one.reason,
        "max_clock": _rounded(one.max_clock_mhz),
        "max_clock_source": one.max_clock_source or None,
        "host": reading.host or None,
        "index": reading.index or None,
        "instance": reading.instance or None,
        "profile": reading.profile or None,
    }


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def _table(found: "Round") -> Iterable[str]:
    for job, judged in _by_job(found).items():
        usable = [one.ofu for one in judged if one.usable]
        mean = f"OFU {math.fsum(usable) / len(usable):.4f}" if usable else "no OFU"
        title = "no job" if job is None else f"job {job}"
        yield f"{title}: {mean}, {len(usable)} of {len(judged)} GPUs"
        for one in judged:
            reading = one.reading
            ofu = "     -" if math.isnan(one.ofu) else f"{one.ofu:6.4f}"
            clock = reading.values.get("sm_clock_mhz")
            place = f"{reading.host or '?'}/{reading.index or '?'}"
            instance = f" MIG {reading.instance} {reading.profile}" if reading.instance else ""
            top = f" of {one.max_clock_mhz:g} ({one.max_clock_source})"
            said = f"  {one.quality}" if one.quality != "ok" else ""
            why = f"{said}{': ' if said and one.reason else '  '}{one.reason}".rstrip()
            at = "-" if clock is None else f"{clock:g}"
            at += top if one.max_clock_source else ""
            tensor = _shown(reading.values.get("tensor_active"))
            yield f"  {place:<24} {ofu}  tensor {tensor}  clock {at}{instance}{why}"
    dropped = sum(len(scrape.dropped) for scrape in found.scrapes)
    if dropped:
        yield f"{dropped} values were left out:"
        for scrape in found.scrapes:
            for lost in scrape.dropped[:20]:
                where = f"line {lost.line}: " if lost.line else ""
                what = f"{lost.metric} {lost.raw[:30]!a}: {lost.reason}"
                yield f"  {scrape.target}: {where}{what}"
            if len(scrape.dropped) > 20:
                yield f"  {scrape.target}: and {len(scrape.dropped) - 20} more"


def _shown(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.4f}"
