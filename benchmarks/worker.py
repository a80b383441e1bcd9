"""Processes that are measured: the service's tick, a bare reader, and the service's collection.

One order a line comes on stdin, one measurement a line goes to stdout. Each process is of its
own, so that neither's memory or caches count for the other.
"""

import atexit
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
import redis

from benchmarks.machine import peak_mb, resident_mb

_KEYS_A_READ = 1000  # as many streams as the service reads in one XREAD


class Order(msgspec.Struct):
    """Do your work as if it were ``now_ms``."""

    now_ms: int


class Measurement(msgspec.Struct):
    """What the work cost. ``incidents`` is what was opened since the process began."""

    wall_ms: float
    cpu_ms: float
    entries: int
    resident_mb: float
    peak_mb: float
    incidents: int = 0


class Start(msgspec.Struct):
    """The first line: where the server is, which streams there are, where to begin reading."""

    role: str
    socket: str
    keys: list[str]
    after_ms: int


Work = Callable[[int], tuple[int, int]]


def service(start: Start) -> Work:
    """Return the real service's tick on a clock that the orders set."""
    from detector import log
    from detector.config import Config
    from detector.content import load, shipped
    from detector.service import Service
    from detector.store.connection import RedisSettings

    log.configure(log.LogSettings(level="error"))
    now_ms = [0]
    root = shipped()
    built = Service(
        Config(redis=RedisSettings(url=f"unix://{start.socket}")),
        load(root / "models", root / "rules"),
        clock=lambda: now_ms[0],
    )

    def work(at_ms: int) -> tuple[int, int]:
        now_ms[0] = at_ms
        before = built.counters.entries
        built.tick()
        return built.counters.entries - before, built.counters.incidents_opened

    built.renew()  # to lead, as its scheduler would make it
    return work


def reader(start: Start) -> Work:
    """Return the least that anyone must do who reads all entries with redis-py."""
    client = redis.Redis(unix_socket_path=start.socket, protocol=2)
    cursors: dict[bytes, bytes] = {key.encode(): b"%d-0" % start.after_ms for key in start.keys}
    names = list(cursors)

    def work(at_ms: int) -> tuple[int, int]:
        del at_ms
        entries = 0
        for first in range(0, len(names), _KEYS_A_READ):
            part = names[first : first + _KEYS_A_READ]
            reply = cast(Any, client.xread({name: cursors[name] for name in part}))
            for name, listed in reply:
                cursors[name] = listed[-1][0]
                entries += len(listed)
        return entries, 0

    return work


def collector(start: Start) -> Work:
    """Return the service's collection from exporters; the keys are its targets."""
    from detector import log
    from detector.collection import Collection
    from detector.config import Config
    from detector.content import load_gpus, shipped
    from detector.store.history import History
    from detector.store.keys import Keys
    from detector.store.parts import Parts
    from detector.telemetry.settings import ExporterSettings

    log.configure(log.LogSettings(level="warning"))
    now_ms = [0]
    client, keys = redis.Redis(unix_socket_path=start.socket), Keys()
    config = Config(sources=(ExporterSettings(targets=tuple(start.keys)),))
    sink = Parts(client, keys, History(client, keys, config.history))
    built = Collection(config, load_gpus(shipped() / "models"), sink, clock=lambda: now_ms[0])
    atexit.register(built.close)

    def work(at_ms: int) -> tuple[int, int]:
        now_ms[0] = at_ms
        before = built.counts["ok"]
        built.run()
        return built.counts["ok"] - before, 0

    return work


def main() -> None:
    """Read orders until there are no more."""
    from detector.cli.serve import look_for_garbage_seldom

    start = msgspec.json.decode(sys.stdin.readline(), type=Start)
    work = {"service": service, "reader": reader, "collector": collector}[start.role](start)
    look_for_garbage_seldom()  # as the service does when it begins
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        wall, cpu = time.perf_counter(), time.process_time()
        entries, incidents = work(order.now_ms)
        measured = Measurement(
            wall_ms=(time.perf_counter() - wall) * 1000,
            cpu_ms=(time.process_time() - cpu) * 1000,
            entries=entries,
            resident_mb=resident_mb(),
            peak_mb=peak_mb(),
            incidents=incidents,
        )
        sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
