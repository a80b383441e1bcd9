"""What anybody may write into Redis: all of it is survived, counted and shown."""

import re
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import redis
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from detector.cli import main
from detector.config import Config
from detector.demo.loopback import Loopback
from detector.store.keys import Keys
from tests.scenarios.stage import (
    END_MS,
    Clock,
    configured,
    content,
    fleet,
    roots,
    told,
    watching,
    write,
)

ODD_NAMES = (
    "train 7",
    "50%",
    "a{b}c",
    "two\nlines",
    "\x1b[31mred\x1b[0m",
    "\u202egnp.exe",
    "<!channel>",
    "[red]markup[/red]",
    "名前",
    "s07",
)


def add(client: redis.Redis, key: str, entry: str, *fields: bytes | str | float) -> None:
    """What `redis-cli XADD` sends."""
    client.execute_command("XADD", key, entry, *fields)  # type: ignore[no-untyped-call]


def show(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--config", str(config)])


def test_a_bare_entry_makes_a_job_that_is_watched(
    redis_client: redis.Redis, valkey: str, loopback: Loopback, tmp_path: Path
) -> None:
    redis_table = f'url = "unix://{valkey}"'
    config = configured(tmp_path, loopback, redis=redis_table)
    clock = Clock()
    with watching(config, clock) as service:
        service.tick()
        add(redis_client, "ofu:{4711}:s", f"{END_MS}-0", "v", 0.41)
        clock.now_ms += 2_000
        service.tick()
        assert service.counters.entries == 1
    result = show(tmp_path / "config.toml", "show", "4711")
    assert result.exit_code == 0
    assert "now 0.410" in result.output
    assert "Set aside: nothing" in result.output


def malformed(client: redis.Redis) -> dict[str, tuple[str, int]]:
    """Write every kind of nonsense; return job -> (reason, how often)."""
    at = END_MS - 60_000

    def entries(job: str, *written: tuple[int | str, *tuple[bytes | str | float, ...]]) -> None:
        for entry, *fields in written:
            add(client, f"ofu:{{{job}}}:s", f"{entry}", *fields)

    entries("no-v", (at, "ofu", 0.4), (at + 1, "V", 0.4))
    entries("text", (at, "v", "fast"), (at + 1, "v", ""), (at + 2, "v", b"\xff\xfe\x1b[2J"))
    entries("nan", (at, "v", "nan"), (at + 1, "v", "inf"))
    entries("range", (at, "v", -1), (at + 1, "v", 1.7), (at + 2, "v", 41))
    entries("future", (END_MS + 86_400_000, "v", 0.4))
    entries("absurd", ("18446744073709551615-18446744073709551615", "v", 0.4))
    entries("seconds", (at // 1000, "v", 0.4))
    entries("twice", (f"{at}-0", "v", 0.4), (f"{at}-1", "v", 0.5))
    entries("odd-g", (at, "v", 0.4, "g", b"abc"))
    client.set("ofu:{string}:s", "0.41")
    client.hset("ofu:{hash}:s", "v", "0.41")
    wide = [part for k in range(10_000) for part in (f"f{k}", "1")]
    entries("wide", (at, *wide))
    entries("long", (at, "v", "9" * 1_000_000))
    return {
        "no-v": ("no_value", 2),
        "text": ("not_a_number", 3),
        "nan": ("not_a_number", 2),
        "range": ("out_of_range", 3),
        "future": ("from_the_future", 1),
        "absurd": ("from_the_future", 1),
        "seconds": ("not_milliseconds", 1),
        "twice": ("duplicate", 1),
        "odd-g": ("wrong_length", 1),
        "string": ("wrong_type", 1),
        "hash": ("wrong_type", 1),
        "wide": ("no_value", 1),
        "long": ("not_a_number", 1),
    }


def test_every_kind_of_nonsense_is_counted_shown_and_logged_once_and_stops_nobody(
    redis_client: redis.Redis, config: Config, loopback: Loopback, tmp_path: Path
) -> None:
    write(redis_client)
    expected = malformed(redis_client)
    clock = Clock()
    with watching(config, clock) as service, capture_logs() as events:
        for _ in range(5):
            service.tick()
            clock.now_ms += 2_000
        service.deliver()
    said = [
        (event["job"], event["reason"]) for event in events if event["event"] == "set_aside"
    ]
    assert sorted(said) == sorted((job, reason) for job, (reason, _) in expected.items())
    assert [event["event"] for event in events if event["log_level"] == "error"] == []
    for job, (reason, count) in expected.items():
        result = show(tmp_path / "config.toml", "show", job)
        assert result.exit_code == 0, (job, result.output)
        assert f"{count} {reason}: " in result.output, (job, result.output)
    listed = show(tmp_path / "config.toml", "jobs").output
    assert "absurd  its newest entry lies in the future" in listed
    assert re.search(r"^wide  .* ago  no baseline yet: ", listed, flags=re.MULTILINE)
    assert len(roots(loopback)) == 1  # the job that fell, and no other
    assert told(loopback) == [("opened", 1)]


def test_keys_that_name_no_job_are_shown_with_the_list_of_jobs(
    redis_client: redis.Redis, config: Config, tmp_path: Path
) -> None:
    for key in ("ofu:{}:s", "ofu:{a b}:s", "ofu:{a%2fb}:s", f"ofu:{{{'x' * 600}}}:s"):
        add(redis_client, key, f"{END_MS}-0", "v", 0.4)
    add(redis_client, "ofu:{\x1b[2Jx}:s", f"{END_MS}-0", "v", 0.4)
    with watching(config, Clock()) as service:
        service.tick()
    result = show(tmp_path / "config.toml", "jobs")
    assert result.exit_code == 0
    assert "5 bad_key: " in result.output
    for name in ("{}", "{a b}", "{a%2fb}", "{xxx"):
        assert f"  ofu:{name}" in result.output
    with watching(config, Clock()) as service:  # started anew, nothing new
        service.tick()
    assert "5 bad_key: " in show(tmp_path / "config.toml", "jobs").output
    assert "\x1b" not in result.output


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_job_of_any_name_is_listed_and_shown_and_harms_no_terminal(
    redis_client: redis.Redis, config: Config, tmp_path: Path, name: str
) -> None:
    for k in range(3):
        key = Keys().samples(name)
        add(redis_client, key, f"{END_MS - 20_000 + 10_000 * k}-0", "v", "bad" if k else 0.4)
    with watching(config, Clock()) as service:
        service.tick()
        assert service.counters.entries == 3
    listed = show(tmp_path / "config.toml", "jobs")
    for result in (listed, show(tmp_path / "config.toml", "show", name)):
        assert result.exit_code == 0
        assert all(line.isprintable() for line in result.output.split("\n"))
    # As it is listed, so it can be asked for.
    asked = show(tmp_path / "config.toml", "show", listed.output.split("  ")[0])
    assert "2 not_a_number" in asked.output


def test_ids_that_went_back_are_told_of_and_the_job_goes_on(
    redis_client: redis.Redis, config: Config, tmp_path: Path
) -> None:
    key, clock = "ofu:{j}:s", Clock()
    with watching(config, clock) as service:
        add(redis_client, key, f"{END_MS}-0", "v", 0.4)
        service.tick()
        redis_client.delete(key)
        add(redis_client, key, f"{END_MS - 60_000}-0", "v", 0.4)
        clock.now_ms += 2_000
        service.tick()
        add(redis_client, key, f"{END_MS + 1_000}-0", "v", 0.4)
        clock.now_ms += 2_000
        service.tick()
        assert service.counters.entries == 2
    assert "1 went_back: " in show(tmp_path / "config.toml", "show", "j").output


def test_a_fall_is_told_although_each_gpus_values_do_not_fit_the_roster(
    redis_client: redis.Redis, config: Config, loopback: Loopback
) -> None:
    redis_client.hset("ofu:{falls}:m", "gpus", "GPU-a,GPU-b")
    window = fleet()[0].window
    for time_ms, ofu in zip(window.times_ms.tolist(), window.fields["ofu"], strict=True):
        if np.isfinite(ofu):
            packed = struct.pack("<3H", 1, 2, 3)
            add(redis_client, "ofu:{falls}:s", f"{time_ms}-0", "v", float(ofu), "g", packed)
    with watching(config, Clock()) as service:
        service.tick()
        assert service.counters.incidents_opened == 1
        service.deliver()
    assert len(roots(loopback)) == 1


@pytest.mark.parametrize("kind", ["string", "garbage"])
def test_a_fall_is_told_although_all_else_of_the_job_is_nonsense(
    redis_client: redis.Redis, config: Config, loopback: Loopback, tmp_path: Path, kind: str
) -> None:
    if kind == "string":
        for name in "mehr":
            redis_client.set(f"ofu:{{falls}}:{name}", "nonsense")
        redis_client.set("ofu:in", "nonsense")
    else:
        chunk = str(END_MS // 300_000 * 300 - 3_600)
        for name in "mhr":
            for field in (chunk, "gpus", "start", "lineage", "last:no_value", "no_value", ""):
                redis_client.hset(f"ofu:{{falls}}:{name}", field, b"\xff\x00[{")
        add(
            redis_client, "ofu:{falls}:e", "*", "kind", b"\xff", "start", "never", "end", "1e99"
        )
        add(redis_client, "ofu:{falls}:e", "*", "nothing", "known")
        add(redis_client, "ofu:in", "*", "job", b"\xff", "v", "1")
        add(redis_client, "ofu:in", "*", "v", "1")
        add(redis_client, "ofu:in", "*", "job", "x", "v", "2", "host", "\x1b[2J", "ts", "soon")
    write(redis_client)
    clock = Clock()
    with watching(config, clock) as service, capture_logs() as events:
        for _ in range(3):
            service.tick()
            clock.now_ms += 40_000
        assert service.counters.incidents_opened == 1
        clock.now_ms = END_MS
        service.deliver()
    assert [event for event in events if event["log_level"] == "error"] == []
    assert len(roots(loopback)) == 1
    for arguments in (("show", "falls"), ("jobs",), ("incidents",)):
        result = show(tmp_path / "config.toml", *arguments)
        assert result.exit_code == 0, result.output
        assert all(line.isprintable() for line in result.output.split("\n"))


def test_a_job_that_breaks_the_detector_is_set_aside_and_the_others_are_watched(
    redis_client: redis.Redis, config: Config, tmp_path: Path
) -> None:
    write(redis_client)
    # A rule that no check has seen breaks the judgement of the one job that has a change.
    unchecked: Any = (SimpleNamespace(family="\x1b[2J"),)
    broken = replace(content(), rules=unchecked)
    with watching(config, Clock(), held_to=broken) as service, capture_logs() as events:
        service.tick()
        service.tick()
        assert service.counters.entries > 600
        assert service.counters.incidents_opened == 0
    (said,) = [event for event in events if event["event"] == "set_aside"]
    assert (said["job"], said["reason"]) == ("falls", "poison")
    result = show(tmp_path / "config.toml", "show", "falls")
    assert "1 poison: the job could not be judged" in result.output
