"""What every timeline is played on: a fleet near the present, a clock to turn, receivers.

Samples lie near the real present, since signed webhooks carry wall time; the service's clock is
turned by hand.
"""

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import redis

from detector.analysis.judge import Content
from detector.config import Config, load
from detector.content import load as load_content
from detector.content import shipped
from detector.demo.loopback import CHANNEL, SECRET, TOKEN, Loopback
from detector.demo.synth import SyntheticJob, scenario
from detector.service import Service
from detector.store.history import History, HistorySettings, Sample
from detector.store.keys import Keys

CADENCE_MS = 30_000
LENGTH_MS = 3 * 3_600_000
END_MS = time.time_ns() // 1_000_000
START_MS = END_MS - LENGTH_MS

_CONFIG = """\
cluster = "test"

[redis]
{redis}

[content]
models = "{content}/models"
rules = "{content}/rules"

[history]
stream = "6h"
discover = "1s"

[tick]
interval = "1s"

[delivery]
lease = "{lease}"

[log]
format = "json"

[[receiver]]
type = "slack"
name = "slack"
channel = "{channel}"
token_file = "slack.token"
api_url = "{api_url}"

[[receiver]]
type = "webhook"
name = "resiliency"
url = "{webhook_url}"
secret_file = "webhook.secret"
timeout = "1s"
"""


@functools.cache
def content() -> Content:
    """The shipped models and rules."""
    return load_content(shipped() / "models", shipped() / "rules")


@functools.cache
def fleet() -> tuple[SyntheticJob, ...]:
    """One job that falls to two fifths for good, and one that stays well."""
    rng = np.random.default_rng(7)
    return tuple(
        scenario(
            rng,
            cause=cause,
            id=name,
            start_ms=START_MS,
            length_ms=LENGTH_MS,
            cadence_ms=CADENCE_MS,
            gpus=8,
            calm=True,
        )
        for name, cause in (("falls", "debug_flag"), ("healthy", None))
    )


def write(
    client: redis.Redis, *, after_ms: int = 0, until_ms: int = END_MS, prefix: str = "ofu"
) -> None:
    """Write the fleet's samples in ``(after_ms, until_ms]``, as a collector does."""
    history = History(client, Keys(prefix), HistorySettings())
    samples = []
    for item in fleet():
        window = item.window
        rows = np.flatnonzero((window.times_ms > after_ms) & (window.times_ms <= until_ms))
        for row in rows[np.isfinite(window.fields["ofu"][rows])].tolist():
            named = {
                name: float(values[row])
                for name, values in window.fields.items()
                if name != "ofu" and np.isfinite(values[row])
            }
            samples.append(
                Sample(
                    job=item.job.id,
                    time_ms=int(window.times_ms[row]),
                    ofu=float(window.fields["ofu"][row]),
                    fields=named,
                )
            )
    assert all(history.write_many(samples))


def config_file(folder: Path, loopback: Loopback, *, redis: str, lease: str = "30s") -> Path:
    """Write a configuration with both receivers; ``redis`` is the body of that table."""
    folder.mkdir(exist_ok=True)
    (folder / "slack.token").write_text(TOKEN)
    (folder / "webhook.secret").write_text(SECRET)
    path = folder / "config.toml"
    path.write_text(
        _CONFIG.format(
            redis=redis,
            lease=lease,
            content=shipped(),
            channel=CHANNEL,
            api_url=loopback.api_url,
            webhook_url=loopback.webhook_url,
        )
    )
    return path


def configured(folder: Path, loopback: Loopback, *, redis: str) -> Config:
    """Return what :func:`config_file` writes, as the service reads it."""
    return load(config_file(folder, loopback, redis=redis))


@dataclass(slots=True)
class Clock:
    """Wall time that is turned by hand; set to ``END_MS``, it tells the real present.

    It goes on meanwhile: receivers refuse signatures that are five minutes old, and the other
    tests may take longer than that.
    """

    now_ms: int = END_MS

    def __call__(self) -> int:
        return self.now_ms + time.time_ns() // 1_000_000 - END_MS


@contextmanager
def watching(
    config: Config, clock: Clock, *, lease_ms: int = 15_000, held_to: Content | None = None
) -> Iterator[Service]:
    """A service that leads; its steps are taken by hand. At the end it is dropped, not ended.

    What it held stays as a killed process leaves it: its lease runs out by itself.
    """
    service = Service(config, held_to or content(), clock=clock, lease_ms=lease_ms)
    try:
        service.renew()
        yield service
    finally:
        service.close()


def roots(loopback: Loopback) -> list[str]:
    """The texts of the channel's own messages, replies left out."""
    return [item.text for item in loopback.slack.messages if item.thread_ts is None]


def told(loopback: Loopback) -> list[tuple[str, int]]:
    """What the consumer of events got: which step, how often."""
    return [(event.type.split(".")[-2], event.copies) for event in loopback.events]
