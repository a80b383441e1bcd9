"""Laws of the noise about a job's level: of mean 0, as shares of the level."""

from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter

from benchmarks.detection.heldout.course import H_S, log_uniform
from detector.series import FloatArray

# Blocks that the long-run variance is read from, seconds: a detector of small falls means over
# some minutes.
_BLOCK_S = 300.0


def noise(rng: np.random.Generator, n: int, cadence_s: float) -> tuple[FloatArray, bool]:
    """Return a job's noise, and whether its innovations have heavy tails."""
    laws = tuple(_LAWS.items())
    law = laws[int(rng.choice(len(laws), p=[share for _, share in laws]))][0]
    # Half of the jobs are below 1.4 %.
    sigma = log_uniform(rng, 0.003, 0.065)
    heavy = rng.random() < 0.25
    return law(rng, n, cadence_s, sigma, heavy), heavy or law is _one_sided


def summary(values: FloatArray, cadence_s: float) -> tuple[float, float]:
    r"""Return the deviation and the lag-1 correlation of the AR(1) that is as hard as a noise.

    As hard means: the same variance of long means, :math:`\sigma^2 (1+\varphi)/(1-\varphi)`,
    which is what decides how fast a small fall can be found.
    """
    sigma = float(values.std())
    rows = max(2, round(_BLOCK_S / cadence_s))
    blocks = values[: len(values) // rows * rows].reshape(-1, rows).mean(axis=1)
    ratio = rows * float(blocks.var()) / max(sigma * sigma, 1e-18)
    return sigma, float(np.clip((ratio - 1) / (ratio + 1), 0.0, 0.97))


def _innovations(rng: np.random.Generator, n: int, heavy: bool) -> FloatArray:
    """Of unit variance: normal, or Laplace."""
    return rng.laplace(0, np.sqrt(0.5), n) if heavy else rng.standard_normal(n)


def _filtered(drawn: FloatArray, coefficients: list[float], sigma: float) -> FloatArray:
    out = lfilter([1.0], [1.0, *coefficients], drawn)
    scaled: FloatArray = out * (sigma / out.std())
    return scaled


def _ar1(
    rng: np.random.Generator, n: int, cadence_s: float, sigma: float, heavy: bool
) -> FloatArray:
    """Correlated over 0 to 120 s, whatever the cadence."""
    memory_s = rng.uniform(0, 120) if rng.random() < 0.7 else 0.0
    phi = float(np.exp(-cadence_s / memory_s)) if memory_s else 0.0
    return _filtered(_innovations(rng, n, heavy), [-phi], sigma)


def _ar2(
    rng: np.random.Generator, n: int, cadence_s: float, sigma: float, heavy: bool
) -> FloatArray:
    """Swings with a period of 1 to 8 minutes that lose their phase."""
    period = max(4.0, rng.uniform(60, 480) / cadence_s)
    radius = rng.uniform(0.6, 0.93)
    coefficients = [-2 * radius * np.cos(2 * np.pi / period), radius * radius]
    return _filtered(_innovations(rng, n, heavy), coefficients, sigma)


def _wandering(
    rng: np.random.Generator, n: int, cadence_s: float, sigma: float, heavy: bool
) -> FloatArray:
    """AR(1) on a slow walk that finds back within 3 to 10 hours."""
    quick = _ar1(rng, n, cadence_s, sigma, heavy)
    back = float(np.exp(-cadence_s / (rng.uniform(3, 10) * H_S)))
    walk = lfilter([1.0], [1.0, -back], rng.standard_normal(n))
    slow: FloatArray = walk * np.sqrt(1 - back * back) * log_uniform(rng, 0.003, 0.012)
    return quick + slow


def _flipping(
    rng: np.random.Generator, n: int, cadence_s: float, sigma: float, heavy: bool
) -> FloatArray:
    """Two levels some per cent apart, each held for half a minute to some minutes."""
    gap = log_uniform(rng, 0.015, 0.08)
    rows = [max(1.0, log_uniform(rng, 20, 360) / cadence_s) for _ in range(2)]
    stays = np.ceil(rng.exponential(np.resize(rows, n + 2))).astype(int)
    upper = np.repeat(np.resize([False, True], len(stays)), stays)[:n]
    levels: FloatArray = np.where(upper, gap, 0.0)
    rest = _ar1(rng, n, cadence_s, min(sigma, gap / 3), heavy)
    levels += rest - levels.mean()
    return levels


def _one_sided(
    rng: np.random.Generator, n: int, cadence_s: float, sigma: float, heavy: bool
) -> FloatArray:
    """Lognormal losses below a ceiling: most samples are near it, few are far below."""
    del heavy
    memory = float(np.exp(-cadence_s / rng.uniform(5, 60)))
    loss = np.exp(_filtered(rng.standard_normal(n), [-memory], rng.uniform(0.6, 1.0)))
    scaled: FloatArray = -(loss - loss.mean()) * (min(sigma, 0.03) / loss.std())
    return np.maximum(scaled, -0.6)


_LAWS: dict[Callable[[np.random.Generator, int, float, float, bool], FloatArray], float] = {
    _ar1: 0.3,
    _ar2: 0.2,
    _wandering: 0.2,
    _flipping: 0.15,
    _one_sided: 0.15,
}
