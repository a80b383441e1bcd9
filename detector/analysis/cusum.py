"""The cumulative sum of evidence for a lasting fall of known least size."""

import numpy as np

from detector.series import FloatArray


def fall_evidence(
    fall: FloatArray, evidence: FloatArray, *, shift: FloatArray, scale: FloatArray,
    cap: float | FloatArray,
) -> FloatArray:  # fmt: skip
    r"""Add one observation's log likelihood ratio of "fell by ``shift``" against "did not".

    .. math:: S_i = \max(0, S_{i-1} + \delta (z_i - \delta / 2)), \quad
              z = fall / scale, \quad \delta = shift / scale

    A sum serves greater falls than its own as well: its increments grow with the fall. They are
    capped, so that no single observation decides.

    Parameters
    ----------
    fall
        Baseline minus observation, in the metric's unit.
    evidence
        The sums so far, nats. All shapes broadcast against its own.
    shift
        The fall that is looked for, same unit as ``fall``.
    scale
        Standard deviation of one observation about the baseline, autocorrelation included.
    cap
        Most that one observation may add or take, nats.

    References
    ----------
    Page, E. S. (1954). Continuous inspection schemes. Biometrika 41, 100-115.
    """
    delta = shift / scale
    gain = delta * (fall / scale - delta / 2)
    return np.maximum(0.0, evidence + np.clip(gain, -cap, cap))
