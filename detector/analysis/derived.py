"""Metrics that no history holds: they follow from others whenever they are looked at."""

from collections.abc import Mapping

import numpy as np

from detector.series import FloatArray

# Below this OFU the ratio of two small numbers says nothing about how FLOPs are counted.
# Chosen: an eighth of the 0.4 that healthy LLM jobs run at.
_LEAST_OFU = 0.05


def derived(
    fields: Mapping[str, FloatArray], *, clock_ratio: float | FloatArray = 1.0
) -> dict[str, FloatArray]:
    """Return the derived metrics that ``fields`` allow, by catalogue name.

    ``valid`` is 1 where the entry carries a usable OFU and 0 where it does not. ``mfu_ratio``
    is the reported MFU over the MFU that OFU implies, ``mfu / (ofu * clock_ratio)``.

    Parameters
    ----------
    fields
        Catalogue name -> values, all of one shape; NaN is no data.
    clock_ratio
        Maximal SM clock over the clock that the data sheet's peak assumes, one number or
        one a sample; 1 where the GPU or the precision is unknown.
    """
    ofu = fields["ofu"]
    out = {"valid": np.isfinite(ofu).astype(np.float64)}
    if "mfu" in fields:
        implied = np.where(ofu >= _LEAST_OFU, ofu * clock_ratio, np.nan)
        out["mfu_ratio"] = fields["mfu"] / implied
    return out
