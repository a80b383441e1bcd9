"""The planned past of a Prometheus server: what its series are, and so what must come out.

An hour at one sample in 10 s. Each job has its own peculiarity; see ``openmetrics``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

STEP_MS = 10_000
SPAN_MS = 3_600_000
MAX_MHZ = 1980.0

_TENSOR, _CLOCK = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_SM_CLOCK"
_UTIL, _ENGINE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"

Value = Callable[[int], float | None]
_Lines = Iterator[tuple[str, str, int, float]]


def until_ms(now_ms: int) -> int:
    """Return where the past ends: half an hour ago, so that the present is apart from it."""
    return (now_ms - 1_800_000) // STEP_MS * STEP_MS


def tensor(k: int) -> float:
    """Return the activity of most GPUs in the ``k``th sample; no two in a row are equal."""
    return round(0.4 + 0.001 * (k % 7), 6)


def ofu(k: int) -> float:
    """Return what it makes at 1485 MHz of 1980."""
    return tensor(k) * 1485.0 / MAX_MHZ


def _labels(gpu: str, **more: str) -> str:
    host = more.pop("host", "node-a")
    first = {"gpu": gpu[-1], "UUID": f"GPU-{gpu}", "modelName": "NVIDIA H100 80GB HBM3",
             "Hostname": host, "instance": f"{host}:9400", "job": "dcgm"}  # fmt: skip
    pairs = {key: value for key, value in (first | more).items() if value}
    return ",".join(f'{key}="{value}"' for key, value in pairs.items())


def _series(name: str, labels: str, until: int, value: Value) -> _Lines:
    for k in range(SPAN_MS // STEP_MS):
        if (found := value(k)) is not None:
            yield name, labels, until - SPAN_MS + k * STEP_MS, found


def _gpu(until: int, labels: str, value: Value = tensor, clock: float = 1485.0) -> _Lines:
    yield from _series(_TENSOR, labels, until, value)
    yield from _series(_CLOCK, labels, until, lambda k: None if value(k) is None else clock)


def _lines(until: int) -> _Lines:
    """Say what each job is there for."""
    for gpu in range(2):
        yield from _gpu(until, _labels(f"plain{gpu}", hpc_job="plain"))
        for way, rate in (("TX", 1e9), ("RX", 2e9)):
            name = f"DCGM_FI_PROF_NVLINK_{way}_BYTES"
            yield from _series(
                name, _labels(f"plain{gpu}", hpc_job="plain"), until,
                lambda k, rate=rate: rate,  # type: ignore[misc]
            )  # fmt: skip
    # A GPU that is handed on at the 180th sample, and an idle hour quarter before its end.
    yield from _gpu(
        until, _labels("handed0", hpc_job="before"), lambda k: tensor(k) if k < 180 else None
    )
    yield from _gpu(
        until, _labels("handed0", hpc_job="after"),
        lambda k: tensor(k) if 180 <= k < 270 else None,
    )  # fmt: skip
    # Two servers of one pair, half an interval apart; one was down for a while.
    for replica, late in (("a", 0), ("b", 5_000)):
        labels = _labels("twice0", hpc_job="twice", replica=replica)
        down = range(100, 200) if replica == "a" else range(0)
        yield from (
            (name, own, at + late, value)
            for name, own, at, value in _gpu(
                until,
                labels,
                lambda k, down=down: None if k in down else tensor(k),  # type: ignore[misc]
            )
        )
    # Blanks: one GPU of two has none but blanks from the 100th to the 199th.
    yield from _gpu(until, _labels("blank0", hpc_job="blank"))
    yield from _gpu(
        until, _labels("blank1", hpc_job="blank"),
        lambda k: 140737488355328.0 if 100 <= k < 200 else tensor(k),
    )  # fmt: skip
    # Its collector is dead from the 100th to the 199th, while the GPU is busy.
    dead = _labels("dead0", hpc_job="dead")
    yield from _gpu(until, dead, lambda k: 0.0 if 100 <= k < 200 else tensor(k))
    yield from _series(_ENGINE, dead, until, lambda k: 0.0 if 100 <= k < 200 else 0.9)
    yield from _series(_UTIL, dead, until, lambda k: 100.0)
    # Truly idle for a while: those zeros count.
    idle = _labels("idle0", hpc_job="idle")
    yield from _gpu(until, idle, lambda k: 0.0 if 100 <= k < 200 else tensor(k))
    yield from _series(_ENGINE, idle, until, lambda k: 0.0 if 100 <= k < 200 else 0.9)
    yield from _series(_UTIL, idle, until, lambda k: 0.0 if 100 <= k < 200 else 99.0)
    # Names of DCGM 4.6 and 4.6.1, clocks in Hz, and its own maximal clock.
    new = _labels("new0", hpc_job="new")
    yield from _series("DCGM_FI_PROF_TENSOR_UTIL_RATIO", new, until, tensor)
    yield from _series("DCGM_FI_DEV_SM_CLOCK_HERTZ", new, until, lambda k: 1485e6)
    yield from _series("DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ", new, until, lambda k: 1980e6)
    # One GPU that two jobs share, as the exporter writes it: each line twice.
    for job in ("share1", "share2"):
        yield from _gpu(until, _labels("shared0", hpc_job=job))
    # Two minutes without a scrape: shorter than the look-back of five.
    yield from _gpu(
        until, _labels("gap0", hpc_job="gap"),
        lambda k: None if 100 <= k < 112 else tensor(k),
    )  # fmt: skip
    # An exporter that collects every 30 s, scraped every 10 s.
    yield from _gpu(until, _labels("slow0", hpc_job="slow"), lambda k: tensor(k // 3))
    # A pod, where labels of the workload are not honoured; and the exporter's own.
    yield from _gpu(
        until,
        _labels("pod0", exported_pod="llm-worker-0", exported_namespace="team",
                pod="dcgm-exporter-x7", namespace="gpu-operator"),
    )  # fmt: skip

    # A job that went from one GPU to another at the 180th sample; the other was another's.
    yield from _gpu(
        until, _labels("moved0", hpc_job="moved"), lambda k: tensor(k) if k < 180 else None
    )
    for job, own in (("earlier", range(180)), ("moved", range(180, 360))):
        yield from _gpu(
            until, _labels("moved1", hpc_job=job, host="node-b"),
            lambda k, own=own: tensor(k) if k in own else None,  # type: ignore[misc]
        )  # fmt: skip
    # Scraped once a minute, on two hosts at times of their own.
    for host, late in (("node-a", 20_000), ("node-b", 45_000)):
        labels = _labels(f"minute{late // 20_000}", hpc_job="minute", host=host)
        yield from (
            (name, own, at + late, value)
            for name, own, at, value in _gpu(
                until, labels, lambda k: None if k % 6 else tensor(k // 6)
            )
        )
    # DCGM was upgraded at the 180th sample.
    renamed = _labels("renamed0", hpc_job="renamed")
    yield from _gpu(until, renamed, lambda k: tensor(k) if k < 180 else None)
    for name, wanted in (
        ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", tensor),
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ", lambda k: 1485e6),
    ):
        yield from _series(
            name, renamed, until,
            lambda k, wanted=wanted: wanted(k) if k >= 180 else None,  # type: ignore[misc]
        )  # fmt: skip
    # The scrape's labels were no longer honoured from the 180th sample on.
    old = _labels("relabelled0", pod="llm-7", namespace="team")
    new = _labels(
        "relabelled0", pod="dcgm-exporter-x7", exported_pod="llm-7", exported_namespace="team"
    )
    yield from _gpu(until, old, lambda k: tensor(k) if k < 180 else None)
    yield from _gpu(until, new, lambda k: tensor(k) if k >= 180 else None)
    # A MIG instance whose clock is its whole GPU's.
    mig = _labels("mig0", hpc_job="mig", GPU_I_ID="1", GPU_I_PROFILE="1g.10gb")
    yield from _series(_TENSOR, mig, until, tensor)
    yield from _series(_CLOCK, _labels("mig0"), until, lambda k: 1485.0)
    # A GPU of which no label says whose it is.
    yield from _gpu(until, _labels("unnamed0", host="node-c"))


def openmetrics(until: int) -> str:
    """Return the whole past in the format that ``promtool`` reads."""
    families: defaultdict[str, list[str]] = defaultdict(list)
    for name, labels, at_ms, value in _lines(until):
        families[name].append(f"{name}{{{labels}}} {value!r} {at_ms / 1e3:.3f}\n")
    text = "".join(f"# TYPE {name} gauge\n{''.join(own)}" for name, own in families.items())
    return f"{text}# EOF\n"
