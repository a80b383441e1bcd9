"""The demo: the real service, a fleet that is played to it, and a loopback Slack and webhook.

Everything is real but the senders of samples and the receivers of alerts: `ofuwatch serve`
runs as its own process with an embedded server, reads the histories from Redis and delivers
over HTTP.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from detector.demo.loopback import CHANNEL, SECRET, TOKEN, Event, Loopback
from detector.demo.play import Feed, parts
from detector.demo.score import sum_up
from detector.incident.incident import Incident
from detector.series import Duration, iso
from detector.store.connection import RedisSettings, Store, open_store
from detector.store.errors import StoreError
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys
from detector.store.ledger import Ledger
from detector.store.outbox import Outbox

_STEP_S = 0.5  # how often the play goes on; the service ticks once a second
_START_S = 30.0
_DRAIN_S = 20.0
# Of the fleet's time: what its jobs have behind them when the service starts, and what is
# played to it. In the past they have taught it their habits, once each.
_PAST = Duration.parse("5h")
_LENGTH = Duration.parse("3h")

_CONFIG = """\
# Written by `ofuwatch demo`. The service that the demo runs reads this and nothing else.
cluster = "demo"

[redis]
state = "{folder}/state"

[content]
models = "{content}/models"
rules = "{content}/rules"

[history]
stream = "9h"
first_look = "9h"
discover = "1s"

[tick]
interval = "1s"

[incidents]
# What happened before the play is recorded and not told.
max_age = "{length}"

[[receiver]]
type = "slack"
name = "slack"
channel = "{channel}"
token_file = "{folder}/slack.token"
api_url = "{api_url}"

[[receiver]]
type = "webhook"
name = "resiliency"
url = "{webhook_url}"
secret_file = "{folder}/webhook.secret"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the demo is played."""

    folder: Path
    content: Path
    jobs: int = 200
    past: Duration = _PAST
    length: Duration = _LENGTH
    play_s: float = 55.0
    seed: int = 1


@dataclass(slots=True, kw_only=True)
class _Heard:
    """What the webhook's consumer has made of its events: incident -> its latest one."""

    latest: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    shown: int = 0

    def take(self, events: tuple[Event, ...]) -> Iterator[Mapping[str, Any]]:
        for event in events[self.shown :]:
            data = event.body["data"]
            self.latest[data["incident"]["id"]] = data
            yield event.body
        self.shown = len(events)


def perform(plan: Plan, console: Console, *, stay: bool = False) -> bool:
    """Play, show and sum up; return whether every fault was found and nothing else was."""
    began = time.monotonic()
    plan.folder.mkdir(parents=True, exist_ok=True)
    for own in ("charts", "state"):
        shutil.rmtree(plan.folder / own, ignore_errors=True)
    end_ms = time.time_ns() // 1_000_000
    play = parts(
        np.random.default_rng(plan.seed),
        past_ms=plan.past,
        start_ms=end_ms - plan.length,
        length_ms=plan.length,
        jobs=plan.jobs,
    )
    faults = sum(bool(part.what) for part in play)
    speed = plan.length / 1000 / plan.play_s
    console.print(
        f"{len(play)} jobs ({sum(part.real for part in play)} real recordings, the rest "
        f"synthetic; {faults} with a fault): {plan.past} of history, then {plan.length} at "
        f"{speed:.0f} x real time."
    )
    feed = Feed(play)
    with Loopback(save_to=plan.folder / "charts") as loopback:
        config = _write_config(plan, loopback)
        with console.status("Writing what the jobs have behind them ..."):
            _write_past(plan, feed, start_ms=end_ms - plan.length)
        with _served(config, plan.folder, console) as process:
            heard = _Heard()
            _feed(plan, feed, loopback, heard, console, end_ms=end_ms, process=process)
            recorded = _drain(plan, loopback, heard, console)
            score = sum_up(play, tuple(heard.latest.values()), recorded, console)
            console.print(_delivered(loopback))
            console.print(score.text)
            _where(plan, config, console, took_s=time.monotonic() - began)
            if stay:
                console.print("Staying up; Ctrl-C ends it.")
                _stay(process)
    return score.good


def _delivered(loopback: Loopback) -> str:
    roots = [item for item in loopback.slack.messages if item.thread_ts is None]
    edits = sum(len(item.earlier) for item in loopback.slack.messages)
    twice = sum(event.copies - 1 for event in loopback.events)
    return (
        f"Delivered: {len(roots)} Slack messages, edited {edits} times, "
        f"{len(loopback.slack.files)} charts in their threads; {len(loopback.events)} signed "
        f"events to the webhook, {twice} of them twice."
    )


def _write_config(plan: Plan, loopback: Loopback) -> Path:
    for name, secret in (("slack.token", TOKEN), ("webhook.secret", SECRET)):
        path = plan.folder / name
        path.touch(mode=0o600)
        path.write_text(secret)
    config = plan.folder / "config.toml"
    config.write_text(
        _CONFIG.format(
            folder=plan.folder,
            content=plan.content,
            channel=CHANNEL,
            api_url=loopback.api_url,
            webhook_url=loopback.webhook_url,
            length=plan.length,
        )
    )
    return config


@contextmanager
def _served(config: Path, folder: Path, console: Console) -> Iterator[subprocess.Popen[bytes]]:
    """Run the real service until the block ends."""
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "detector.cli", "serve", "--config", str(config)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"} | {"REDIS_URL": ""},
        )
        console.print(f"ofuwatch serve runs as process {process.pid}, with its own server.")
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _write_past(plan: Plan, feed: Feed, *, start_ms: int) -> None:
    """Fill the server's files with what was before the service came."""
    store = open_store(_redis(plan), environ={})
    keys = Keys()
    feed.introduce(store.client, keys)
    feed.until(start_ms, History(store.client, keys, HistorySettings()))
    store.close()


def _feed(
    plan: Plan,
    feed: Feed,
    loopback: Loopback,
    heard: _Heard,
    console: Console,
    *,
    end_ms: int,
    process: subprocess.Popen[bytes],
) -> None:
    """Write the play at its speed, and show each event when the webhook's consumer gets it."""
    store = _open_store_when_up(plan, process)
    history = History(store.client, Keys(), HistorySettings())
    start_ms = end_ms - plan.length
    began = time.monotonic()
    with Progress(
        TextColumn("[dim]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[at]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("fleet time", total=plan.play_s, at="")
        while True:
            done_s = min(plan.play_s, time.monotonic() - began)
            now_ms = start_ms + int(plan.length * done_s / plan.play_s)
            feed.until(now_ms, history)
            for body in heard.take(loopback.events):
                progress.console.print(_line(body))
            progress.update(task, completed=done_s, at=iso(now_ms // 1000 * 1000)[11:19])
            if done_s >= plan.play_s:
                break
            time.sleep(_STEP_S)
    store.close()
    console.print(f"{feed.written:,} samples were written.")


def _open_store_when_up(plan: Plan, process: subprocess.Popen[bytes]) -> Store:
    """Be a guest of the service's server as soon as the service has it."""
    deadline = time.monotonic() + _START_S
    while True:
        log = (plan.folder / "serve.log").read_text(errors="replace")
        if "service_started" in log:
            return open_store(_redis(plan), attach=True, environ={})
        if process.poll() is not None or time.monotonic() > deadline:
            msg = f"ofuwatch serve did not start: {log.strip()[-500:]}"
            raise StoreError(msg)
        time.sleep(0.1)


def _redis(plan: Plan) -> RedisSettings:
    return RedisSettings(state=str(plan.folder / "state"))


def _drain(
    plan: Plan, loopback: Loopback, heard: _Heard, console: Console
) -> tuple[Incident, ...]:
    """Wait until all notices have been delivered; return every incident on record."""
    store = open_store(_redis(plan), attach=True, environ={})
    outbox = Outbox(store.client, Keys())
    deadline = time.monotonic() + _DRAIN_S
    quiet = 0
    while time.monotonic() < deadline and quiet < 3:
        time.sleep(1.0)
        waiting = sum(pending.notices for pending in outbox.pending().values())
        quiet = 0 if waiting else quiet + 1
        for body in heard.take(loopback.events):
            console.print(_line(body))
    recorded = Ledger(store.client, Keys()).incidents()
    store.close()
    return recorded


def _line(body: Mapping[str, Any]) -> str:
    """One delivered event, for the terminal."""
    data = body["data"]
    incident, metric = data["incident"], data["metric"]
    step = body["type"].split(".")[-2]
    colour = {"opened": "red", "resolved": "green"}.get(step, "yellow")
    reason = f" ({incident['resolve_reason']})" if incident["resolve_reason"] else ""
    name = data["job"]["name"] or data["job"]["id"]
    return (
        f"[{colour}]{step:>9}[/] {incident['kind']:<20} {name} "
        f"[dim]{data['job']['id']}[/] {metric['delta_rel']:+.0%}{reason}"
    )


def _where(plan: Plan, config: Path, console: Console, *, took_s: float) -> None:
    console.print(
        f"It took {took_s:.0f} s. Look at:\n"
        f"  charts            {plan.folder / 'charts'}\n"
        f"  the service's log {plan.folder / 'serve.log'}\n"
        f"  its incidents     ofuwatch incidents --all --config {config}\n"
        f"  one job           ofuwatch show JOB --config {config}"
    )


def _stay(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait()
    except KeyboardInterrupt:
        return
