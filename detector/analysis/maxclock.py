"""The maximal clock of a GPU: what it says itself, what is configured, known or was seen."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from detector.analysis.ofu import GpuTable
from detector.reading import Reading

ClockSource = Literal["dcgm", "nvml", "config", "table", "observed", ""]
REPORTED: tuple[ClockSource, ...] = ("dcgm", "nvml")  # the GPU itself says it

# GPU model -> highest clock that was read on any GPU of it, MHz, and of how many readings. One
# of unknown model stands for itself.
Observed = Mapping[str, tuple[float, int]]

# A maximum that was only observed stands for nothing before so many readings of a model.
_OBSERVED_READINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxClocks:
    """Maximal clocks of GPU models that do not report their own.

    Attributes
    ----------
    configured
        What the operator says: a model's name, as the driver reports it -> MHz.
    """

    table: GpuTable
    configured: Mapping[str, float] = field(default_factory=dict)

    def find(
        self, reading: Reading, observed: Observed, *, reported_mhz: float = math.nan
    ) -> tuple[float, ClockSource]:
        """Return the maximal clock, MHz, by the best source there is; NaN and "" for none.

        Parameters
        ----------
        reported_mhz
            What the GPU said before: it is static, and some sources tell it seldom.
        """
        if reading.model in self.configured:
            return self.configured[reading.model], "config"
        reported = reading.values.get("max_sm_clock_mhz", reported_mhz)
        if not math.isnan(reported):
            return reported, reading.reporter
        model = self.table.find(reading.model) if reading.model else None
        if model is not None and model.max_clock_mhz is not None:
            return model.max_clock_mhz.value, "table"
        high, count = observed.get(reading.model or reading.uuid, (0.0, 0))
        return (high, "observed") if count >= _OBSERVED_READINGS else (math.nan, "")


def observe(before: Observed, readings: Iterable[Reading]) -> dict[str, tuple[float, int]]:
    """Return the highest clocks with those of these readings."""
    observed = dict(before)
    for reading in readings:
        clock = reading.values.get("sm_clock_mhz")
        if clock is not None:
            model = reading.model or reading.uuid
            high, count = observed.get(model, (0.0, 0))
            observed[model] = max(high, clock), min(count + 1, _OBSERVED_READINGS)
    return observed
