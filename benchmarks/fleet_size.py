"""Cold start, tick and memory at 10,000 jobs, beside the cost of only reading the bytes."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import redis
from rich.progress import Progress

from benchmarks.fleet import CADENCE_MS, CHUNK_ROWS, START_MS, Fleet
from benchmarks.report import Row
from benchmarks.wire import Wire
from benchmarks.worker import Measurement, Order, Start
from detector.store import embedded
from detector.store.about import write_event

_TICKS_AN_HOUR = 360  # and one hour is in streams, as HistorySettings.stream keeps it


def measure(progress: Progress, *, jobs: int, ticks: int, hours: int = 6) -> Iterator[Row]:
    """Fill a server, start from nothing on ``hours``, then tick ``ticks`` times."""
    past = hours * _TICKS_AN_HOUR
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ofu"))
        server = embedded.start(Path(folder))
        stack.callback(server.stop)
        _pin(server.pid, core=1)
        fleet = _fill(progress, str(server.socket), jobs=jobs, past=past, ticks=ticks)
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            used_mb = client.info("memory")["used_memory"] / 1e6
        service, reader = (
            stack.enter_context(
                worker(
                    role,
                    str(server.socket),
                    keys=fleet.stream_keys,
                    after_ms=START_MS + past * CADENCE_MS - 1,
                )
            )
            for role in ("service", "reader")
        )
        task = progress.add_task(f"cold start on {hours} h", total=1)
        cold = service.ask(START_MS + past * CADENCE_MS)
        progress.advance(task)
        task = progress.add_task("ticks, and the same bytes by redis-py", total=ticks)
        wire = stack.enter_context(Wire(str(server.socket)))
        judged, read = [], []
        for tick in range(past, past + ticks):
            wire.send(*fleet.entries(tick))
            now_ms = START_MS + (tick + 1) * CADENCE_MS
            judged.append(service.ask(now_ms))
            read.append(reader.ask(now_ms))
            progress.advance(task)
    size = f"{len(fleet.members):,} jobs, {fleet.gpus:,} GPUs; {used_mb:,.0f} MB in the server"
    yield "fleet", size, "10,000 jobs, 100,000 GPUs"
    yield (
        f"cold start on {hours} h",
        f"{cold.wall_ms / 1000:.1f} s for {cold.entries:,} entries",
        "below 60 s for 6 h",
    )
    yield from _rows(judged, read)


def _rows(judged: Sequence[Measurement], read: Sequence[Measurement]) -> Iterator[Row]:
    """Put the figures into words."""
    wall = [item.wall_ms for item in judged]
    bare = [item.wall_ms for item in read]
    tick_ms, read_ms = statistics.median(wall), statistics.median(bare)
    yield (
        "tick, median",
        f"{tick_ms:.0f} ms (CPU {statistics.median(i.cpu_ms for i in judged):.0f} ms), "
        f"{statistics.median(i.entries for i in judged):,.0f} entries",
        "below 1,000 ms",
    )
    yield "tick, slowest", f"{max(wall):.0f} ms of {len(wall)} ticks", "below 10,000 ms"
    yield (
        "the same bytes by redis-py alone, median",
        f"{read_ms:.0f} ms (CPU {statistics.median(i.cpu_ms for i in read):.0f} ms)",
        "",
    )
    yield "tick over bare reading", f"{tick_ms / read_ms:.2f} times", "at most 2 times"
    yield (
        "memory of the service",
        f"{judged[-1].resident_mb:.0f} MB at the end, {judged[-1].peak_mb:.0f} MB at its peak",
        "below 500 MB",
    )
    yield "incidents opened meanwhile", f"{judged[-1].incidents:,}", ""


def _fill(progress: Progress, socket: str, *, jobs: int, past: int, ticks: int) -> Fleet:
    task = progress.add_task("making the jobs", total=1)
    span = -(-(past + ticks) // CHUNK_ROWS) * CHUNK_ROWS
    fleet = Fleet(jobs=jobs, ticks=span, live=past)
    progress.advance(task)
    with Wire(socket) as wire:
        wire.set_hashes(fleet.descriptions())
        wire.send_all(
            ("XADD", key, entry, *write_event(event))
            for key, entry, event in fleet.announcements()
        )
        chunked = past - _TICKS_AN_HOUR
        task = progress.add_task("older hours in chunks", total=jobs)
        wire.set_hashes(progress.track(fleet.packed(until=chunked), task_id=task))
        task = progress.add_task("one hour in streams", total=_TICKS_AN_HOUR)
        for tick in range(chunked, past):
            wire.send(*fleet.entries(tick))
            progress.advance(task)
    return fleet


class Worker:
    """One measured process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, now_ms: int) -> Measurement:
        """Let it work as if it were ``now_ms``, and return what that cost."""
        assert self._process.stdout is not None
        self.tell(Order(now_ms=now_ms))
        line = self._process.stdout.readline()
        if not line:
            msg = "a measured process ended before its time; its error is above"
            raise RuntimeError(msg)
        return msgspec.json.decode(line, type=Measurement)

    def tell(self, message: msgspec.Struct) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()


@contextmanager
def worker(role: str, socket: str, *, keys: list[str], after_ms: int) -> Iterator[Worker]:
    """Start a process of :mod:`benchmarks.worker` that works on core 0, and end it."""
    command = (sys.executable, "-m", "benchmarks.worker")
    root = Path(__file__).parent.parent
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        _pin(process.pid, core=0)
        started = Worker(process)
        started.tell(Start(role=role, socket=socket, keys=keys, after_ms=after_ms))
        try:
            yield started
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _pin(pid: int, *, core: int) -> None:
    """Keep a process on one core, where the system can and has it."""
    if hasattr(os, "sched_setaffinity") and core in os.sched_getaffinity(0):
        os.sched_setaffinity(pid, {core})
