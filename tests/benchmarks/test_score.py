import math
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.detection.generator import START_MS, Truth
from benchmarks.detection.score import (
    GROUP_MS,
    LEARNING_MS,
    Heard,
    Rate,
    false_alarms,
    found_after,
    incidents,
    optimum_ms,
    recall,
)

HOUR = 3_600_000
FIRST = START_MS + LEARNING_MS
ONSET = START_MS + 4 * HOUR


def truth(
    *, factor: float = 0.5, clock_ms: int | None = ONSET, sigma: float = 0.01, phi: float = 0.0
) -> Truth:
    return Truth(
        onset_ms=ONSET, clock_ms=clock_ms, factor=factor, level=0.4,
        sigma=sigma, phi=phi, heavy=False,
    )  # fmt: skip


def heard(*alarms: int, kind: str = "drop2x", factor: float = 0.5) -> Heard:
    return Heard(kind=kind, truth=truth(factor=factor), alarms=alarms)


def test_alarms_of_half_an_hour_are_one_incident_and_then_a_new_one_starts() -> None:
    alarms = [FIRST, FIRST + 1, FIRST + GROUP_MS - 1, FIRST + GROUP_MS]
    assert incidents(alarms) == [FIRST, FIRST + GROUP_MS]


def test_an_alarm_while_learning_neither_counts_nor_hides_the_next() -> None:
    assert incidents([FIRST - 1, FIRST + 1]) == [FIRST + 1]


def test_an_incident_that_was_open_at_the_onset_does_not_count() -> None:
    open_before = heard(ONSET - 60_000, ONSET + 60_000)
    fresh = heard(ONSET - GROUP_MS, ONSET + 60_000)
    assert [found_after(open_before), found_after(fresh)] == [None, 60_000]


@pytest.mark.parametrize(
    ("after", "found"), [(-1, None), (0, 0), (HOUR, HOUR), (HOUR + 1, None)]
)
def test_a_detection_starts_within_an_hour_of_the_clock(after: int, found: int | None) -> None:
    assert found_after(heard(ONSET + after)) == found


def test_false_alarms_are_counted_over_the_days_after_the_learning_hour() -> None:
    rate = false_alarms([heard(FIRST, kind="quiet"), heard(kind="quiet")])
    assert rate.events == 1
    assert rate.exposure == pytest.approx(46 / 24)


@pytest.mark.parametrize(
    ("events", "low", "high"),
    # Garwood's limits for counts, as tabulated.
    [(0, 0.0, 3.689), (1, 0.025, 5.572), (10, 4.795, 18.390), (100, 81.364, 121.627)],
)
def test_the_poisson_interval_is_the_exact_one(events: int, low: float, high: float) -> None:
    assert Rate(events=events, exposure=1).interval == pytest.approx((low, high), abs=1e-3)


def test_recall_keeps_delays_of_what_was_found_beside_what_was_not() -> None:
    found = recall([heard(ONSET + 60_000), heard(ONSET + 180_000), heard()])
    assert found.value == pytest.approx(2 / 3)
    assert found.delays_s == (60, 180)
    assert found.delay_s(50) == 120
    assert found.ratios == (0.2, 0.6)  # over five minutes, the optimum being shorter
    low, high = found.interval
    assert low < found.value < high


def test_nothing_found_has_no_delay() -> None:
    assert math.isnan(recall([heard()]).delay_s(50))


@pytest.mark.parametrize(
    ("loss", "phi", "rate", "minutes"),
    # Siegmund's formula evaluated by hand for noise of 2.5 % of the level.
    [
        (0.03, 0.0, 0.01, 2.9),
        (0.03, 0.8, 0.01, 21),
        (0.05, 0.0, 0.01, 1.1),
        (0.03, 0.8, 0.1, 16),
    ],
)
def test_the_optimum_is_siegmunds(loss: float, phi: float, rate: float, minutes: float) -> None:
    best = optimum_ms(truth(factor=1 - loss, sigma=0.01, phi=phi), rate=rate)
    assert best / 60_000 == pytest.approx(minutes, rel=0.05)


def test_no_change_is_never_found() -> None:
    assert optimum_ms(truth(factor=1.0)) == math.inf


def first_alarm(values: Sequence[float], threshold: float) -> int:
    level = 0.0
    for row, value in enumerate(values):
        level = max(0.0, level + value)
        if level > threshold:
            return row + 1
    return len(values)


def test_the_optimum_is_what_a_cusum_needs() -> None:
    """A CUSUM of the likelihood ratio at the threshold of the bound, on white noise."""
    rng = np.random.default_rng(3)
    case = truth(factor=0.98, sigma=0.008)  # a shift of one standard deviation
    shift = 1.0
    # Mean time between false alarms of 86,400 samples: Siegmund's h for k = 1/2.
    k = shift / 2
    y = 10.0
    for _ in range(50):
        y = math.log(2 * k * k * 86_400 + 1 + y)
    threshold = shift * (y / (2 * k) - 1.166)
    delays = [
        first_alarm((shift * (rng.normal(shift, 1, 400) - shift / 2)).tolist(), threshold)
        for _ in range(400)
    ]
    assert np.mean(delays) == pytest.approx(optimum_ms(case) / 10_000, rel=0.08)
