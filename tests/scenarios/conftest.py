"""What the scenarios begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from detector.config import Config
from detector.demo.loopback import Loopback
from tests.scenarios.stage import configured


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    """Return receivers on this machine."""
    with Loopback() as receivers:
        yield receivers


@pytest.fixture
def config(valkey: str, loopback: Loopback, tmp_path: Path) -> Config:
    """Return the configuration of a service on the session's server, with both receivers."""
    return configured(tmp_path, loopback, redis=f'url = "unix://{valkey}"')
