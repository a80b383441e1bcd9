import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.demo.faults import INJECTIONS
from detector.demo.synth import SyntheticJob, fleet, scenario
from detector.metric import METRICS

START_MS = 1_760_000_000_000
HOUR_MS = 3_600_000


def calm(cause: str | None, *, seed: int = 3) -> SyntheticJob:
    """One job of two hours with noise and ``cause`` alone."""
    rng = np.random.default_rng(seed)
    return scenario(rng, cause=cause, start_ms=START_MS, length_ms=2 * HOUR_MS, calm=True)


def change(made: SyntheticJob, metric: str) -> float:
    """Median of a metric while the fault lasts, over its median before it."""
    assert made.truth is not None
    times, values = made.window.times_ms, made.window.fields[metric]
    end_ms = made.truth.end_ms or int(times[-1]) + 1
    during = (times >= made.truth.onset_ms) & (times < end_ms)
    before = times < made.truth.onset_ms
    return float(np.nanmedian(values[during]) / np.nanmedian(values[before]))


def test_a_fleet_holds_every_fault_once_and_is_healthy_otherwise() -> None:
    made = fleet(np.random.default_rng(1), jobs=40, start_ms=START_MS, length_ms=HOUR_MS)
    assert [job.truth.cause for job in made if job.truth] == list(INJECTIONS)
    assert len({job.job.id for job in made}) == len(made) == 40


def test_a_small_fleet_holds_no_more_jobs_than_asked_for() -> None:
    made = fleet(np.random.default_rng(1), jobs=2, start_ms=START_MS, length_ms=HOUR_MS)
    assert len(made) == 2


def test_the_same_seed_gives_the_same_fleet() -> None:
    one, two = (
        fleet(np.random.default_rng(9), jobs=15, start_ms=START_MS, length_ms=HOUR_MS)
        for _ in range(2)
    )
    for left, right in zip(one, two, strict=True):
        assert left.job == right.job
        assert left.truth == right.truth
        assert left.window.events == right.window.events
        np.testing.assert_array_equal(left.window.times_ms, right.window.times_ms)
        for name, values in left.window.fields.items():
            np.testing.assert_array_equal(values, right.window.fields[name])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    cause=st.sampled_from([None, *INJECTIONS]),
    cadence_ms=st.sampled_from([1000, 10_000, 60_000]),
)
def test_every_sample_is_one_that_a_collector_could_write(
    seed: int, cause: str | None, cadence_ms: int
) -> None:
    rng = np.random.default_rng(seed)
    made = scenario(
        rng, cause=cause, gpus=16, start_ms=START_MS, length_ms=HOUR_MS, cadence_ms=cadence_ms
    )
    window = made.window
    assert (np.diff(window.times_ms) > 0).all()
    assert window.times_ms[0] >= START_MS
    assert window.times_ms[-1] < START_MS + HOUR_MS + 2 * cadence_ms
    assert window.gpus is not None
    assert window.gpus.shape == (window.times_ms.size, len(made.job.roster))
    for name, values in window.fields.items():
        known = values[np.isfinite(values)]
        assert values.shape == window.times_ms.shape
        assert (known >= METRICS[name].low).all()
        assert (known <= METRICS[name].high).all()


def test_a_calm_healthy_job_only_makes_noise() -> None:
    window = calm(None).window
    assert window.events == ()
    assert np.isfinite(window.fields["ofu"]).all()
    assert float(np.ptp(window.fields["gpus"])) == 0.0


def test_a_disturbed_job_dips_more_than_a_calm_one() -> None:
    rng = np.random.default_rng(5)
    disturbed = scenario(rng, start_ms=START_MS, length_ms=4 * HOUR_MS).window.fields["ofu"]
    quiet = calm(None, seed=5).window.fields["ofu"]
    depth = [
        float(np.nanpercentile(values, 0.5) / np.nanmedian(values))
        for values in (disturbed, quiet)
    ]
    assert depth[0] < depth[1]


def test_a_debug_flag_slows_work_and_sms_and_leaves_the_clock() -> None:
    made = calm("debug_flag")
    assert change(made, "ofu") == pytest.approx(1 / 2.5, rel=0.08)
    assert change(made, "sm") < 0.5
    assert change(made, "clock") == pytest.approx(1, abs=0.01)
    assert made.truth is not None
    assert made.truth.end_ms is None


def test_the_clock_explains_a_thermal_throttle() -> None:
    made = calm("thermal_throttle")
    assert change(made, "clock") == pytest.approx(change(made, "ofu"), rel=0.05)
    assert change(made, "tensor") == pytest.approx(1, rel=0.05)


def test_a_hot_host_slows_the_others_whose_clock_stays() -> None:
    rng = np.random.default_rng(2)
    made = scenario(
        rng,
        cause="thermal_throttle",
        gpus=32,
        start_ms=START_MS,
        length_ms=2 * HOUR_MS,
        calm=True,
    )
    assert made.truth is not None
    assert len({made.job.roster[place].host for place in made.truth.gpus}) == 1
    assert change(made, "ofu") == pytest.approx(made.truth.factor, rel=0.05)
    assert 0.85 < change(made, "clock") < 0.95
    assert change(made, "tensor") < 0.8


def test_a_precision_fallback_costs_tokens_and_no_ofu() -> None:
    made = calm("precision_fallback")
    assert change(made, "ofu") > 1
    assert change(made, "tokens") < 0.7


def test_a_precision_gain_costs_ofu_and_no_tokens() -> None:
    made = calm("precision_gain")
    assert change(made, "ofu") < 0.85
    assert change(made, "tokens") > 1.2
    assert made.truth is not None
    assert made.truth.kind == ""


def test_an_asynchronous_straggler_shows_on_one_gpu_and_hardly_in_the_mean() -> None:
    made = calm("straggler")
    assert made.truth is not None
    assert made.window.gpus is not None
    after = made.window.times_ms >= made.truth.onset_ms
    ratio = made.window.gpus[after].mean(axis=0) / made.window.gpus[~after].mean(axis=0)
    assert int(np.argmin(ratio)) == made.truth.gpus[0]
    assert float(ratio.min()) < 0.65
    assert change(made, "ofu") > 0.95


def test_a_synchronous_straggler_slows_every_gpu_alike() -> None:
    made = calm("synchronous_straggler")
    assert made.truth is not None
    assert made.window.gpus is not None
    after = made.window.times_ms >= made.truth.onset_ms
    ratio = made.window.gpus[after].mean(axis=0) / made.window.gpus[~after].mean(axis=0)
    assert float(np.ptp(ratio)) < 0.02
    assert change(made, "sm") > 1


def test_a_hang_stops_the_work_and_not_the_samples() -> None:
    made = calm("hang")
    assert change(made, "ofu") == 0
    assert float(np.diff(made.window.times_ms).max()) < 20_000


def test_lost_capacity_takes_gpus_and_leaves_the_mean() -> None:
    made = calm("capacity_loss")
    assert made.truth is not None
    assert change(made, "gpus") == pytest.approx(1 - len(made.truth.gpus) / 32)
    assert change(made, "ofu") == pytest.approx(1, rel=0.05)


def test_a_frozen_exporter_repeats_one_value_bit_by_bit() -> None:
    made = calm("frozen_exporter")
    assert made.truth is not None
    after = made.window.times_ms >= made.truth.onset_ms
    assert np.unique(made.window.fields["ofu"][after]).size == 1


def test_a_misreported_mfu_is_wrong_from_the_first_sample() -> None:
    made = calm("misreported_mfu")
    assert made.truth is not None
    assert made.truth.onset_ms == made.window.times_ms[0]
    ratio = np.nanmedian(made.window.fields["mfu"] / made.window.fields["ofu"])
    assert ratio > 1.9


def test_a_transient_drop_is_over_before_the_series_ends() -> None:
    made = calm("transient_drop")
    assert made.truth is not None
    assert made.truth.end_ms is not None
    assert made.truth.end_ms - made.truth.onset_ms == pytest.approx(15 * 60_000, rel=0.05)


def test_an_unknown_fault_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'gremlins' is no fault; there are debug_flag"):
        calm("gremlins")


def test_a_series_too_short_to_hold_a_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="hold 6 samples"):
        scenario(np.random.default_rng(1), start_ms=START_MS, length_ms=60_000)
