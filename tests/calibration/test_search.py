"""Quiet jobs, what counts as a false alarm on them, and the search along a knob."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.generator import make
from detector.analysis.judge import Content
from detector.calibration.quiet import quiet_job
from detector.calibration.search import (
    Quiet,
    Trial,
    made_days,
    settings,
    turned,
    watched_ms,
)
from detector.content import load, shipped
from detector.fleet import Job
from detector.series import Duration, Window
from detector.store.recording import Recording
from tests.analysis.notation import OFU, levels, times


@cache
def content() -> Content:
    return load(shipped() / "models", shipped() / "rules")


def recorded(**parts: list[tuple[float, float]]) -> Mapping[str, Recording]:
    """Jobs whose OFU stands on levels for so many minutes each, a sample every 30 s."""
    made = {}
    for name, spans in parts.items():
        values = levels(*((level, round(2 * minutes)) for level, minutes in spans))
        window = Window(times_ms=times(len(values), every_s=30), fields={"ofu": values})
        made[name] = Recording(job=Job(id=name), window=window)
    return made


def trial(*, bound: str = "notify", setting: float | Duration = 1.0) -> Trial:
    return Trial(
        content=content(), model="ofu", bound="page" if bound == "page" else "notify",
        setting=setting,
    )  # fmt: skip


def test_a_made_up_job_is_the_benchmarks_quiet_job() -> None:
    ours, theirs = quiet_job(3, seed=7), make(CLASSES["quiet"], 3, seed=7)
    np.testing.assert_array_equal(ours.window.times_ms, theirs.window.times_ms)
    np.testing.assert_array_equal(ours.window.fields["ofu"], theirs.window.fields["ofu"])


def test_a_fall_counts_once_and_only_after_the_first_hour() -> None:
    jobs = recorded(
        early=[(0.45, 30), (0.25, 20), (0.45, 120)],
        late=[(0.45, 150), (0.25, 15), (0.2, 10), (0.45, 60)],
        well=[(0.45, 240)],
    )
    assert [alarm.job for alarm in trial().alarms(jobs)] == ["late"]


def test_a_rise_is_no_false_alarm() -> None:
    jobs = recorded(rise=[(0.45, 150), (0.6, 120)])
    assert trial(setting=0.7).alarms(jobs) == []


def test_only_what_calls_people_counts_for_the_page_bound() -> None:
    jobs = recorded(short=[(0.45, 240), (0.3, 8), (0.45, 60)], long=[(0.45, 240), (0.3, 60)])
    paged = trial(bound="page", setting=Duration(690_000)).alarms(jobs)
    assert [alarm.job for alarm in paged] == ["long"]
    later = trial(bound="page", setting=Duration(3_000_000)).alarms(jobs)
    assert [alarm.time_ms > paged[0].time_ms for alarm in later] == [True]


def test_a_stricter_knob_is_a_stricter_model() -> None:
    cautious = turned(OFU, "notify", 2.0).cautious
    assert cautious.evidence == 2 * OFU.baseline.evidence  # type: ignore[union-attr]
    assert cautious.cap == 2 * OFU.baseline.cap  # type: ignore[union-attr]
    page = turned(OFU, "page", Duration(1_200_000)).page
    assert page is not None
    assert page.after == 1_200_000


@pytest.mark.parametrize("bound", ["notify", "page"])
def test_the_knob_runs_from_sensitive_to_careful_and_holds_what_is_shipped(bound: str) -> None:
    ladder = settings("page" if bound == "page" else "notify")
    assert list(ladder) == sorted(ladder)
    assert OFU.page is not None
    assert (OFU.page.after if bound == "page" else OFU.notify.caution) in ladder


def test_job_days_leave_out_each_jobs_first_hour() -> None:
    jobs = recorded(one=[(0.45, 241)], other=[(0.45, 30)])
    assert Quiet(recordings=jobs).job_days == pytest.approx(3 / 24, rel=0.01)
    assert Quiet(recordings={}, made=made_days(23.0)).job_days >= 23.0


def test_time_in_which_a_job_cannot_fall_is_no_job_day() -> None:
    jobs = recorded(idle=[(0.0, 600)], blind=[(0.45, 120), (np.nan, 480), (0.45, 60)])
    watched = Quiet(recordings=jobs).job_days
    assert watched == pytest.approx((60 + 60) / 1440, abs=0.001)


def test_gpus_without_peers_are_not_watched_and_those_with_broken_counters_are() -> None:
    (one,) = recorded(job=[(0.45, 241)]).values()
    length = len(one.window.times_ms)

    def watched(metric: str, *, gpus: int, usable: float) -> int:
        fields = {
            **one.window.fields,
            "gpus": np.full(length, usable), "unusable": np.full(length, gpus - usable),
        }  # fmt: skip
        vectors = np.full((length, gpus), 0.45)
        window = replace(one.window, fields=fields, gpus=vectors)
        return watched_ms(replace(one, window=window), metric)

    assert watched("gpu_ofu", gpus=3, usable=3.0) == 0
    assert watched("gpu_ofu", gpus=4, usable=4.0) == 361 * 30_000
    assert watched("gpus", gpus=8, usable=0.0) == 361 * 30_000


def test_days_count_for_the_metric_that_recordings_hold() -> None:
    jobs = recorded(job=[(0.45, 241)])
    assert Quiet(recordings=jobs, metric="tokens").job_days == 0
    assert Quiet(recordings={}, metric="tokens", made=50).job_days == 0
