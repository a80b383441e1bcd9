"""Which sources a verb asks: configured ones, or one made for a ``--target``."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
import msgspec

from detector.cli import fail
from detector.cli.opening import refused

if TYPE_CHECKING:
    from detector.config import Config, SourceSettings
    from detector.telemetry.collector import Round
    from detector.telemetry.remedies import Kind
    from detector.telemetry.source import Source


class Chosen(NamedTuple):
    """A source, and what type it is of."""

    kind: "Kind"
    source: "Source"


ALL = "all-configured"  # what no --source means too
TYPES = ("exporter", "prometheus", "dcgm", "nvml")


source_option = click.option(
    "--source", "kind", metavar="NAME",
    help=f"A configured source, a type ({', '.join(TYPES)}), or {ALL}.",
)  # fmt: skip
target_option = click.option(
    "--target", "targets", multiple=True, metavar="URL",
    help="Whom to ask: a URL, host:port, or a file that holds a page. Repeatable.",
)  # fmt: skip


def rounds(
    config: "Config", sources: Sequence["Source"], *, waits_s: Sequence[float]
) -> list["Round"]:
    """Make a round over sources, and one more after each wait; nothing is written.

    Sources whose counters are differences of two samples are given the time for them first.
    Where nobody answers there is nothing to wait for.
    """
    from detector.sources import register_of
    from detector.telemetry.collector import Collector

    register = register_of(config)
    collector = Collector(sources, register, max_clocks=max_clocks(config), deadline_s=30.0)
    settle_s = max((source.settle_s for source in sources), default=0.0)
    try:
        found = [collector.round(_now_ms())]
        for pause_s in (settle_s, *waits_s):
            if all(scrape.error for scrape in found[-1].scrapes):
                break
            if pause_s > 0:
                time.sleep(pause_s)
                found.append(collector.round(_now_ms()))
    finally:
        collector.close()
        register.close()
    return found[1:] if settle_s > 0 and len(found) > 1 else found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def max_clocks(config: "Config") -> Any:
    """Return where maximal clocks come from that GPUs do not report."""
    from detector.analysis.maxclock import MaxClocks
    from detector.cli.opening import read_content

    content = read_content(config.content.models, config.content.rules)
    return MaxClocks(table=content.gpus, configured=config.collect.max_clock_mhz)


def chosen(config: "Config", kind: str | None, targets: tuple[str, ...]) -> list["Chosen"]:
    """Return what the options name: configured sources, or one made for the targets.

    Leaves with one line when they name none.

    Raises
    ------
    SourceError
        When one cannot work at all.
    """
    settings: Iterable[SourceSettings]
    kind = None if kind == ALL else kind
    if targets or (kind in TYPES and not any(one.name == kind for one in config.sources)):
        files = [target for target in targets if _is_file(target)]
        if files:
            others = tuple(target for target in targets if target not in files)
            pages = Chosen(kind="exporter", source=_Pages(files))
            return [pages, *(_built([made("exporter", others)]) if others else ())]
        settings = [made(kind or "exporter", targets)]
    elif kind is not None:
        settings = [one for one in config.sources if one.name == kind]
        if not settings:
            names = ", ".join(one.name for one in config.sources) or "none"
            fail(
                f"--source {kind!r} is not configured (there are: {names}); give a --target too"
            )
    else:
        settings = config.sources
        if not settings:
            fail("no [[source]] is configured: name one with --source exporter --target URL")
    return _built(settings)


def _built(settings: "Iterable[SourceSettings]") -> list["Chosen"]:
    from detector import sources
    from detector.tables import ContentErrors

    found = []
    try:
        for one in settings:
            kind = cast("Kind", one.__struct_config__.tag)
            found.append(Chosen(kind=kind, source=sources.source(_hurried(one))))
    except ContentErrors as errors:
        refused(errors)
    return found


def _hurried(settings: "SourceSettings") -> "SourceSettings":
    """Let counters be sampled every second: one round is not worth two intervals' wait."""
    from detector.series import Duration
    from detector.telemetry.dcgm import DcgmSettings

    if isinstance(settings, DcgmSettings):
        return msgspec.structs.replace(settings, interval=Duration.parse("1s"))
    return settings


def files_only(targets: Sequence[str]) -> bool:
    """Whether there are targets, and all of them are saved pages."""
    return bool(targets) and all(map(_is_file, targets))


def _is_file(target: str) -> bool:
    return "://" not in target and (target.endswith(".prom") or Path(target).is_file())


def made(kind: str, targets: tuple[str, ...] = ()) -> "SourceSettings":
    """Return the settings of a source of a type and its targets; leaves when there are none."""
    from detector.config import SourceSettings

    if kind not in TYPES:
        fail(f"--source {kind!r} is no type of source; there are {', '.join(TYPES)}")
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
        settings: SourceSettings = msgspec.convert(table, SourceSettings)
    except msgspec.ValidationError as error:
        fail(f"--target: {'; '.join(str(error).splitlines())}")
    return settings


class _Pages:
    """Pages of exporters that were saved to files."""

    name = "file"
    settle_s = 0.0

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def scrape(self, now_ms: int) -> "Sequence[Any]":
        from detector.telemetry.exporter import read_page

        return [read_page(Path(file), now_ms=now_ms) for file in self._files]

    def close(self) -> None:
        """Nothing is open."""
