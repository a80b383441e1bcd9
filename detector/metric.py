"""The catalogues: what a history calls its metrics, and what GPUs call their counters.

``METRICS`` are the service's own, ``COUNTERS`` the fields of DCGM that it reads. Both say unit
and bounds; :func:`usable` is the one filter between a counter's raw value and everything else.
"""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeGuard

_Level = Literal["gpu", "gpu_i", "gpu_ci"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One entry of the catalogue.

    Attributes
    ----------
    name
        The catalogue's name, used in code, models, rules and charts.
    field
        The field's name in a stream entry ``ofu:{<job>}:s``; empty for a metric that is
        derived from others when it is needed and never stored.
    unit
        ``ratio`` (0..1), ``MHz``, ``W``, ``1/s``, ``B/s`` or ``count``.
    low, high
        Values outside ``low..high`` are no data. DCGM ratios may read a little above 1
        (rounding of two averages), hence 1.02 where DCGM is the source.
    title
        What a chart's axis says.
    """

    name: str
    field: str
    unit: str
    low: float
    high: float
    title: str


_ENTRIES = (
    # The service's own measure. 1.02: DCGM's ratio and the clock are averaged separately.
    Metric(name="ofu", field="v", unit="ratio", low=0.0, high=1.0, title="OFU"),
    Metric(name="gpus", field="n", unit="count", low=0.0, high=1e7, title="GPUs reporting"),
    Metric(name="tensor", field="tensor", unit="ratio", low=0.0, high=1.02,
           title="tensor pipe active"),
    # 5000 MHz: no SM of any generation boosts above 3 GHz; blanks and Hz values lie above.
    Metric(name="clock", field="clock", unit="MHz", low=1.0, high=5000.0, title="SM clock"),
    Metric(name="sm", field="sm", unit="ratio", low=0.0, high=1.02, title="SM active"),
    Metric(name="dram", field="dram", unit="ratio", low=0.0, high=1.02, title="DRAM active"),
    Metric(name="power", field="power", unit="W", low=0.0, high=1e5, title="power per GPU"),
    Metric(name="nvlink", field="nvlink", unit="B/s", low=0.0, high=1e13, title="NVLink"),
    Metric(name="pcie", field="pcie", unit="B/s", low=0.0, high=1e13, title="PCIe"),
    # Above 1 on purpose: a framework that miscounts its FLOPs reports such values, and they
    # are what mfu_ofu_divergence is about.
    Metric(name="mfu", field="mfu", unit="ratio", low=0.0, high=10.0, title="reported MFU"),
    Metric(name="tokens", field="tokens", unit="1/s", low=0.0, high=1e12, title="tokens/s"),
    Metric(name="unusable", field="bad", unit="count", low=0.0, high=1e7,
           title="GPUs without usable counters"),
    # OFU of single GPUs, held to their job: what the mean hides.
    Metric(name="gpu_ofu", field="", unit="ratio", low=0.0, high=1.0,
           title="OFU of single GPUs"),
    Metric(name="mfu_ratio", field="", unit="ratio", low=0.0, high=1e3,
           title="reported MFU / MFU that OFU implies"),
    Metric(name="usable", field="", unit="ratio", low=0.0, high=1.0,
           title="share of GPUs with usable counters"),
    Metric(name="valid", field="", unit="ratio", low=0.0, high=1.0,
           title="share of usable samples"),
)  # fmt: skip

METRICS = MappingProxyType({entry.name: entry for entry in _ENTRIES})
FIELDS = MappingProxyType({entry.field: entry for entry in _ENTRIES if entry.field})


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One field of DCGM, under all the names it has had; numbers are the stable key.

    Attributes
    ----------
    field
        DCGM's numeric field id.
    name
        The canonical counter; two fields may hold the same one in different units.
    names
        What exporters call it: DCGM up to 4.5, DCGM 4.6, and the exporter's first names.
        Compared without case.
    tag
        DCGM's textual tag; "" where none is known.
    unit
        Of the canonical counter.
    scale
        What the field's own value is multiplied with to come into ``unit``.
    type
        DCGM's type of the field, which decides its sentinels.
    level
        The finest entity that has it: the GPU, a MIG instance (``gpu_i``), or a compute
        instance of one (``gpu_ci``).
    kind
        ``gauge``; ``total`` grows until the driver restarts; ``event`` keeps the last one.
    low, high
        Values outside ``low..high`` (in ``unit``) are no data. The bounds leave out every
        blank that DCGM writes but the 32-bit ones, which wide counters could reach.
    """

    field: int
    name: str
    names: tuple[str, ...]
    tag: str
    unit: str
    scale: float = 1.0
    type: Literal["int64", "fp64"]
    level: Literal["gpu", "gpu_i", "gpu_ci"]
    kind: Literal["gauge", "total", "event"]
    low: float
    high: float


def _ratio(field: int, name: str, tag: str, *names: str, level: _Level = "gpu_ci") -> Counter:
    # 1.02: two averages of one interval, rounded apart; MIG reads a little above 1 as well.
    return Counter(
        field=field, name=name, names=names, tag=tag, unit="ratio", type="fp64",
        level=level, kind="gauge", low=0.0, high=1.02,
    )  # fmt: skip


def _clock(field: int, name: str, tag: str, *names: str, scale: float = 1.0) -> Counter:
    # As the metric "clock": 0 is "unknown", and no SM boosts above 3 GHz.
    return Counter(
        field=field, name=name, names=names, tag=tag, unit="MHz", scale=scale, type="int64",
        level="gpu", kind="gauge", low=1.0, high=5000.0,
    )  # fmt: skip


def _power(field: int, name: str, tag: str, *names: str) -> Counter:
    # 10 kW: chosen; boards draw up to 1.4 kW. 65535 is AMD's "not applicable".
    return Counter(
        field=field, name=name, names=names, tag=tag, unit="W", type="fp64",
        level="gpu", kind="gauge", low=0.0, high=10_000.0,
    )  # fmt: skip


def _celsius(field: int, name: str, tag: str, *names: str) -> Counter:
    # Chosen: far beyond what silicon survives; a margin to the limit may be negative.
    return Counter(
        field=field, name=name, names=names, tag=tag, unit="°C", type="int64",
        level="gpu", kind="gauge", low=-100.0, high=250.0,
    )  # fmt: skip


def _rate(field: int, name: str, tag: str, *names: str) -> Counter:
    # Bytes a second, though old counter files say "counter". 1e13: as the metric "nvlink".
    return Counter(
        field=field, name=name, names=names, tag=tag, unit="B/s", type="int64",
        level="gpu", kind="gauge", low=0.0, high=1e13,
    )  # fmt: skip


def _total(
    field: int, name: str, tag: str, *names: str,
    unit: str = "ns", scale: float = 1.0, high: float = 9.1e18,
) -> Counter:  # fmt: skip
    # Totals of 64 bits may pass 2^47; 9.1e18 is below the four sentinels near 2^63.
    return Counter(
        field=field, name=name, names=names, tag=tag, unit=unit, scale=scale, type="int64",
        level="gpu", kind="total", low=0.0, high=high,
    )  # fmt: skip


def _number(
    field: int, name: str, tag: str, *names: str, high: float,
    unit: str = "count", kind: Literal["gauge", "event"] = "gauge", level: _Level = "gpu",
) -> Counter:  # fmt: skip
    return Counter(
        field=field, name=name, names=names, tag=tag, unit=unit, type="int64",
        level=level, kind=kind, low=0.0, high=high,
    )  # fmt: skip


_COUNTERS = (
    _clock(100, "sm_clock_mhz", "sm_clock", "DCGM_FI_DEV_SM_CLOCK", "dcgm_sm_clock"),
    _clock(110, "app_sm_clock_mhz", "sm_app_clock", "DCGM_FI_DEV_APP_SM_CLOCK"),
    # Bits up to 0x100 are named; 2^32 - 1 is what a broken driver gives.
    _number(112, "clock_event_bits", "current_clocks_event_reasons",
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
            high=2.0**32 - 2, unit="bits"),
    _clock(113, "max_sm_clock_mhz", "sm_max_clock", "DCGM_FI_DEV_MAX_SM_CLOCK"),
    _celsius(140, "memory_temp_c", "memory_temp",
             "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "dcgm_memory_temp"),
    _celsius(150, "gpu_temp_c", "gpu_temp",
             "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "dcgm_gpu_temp"),
    _celsius(153, "gpu_temp_margin_c", "gpu_temp_tlimit",
             "DCGM_FI_DEV_GPU_TEMP_LIMIT", "DCGM_FI_DEV_GPU_TEMP_TLIMIT",
             "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS"),
    _power(155, "power_w", "power_usage",
           "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", "dcgm_power_usage"),
    # mJ since the driver was loaded. 1e13 J: 300 years of a kilowatt.
    _total(156, "energy_j", "total_energy_consumption",
           "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "dcgm_total_energy_consumption",
           unit="J", scale=1e-3, high=1e13),
    _power(157, "power_instant_w", "power_usage_instant",
           "DCGM_FI_DEV_POWER_USAGE_INSTANT", "DCGM_FI_DEV_BOARD_POWER_RAW_WATTS"),
    _power(160, "power_limit_requested_w", "power_management_limit",
           "DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"),
    _power(164, "power_limit_w", "enforced_power_limit",
           "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    # Percent under both names, whatever the newer one says.
    _number(203, "gpu_util_pct", "gpu_utilization",
            "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", "dcgm_gpu_utilization",
            high=100.0, unit="%"),
    # The last Xid, for ever. 99,999: chosen; they have three digits so far.
    _number(230, "xid_last", "xid_errors",
            "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", "dcgm_xid_errors",
            high=99_999.0, kind="event", level="gpu_ci"),
    # Time below the wanted clock, by cause: nanoseconds, though old comments say microseconds.
    _total(240, "power_violation_ns", "power_violation",
           "DCGM_FI_DEV_POWER_VIOLATION", "dcgm_power_violation"),
    _total(241, "thermal_violation_ns", "thermal_violation",
           "DCGM_FI_DEV_THERMAL_VIOLATION", "dcgm_thermal_violation"),
    _total(242, "sync_boost_violation_ns", "sync_boost_violation",
           "DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "dcgm_sync_boost_violation"),
    _total(243, "board_limit_violation_ns", "board_limit_violation",
           "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "dcgm_board_limit_violation"),
    _total(244, "low_util_violation_ns", "low_util_violation",
           "DCGM_FI_DEV_LOW_UTIL_VIOLATION", "dcgm_low_util_violation"),
    _total(245, "reliability_violation_ns", "reliability_violation",
           "DCGM_FI_DEV_RELIABILITY_VIOLATION", "dcgm_reliability_violation"),
    _total(246, "app_clocks_violation_ns", "app_clock_violation",
           "DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION"),
    _total(247, "base_clocks_violation_ns", "base_clock_violation",
           "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION"),
    _ratio(1001, "gr_engine_active", "gr_engine_active",
           "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    _ratio(1002, "sm_active", "sm_active",
           "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"),
    _ratio(1003, "sm_occupancy", "sm_occupancy",
           "DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO"),
    _ratio(1004, "tensor_active", "tensor_active",
           "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
    _ratio(1005, "dram_active", "dram_active",
           "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", level="gpu_i"),
    _ratio(1006, "fp64_active", "fp64_active",
           "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_FP64_UTIL_RATIO"),
    _ratio(1007, "fp32_active", "fp32_active",
           "DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_FP32_UTIL_RATIO"),
    _ratio(1008, "fp16_active", "fp16_active",
           "DCGM_FI_PROF_PIPE_FP16_ACTIVE", "DCGM_FI_PROF_FP16_UTIL_RATIO"),
    _rate(1009, "pcie_tx_bytes", "pcie_tx_bytes", "DCGM_FI_PROF_PCIE_TX_BYTES"),
    _rate(1010, "pcie_rx_bytes", "pcie_rx_bytes", "DCGM_FI_PROF_PCIE_RX_BYTES"),
    _rate(1011, "nvlink_tx_bytes", "nvlink_tx_bytes", "DCGM_FI_PROF_NVLINK_TX_BYTES"),
    _rate(1012, "nvlink_rx_bytes", "nvlink_rx_bytes", "DCGM_FI_PROF_NVLINK_RX_BYTES"),
    _ratio(1013, "imma_active", "tensor_imma_active",
           "DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", "DCGM_FI_PROF_IMMA_UTIL_RATIO"),
    _ratio(1014, "hmma_active", "tensor_hmma_active",
           "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "DCGM_FI_PROF_HMMA_UTIL_RATIO"),
    _ratio(1015, "dfma_active", "tensor_dfma_active",
           "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", "DCGM_FI_PROF_DFMA_UTIL_RATIO"),
    _ratio(1016, "int_active", "integer_active",
           "DCGM_FI_PROF_PIPE_INT_ACTIVE", "DCGM_FI_PROF_INT_UTIL_RATIO"),
    _total(1084, "sm_cycles_elapsed", "sm_cycles_elapsed",
           "DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL", unit="count"),
    _total(1086, "mma_cycles_active", "mma_cycles_active",
           "DCGM_FI_PROF_MMA_CYCLES_ACTIVE_TOTAL", unit="count"),
    _total(1420, "sw_power_cap_ns", "clocks_event_power_cap_ns",
           "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS"),
    _total(1421, "sync_boost_ns", "clocks_event_boost_ns",
           "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_COUNT_NS",
           "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS"),
    _total(1422, "sw_thermal_slowdown_ns", "clocks_event_sw_thermal_slowdown_ns",
           "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS"),
    _total(1423, "hw_thermal_slowdown_ns", "clocks_event_hw_thermal_slowdown_ns",
           "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"),
    _total(1424, "hw_power_brake_ns", "clocks_event_power_brake_slowdown_ns",
           "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS"),
    # What the driver asks for: none, reset the GPU, reboot the node, drain.
    _number(1523, "recovery_action", "gpu_recovery_action",
            "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_GPU_RECOVERY_ACTION",
            high=100.0),
    # The same counters since DCGM 4.6.1, in Hz and in J; the older fields stay beside them.
    _clock(1603, "sm_clock_mhz", "", "DCGM_FI_DEV_SM_CLOCK_HERTZ", scale=1e-6),
    _clock(1606, "app_sm_clock_mhz", "", "DCGM_FI_DEV_SM_APP_CLOCK_HERTZ",
           scale=1e-6),
    _clock(1608, "max_sm_clock_mhz", "", "DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ",
           scale=1e-6),
    _total(1611, "energy_j", "", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
           unit="J", high=1e13),
)  # fmt: skip

COUNTERS = MappingProxyType({counter.field: counter for counter in _COUNTERS})
_NAMED = {name.lower(): counter for counter in _COUNTERS for name in counter.names}

# DCGM's blanks: no value, not found, not supported, not permitted; one set for each type.
_BLANKS = ("blank", "not found", "not supported", "not permissioned")
_BLANK_INT32 = 0x7FFFFFF0
_BLANK_INT64 = 0x7FFFFFFFFFFFFFF0
_BLANK_FP64 = 2.0**47
_BLANK_TEXT = ("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>")

# As floating point, the four of 64 bits are one number, 9.223372036854776e18.
NEVER_BELOW = 9.2e18

# Those of 32 bits also stand in fields of 64; the bounds of some counters reach them.
BLANKS_INT32 = frozenset(float(_BLANK_INT32 + i) for i in range(len(_BLANKS)))


def counter_named(name: str) -> tuple[Counter, float] | None:
    """Return the counter that an exporter calls ``name``, and its scale; None for others.

    Without case, since exporters of the first generation wrote theirs in lower case; and with
    OpenMetrics' suffix of counters, ``_total``.
    """
    low = name.lower()
    counter = _NAMED.get(low) or _NAMED.get(low.removesuffix("_total"))
    return (counter, counter.scale) if counter else None


def usable(
    counter: Counter, raw: str | float | None, scale: float | None = None
) -> tuple[float, str]:
    """Return a raw value in the counter's unit, or NaN and why it is none.

    Parameters
    ----------
    raw
        As the source gave it: text, a number, or None for nothing.
    scale
        From the raw unit into the counter's; None for the field's own.
    """
    value, reason = _number_of(raw)
    if not reason:
        reason = _blank(counter, raw, value)
    if not reason:
        value *= counter.scale if scale is None else scale
        reason = _out_of_bounds(counter, value)
    return (math.nan, reason) if reason else (value, "")


def _number_of(raw: str | float | None) -> tuple[float, str]:
    if raw is None:
        return math.nan, "no value"
    if not isinstance(raw, str):
        # float() refuses integers above 1e308; no counter has more than 64 bits.
        huge = isinstance(raw, int) and abs(raw) > 2**64
        return (math.nan, "not a number") if huge else (float(raw), "")
    text = raw.strip()
    if not text:
        return math.nan, "no value"
    if text in _BLANK_TEXT:
        return math.nan, f'text sentinel "{_BLANKS[_BLANK_TEXT.index(text)]}"'
    # float() takes more than exporters write: digits of other scripts, and 1_000.
    if "_" in text or not text.isascii():
        return math.nan, "not a number"
    try:
        return float(text), ""
    except ValueError:
        if text.startswith("ERROR"):
            return math.nan, "not a number (the exporter's own error text)"
        return math.nan, "not a number"


def _blank(counter: Counter, raw: str | float | None, value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    if value in BLANKS_INT32:
        return f'int32 sentinel "{_BLANKS[int(value) - _BLANK_INT32]}" ({int(value):#x})'
    if abs(value) >= NEVER_BELOW:
        exact = int(raw) if isinstance(raw, int) or _digits(raw) else 0
        if 0 <= exact - _BLANK_INT64 < len(_BLANKS):
            return f'int64 sentinel "{_BLANKS[exact - _BLANK_INT64]}" ({exact:#x})'
        return "int64 sentinel after a float round trip"
    if counter.type == "fp64" and value >= _BLANK_FP64:
        over = value - _BLANK_FP64
        kind = f' "{_BLANKS[int(over)]}"' if over in range(len(_BLANKS)) else ""
        return f"fp64 sentinel{kind} (2^47 + {over:g})"
    return ""


def _digits(raw: str | float | None) -> TypeGuard[str]:
    # 19 digits hold every number of 64 bits; int() refuses endless ones.
    return isinstance(raw, str) and len(raw.strip()) <= 19 and raw.strip().isdecimal()


def _out_of_bounds(counter: Counter, value: float) -> str:
    if counter.low <= value <= counter.high:
        return ""
    shown = f"{value:.6g}"
    match counter.unit:
        case "ratio":
            return f"ratio {shown} is outside [{counter.low:g}, {counter.high:g}]"
        case "MHz" if value == 0:
            return "clock of 0"
        case "MHz":
            return f"clock of {shown} MHz is outside {counter.low:g}..{counter.high:g}"
        case "%":
            return f"utilisation {shown} is outside 0..100"
        case "W" if value < 0:
            return "negative power"
        case _:
            return f"{shown} {counter.unit} is outside {counter.low:g}..{counter.high:g}"
