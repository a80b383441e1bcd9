"""AMD's counters, as ROCm's device-metrics-exporter names them: a mapping, and no more.

Written from the exporter's documents and sources; untested on hardware. An OFU of these is the
matrix (MFMA) units' busy share times the system clock over its maximum, which is the same
formula but not the same counter: compare such jobs with each other only. The exporter must
have its profiler metrics on (off for Radeon, and for virtual functions). In a partitioned GPU
only the first partition has clocks and power, so only that one has an OFU.
"""

from collections.abc import Mapping

from detector.metric import COUNTERS, Counter

# Its names (a prefix such as "amd_" may stand before them): field, and scale to its unit.
NAMED = {
    "gpu_prof_tensor_active_percent": (1004, 0.01),
    "gpu_prof_gui_util_percent": (1001, 0.01),
    "gpu_prof_occupancy_percent": (1003, 0.01),
    "gpu_umc_activity": (1005, 0.01),
    "gpu_gfx_activity": (203, 1.0),
    "gpu_clock": (100, 1.0),
    "gpu_max_clock": (113, 1.0),
    "gpu_package_power": (155, 1.0),
    "gpu_average_package_power": (155, 1.0),
    "gpu_power_usage": (155, 1.0),
    "gpu_junction_temperature": (150, 1.0),
    "gpu_memory_temperature": (140, 1.0),
}
_CLOCKS = ("gpu_clock", "gpu_max_clock")
# Its first releases wrote their enumeration's names: GPU_CLOCK_TYPE_SYSTEM.
_ENUM = "gpu_clock_type_"

# Labels that tell the parts of one counter from each other.
OF_ONE_VALUE = frozenset({"clock_type", "clock_index"})

# What its lines carry and other exporters' metrics of such plain names don't.
_MARKS = ("serial_number", "card_model", "gpu_partition_id", "gpu_compute_partition_type")


def counter_named(name: str, labels: Mapping[str, str]) -> tuple[Counter, float, bool] | None:
    """Return the counter, its scale, and whether the mean of its parts counts; None for others.

    Compute dies have a clock each, under ``clock_index``; memory and data fabric have others,
    under other types than ``system``.
    """
    plain = name.lower()
    plain = plain[plain.find("gpu_") :] if "gpu_" in plain else plain
    if plain not in NAMED or not any(mark in labels for mark in _MARKS):
        return None
    kind = labels.get("clock_type", "").lower().removeprefix(_ENUM)
    if plain in _CLOCKS and kind != "system":
        return None
    field, scale = NAMED[plain]
    return COUNTERS[field], scale, plain in _CLOCKS


def partition(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return the partition's number and kind; "" for a GPU in one piece."""
    kind = labels.get("gpu_compute_partition_type", "").lower()
    if kind in {"", "spx", "none", "n/a"}:
        return "", ""
    return labels.get("gpu_partition_id", ""), kind
