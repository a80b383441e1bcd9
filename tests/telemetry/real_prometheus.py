"""A real Prometheus server: it scrapes our exporters, and has a past made to plan."""

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import urllib3

from tests.telemetry import plans

_CONFIG = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: dcgm
    honor_labels: false
    static_configs:
      - targets: ["{target}"]
        labels: {{pod: dcgm-exporter-x7, namespace: gpu-operator}}
"""


class _Pages(BaseHTTPRequestHandler):
    """Serves the page that its server has at the moment."""

    server: "Exporter"

    def do_GET(self) -> None:
        body = self.server.page().encode()
        self.send_response(200 if body else 503)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Exporter(ThreadingHTTPServer):
    """An exporter of what ``lines`` are; ``{n}`` in them is how often it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.lines: list[str] = []
        self.asked = 0

    def page(self) -> str:
        self.asked += 1
        return "".join(f"{line}\n".replace("{n}", f"{self.asked:05d}") for line in self.lines)


@dataclass(frozen=True, slots=True)
class Served:
    """A running server.

    Attributes
    ----------
    exporter
        What it scrapes each second, as ``honorLabels: false`` has it.
    until_ms
        Where its planned past ends.
    """

    url: str
    exporter: Exporter
    until_ms: int
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def served() -> Iterator[Served]:
    """Run a server until the end of the block; skips where none is installed."""
    exporter = Exporter()
    thread = threading.Thread(target=exporter.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    config = _CONFIG.format(target=f"127.0.0.1:{exporter.server_port}")
    prefix = ["--web.external-url=http://localhost/prom", "--web.route-prefix=/prom"]
    with planned(config, *prefix) as (address, until_ms):
        url = f"http://{address}/prom"
        _wait(f"{url}/-/ready")
        yield Served(url=url, exporter=exporter, until_ms=until_ms)
    exporter.shutdown()
    exporter.server_close()
    thread.join(5)


@contextmanager
def planned(config: str, *flags: str) -> Iterator[tuple[str, int]]:
    """Start a server that has the planned past; yield its address and where that ends, ms.

    It may not be ready yet. Skips where none is installed.
    """
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install prometheus")
    with tempfile.TemporaryDirectory(prefix="prom", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        until_ms = plans.until_ms(int(time.time() * 1000))
        (folder / "past.om").write_text(plans.openmetrics(until_ms))
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
        subprocess.run(
            [*command, str(folder / "past.om"), str(folder / "data")],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (folder / "prometheus.yml").write_text(config)
        address = f"127.0.0.1:{_free_port()}"
        with subprocess.Popen(
            [
                "prometheus", f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}", "--log.level=error",
                f"--web.listen-address={address}", *flags,
            ]
        ) as server:  # fmt: skip
            try:
                yield address, until_ms
            finally:
                server.terminate()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait(url: str) -> None:
    deadline = time.monotonic() + 30
    with urllib3.PoolManager(retries=False) as pool:
        while time.monotonic() < deadline:
            try:
                if pool.request("GET", url, timeout=1).status == 200:
                    return
            except urllib3.exceptions.HTTPError:
                pass
            time.sleep(0.05)
    pytest.fail("the Prometheus server did not become ready")
