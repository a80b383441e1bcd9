"""What one exporter's page costs to read, beside prometheus_client's parser on the same page.

The pages have the form of dcgm-exporter's with its default counters, for eight GPUs; every
value differs from page to page, also those that are constant on a real machine. Both parsers
take turns on the same pages.
"""

import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from rich.progress import Progress

from benchmarks.report import Row
from detector.telemetry.exposition import parse

# The exporter's default counters, and how it prints them: whole numbers up to a maximum, or
# fp64 values, which have six decimals.
_COUNTERS: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("%d", 1980),
    "DCGM_FI_DEV_MEM_CLOCK": ("%d", 2619),
    "DCGM_FI_DEV_MEMORY_TEMP": ("%d", 90),
    "DCGM_FI_DEV_GPU_TEMP": ("%d", 80),
    "DCGM_FI_DEV_POWER_USAGE": ("%f", 700),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("%d", 5e13),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("%d", 9),
    "DCGM_FI_DEV_GPU_UTIL": ("%d", 100),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("%d", 100),
    "DCGM_FI_DEV_ENC_UTIL": ("%d", 9),
    "DCGM_FI_DEV_DEC_UTIL": ("%d", 9),
    "DCGM_FI_DEV_XID_ERRORS": ("%d", 99),
    "DCGM_FI_DEV_FB_FREE": ("%d", 81_559),
    "DCGM_FI_DEV_FB_USED": ("%d", 81_559),
    "DCGM_FI_DEV_FB_RESERVED": ("%d", 700),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": ("%d", 9e5),
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": ("%d", 1),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("%d", 9),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("%d", 9),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("%d", 1),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("%f", 1),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("%f", 1),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("%f", 1),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("%d", 5e10),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("%d", 5e10),
}

_GPUS = 8


def page_of(chance: random.Random, *, gpus: int = _GPUS, host: str = "gpu-a-07") -> bytes:
    """Return a page of ``gpus`` GPUs with the default counters and values by ``chance``."""
    lines = []
    for name, (form, most) in _COUNTERS.items():
        lines += [f"# HELP {name} What {name} says of a GPU.", f"# TYPE {name} gauge"]
        for gpu in range(gpus):
            low = 1 if "CLOCK" in name else 0
            value = form % (low + chance.random() * (most - low))
            lines.append(f"{name}{{{_labels(gpu, host=host)}}} {value}")
    return ("\n".join(lines) + "\n").encode()


def _labels(gpu: int, *, host: str) -> str:
    return (
        f'gpu="{gpu}",UUID="GPU-a92d91b0-dca9-7694-0894-e277504bd1a{gpu}",'
        f'pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}",'
        f'modelName="NVIDIA H100 80GB HBM3",Hostname="{host}.example.com",'
        f'DCGM_FI_DRIVER_VERSION="550.90.07",hpc_job="48213"'
    )


def measure(progress: Progress, *, rounds: int = 100) -> list[Row]:
    """Return the figures of ``rounds`` pages, each read by both parsers."""
    task = progress.add_task("pages of 8 GPUs", total=rounds)
    chance = random.Random(7)
    pages = [page_of(chance) for _ in range(20)]
    layout = parse(pages[-1], time_ms=0).layout
    ours, theirs, anew = [], [], []
    for turn in range(rounds):
        page = pages[turn % len(pages)]
        text = page.decode()
        # Thirty to one: theirs takes milliseconds, and both should see the same minutes.
        for again in range(30):
            one = pages[(turn + again) % len(pages)]
            ours.append(_us(partial(parse, one, time_ms=0, layout=layout)))
        theirs.append(_us(partial(_families, text)))
        anew.append(_us(partial(parse, page, time_ms=0)))
        progress.advance(task)
    return _rows(pages, ours=ours, theirs=theirs, anew=anew)


def _rows(
    pages: Sequence[bytes], *, ours: list[float], theirs: list[float], anew: list[float]
) -> list[Row]:
    our, their = statistics.median(ours), statistics.median(theirs)
    size, read = len(pages[0]), parse(pages[0], time_ms=0)
    values = sum(len(reading.values) for reading in read.readings)
    return [
        (
            f"page of {_GPUS} GPUs, {len(_COUNTERS)} counters, {size / 1e3:.0f} kB, "
            f"{values} values used: median",
            f"{our:.0f} µs (95 %: {statistics.quantiles(ours, n=20)[-1]:.0f} µs)",
            "below 60 µs",
        ),
        ("the same page by prometheus_client.parser, median", f"{their / 1e3:.1f} ms", ""),
        (
            "prometheus_client.parser over ours",
            f"{their / our:.0f} times",
            "at least 100 times",
        ),
        ("first page of a target, or another layout", f"{statistics.median(anew):,.0f} µs", ""),
        ("remembered of a target", f"{_remembered(pages[0]) / 1e3:.0f} kB", ""),
    ]


def _families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def _us(call: Callable[[], object]) -> float:
    """Microseconds of a call, the garbage collector kept out of it."""
    gc.disable()
    start = time.perf_counter_ns()
    call()
    taken = time.perf_counter_ns() - start
    gc.enable()
    return taken / 1e3


def _remembered(page: bytes) -> int:
    """Bytes that stay allocated for a page's layout."""
    tracemalloc.start()
    layout = parse(page, time_ms=0).layout
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del layout
    return taken
