import math
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import START_MS, Truth, make
from benchmarks.detection.optimum import Optimum
from benchmarks.detection.page import put
from benchmarks.detection.peer import alarms
from benchmarks.detection.report import quiet_rate
from benchmarks.detection.rivals import Tried, chosen
from benchmarks.detection.score import (
    Heard,
    false_alarms,
    found_after,
    incidents,
    optimum_ms,
    recall,
)
from detector.calibration.rate import GROUP_MS, LEARNING_MS, Rate

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
    assert list(found.delays_s) == [60, 180]
    assert found.delay_s(50) == 120
    assert list(found.ratios) == [0.2, 0.6]  # over five minutes, the optimum being shorter
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


def tried(config: float, *outcomes: tuple[int, list[int | None]]) -> Tried:
    return Tried(
        config=(config,),
        thresholds=tuple(float(k) for k in range(len(outcomes))),
        quiet=[Rate(events=events, exposure=100) for events, _ in outcomes],
        delays=[{"drop10": delays} for _, delays in outcomes],
    )


def test_the_setting_that_finds_most_within_the_bound_is_chosen() -> None:
    setting = chosen(
        [
            tried(1.0, (11, [1, 1, 1]), (10, [9_000, 9_000, None])),
            tried(2.0, (3, [60_000, 60_000, None]), (0, [90_000, None, None])),
            tried(3.0, (5, [5_000, 5_000, None])),
        ]
    )
    assert (setting.config, setting.threshold) == ((3.0,), 0.0)
    assert setting.within


def test_when_no_setting_keeps_the_bound_the_quietest_is_shown_as_such() -> None:
    setting = chosen([tried(1.0, (50, [1]), (20, [None])), tried(2.0, (30, [1]))])
    assert (setting.config, setting.threshold) == ((1.0,), 1.0)
    assert not setting.within


def test_an_alarm_is_where_the_score_comes_up_to_the_threshold() -> None:
    times_ms = np.arange(6) * 10_000
    scores = np.array([0.0, 2.0, 3.0, 1.0, 2.0, -np.inf])
    assert alarms(times_ms, scores, 2.0) == (10_000, 40_000)


def test_the_knowing_optimum_finds_a_drop_at_once_and_is_quiet_without_one() -> None:
    drops = [make(CLASSES["drop2x"], k, seed=3) for k in range(10)]
    quiet = [make(CLASSES["quiet"], k, seed=3) for k in range(10)]
    best = Optimum(factor=0.5)
    found = recall([best.heard(made, (), [14.0])[0] for made in drops])
    assert found.value == 1
    # A few samples, where no dip or restart covers the onset.
    assert found.delay_s(50) < 60
    assert false_alarms([best.heard(made, (), [14.0])[0] for made in quiet]).events == 0


def test_a_measured_part_of_the_page_replaces_the_last_one_and_nothing_else() -> None:
    text = "a\n<!-- measured: peers -->\nold\n<!-- end -->\nb\n"
    assert put(text, "peers", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="measured: goals"):
        put(text, "goals", "new")


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


def test_where_gpus_report_one_by_one_only_alarms_that_name_some_are_false() -> None:
    item = Heard(kind="quiet64", truth=truth(), alarms=(FIRST, FIRST + HOUR), named=(FIRST,))
    assert quiet_rate("quiet64", [item]).events == 1
    assert quiet_rate("quiet", [item]).events == 2
