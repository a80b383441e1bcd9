"""What a job does as time goes by, on its grid of samples, before noise and telemetry."""

from dataclasses import dataclass, field

import numpy as np

from benchmarks.detection.generator import BoolArray
from detector.series import FloatArray

MIN_S = 60.0
H_S = 3600.0
DAY_S = 86_400.0


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a number whose logarithm is evenly spread."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


@dataclass(slots=True, kw_only=True)
class Course:
    """One job's course. Times in seconds since its start; arrays of shape ``(n,)``.

    Attributes
    ----------
    cadence_s
        Distance of two samples; a sample is the mean of the interval that ends with it.
    burden
        How heavy the nuisances are: 0 is none, 1 is usual.
    stress
        Dips are twice as long, hiccups five and restarts three times as many.
    shape
        Level over the job's base: drift, daily course, steps up.
    dips
        What nuisances leave of the level, 0..1; 1 is untouched.
    warmth
        What share of the level a job that warms up has reached.
    stopped
        Samples in which the job does not run.
    missing, unread
        Samples that no entry has; entries without a value.
    announced
        Kind, start and end of what the job would announce.
    blind
        Start and end of stretches in which telemetry is broken or absent.
    """

    rng: np.random.Generator
    n: int
    cadence_s: float
    burden: float
    stress: bool
    shape: FloatArray = field(init=False)
    dips: FloatArray = field(init=False)
    warmth: FloatArray = field(init=False)
    stopped: BoolArray = field(init=False)
    missing: BoolArray = field(init=False)
    unread: BoolArray = field(init=False)
    announced: list[tuple[str, float, float]] = field(default_factory=list)
    blind: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with a job that nothing happens to."""
        self.shape, self.dips, self.warmth = (np.ones(self.n) for _ in range(3))
        self.stopped, self.missing, self.unread = (np.zeros(self.n, bool) for _ in range(3))

    @property
    def ends_s(self) -> FloatArray:
        """End of each sample's interval."""
        return self.cadence_s * np.arange(1, self.n + 1, dtype=np.float64)

    @property
    def length_s(self) -> float:
        """How long the job is."""
        return self.n * self.cadence_s

    def rows(self, start_s: float, end_s: float) -> slice:
        """Return the samples whose intervals touch a stretch."""
        first = int(np.clip(start_s // self.cadence_s, 0, self.n))
        last = int(np.clip(np.ceil(end_s / self.cadence_s), first, self.n))
        return slice(first, last)

    def dip(self, start_s: float, length_s: float, to: float) -> None:
        """Hold the job at a share of its level for a while; edges fall within samples."""
        rows = self.rows(start_s, start_s + length_s)
        ends = self.ends_s[rows]
        covered = np.minimum(ends, start_s + length_s) - np.maximum(
            ends - self.cadence_s, start_s
        )
        share = np.clip(covered / self.cadence_s, 0, 1)
        # Where two overlap, the deeper one shows.
        self.dips[rows] = np.minimum(self.dips[rows], 1 - (1 - to) * share)

    def poisson(self, per_day: float) -> FloatArray:
        """Return when something happens that has no rhythm."""
        count = self.rng.poisson(per_day * self.length_s / DAY_S)
        return np.sort(self.rng.uniform(0, self.length_s, count))
