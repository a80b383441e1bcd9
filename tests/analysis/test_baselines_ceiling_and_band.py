"""Counts held to their most, ratios held to their bounds."""

from itertools import pairwise

import numpy as np
import pytest

from detector.analysis.baselines import accept, advance, band_of, empty, settle
from detector.analysis.candidate import fold
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.series import FloatArray, Panel
from tests.analysis.notation import (
    alarms,
    confirmed_by,
    detect,
    levels,
    model,
    panel,
    seconds,
    times,
)

GPUS, RATIO, VALID = model("gpus_reporting"), model("mfu_ratio"), model("valid")


def counts(*parts: tuple[float, int]) -> FloatArray:
    return np.concatenate([np.full(count, float(level)) for level, count in parts])


def test_missing_gpus_are_reported_after_two_minutes_and_their_return_at_once() -> None:
    folded = detect(times(160), counts((64, 100), (56, 30), (64, 30)), by=GPUS)
    (change,) = alarms(folded)
    assert change.cause == "ceiling"
    assert (change.before.value, change.after.value) == (64, 56)
    assert seconds(change.onset_ms) == 1000
    assert seconds(change.detected_ms) == 1120
    (recovery,) = folded.recoveries
    assert seconds(recovery.time_ms) == 1320


def test_a_missed_scrape_or_two_is_no_shortage() -> None:
    values = counts((64, 300))
    values[40::20] = 48
    values[45::40] = 0
    assert not detect(times(300), values, by=GPUS).outcomes


def test_a_single_entry_that_counts_a_host_twice_is_no_new_most() -> None:
    values = counts((64, 200))
    values[50] = 72
    assert not detect(times(200), values, by=GPUS).outcomes


def test_more_gpus_missing_are_news_and_as_many_are_not() -> None:
    folded = detect(times(200), counts((64, 50), (56, 50), (48, 50), (56, 50)), by=GPUS)
    assert [change.after.value for change in alarms(folded)] == [56, 48]
    assert not folded.recoveries


def test_a_job_that_was_shrunk_on_purpose_is_held_to_its_new_size() -> None:
    stamps, values = times(200), counts((64, 50), (32, 100), (24, 50))
    step = advance(GPUS.baseline, empty(GPUS.baseline, 1), panel(stamps[:100], values[:100]))
    state = settle(GPUS.baseline, step.state, {0: Rejected(reason="planned")})
    state = accept(GPUS.baseline, state, np.array([0]))
    assert band_of(GPUS.baseline, state)[0].tolist() == [32]
    after = advance(GPUS.baseline, state, panel(stamps[100:], values[100:]))
    assert [item.before for item in after.candidates] == [32]


def test_a_refused_shortage_that_goes_on_is_asked_about_again_and_keeps_its_onset() -> None:
    stamps, values = times(400), counts((64, 100), (56, 300))

    def confirm(column: int, candidate: Candidate) -> Confirmed | Rejected:
        if seconds(candidate.time_ms) < 2_000:
            return Rejected(reason="an announced restart explains it")
        return confirmed_by(stamps, values, candidate, by=GPUS)

    folded = fold(GPUS, empty(GPUS.baseline, 1), panel(stamps, values), confirm)
    assert [seconds(candidate.time_ms) for _, candidate, _ in folded.outcomes] == [1120, 2320]
    (change,) = alarms(folded)
    assert seconds(change.onset_ms) == 1000


def test_a_refused_shortage_that_is_over_is_asked_about_no_more() -> None:
    values = counts((64, 100), (56, 30), (64, 300))
    folded = fold(
        GPUS, empty(GPUS.baseline, 1), panel(times(430), values),
        lambda column, candidate: Rejected(reason="planned"),
    )  # fmt: skip
    assert len(folded.outcomes) == 1


def test_a_framework_that_counts_a_third_too_much_is_named_after_ten_minutes() -> None:
    folded = detect(times(300), 2 * levels((0.5, 100), (0.67, 200), noise=0.03), by=RATIO)
    (change,) = alarms(folded)
    assert (change.cause, change.direction) == ("band", "up")
    assert change.before.value == 1
    assert 1600 <= seconds(change.detected_ms) <= 1700


def test_a_ratio_wrong_from_the_first_sample_is_found() -> None:
    assert len(alarms(detect(times(120), 2 * levels((0.3, 120), noise=0.03), by=RATIO))) == 1


def test_noise_and_short_excursions_stay_silent() -> None:
    values = 2 * levels((0.5, 100), (0.8, 50), (0.5, 200), noise=0.06)
    assert not detect(times(350), values, by=RATIO).outcomes


def test_the_ratio_s_return_ends_it() -> None:
    folded = detect(times(300), 2 * levels((0.5, 60), (0.3, 120), (0.5, 120)), by=RATIO)
    assert len(alarms(folded)) == 1
    (recovery,) = folded.recoveries
    assert 1800 <= seconds(recovery.time_ms) <= 1950


def test_a_job_whose_entries_become_unusable_makes_itself_heard() -> None:
    folded = detect(times(300), counts((1, 100), (0, 140), (1, 60)), by=VALID)
    (change,) = alarms(folded)
    assert 1900 <= seconds(change.detected_ms) <= 1950
    assert change.relative_change == -1
    assert len(folded.recoveries) == 1


def test_some_minutes_without_a_usable_entry_are_no_news() -> None:
    assert not detect(times(300), counts((1, 100), (0, 80), (1, 120)), by=VALID).outcomes


def test_every_third_entry_unusable_is_still_a_job_that_is_seen() -> None:
    values = counts((1, 300))
    values[::3] = 0
    assert not detect(times(300), values, by=VALID).outcomes


def test_an_accepted_ratio_moves_the_band() -> None:
    stamps, values = times(300), 2 * levels((0.7, 300))
    step = advance(RATIO.baseline, empty(RATIO.baseline, 1), panel(stamps, values))
    assert step.rest is not None
    state = settle(RATIO.baseline, step.state, {0: Rejected(reason="known")})
    state = accept(RATIO.baseline, state, np.array([0]))
    assert not advance(RATIO.baseline, state, step.rest).candidates
    assert band_of(RATIO.baseline, state)[0][0] == pytest.approx(1.4, abs=0.02)


def test_a_refused_stay_is_raised_again_after_as_long() -> None:
    unread: Panel | None = panel(times(400), 2 * levels((0.7, 400)))
    state, raised = empty(RATIO.baseline, 1), []
    while unread is not None:
        step = advance(RATIO.baseline, state, unread)
        raised += [item.time_ms for item in step.candidates]
        refused = {item.column: Rejected(reason="no") for item in step.candidates}
        state, unread = settle(RATIO.baseline, step.state, refused), step.rest
    assert len(raised) > 2
    assert all(later - earlier >= 600_000 for earlier, later in pairwise(raised))
