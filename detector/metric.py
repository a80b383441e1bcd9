"""The catalogue of metrics: what each is called in a history, its unit and its bounds."""

from dataclasses import dataclass
from types import MappingProxyType


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
    # OFU of single GPUs, held to their job: what the mean hides.
    Metric(name="gpu_ofu", field="", unit="ratio", low=0.0, high=1.0,
           title="OFU of single GPUs"),
    Metric(name="mfu_ratio", field="", unit="ratio", low=0.0, high=1e3,
           title="reported MFU / MFU that OFU implies"),
    Metric(name="valid", field="", unit="ratio", low=0.0, high=1.0,
           title="share of usable samples"),
)  # fmt: skip

METRICS = MappingProxyType({entry.name: entry for entry in _ENTRIES})
FIELDS = MappingProxyType({entry.field: entry for entry in _ENTRIES if entry.field})
