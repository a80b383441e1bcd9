"""From a confirmed change to what people are told."""

import numpy as np
import pytest

from detector.analysis.change import Confirmed, Estimate
from detector.analysis.judge import judge
from detector.content import load_rules, shipped
from detector.fleet import Gpu, Job
from detector.series import Interval, Window

RULES = load_rules(shipped() / "rules")
ROSTER = tuple(Gpu(uuid=f"GPU-{k}", host=f"node{k // 4}", index=k % 4) for k in range(8))


def scene(*, culprit: int | None) -> tuple[Confirmed, Window]:
    """Ninety samples of eight GPUs; from the 60th on, all halve or one loses a third."""
    random = np.random.default_rng(7)
    gpus = 0.42 * (1 + 0.01 * random.standard_normal((90, 8)))
    if culprit is None:
        gpus[60:] *= 0.5
    else:
        gpus[60:, culprit] *= 0.66
    ofu, times = gpus.mean(axis=1), 1_700_000_000_000 + 10_000 * np.arange(90, dtype=np.int64)
    steady = np.full(90, 1755.0)
    sm = np.where(np.arange(90) < 60, 0.9, 0.5 if culprit is None else 0.9)
    window = Window(times_ms=times, fields={"ofu": ofu, "clock": steady, "sm": sm}, gpus=gpus)
    before, after = float(np.median(ofu[:60])), float(np.median(ofu[60:]))
    onset_ms = int(times[59])
    change = Confirmed(
        metric="ofu",
        cause="excursion",
        direction="down",
        onset_ms=onset_ms,
        onset=Interval(start_ms=onset_ms, end_ms=int(times[60])),
        detected_ms=int(times[66]),
        before=Estimate(value=before, low=before, high=before),
        after=Estimate(value=after, low=after, high=after),
        relative_change=after / before - 1,
        confidence=0.999,
        before_span=Interval(start_ms=int(times[0]) - 1, end_ms=onset_ms),
        after_span=Interval(start_ms=onset_ms, end_ms=int(times[66])),
    )
    return change, window


def test_a_uniform_stall_is_named_and_nobody_is_blamed() -> None:
    change, window = scene(culprit=None)
    finding = judge(
        change, window, Job(id="j", roster=ROSTER), None, RULES, family="performance"
    )
    assert finding.verdict.rule.kind == "debug_flag_stall"
    assert finding.gpus == ()
    assert finding.attribution_confidence is None
    assert finding.gpus_total == 8
    assert finding.before_samples == 60
    assert finding.after_samples == 7
    assert "−50 %" in finding.summary
    assert "{" not in finding.summary


def test_a_straggler_is_named_by_its_place_in_the_roster() -> None:
    change, window = scene(culprit=5)
    finding = judge(
        change, window, Job(id="j", roster=ROSTER), None, RULES, family="performance"
    )
    assert finding.verdict.rule.kind == "straggler"
    assert finding.gpus == (ROSTER[5],)
    assert finding.attribution_confidence == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("roster", [(), ROSTER[:3]])
def test_without_a_roster_the_place_is_all_that_is_said(roster: tuple[Gpu, ...]) -> None:
    change, window = scene(culprit=5)
    finding = judge(
        change, window, Job(id="j", roster=roster), None, RULES, family="performance"
    )
    assert finding.gpus == (Gpu(uuid="", index=5),)


def test_the_same_change_gives_the_same_finding() -> None:
    change, window = scene(culprit=5)
    job = Job(id="j", roster=ROSTER)
    first = judge(change, window, job, None, RULES, family="performance")
    assert first == judge(change, window, job, None, RULES, family="performance")
