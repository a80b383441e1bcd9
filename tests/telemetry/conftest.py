"""What several tests of sources stand on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.telemetry.real_prometheus import Served, served


@pytest.fixture(scope="session")
def prometheus() -> Iterator[Served]:
    """A Prometheus server on loopback, which lives as long as the session."""
    with served() as server:
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is its own CA, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "ca.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]
    command += ["-nodes", "-days", "2", "-subj", "/CN=exporter", "-keyout", str(key)]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key
