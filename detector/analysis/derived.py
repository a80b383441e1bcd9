"""Metrics that no history holds: they follow from others whenever they are looked at."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from detector.analysis.ofu import ClockRatio, GpuModel, clock_ratio, precision_named
from detector.series import FloatArray

# What a job reports of itself, and no collector.
REPORTED = ("tokens", "mfu")

# Below this OFU the ratio of two small numbers says nothing about how FLOPs are counted.
# Chosen: an eighth of the 0.4 that healthy LLM jobs run at.
_LEAST_OFU = 0.05


def derived(
    fields: Mapping[str, FloatArray], *, clock_ratio: float | FloatArray = 1.0
) -> dict[str, FloatArray]:
    """Return the derived metrics that ``fields`` allow, by catalogue name.

    ``valid`` is 1 where the entry carries a usable OFU and 0 where it does not; NaN where it is
    the job's own report, which has none. ``usable`` is the share of the GPUs that answer whose
    counters can be used, and ``gpus`` counts all that answer: a GPU whose counters are
    broken is not gone. ``mfu_ratio`` is the reported MFU over the MFU that OFU implies,
    ``mfu / (ofu * clock_ratio)``.

    Parameters
    ----------
    fields
        Catalogue name -> values, all of one shape; NaN is no data.
    clock_ratio
        Maximal SM clock over the clock that the data sheet's peak assumes, one number or
        one a sample; 1 where the GPU or the precision is unknown.
    """
    ofu = fields["ofu"]
    out = {"valid": np.where(reports(fields), np.nan, np.isfinite(ofu))}
    if "unusable" in fields and "gpus" in fields:
        counted, unusable = fields["gpus"], fields["unusable"]
        out["gpus"] = counted + np.where(np.isnan(unusable), 0.0, unusable)
        with np.errstate(invalid="ignore"):
            out["usable"] = counted / (counted + unusable)
    if "mfu" in fields:
        implied = np.where(ofu >= _LEAST_OFU, ofu * clock_ratio, np.nan)
        out["mfu_ratio"] = fields["mfu"] / implied
    return out


def reports(fields: Mapping[str, FloatArray]) -> npt.NDArray[np.bool_]:
    """Where entries are a job's own report: no OFU, and nobody counted GPUs."""
    none = np.isnan(fields["ofu"])
    for name in ("gpus", "unusable"):
        if name in fields:
            none = none & np.isnan(fields[name])
    said = np.zeros_like(none)
    for name in REPORTED:
        if name in fields:
            said |= np.isfinite(fields[name])
    return none & said


def clock_correction(gpu: GpuModel | None, precision: str) -> float:
    """Return what OFU is multiplied by to be MFU against the data sheet.

    1 where the GPU, the precision or one of their figures is not known: OFU is then taken as it
    is, which makes ``mfu_ratio`` 8 % too large on an H100.
    """
    known = precision_named(precision)
    if gpu is None or known is None:
        return 1.0
    ratio = clock_ratio(gpu, known)
    return ratio.value if isinstance(ratio, ClockRatio) else 1.0
