"""What it costs to collect from 300 exporters every 10 s: asked, read, judged, written.

The collecting process is the service's own part, with a real server to write to; exporters are
other processes, so that its CPU time is its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from rich.progress import Progress

from benchmarks.fleet_size import worker
from benchmarks.report import Row
from benchmarks.worker import Measurement
from detector.store import embedded

_EVERY_S = 10.0
_PROCESSES = 2

# Until then layouts are learned, connections opened and buffers grown.
_SETTLED = 6


def measure(progress: Progress, *, minutes: float, exporters: int = 300) -> Iterator[Row]:
    """Scrape for ``minutes`` at the true pace."""
    rounds = max(_SETTLED + 2, round(minutes * 60 / _EVERY_S))
    task = progress.add_task(f"{exporters} exporters every 10 s", total=rounds)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ofu"))
        server = embedded.start(Path(folder))
        stack.callback(server.stop)
        client = stack.enter_context(redis.Redis(unix_socket_path=str(server.socket)))
        ports: list[int] = []
        for one in range(_PROCESSES):
            count = exporters // _PROCESSES
            ports += stack.enter_context(_served(one * count, count))
        targets = [f"127.0.0.1:{port}" for port in ports]
        collector = stack.enter_context(
            worker("collector", str(server.socket), keys=targets, after_ms=0)
        )
        found, written, begun = [], 0, time.monotonic()
        for turn in range(rounds):
            time.sleep(max(0.0, begun + turn * _EVERY_S - time.monotonic()))
            found.append(collector.ask(round(time.time() * 1000)))
            written += int(client.xlen("ofu:in"))
            client.xtrim("ofu:in", maxlen=0)  # what the service would have taken
            progress.advance(task)
        load = os.getloadavg()[0]
    yield from _rows(found, targets=len(targets), written=written, load=load)


def _rows(
    found: Sequence[Measurement], *, targets: int, written: int, load: float
) -> Iterator[Row]:
    settled = found[_SETTLED:]
    cpu = [one.cpu_ms * 1000 / targets for one in settled]
    minutes = len(settled) * _EVERY_S / 60
    grown = settled[-1].resident_mb - settled[0].resident_mb
    ok = statistics.median(one.entries for one in settled)
    yield (
        f"scrapes of {targets} exporters with 8 GPUs each, every {_EVERY_S:g} s",
        f"{len(found) * targets:,} scrapes, {written:,} parts written; {ok:,.0f} GPUs a round "
        f"ok; load {load:.1f}",
        f"{targets * 8:,} GPUs a round",
    )
    yield (
        "client CPU per scrape, parse and write included: median round",
        f"{statistics.median(cpu):.0f} µs (slowest round {max(cpu):.0f} µs)",
        "below 400 µs",
    )
    wall = statistics.median(one.wall_ms for one in settled)
    yield "a round's time, median", f"{wall:.0f} ms", "below 10,000 ms"
    first = found[0].cpu_ms * 1000 / targets
    yield "the first round, when layouts are learned, per scrape", f"{first:,.0f} µs", ""
    yield (
        f"growth of memory over {minutes:.1f} minutes",
        f"{grown:+.1f} MB of {settled[-1].resident_mb:.0f} MB",
        "none over 30 minutes",
    )


@contextmanager
def _served(first: int, count: int) -> Iterator[list[int]]:
    """Start a process of exporters, and end it."""
    module = "benchmarks.collection.exporters"
    command = (sys.executable, "-m", module, str(first), str(count))
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait()
