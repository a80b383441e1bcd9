"""The service's steps: what they cost, what they leave behind, in which order they end."""

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import redis
from structlog.testing import capture_logs

from detector.config import Config, load
from detector.demo.loopback import Loopback
from detector.demo.synth import fleet
from detector.incident.incident import Transition
from detector.service import Service
from detector.store.history import History, HistorySettings, Sample
from detector.store.keys import Keys
from tests.scenarios.stage import END_MS, Clock, content, told, watching, write


def plain(folder: Path, valkey: str, *, more: str = "") -> Config:
    """A configuration without receivers."""
    path = folder / "config.toml"
    path.write_text(f'[redis]\nurl = "unix://{valkey}"\n{more}')
    return load(path)


@dataclass(frozen=True, slots=True)
class Used:
    """What a process holds open."""

    threads: int
    files: int


def used() -> Used:
    gc.collect()
    return Used(threading.active_count(), len(os.listdir("/proc/self/fd")))


def test_two_hundred_passes_leave_no_thread_and_no_file_open(
    redis_client: redis.Redis, config: Config
) -> None:
    write(redis_client)
    clock = Clock()
    with watching(config, clock) as service:
        service.tick()
        service.deliver()
        after_one = used()  # connections to receivers are kept open
        for k in range(200):
            history = Keys().samples(f"new-{k}")
            redis_client.xadd(history, {"v": "0.4"}, id=f"{END_MS}-0")
            clock.now_ms += 100
            service.tick()
            if k % 10 == 0:
                service.renew()
                service.deliver()
        assert used().threads <= after_one.threads
        assert used().files <= after_one.files
        assert service.counters.ticks >= 201


def test_a_long_catch_up_is_made_in_slices_while_the_lead_is_kept(
    redis_client: redis.Redis, valkey: str, tmp_path: Path
) -> None:
    jobs = fleet(
        np.random.default_rng(5),
        jobs=40,
        start_ms=END_MS - 6 * 3_600_000,
        length_ms=6 * 3_600_000,
        cadence_ms=30_000,
    )
    history = History(redis_client, Keys(), HistorySettings())
    samples = [
        Sample(job=item.job.id, time_ms=time_ms, ofu=ofu)
        for item in jobs
        for time_ms, ofu in zip(
            item.window.times_ms.tolist(), item.window.fields["ofu"].tolist(), strict=True
        )
        if 0 <= ofu <= 1
    ]
    history.write_many(samples)
    history_table = '[history]\nslice = 60\nstream = "8h"\nfirst_look = "8h"\n'
    config = plain(tmp_path, valkey, more=history_table)
    renewals = 0

    class Slow(Clock):
        """Each pass finds that a third of the lease is over by now."""

        def __call__(self) -> int:
            nonlocal renewals
            if threading.current_thread() is ticking:
                renewing = threading.Thread(target=service.renew)  # as its own timer does
                renewing.start()
                renewing.join()
                renewals += 1
            return super().__call__()

    service = Service(config, content(), clock=Slow(), lease_ms=5_000)
    ticking = threading.Thread(target=service.tick)
    with capture_logs() as events:
        service.renew()
        ticking.start()
        ticking.join()
    service.close()
    assert service.counters.ticks > 10
    assert renewals == service.counters.ticks
    assert service.counters.entries >= 0.99 * len(samples)
    names = [event["event"] for event in events]
    assert names.count("lead_taken") == 1
    assert "lead_lost" not in names


def test_who_lost_the_lead_in_a_catch_up_stops_at_once_and_loads_anew(
    redis_client: redis.Redis, valkey: str, tmp_path: Path
) -> None:
    write(redis_client)
    config = plain(tmp_path, valkey, more='[history]\nslice = 60\nstream = "6h"\n')
    clock, passes = Clock(), 0

    class Overtaken(Clock):
        """In the third pass another process takes over."""

        def __call__(self) -> int:
            nonlocal passes
            passes += 1
            if passes == 3:
                time.sleep(0.06)
                other.renew()
            return super().__call__()

    other = Service(config, content(), clock=clock)
    service = Service(config, content(), clock=clock, lease_ms=50)
    service.renew()
    service._clock = Overtaken()
    with capture_logs() as events:
        service.tick()
        service.renew()
        service.tick()
    assert [event["event"] for event in events if event["log_level"] == "warning"] == [
        "lead_lost"
    ]
    assert events[-1]["event"] == "standing_by"
    assert service.counters.ticks == 2
    other.tick()
    assert other.counters.incidents_opened == 1
    service.close()
    other.close()


def test_each_transition_is_announced_once_after_it_was_committed(
    redis_client: redis.Redis, valkey: str, tmp_path: Path
) -> None:
    write(redis_client)
    heard: list[Transition] = []
    service = Service(plain(tmp_path, valkey), content(), announce=heard.append, clock=Clock())
    service.renew()
    service.tick()
    service.tick()
    service.save()
    service.close()
    assert [step.type for step in heard] == ["opened"]


def test_what_is_stored_and_cannot_be_read_costs_no_start_and_no_second_alert(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    write(redis_client)
    with watching(config, Clock(), lease_ms=30) as service:
        service.tick()
        service.deliver()
        service.tick()
    for key in redis_client.scan_iter("ofu:{s*}:state"):
        for field in redis_client.hkeys(key):
            redis_client.hset(key, field, b"\xc1 of another version")
    for key in redis_client.scan_iter("ofu:{s*}:incidents"):
        for field in redis_client.hkeys(key):
            redis_client.hset(key, field, b"\xc1")
    time.sleep(0.06)
    with watching(config, Clock()) as service:
        service.tick()
        service.deliver()
        assert service.counters.entries > 600  # all of it was read again
    assert told(loopback) == [("opened", 1)]
    assert len([item for item in loopback.slack.messages if item.thread_ts is None]) == 1


def test_it_stops_between_deliveries_and_the_rest_is_kept(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    write(redis_client)
    with watching(config, Clock(), lease_ms=30) as service:
        service.tick()
        service.stop()
        service.deliver()
    assert told(loopback) == []
    time.sleep(0.06)
    with watching(config, Clock()) as service:
        service.deliver()
    assert told(loopback) == [("opened", 1)]


def test_a_fleet_that_falls_silent_is_said_once_and_so_is_its_return(
    redis_client: redis.Redis, valkey: str, tmp_path: Path
) -> None:
    clock = Clock()
    service = Service(plain(tmp_path, valkey), content(), clock=clock)
    key = Keys().samples("only")
    redis_client.xadd(key, {"v": "0.4"}, id=f"{clock.now_ms - 10_000}-0")
    with capture_logs() as events:
        service.renew()
        for minutes in (0, 14, 16, 17, 30):
            clock.now_ms = END_MS + minutes * 60_000
            service.renew()
            service.tick()
        redis_client.xadd(key, {"v": "0.4"}, id=f"{clock.now_ms - 10_000}-0")
        service.tick()
    service.close()
    told = [event["event"] for event in events if event["event"].startswith("fleet_")]
    assert told == ["fleet_silent", "fleet_heard"]
