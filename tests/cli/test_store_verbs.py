"""The verbs that look into the store: what they print, and how they end when they cannot."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import jsonschema
import numpy as np
import pytest
import redis
from click.testing import CliRunner, Result

from detector.analysis.judge import Content
from detector.cli import main
from detector.content import load
from detector.incident.export import schema
from detector.incident.incident import Incident, State
from detector.incident.ledger import SHARDS, Commit, Notice, shard_of
from detector.incident.lifecycle import Policy
from detector.series import ContextEvent, Interval, iso
from detector.state import restore
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys
from detector.store.ledger import Ledger
from detector.store.outbox import Outbox
from detector.tables import shipped
from detector.tick import Ledger as Ports
from detector.tick import Settings
from detector.tick import run as tick
from tests.store.owed import incident, notice, owing

NOW_MS = time.time_ns() // 1_000_000
KEYS = Keys()
VERBS = (
    ("jobs",),
    ("show", "j"),
    ("incidents",),
    ("ack", "inc_x"),
    ("dlq", "list"),
    ("dlq", "replay"),
    ("dlq", "drop", "evt_x"),
)


@pytest.fixture
def config(tmp_path: Path, valkey: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(f'[redis]\nurl = "unix://{valkey}"\n')
    return path


def run(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--config", str(config)])


def serve(config: Path) -> subprocess.CompletedProcess[str]:
    """Run the service as a process of its own, since it takes the log over; it must end."""
    knowing_the_content(config)
    return subprocess.run(
        [sys.executable, "-m", "detector.cli", "serve", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def knowing_the_content(config: Path) -> Content:
    """Let the verbs know the shipped models and rules, which are returned."""
    with config.open("a") as file:
        file.write(f'[content]\nmodels = "{shipped()}/models"\nrules = "{shipped()}/rules"\n')
    return load(shipped() / "models", shipped() / "rules")


def one_line(result: Result) -> str:
    """The one clear line that a refusal is."""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("ofuwatch: ")
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture
def histories(redis_client: redis.Redis) -> History:
    history = History(redis_client, KEYS, HistorySettings())
    redis_client.hset("ofu:{older}:m", mapping={"name": "llama", "owner": "ada"})
    for job, ago_ms in (("older", 600_000), ("newer", 10_000)):
        for k in range(40):
            history.write(job, time_ms=NOW_MS - ago_ms - 30_000 * (40 - k), ofu=0.4)
    return history


def live(redis_client: redis.Redis, *, job: str = "newer") -> Incident:
    one = incident(job, onset_ms=NOW_MS - 600_000)
    Ledger(redis_client, KEYS).commit([owing(one, notice(one))])
    return one


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_before_any_service_ran_each_verb_says_so_and_starts_nothing(
    verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    path = tmp_path / "config.toml"
    path.write_text(f'[redis]\nstate = "{tmp_path / "state"}"\n')
    result = run(path, *verb)
    assert result.exit_code == 3
    assert "there is no store yet: `ofuwatch serve` makes one" in one_line(result)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis://127.0.0.1:1", "does not answer; check that the server runs"),
        ("http://example.com", "is no address of a store; write redis://HOST:PORT/DB"),
    ],
)
def test_a_store_out_of_reach_is_one_line_and_exit_code_3(
    verb: tuple[str, ...], url: str, advice: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(f'[redis]\nurl = "{url}"\n')
    result = run(tmp_path / "config.toml", *verb)
    assert result.exit_code == 3
    assert advice in one_line(result)


def test_a_wrong_password_is_one_line_that_does_not_repeat_it(
    redis_client: redis.Redis, config: Path, tmp_path: Path
) -> None:
    redis_client.config_set("requirepass", "right")
    try:
        (tmp_path / "password").write_text("HUSH")
        config.write_text(config.read_text() + 'password_file = "password"\n')
        result = run(config, "jobs")
        assert result.exit_code == 3
        assert "refuses the login" in one_line(result)
        assert "HUSH" not in result.output
        done = serve(config)
        assert (done.returncode, done.stderr) == (3, result.stderr)
    finally:
        redis_client.config_set("requirepass", "")


@pytest.mark.parametrize("verb", [*VERBS, ("serve",)], ids=" ".join)
def test_a_bad_configuration_is_told_with_its_place_and_exit_code_2(
    verb: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[redis]\nurll = "redis://localhost"\n')
    result = run(path, *verb)
    assert result.exit_code == 2
    assert 'config.toml:2: redis.urll: unknown key; did you mean "url"?' in result.stderr
    result = run(tmp_path / "nowhere.toml", *verb)
    assert result.exit_code == 2
    assert "No such file" in one_line(result)


def test_serve_tells_every_secret_that_is_missing_and_leaves_no_server_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    (tmp_path / "short").write_text("whsec_HUSH")
    path = tmp_path / "config.toml"
    path.write_text(
        f'[redis]\nstate = "{tmp_path / "state"}"\n'
        '[[receiver]]\ntype = "slack"\nname = "a"\nchannel = "C1"\ntoken_file = "none"\n'
        '[[receiver]]\ntype = "slack"\nname = "b"\nwebhook_env = "OFU_NOT_SET"\n'
        '[[receiver]]\ntype = "webhook"\nname = "c"\nurl = "https://example.com/"\n'
        'secret_file = "short"\n'
    )
    done = serve(path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert "receiver 'a': token_file: " in lines[0]
    assert "receiver 'b': webhook_env: $OFU_NOT_SET is not set or empty" in lines[1]
    assert "receiver 'c'" in lines[2]
    assert "HUSH" not in done.stderr
    assert not (tmp_path / "state" / "store" / "socket").exists()


def test_jobs_are_listed_with_the_latest_first(histories: History, config: Path) -> None:
    assert histories.jobs()
    result = run(config, "jobs")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first.startswith("newer  ")
    assert first.endswith(" ago")
    assert second.startswith("llama (older)  ")
    assert second.endswith("  ada")
    result = run(config, "jobs", "--limit", "1")
    assert result.output.splitlines()[1:] == ["... and 1 more; --limit shows them"]


def test_an_empty_store_says_how_a_history_begins(
    redis_client: redis.Redis, config: Path, valkey: str
) -> None:
    assert not redis_client.keys()
    result = run(config, "jobs")
    assert result.exit_code == 0
    assert result.output.strip().endswith(
        f"redis-cli -s {valkey} XADD 'ofu:{{JOB}}:s' '*' v 0.41"
    )
    assert run(config, "incidents").output == "No live incidents; --all lists the rest.\n"
    assert run(config, "incidents", "--all").output == "No incidents.\n"
    assert run(config, "incidents", "--json").output == ""
    assert run(config, "dlq", "list").output == "No dead letters.\n"


@pytest.mark.parametrize("limit", ["0", "-3", "many"])
def test_a_limit_that_is_none_is_bad_input(config: Path, limit: str) -> None:
    for verb in ("jobs", "incidents"):
        result = run(config, verb, "--limit", limit)
        assert result.exit_code == 2
        assert "--limit" in one_line(result)


def test_show_tells_who_what_and_what_was_found(
    histories: History, redis_client: redis.Redis, config: Path, tmp_path: Path
) -> None:
    one = live(redis_client)
    png = tmp_path / "job.png"
    result = run(config, "show", "newer", "--last", "2h", "--plot", str(png))
    assert result.exit_code == 0
    for text in (
        "Job newer",
        "OFU over the last 2h: 40 samples, 0 unusable, every 30s",
        "5 % / median / 95 %: 0.400 / 0.400 / 0.400, now 0.400",
        "Set aside: nothing",
        one.id,
        f"Drawn to {png}",
    ):
        assert text in result.output
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "newer" in histories.jobs()


def test_show_counts_no_report_of_the_job_itself_as_a_scrape(
    histories: History, redis_client: redis.Redis, config: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    for at in range(13):
        entry = f"{now_ms - 1_200_000 + at * 10_000}-0"
        fields = {"tokens": "5"} if at < 9 else {"v": "0.4", "n": "8"}
        redis_client.xadd("ofu:{teller}:s", dict(fields.items()), id=entry)
    shown = run(config, "show", "teller").output
    assert "4 samples, 0 unusable, every 10s" in shown
    assert "5 % / median / 95 %: 0.400 / 0.400 / 0.400" in shown
    redis_client.xadd("ofu:{alone}:s", {"tokens": "5"}, id=f"{now_ms - 600_000}-0")
    alone = run(config, "show", "alone").output
    assert "no usable sample in the last 6h, its own reports without a scrape: 1" in alone


def test_show_tells_at_once_what_was_announced_and_what_of_the_description_is_unusable(
    histories: History, redis_client: redis.Redis, config: Path
) -> None:
    redis_client.hset(KEYS.about("newer"), "gpus", "64")
    for minute in range(7, 0, -1):
        start_ms = NOW_MS - minute * 60_000
        span = Interval(start_ms=start_ms, end_ms=start_ms + 30_000)
        note = f"step {minute}"
        histories.announce("newer", ContextEvent(kind="checkpoint", span=span, note=note))
    output = run(config, "show", "newer").output
    assert "not usable in its description: gpus: write the UUIDs" in output
    announced = [line for line in output.splitlines() if "  checkpoint: step" in line]
    assert [line[-1] for line in announced] == list("54321")
    assert "Announced: (and 2 earlier)" in output
    assert announced[0].startswith("  20")
    assert " for 30 s  " in announced[0]


def test_a_job_without_a_baseline_says_so_and_when_it_will_have_one(
    redis_client: redis.Redis, config: Path
) -> None:
    knowing_the_content(config)
    history = History(redis_client, KEYS, HistorySettings())
    for k in range(4):
        history.write("young", time_ms=NOW_MS - 10_000 * (4 - k), ofu=0.4 + 0.001 * k)
    redis_client.xadd(KEYS.samples("blind"), {"v": "nan"}, id=f"{NOW_MS - 10_000}-0")
    needs = "needs 10 samples over 1m, has 4 over 30s, about 20"
    blind, young = sorted(run(config, "jobs").output.splitlines())
    assert f"  no baseline yet: {needs}" in young
    assert blind.endswith("  no baseline yet: no finite value yet")
    assert f"\nNo baseline yet: {needs}" in run(config, "show", "young").output


def test_show_tells_the_baseline_and_whose_it_was_at_first(
    redis_client: redis.Redis, config: Path
) -> None:
    content = knowing_the_content(config)
    history, ledger = History(redis_client, KEYS, HistorySettings()), Ledger(redis_client, KEYS)
    rng = np.random.default_rng(1)
    for k in range(240):
        time_ms, ofu = NOW_MS - 10_000 * (400 - k), 0.4 + 0.004 * rng.standard_normal()
        history.write("first", time_ms=time_ms, ofu=ofu)
    redis_client.hset("ofu:{next}:m", mapping={"lineage": "first"})
    redis_client.hset("ofu:{alone}:m", mapping={"lineage": "gone"})
    for k in range(4):
        for job in ("next", "alone"):
            history.write(job, time_ms=NOW_MS - 10_000 * (8 - k), ofu=0.4)
    assert "Lineage: not looked at yet" in run(config, "show", "next").output
    tick(
        restore(content), histories=history, ledger=cast(Ports, ledger), content=content,
        now_ms=NOW_MS, checkpoint=range(SHARDS),
        settings=Settings(cluster="c", policy=Policy()),
    )  # fmt: skip
    told = run(config, "show", "next").output
    assert "\nBaseline: OFU 0.40" in told
    until = iso(NOW_MS - 10_000 * 161)
    assert f"\nLineage: habits, age and level of first, up to {until}\n" in told
    assert "no baseline" not in next(
        line for line in run(config, "jobs").output.splitlines() if line.startswith("next")
    )
    told = run(config, "show", "alone").output
    assert "\nNo baseline yet: needs 10 samples" in told
    assert "\nLineage: nothing taken over (gone is not known)\n" in told


def test_a_cadence_below_a_second_is_told_as_it_is(
    redis_client: redis.Redis, config: Path
) -> None:
    for step in range(20):
        redis_client.xadd(
            KEYS.samples("quick"), {"v": 0.4}, id=f"{NOW_MS - 5000 + 20 * step}-0"
        )
    assert "every 20ms, newest" in run(config, "show", "quick").output


def test_jobs_without_a_sane_time_stand_last_and_say_why(
    redis_client: redis.Redis, config: Path
) -> None:
    day_ms = 86_400_000
    for job, time_ms in (("a", NOW_MS + day_ms), ("b", 1_000), ("c", NOW_MS - 3 * day_ms)):
        redis_client.xadd(KEYS.samples(job), {"v": 0.4}, id=f"{time_ms}-0")
    lines = run(config, "jobs").output.splitlines()
    assert lines[0] == "c  3 d 0 h ago"
    assert set(lines[1:3]) == {
        "a  its newest entry lies in the future: the writer's clock is wrong",
        "b  its newest entry has no time in epoch milliseconds",
    }


def test_a_job_that_has_been_silent_is_shown_with_its_newest_entry(
    histories: History, config: Path
) -> None:
    assert histories.jobs()
    result = run(config, "show", "older", "--last", "1m")
    assert result.exit_code == 0
    assert "OFU: no usable sample in the last 1m" in result.output
    assert re.search(r"its newest entry: .* ago", result.output)


def test_show_refuses_what_it_cannot_do(
    histories: History, config: Path, tmp_path: Path
) -> None:
    assert histories.jobs()
    for arguments, code, text in (
        (("nobody",), 1, "no job 'nobody'; `ofuwatch jobs` lists them"),
        (("",), 2, "a job id has 1 to 512 bytes"),
        (("x" * 600,), 2, "a job id has 1 to 512 bytes"),
        (("newer", "--last", "5x"), 2, "--last: '5x' is not a duration"),
        (("newer", "--plot", str(tmp_path / "no" / "x.png")), 2, "cannot be written"),
    ):
        result = run(config, "show", *arguments)
        assert result.exit_code == code, arguments
        assert text in one_line(result)


def test_incidents_in_a_pipe_are_one_line_each_and_no_markup_is_read(
    redis_client: redis.Redis, config: Path
) -> None:
    names = ["a", "[red]b[/red]", "c\x1b[2J\nd"]
    ids = {live(redis_client, job=name).id for name in names}
    result = run(config, "incidents")
    head, *rows = result.output.splitlines()
    assert head.split()[0] == "incident"
    assert {row.split()[0] for row in rows} == ids
    assert any("[red]b[/red]" in row for row in rows)
    assert any("c%1B[2J%0Ad" in row for row in rows)
    assert len(run(config, "incidents", "--job", "a").output.splitlines()) == 2
    assert len(run(config, "incidents", "--limit", "2").output.splitlines()) == 3


@pytest.mark.parametrize("columns", [40, 80])
def test_incidents_on_a_narrow_terminal_keep_their_ids_whole(
    redis_client: redis.Redis, config: Path, columns: int
) -> None:
    one = live(redis_client, job="[red]a-name-that-goes-on-" + "and-on-" * 12)
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "detector.cli", "incidents", "--config", str(config)]
    environ = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=slave, env=environ) as process:
        os.close(slave)
        output = b""
        while chunk := _read(master):
            output += chunk
        assert process.wait() == 0
    os.close(master)
    lines = re.sub(r"\x1b\[[0-9;]*m|\r", "", output.decode()).splitlines()
    assert any(one.id in line for line in lines)
    assert columns < 80 or any("[red]a-name" in line for line in lines)
    assert max(len(line) for line in lines) <= columns


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65_536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_incidents_as_json_are_what_consumers_get(
    redis_client: redis.Redis, config: Path
) -> None:
    one = live(redis_client)
    ended = incident("over", state=State.RESOLVED)
    Ledger(redis_client, KEYS).commit([owing(ended)])
    (line,) = run(config, "incidents", "--json").output.splitlines()
    told = json.loads(line)
    assert told["incident"]["id"] == one.id
    whole = schema()
    jsonschema.validate(told, {**whole["properties"]["data"], "$defs": whole["$defs"]})
    assert len(run(config, "incidents", "--all", "--json").output.splitlines()) == 2


def test_ack_queues_what_was_asked_for(redis_client: redis.Redis, config: Path) -> None:
    one = live(redis_client)
    result = run(config, "ack", one.id, "--by", "ada")
    assert result.exit_code == 0
    assert result.output == (
        f"{one.id} will be acknowledged at the service's next tick, by ada.\n"
    )
    result = run(config, "ack", one.id, "--resolve", "false_positive", "--by", "\x1b[2J eve")
    assert "resolved as false_positive" in result.output
    assert "\x1b" not in result.output
    waiting = Ledger(redis_client, KEYS).actions([shard_of(one.job.id)])
    (actions,) = waiting.values()
    assert [(item.verb, item.reason) for item in actions] == [
        ("acknowledge", ""),
        ("resolve", "false_positive"),
    ]
    assert actions[0].actor == "ada"


def test_ack_refuses_what_it_cannot_do(redis_client: redis.Redis, config: Path) -> None:
    ended = incident("over", state=State.RESOLVED)
    Ledger(redis_client, KEYS).commit([owing(ended)])
    result = run(config, "ack", "inc_x")
    assert result.exit_code == 1
    assert "`ofuwatch incidents --all` lists them" in one_line(result)
    result = run(config, "ack", ended.id)
    assert result.exit_code == 1
    assert "is over already" in one_line(result)
    assert run(config, "ack", ended.id, "--resolve", "recovered").exit_code == 2


@pytest.fixture
def letter(redis_client: redis.Redis) -> Notice:
    """A notice that its receiver refused for good."""
    one = incident("refused\x1b[2J")
    owed = notice(one)
    Ledger(redis_client, KEYS).commit(
        [Commit(shard=shard_of(one.job.id), incidents=(one,), notices=(owed,))]
    )
    outbox = Outbox(redis_client, KEYS)
    (claim,) = outbox.claim(("slack",), now_ms=NOW_MS, lease_ms=1_000, limit=1)
    assert outbox.bury(claim, count=1, reason="channel_not_found", now_ms=NOW_MS)
    return owed


def test_dead_letters_are_listed_replayed_and_dropped(
    letter: Notice, redis_client: redis.Redis, config: Path
) -> None:
    event = letter.transition.event_id
    listed = run(config, "dlq", "list").output
    assert listed.startswith(event)
    assert "channel_not_found, after 1 try" in listed
    assert "\x1b" not in listed
    assert run(config, "dlq", "list", "--receiver", "other").output == "No dead letters.\n"
    assert run(config, "dlq", "replay", event).output == "1 queued again.\n"
    assert Outbox(redis_client, KEYS).pending()["slack"].notices == 1
    for verb in ("replay", "drop"):
        result = run(config, "dlq", verb, event)
        assert result.exit_code == 1
        assert "`ofuwatch dlq list` lists them" in one_line(result)
    assert run(config, "dlq", "replay").output == "0 queued again.\n"


def test_a_dead_letter_that_was_dropped_is_gone(letter: Notice, config: Path) -> None:
    assert run(config, "dlq", "drop", letter.transition.event_id).output == "1 dropped.\n"
    assert run(config, "dlq", "list").output == "No dead letters.\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("show",), "Missing argument 'JOB'; `ofuwatch show --help` tells more"),
        (("jobs", "--limt", "3"), "--limit"),
        (("joobs",), "No such command 'joobs'"),
        (("--colour",), "No such option"),
        (("dlq", "drop"), "Missing argument 'EVENTS...'; `ofuwatch dlq drop --help` tells"),
    ],
)
def test_a_command_line_that_is_none_is_one_line(arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(main, arguments, prog_name="ofuwatch")
    assert result.exit_code == 2
    assert text in one_line(result)


def test_an_interrupted_verb_ends_with_130(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.echo", interrupted)  # Ctrl-C while it prints
    assert run(config, "incidents").exit_code == 130
