"""How long new jobs wait for their past: hours of it, out of a real Prometheus server.

The server gets its series by ``promtool``, as if it had scraped dcgm-exporters all along. What
is measured is the source's whole answer: asked, decoded, judged, brought together by job.
"""

import math
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.progress import Progress

from benchmarks.report import Row
from detector.analysis.maxclock import MaxClocks
from detector.content import load_gpus, shipped
from detector.telemetry.backfill import backfill
from detector.telemetry.prometheus import LIVE, Origins, build, names_of, readings, selector
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.whose import Whose

_GPUS = 8  # of each job, on one host
_EVERY_S = 10
_COUNTERS: dict[str, Callable[[float], str]] = {
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": lambda chance: f"{0.40 + 0.05 * chance:.6f}",
    "DCGM_FI_DEV_SM_CLOCK": lambda chance: f"{1900 + int(60 * chance)}",
    "DCGM_FI_PROF_DRAM_ACTIVE": lambda chance: f"{0.30 + 0.05 * chance:.6f}",
    "DCGM_FI_DEV_POWER_USAGE": lambda chance: f"{600 + 50 * chance:.3f}",
}


def measure(progress: Progress, *, hours: int, jobs: int = 100) -> Iterator[Row]:
    """Measure the past of ``jobs`` jobs at once."""
    goal = "below 10 s" if (hours, jobs) == (6, 100) else ""
    what = f"{hours} h of {jobs} jobs, {_GPUS} GPUs each, every {_EVERY_S} s"
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        yield what, "no Prometheus server is installed (apt-get install prometheus)", goal
        return
    task = progress.add_task(f"past of {jobs} jobs", total=3)
    with tempfile.TemporaryDirectory(prefix="ofu", ignore_cleanup_errors=True) as name:
        end_ms = _made(Path(name), hours=hours, jobs=jobs)
        progress.advance(task)
        with _served(Path(name)) as url:
            progress.advance(task)
            seconds, cpu, count = _asked(url, end_ms, hours=hours)
    progress.advance(task)
    yield what, f"{seconds:.1f} s, {count:,} samples of {len(_COUNTERS)} counters", goal
    yield "of it CPU time of this process", f"{cpu:.1f} s", ""


def _made(folder: Path, *, hours: int, jobs: int) -> int:
    """Make the server's past; return its end, ms."""
    end = int(time.time()) // _EVERY_S * _EVERY_S
    times = range(end - hours * 3600, end, _EVERY_S)
    chance = random.Random(0)  # what the values are does not matter; that they differ does
    file = folder / "past.om"
    with file.open("w", buffering=1 << 22) as out:
        for name, text in _COUNTERS.items():
            pool = [text(chance.random()) for _ in range(4096)]
            out.write(f"# TYPE {name} gauge\n")
            for gpu in range(jobs * _GPUS):
                labels = _labels(gpu)
                first = chance.randrange(4096)
                out.writelines(
                    f"{name}{labels} {pool[(first + k) % 4096]} {at}\n"
                    for k, at in enumerate(times)
                )
        out.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run(
        [*command, str(file), str(folder / "data")], check=True, stdout=subprocess.DEVNULL
    )
    file.unlink()
    return end * 1000


def _labels(gpu: int) -> str:
    job, index = divmod(gpu, _GPUS)
    return (
        f'{{gpu="{index}",UUID="GPU-{gpu:08x}-0000-4000-8000-000000000000",'
        f'device="nvidia{index}",modelName="NVIDIA H100 80GB HBM3",Hostname="node-{job:03d}",'
        f'hpc_job="{1000 + job}",instance="node-{job:03d}:9400",job="dcgm"}}'
    )


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    (folder / "prometheus.yml").write_text("{}")
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", "--log.level=error",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
    ]  # fmt: skip
    with subprocess.Popen(command) as server:
        try:
            _wait(address)
            yield f"http://{address}"
        finally:
            server.terminate()


def _wait(address: str) -> None:
    host, port = address.split(":")
    for _ in range(600):
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            time.sleep(1.0)  # it listens before it has opened its blocks
            return
    message = "the Prometheus server did not start"
    raise SystemExit(message)


def _asked(url: str, end_ms: int, *, hours: int) -> tuple[float, float, int]:
    """Return seconds, CPU seconds of this process, and the samples that came."""
    source = build(PrometheusSettings(url=url), secret=lambda settings, key: "")
    query = f"{selector(names_of(LIVE), '{}')}[{3 * _EVERY_S}s]"
    found = Origins(()).tracks(source.api.query(query, at_ms=end_ms).series)
    source.learn(found)
    now = [msgspec.structs.replace(one, jobs=Whose().named(one)) for one in readings(found)[0]]
    clocks = MaxClocks(table=load_gpus(shipped() / "models"))
    began, cpu = time.perf_counter(), time.process_time()
    parts = backfill(
        source, now, Whose(), start_ms=end_ms - hours * 3_600_000, end_ms=end_ms,
        every_ms=_EVERY_S * 1000, max_clocks=clocks,
    )  # fmt: skip
    count = sum(not math.isnan(part.ofu) for part in parts)
    took = time.perf_counter() - began, time.process_time() - cpu
    source.close()
    return *took, count
