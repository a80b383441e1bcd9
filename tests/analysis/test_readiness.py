"""A job without a baseline says so, why, and when it will have one."""

import numpy as np
import pytest

from detector.analysis.baselines import Level, Model
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.analysis.readiness import NO_VALUE, unready, watch_of_ofu
from detector.analysis.watch import Watch, observe, start
from detector.series import Batch, FloatArray

T = 1_790_000_000_000  # 2026-09-21T14:13:20Z
OFU = Model(name="ofu", metric="ofu", family="performance", baseline=Level())
VALID = Model(name="valid", metric="valid", family="telemetry", baseline=Level())


def refuse(job: str, candidate: Candidate) -> Confirmed | Rejected:
    """Refuse whatever is raised."""
    del job, candidate
    return Rejected(reason="for the test")


def watched(values: FloatArray, *, step_ms: int = 10_000) -> Watch:
    count = len(values)
    times_ms = T + step_ms * (1 + np.arange(count, dtype=np.int64))
    batch = Batch(
        jobs=("j",), job=np.zeros(count, np.int64), times_ms=times_ms, fields={"ofu": values}
    )
    return observe(start(OFU), batch, values, confirm=refuse).watch


def noisy(count: int) -> FloatArray:
    return 0.4 + 0.004 * np.random.default_rng(1).standard_normal(count)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.full(50, np.nan), NO_VALUE),
        (np.empty(0), NO_VALUE),
        (noisy(1), "needs 10 samples over 1m, has 1 over 0s"),
        (noisy(4), "needs 10 samples over 1m, has 4 over 30s, about 2026-09-21T14:15:00Z"),
        (
            np.zeros(30),
            "all zero since 2026-09-21T14:13:30Z; it has one 10 samples after a rise",
        ),
        (
            np.zeros(100),
            "all zero since 2026-09-21T14:19:30Z at least; it has one 10 samples after a rise",
        ),
        (
            0.1 + 0.02 * np.arange(11),
            "warming up since 2026-09-21T14:13:30Z, until 2026-09-21T14:33:30Z at the latest",
        ),
        (
            np.full(400, 0.4),
            "the same value since 2026-09-21T14:13:30Z: it has one when that moves",
        ),
    ],
    ids=["nan", "nothing", "one", "four", "zero", "long zero", "climbs", "constant"],
)
def test_the_reason_is_told_with_the_time_at_which_it_ends(
    values: FloatArray, reason: str
) -> None:
    assert unready(watched(values), "j") == reason


def test_the_time_told_is_the_time_at_which_the_level_comes() -> None:
    early = unready(watched(noisy(9)), "j")
    assert early is not None
    assert early.endswith("has 9 over 1m20s, about 2026-09-21T14:15:00Z")
    assert (unready(watched(noisy(10)), "j") or "").startswith("warming up")  # at that time


def test_a_job_at_a_settled_level_is_ready_and_one_never_heard_of_is_not() -> None:
    watch = watched(noisy(60))
    assert unready(watch, "j") is None
    assert unready(watch, "stranger") == NO_VALUE


def test_a_rise_from_zero_gives_a_level_within_twenty_samples() -> None:
    values = np.concatenate([np.zeros(33), noisy(64)])
    assert unready(watched(values), "j") is None


def test_slow_series_need_the_same_count_of_samples() -> None:
    told = unready(watched(noisy(4), step_ms=3_600_000), "j")
    assert told == "needs 10 samples over 1m, has 4 over 3h, about 2026-09-22T00:13:20Z"


def test_the_baseline_is_that_of_ofu() -> None:
    ofu, other = start(OFU), start(VALID)
    assert watch_of_ofu([other, ofu]) is ofu
    assert watch_of_ofu([other]) is None
