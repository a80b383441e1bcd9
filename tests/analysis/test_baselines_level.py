"""What the level baseline alarms on, what it lets pass, and when it lets go."""

import numpy as np
import pytest

from detector.analysis.baselines import Level, accept, advance, band_of, empty, settle
from detector.analysis.baselines.level import LevelState
from detector.analysis.change import Confirmed, Rejected
from detector.series import ContextEvent, FloatArray, Interval
from tests.analysis.notation import (
    OFU,
    START_MS,
    alarms,
    believed,
    detect,
    levels,
    panel,
    seconds,
    times,
)


def healthy_hour() -> tuple[float, int]:
    return 0.5, 360


def with_dips(values: FloatArray, *, every: int, lasting: int, to: float) -> FloatArray:
    out = values.copy()
    for start in range(every, len(out) - lasting, every):
        out[start : start + lasting] *= to
    return out


@pytest.mark.parametrize("every_s", [1.0, 10.0, 60.0, 600.0, 3600.0])
def test_a_drop_by_a_half_is_found_at_any_cadence(every_s: float) -> None:
    values = levels((0.5, 400), (0.25, 400))
    found = alarms(detect(times(800, every_s=every_s), values))
    assert len(found) == 1
    assert found[0].relative_change == pytest.approx(-0.5, abs=0.02)
    delay_s = seconds(found[0].detected_ms) - 400 * every_s
    assert delay_s <= max(580, 6 * every_s)
    assert found[0].onset_ms == times(400, every_s=every_s)[-1]


@pytest.mark.parametrize("factor", [0.4, 0.75])
def test_a_large_drop_in_an_old_job_is_found_within_three_minutes_and_a_sample(
    factor: float,
) -> None:
    found = alarms(detect(times(1700), levels((0.5, 1600), (0.5 * factor, 100))))
    assert [round(seconds(change.detected_ms)) for change in found] == [16_180]


def test_a_large_drop_is_found_the_later_the_less_is_known_of_the_job() -> None:
    delays = []
    for age in (24, 360, 540, 900, 1440):
        values = levels((0.5, age), (0.2, 100))
        (change,) = alarms(detect(times(len(values)), values))
        delays.append(round(seconds(change.detected_ms)) - 10 * age)
    assert delays == [150, 570, 570, 300, 180]


def test_a_drop_by_a_tenth_is_found_within_ten_minutes() -> None:
    found = alarms(detect(times(900), levels((0.5, 800), (0.45, 100), noise=0.01)))
    assert len(found) == 1
    assert 8000 < seconds(found[0].detected_ms) <= 8600
    assert found[0].relative_change == pytest.approx(-0.1, abs=0.02)


def test_recovery_is_reported_within_a_minute_and_the_old_baseline_is_in_force() -> None:
    values = levels(healthy_hour(), (0.3, 200), (0.5, 200), (0.3, 100))
    folded = detect(times(len(values)), values)
    first, second = alarms(folded)
    (recovery,) = folded.recoveries
    assert seconds(recovery.since_ms) == 5600
    assert seconds(recovery.time_ms) <= 5660
    assert seconds(second.onset_ms) == 7600
    assert second.before.value == pytest.approx(first.before.value, abs=0.01)


def test_a_further_drop_is_news_measured_from_the_level_before_it() -> None:
    values = levels(healthy_hour(), (0.4, 120), (0.2, 100))
    first, second = alarms(detect(times(len(values)), values))
    assert first.after.value == pytest.approx(0.4, abs=0.01)
    assert second.before.value == pytest.approx(0.4, abs=0.01)
    assert second.after.value == pytest.approx(0.2, abs=0.01)


def test_a_slow_sag_is_found() -> None:
    sag = np.linspace(0.5, 0.42, 60)
    values = np.concatenate([levels((0.5, 600)), sag, levels((0.42, 60))])
    assert len(alarms(detect(times(len(values)), values))) == 1


def test_checkpoints_and_known_evaluations_are_silent() -> None:
    values = with_dips(levels((0.5, 3000), noise=0.01), every=150, lasting=12, to=0.2)
    values = with_dips(values, every=360, lasting=28, to=0.6)
    assert not alarms(detect(times(3000), values))


def test_a_long_evaluation_is_taught_by_one_alarm_at_most() -> None:
    values = with_dips(levels((0.5, 2400), noise=0.01), every=420, lasting=70, to=0.7)
    folded = detect(times(2400), values)
    assert len(alarms(folded)) == 1
    assert len(folded.recoveries) == 1


def test_an_evaluation_may_take_twice_as_long_as_any_before_it() -> None:
    values = with_dips(levels((0.5, 3000), noise=0.01), every=360, lasting=48, to=0.6)
    values = np.concatenate([values, levels((0.3, 110), (0.5, 60), noise=0.006)])
    assert not detect(times(len(values)), values).outcomes


def test_a_fall_near_the_level_of_evaluations_is_found_after_half_as_much_again() -> None:
    values = with_dips(levels((0.5, 3000), noise=0.005), every=360, lasting=48, to=0.6)
    values = np.concatenate([values, levels((0.278, 110))])
    (change,) = alarms(detect(times(len(values)), values))
    assert 700 <= seconds(change.detected_ms) - 30_000 <= 740


def test_a_chain_of_known_phases_is_known_however_long() -> None:
    values = with_dips(levels((0.5, 480), noise=0.01), every=100, lasting=18, to=0.65)
    values[150:168] *= 0.3
    values[250:268] *= 0.3
    chain = levels((0.325, 20), (0.15, 20), (0.325, 20), (0.15, 20), noise=0.006)
    values = np.concatenate([values, chain, levels((0.5, 60))])
    assert not alarms(detect(times(len(values)), values))


def test_a_checkpoint_in_the_middle_of_an_evaluation_is_silent() -> None:
    values = with_dips(levels((0.5, 3000), noise=0.01), every=350, lasting=50, to=0.6)
    values[2120:2132] *= 0.3
    values[2820:2834] *= 0.5
    assert not detect(times(3000), values).outcomes


def test_two_known_dips_at_a_time_are_known_as_well() -> None:
    values = with_dips(levels((0.5, 3000), noise=0.01), every=350, lasting=40, to=0.6)
    values = with_dips(values, every=290, lasting=20, to=0.5)
    values = np.concatenate([values, levels((0.15, 22), (0.5, 60))])
    assert not detect(times(len(values)), values).outcomes


@pytest.mark.parametrize(
    ("before", "to"),
    [(-40, 0.5), (-10, 0.5), (2, 0.5), (3, 0.5), (8, 0.5), (60, 0.5), (20, 0.67), (60, 0.7)],
)
def test_a_known_phase_of_a_job_that_has_just_risen_is_known_by_its_share_of_the_new_level(
    before: int, to: float
) -> None:
    # Also one in which it rises, and one that lies hardly below the level before the rise.
    values = with_dips(levels((0.3, 2200), noise=0.003), every=360, lasting=50, to=to)
    values[2170 - before :] *= 1.33
    values[2170:] *= to
    values = np.concatenate([values, levels((0.4 * to, 20), (0.4, 200), noise=0.004)])
    assert not detect(times(len(values)), values).outcomes


def test_a_known_phase_right_after_a_burst_is_known_by_its_usual_level() -> None:
    values = with_dips(levels((0.5, 2200), noise=0.005), every=360, lasting=50, to=0.5)
    values = np.concatenate([values, levels((0.7, 4), (0.25, 50), (0.5, 60), noise=0.005)])
    assert not detect(times(len(values)), values).outcomes


def test_a_fall_in_the_middle_of_a_known_phase_is_found_once_the_phase_s_time_is_over() -> None:
    values = with_dips(levels((0.5, 2200), noise=0.005), every=360, lasting=50, to=0.5)
    values = np.concatenate([values, levels((0.19, 30), (0.38, 120), noise=0.005)])
    (change,) = alarms(detect(times(len(values)), values))
    assert seconds(change.detected_ms) - 22_000 <= 1.5 * 500


def test_a_job_that_restarts_right_after_a_rise_warms_up_in_silence() -> None:
    ramp = 1 - 0.95 * np.exp(-np.arange(300) / 24)
    values = levels((0.5, 1600), (0.665, 367))
    values[1667:] *= ramp
    stamps = times(len(values))
    stamps[1667:] += 1_140_000
    assert not detect(stamps, values).outcomes


def test_a_checkpoint_in_the_middle_of_a_drop_does_not_start_its_time_anew() -> None:
    values = levels((0.5, 1600), (0.25, 100), noise=0.01)
    values[1610:1614] = 0.05
    (change,) = alarms(detect(times(1700), values))
    assert seconds(change.detected_ms) - 16_000 <= 240


def test_a_silence_in_the_middle_of_a_checkpoint_may_hide_a_restart() -> None:
    ramp = 0.5 * (1 - 0.7 * np.exp(-np.arange(400) / 24))
    values = np.concatenate([levels((0.5, 1600), (0.15, 6)), ramp + levels((0.0, 400))])
    stamps = times(len(values))
    stamps[1606:] += 700_000
    assert not detect(stamps, values).outcomes


def test_the_noise_is_measured_again_after_a_warm_up() -> None:
    ramp = 0.5 * (1 - 0.6 * np.exp(-np.arange(900) / 24))
    state = detect(times(900), ramp + levels((0.0, 900)) + levels((0.5, 900)) - 0.5).state
    assert isinstance(state, LevelState)
    assert state.scale[0] < 0.01


def test_a_drop_to_the_level_of_a_known_dip_is_found_once_it_outlasts_it_twice() -> None:
    values = with_dips(levels((0.5, 1200), noise=0.01), every=150, lasting=20, to=0.5)
    values = np.concatenate([values, levels((0.25, 200), noise=0.01)])
    found = alarms(detect(times(1400), values))
    assert len(found) == 1
    assert 300 <= seconds(found[0].detected_ms) - 12_000 <= 700


def test_samples_that_jump_to_nothing_or_to_one_alarm_nobody() -> None:
    values = levels((0.5, 1200), noise=0.01)
    values[::97] = 0.0
    values[50::113] = 1.0
    folded = detect(times(1200), values)
    assert not folded.outcomes
    assert not folded.shifts


def test_a_rise_is_followed_in_silence_and_its_loss_is_a_drop() -> None:
    values = levels((0.3, 200), (0.5, 400), (0.35, 100))
    folded = detect(times(700), values)
    (shift,) = folded.shifts
    (change,) = alarms(folded)
    assert shift.before == pytest.approx(0.3, abs=0.01)
    assert shift.after == pytest.approx(0.5, abs=0.01)
    assert change.before.value == pytest.approx(0.5, abs=0.01)


def test_a_rise_to_several_times_the_level_is_followed_too() -> None:
    folded = detect(times(900), levels((0.1, 200), (0.4, 600), (0.3, 100)))
    (shift,) = folded.shifts
    (change,) = alarms(folded)
    assert shift.after == pytest.approx(0.4, abs=0.01)
    assert change.before.value == pytest.approx(0.4, abs=0.01)


def test_coming_back_from_a_burst_is_no_drop() -> None:
    values = levels((0.40, 900), (0.44, 30), (0.40, 300), (0.46, 40), (0.40, 300))
    folded = detect(times(len(values)), values)
    assert not folded.outcomes
    assert not folded.shifts


@pytest.mark.parametrize("every_s", [5.0, 10.0, 30.0, 60.0])
@pytest.mark.parametrize("silent_s", [180.0, 900.0])
@pytest.mark.parametrize("tau_s", [60.0, 150.0, 300.0])
def test_a_warm_up_after_a_silence_is_no_drop_at_any_cadence(
    every_s: float, silent_s: float, tau_s: float
) -> None:
    old, new = round(14_400 / every_s), round(3600 / every_s)
    ramp = 1 - 0.8 * np.exp(-every_s * np.arange(new) / tau_s)
    values = levels((0.5, old + new), noise=0.01)
    values[old:] *= ramp
    stamps = times(old + new, every_s=every_s)
    stamps[old:] += round(1000 * silent_s)
    assert not detect(stamps, values).outcomes


@pytest.mark.parametrize("every_s", [5.0, 10.0, 30.0, 60.0])
def test_a_job_that_comes_back_slower_from_a_silence_is_found_at_any_cadence(
    every_s: float,
) -> None:
    old, new = round(14_400 / every_s), round(3600 / every_s)
    ramp = 1 - 0.8 * np.exp(-every_s * np.arange(new) / 150)
    values = levels((0.5, old), (0.2, new), noise=0.01)
    values[old:] *= ramp
    stamps = times(old + new, every_s=every_s)
    stamps[old:] += 600_000
    (change,) = alarms(detect(stamps, values))
    assert seconds(change.detected_ms) - 15_000 <= 1200
    assert change.relative_change == pytest.approx(-0.6, abs=0.03)


@pytest.mark.parametrize("silent", [False, True], ids=["zeros", "gap"])
def test_a_restart_with_its_warm_up_is_silent(silent: bool) -> None:
    ramp = 0.5 * (1 - 0.9 * np.exp(-np.arange(300) / 24))
    values = np.concatenate([levels((0.5, 720), (0.0, 90)), ramp + levels((0.0, 300))])
    stamps = times(len(values))
    if silent:
        keep = np.ones(len(values), bool)
        keep[720:810] = False
        values, stamps = values[keep], stamps[keep]
    assert not detect(stamps, values).outcomes


def test_a_job_that_comes_back_slower_from_a_restart_is_found() -> None:
    ramp = 0.25 * (1 - 0.9 * np.exp(-np.arange(200) / 12))
    noise = levels((0.5, 200)) - 0.5
    values = np.concatenate([levels((0.5, 720), (0.0, 60)), ramp + noise])
    found = alarms(detect(times(len(values)), values))
    assert len(found) == 1
    assert seconds(found[0].detected_ms) - 7800 <= 900


def test_a_job_that_comes_back_a_tenth_slower_is_found_within_a_quarter_of_an_hour() -> None:
    ramp = 0.45 * (1 - 0.8 * np.exp(-np.arange(300) / 18))
    noise = levels((0.5, 300), noise=0.006) - 0.5
    values = np.concatenate([levels((0.5, 1440), noise=0.006), np.zeros(60), ramp + noise])
    (change,) = alarms(detect(times(len(values)), values))
    assert seconds(change.detected_ms) - 15_000 <= 900
    # The end of the ramp is in it.
    assert change.relative_change == pytest.approx(-0.1, abs=0.04)


def test_a_warm_up_in_two_stages_is_no_drop() -> None:
    values = levels((0.5, 1440), (0.0, 60), (0.2, 36), (0.5, 300), noise=0.006)
    assert not detect(times(len(values)), values).outcomes


def test_a_climb_that_no_single_sample_shows_is_a_warm_up() -> None:
    for seed in range(4):
        ramp = 1 - 0.7 * np.exp(-np.arange(300) / 30)
        values = levels((0.5, 1740), noise=0.014, seed=seed)
        values[1380:1440] = 0.0
        values[1440:] *= ramp
        assert not detect(times(len(values)), values).outcomes


def test_a_hang_is_found_soon_in_a_young_job_and_after_a_restart_s_time_in_an_old_one() -> None:
    (young,) = alarms(detect(times(200), levels((0.4, 30), (0.0, 170))))
    (old,) = alarms(detect(times(900), levels((0.4, 720), (0.0, 180))))
    assert seconds(young.detected_ms) - 300 == 150
    assert seconds(old.detected_ms) - 7200 == 1440
    assert young.relative_change == old.relative_change == -1


def test_a_frozen_exporter_is_found_teaches_nothing_and_ends() -> None:
    values = levels((0.5, 400), (0.5, 60), (0.5, 100))
    values[400:460] = values[399]
    folded = detect(times(560), values)
    (change,) = alarms(folded)
    assert change.cause == "frozen"
    assert seconds(change.detected_ms) == 4300
    (recovery,) = folded.recoveries
    assert seconds(recovery.time_ms) == 4630


def test_a_job_that_stands_still_bit_for_bit_now_and_then_is_told_once() -> None:
    values = levels((0.5, 2000))
    for first in (400, 800, 1200, 1600):
        values[first : first + 80] = values[first]
    (change,) = alarms(detect(times(2000), values))
    assert change.cause == "frozen"


def test_a_freeze_far_longer_than_the_one_before_is_told_again() -> None:
    values = levels((0.5, 1400))
    values[400:460] = values[399]
    values[800:1100] = values[799]
    assert [item.cause for item in alarms(detect(times(1400), values))] == ["frozen"] * 2


QUIET = {
    "constant": np.full(600, 0.4),
    "nothing": np.zeros(600),
    "three": np.array([0.4, 0.41, 0.1]),
    "blind": np.full(600, np.nan),
    "one": np.ones(600),
    "two digits": np.round(levels((0.5, 1200), noise=0.003), 2),
    "work after nothing": levels((0.0, 300), (0.4, 300)),
    "noise": levels((0.3, 1200), noise=0.03),
}


@pytest.mark.parametrize("name", QUIET)
def test_these_series_raise_nothing(name: str) -> None:
    values = QUIET[name]
    assert not detect(times(len(values)), values).outcomes


def test_times_that_do_not_increase_are_no_samples() -> None:
    values = levels((0.5, 400), (0.2, 100))
    stamps = times(500)
    stamps[400:] = stamps[:100]
    assert not detect(stamps, values).outcomes


def test_a_refused_candidate_comes_back_only_after_it_has_lasted_twice_as_long() -> None:
    stamps, values = times(700), levels((0.5, 500), (0.25, 200))
    state = advance(OFU.baseline, empty(OFU.baseline, 1), panel(stamps, values))
    first = state.candidates[0]
    settled = settle(OFU.baseline, state.state, {0: Rejected(reason="a checkpoint")})
    assert state.rest is not None
    again = advance(OFU.baseline, settled, state.rest)
    assert seconds(first.time_ms) == 5570
    assert seconds(again.candidates[0].time_ms) == 6140


def test_accepting_the_present_level_ends_the_change_for_good() -> None:
    stamps, values = times(700), levels((0.5, 400), (0.25, 100), (0.25, 100), (0.5, 100))
    step = advance(OFU.baseline, empty(OFU.baseline, 1), panel(stamps[:500], values[:500]))
    assert step.rest is not None
    state = settle(OFU.baseline, step.state, {0: believed(step.candidates[0])})
    state = accept(OFU.baseline, advance(OFU.baseline, state, step.rest).state, np.array([0]))
    after = advance(OFU.baseline, state, panel(stamps[500:], values[500:]))
    assert not after.candidates
    assert not after.recoveries
    expected, edge = band_of(OFU.baseline, after.state)
    assert expected[0] == pytest.approx(0.5, abs=0.01)
    assert 0.4 < edge[0] < 0.45


def test_a_fall_right_after_the_new_level_was_accepted_is_measured_from_that_level() -> None:
    stamps, values = times(560), levels((0.5, 400), (0.4, 102), (0.3, 58))
    step = advance(OFU.baseline, empty(OFU.baseline, 1), panel(stamps[:500], values[:500]))
    assert step.rest is not None
    state = settle(OFU.baseline, step.state, {0: believed(step.candidates[0])})
    state = accept(OFU.baseline, advance(OFU.baseline, state, step.rest).state, np.array([0]))
    after = advance(OFU.baseline, state, panel(stamps[500:], values[500:]))
    (fall,) = after.candidates
    assert fall.before == pytest.approx(0.4, abs=0.01)
    assert seconds(fall.onset_ms) == pytest.approx(5020, abs=20)


def test_an_accepted_level_is_settled_at_once_and_small_falls_below_it_are_found() -> None:
    stamps, values = times(600), levels((0.5, 400), (0.4, 100), (0.38, 100), noise=0.002)
    step = advance(OFU.baseline, empty(OFU.baseline, 1), panel(stamps[:500], values[:500]))
    assert step.rest is not None
    state = settle(OFU.baseline, step.state, {0: believed(step.candidates[0])})
    state = accept(OFU.baseline, advance(OFU.baseline, state, step.rest).state, np.array([0]))
    after = advance(OFU.baseline, state, panel(stamps[500:], values[500:]))
    (fall,) = after.candidates
    assert fall.before == pytest.approx(0.4, abs=0.005)
    assert fall.after == pytest.approx(0.38, abs=0.005)


def test_while_a_change_is_on_the_expected_level_is_the_old_one() -> None:
    values = levels((0.5, 400), (0.25, 100))
    folded = detect(times(500), values)
    expected, edge = band_of(OFU.baseline, folded.state)
    assert expected[0] == pytest.approx(0.5, abs=0.01)
    assert edge[0] < 0.25


def test_an_announced_checkpoint_is_waited_for() -> None:
    values = levels((0.5, 400), (0.25, 60), (0.5, 100))
    phase = Interval(start_ms=START_MS + 4_000_000, end_ms=START_MS + 4_700_000)
    folded = detect(times(560), values, events=[ContextEvent(kind="checkpoint", span=phase)])
    assert not alarms(folded)
    assert not any(isinstance(outcome, Confirmed) for _, _, outcome in folded.outcomes)
    assert all("checkpoint" in str(outcome) for _, _, outcome in folded.outcomes)


def test_a_column_s_state_stays_small() -> None:
    state = empty(Level(), 1000)
    assert isinstance(state, LevelState)
    size = sum(getattr(state, name).nbytes for name in state.__dataclass_fields__)
    assert size / 1000 < 6000


def test_a_checkpoint_in_the_middle_of_a_lasting_fall_is_no_further_fall() -> None:
    """Checkpoints halt the job at the same level as before the fall, that much nearer to it."""
    values = levels((0.42, 4 * 360), (0.294, 4 * 360), noise=0.005)
    for start in range(180, len(values) - 30, 180):
        values[start : start + 20] = 0.15
    (change,) = alarms(detect(times(len(values)), values))
    assert change.relative_change == pytest.approx(-0.3, abs=0.02)


@pytest.mark.parametrize(("heard", "silent"), [(10, 8), (12, 12), (6, 30)])
def test_scrapes_that_fail_every_few_minutes_hide_no_fall(heard: int, silent: int) -> None:
    values = levels((0.42, 4 * 360), (0.294, 4 * 360), noise=0.005)
    kept = np.arange(len(values)) % (heard + silent) >= silent
    (change,) = alarms(detect(times(len(values))[kept], values[kept]))
    assert change.relative_change == pytest.approx(-0.3, abs=0.02)
    assert 0 < seconds(change.detected_ms) - 4 * 3600 <= 5400


@pytest.mark.parametrize(
    ("name", "value"),
    [("deep", -3.0), ("share", float("nan")), ("first_samples", 0), ("habit_factor", 0.5),
     ("evidence", 0.0), ("frozen_samples", 1)],
)  # fmt: skip
def test_settings_by_which_nothing_could_be_judged_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        Level(**{name: value})  # type: ignore[arg-type]
