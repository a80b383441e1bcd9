"""What several tests of sources stand on."""

from collections.abc import Iterator

import pytest

from tests.telemetry.real_prometheus import Served, served


@pytest.fixture(scope="session")
def prometheus() -> Iterator[Served]:
    """A Prometheus server on loopback, which lives as long as the session."""
    with served() as server:
        yield server
