"""``ofuwatch collect``: one round over sources, shown; nothing is written."""

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from detector.cli import EXIT_PROBLEM, counted, fail
from detector.cli.opening import config_option, config_path, read_config
from detector.cli.sourcing import chosen, rounds, source_option, target_option

if TYPE_CHECKING:
    from detector.analysis.quality import Judged
    from detector.config import Config
    from detector.telemetry.collector import Round

# Verdicts that need an earlier reading, see detector.analysis.quality.
_UNKNOWN = ("stale", "frozen", "handover")


@click.command(name="collect")
@config_option
@click.option("--once", is_flag=True, help="Make one round, print it, write nothing.")
@source_option
@target_option
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
    try:
        found = _round(config, kind, targets)
    except SourceError as error:
        fail(str(error), code=EXIT_PROBLEM)
    for trouble in found.troubles:
        click.echo(f"ofuwatch: {trouble}", err=True)
    lines = _records(found) if as_json else (*_table(found), *_footer(found))
    for line in lines:
        click.echo(line)
    if not found.judged:
        raise SystemExit(EXIT_PROBLEM)


def _run(config: "Config", file: Path) -> None:
    from detector.cli.serve import watch

    watch(config, file=file, only=("collect",))


def _round(config: "Config", kind: str | None, targets: tuple[str, ...]) -> "Round":
    sources = [one.source for one in chosen(config, kind, targets)]
    return rounds(config, sources, waits_s=())[-1]


def _by_job(found: "Round") -> dict[str | None, list["Judged"]]:
    from detector.analysis.aggregate import best_of

    counting = best_of(found.judged)
    grouped: defaultdict[str | None, list[Judged]] = defaultdict(list)
    for (job, _), one in counting.items():
        grouped[job].append(one)
    # What one target has no job for may have one by another.
    seen = {entity for _, entity in counting}
    for one in found.judged:
        if not one.jobs and one.reading.entity not in seen:
            seen.add(one.reading.entity)
            grouped[None].append(one)
    by_name = sorted(grouped.items(), key=lambda item: (item[0] is None, item[0] or ""))
    return {job: sorted(judged, key=_place) for job, judged in by_name}


def _place(one: "Judged") -> tuple[str, int, str, str]:
    """Where a GPU is: host by host, and there by its number."""
    reading = one.reading
    number = int(reading.index) if reading.index.isdecimal() else -1
    return reading.host, number, reading.index, reading.instance


def _records(found: "Round") -> Iterable[str]:
    for job, judged in _by_job(found).items():
        usable = [one.ofu for one in judged if one.usable]
        record = {
            "job": job,
            "timestamp": found.time_ms / 1000,
            "ofu": _rounded(math.fsum(usable) / len(usable)) if usable else None,
            "n": len(usable),
            "unknown": list(_UNKNOWN),
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
    # Of a GPU that is lost no value was left out: it is among the troubles.
    left_out = [
        (scrape.target, [one for one in scrape.dropped if one not in scrape.lost])
        for scrape in found.scrapes
    ]
    if count := sum(len(dropped) for _, dropped in left_out):
        yield f"{counted(count, 'value')} left out:"
        for target, dropped in left_out:
            for left in dropped[:20]:
                yield f"  {target}: {left}"
            if len(dropped) > 20:
                yield f"  {target}: and {len(dropped) - 20} more"


def _footer(found: "Round") -> Iterable[str]:
    if found.judged:
        yield (
            f"Asked once: whether a GPU is {', '.join(_UNKNOWN[:-1])} or in {_UNKNOWN[-1]} is "
            "unknown; `ofuwatch doctor` asks twice."
        )


def _shown(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.4f}"
