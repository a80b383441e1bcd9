"""From rows to windows: metrics, GPUs and hosts whose clocks do not agree."""

import numpy as np
import pytest

from detector.series import FloatArray, IntArray
from detector.store.gather import Labels, Rows, gathered

T = 1_760_000_000_000


def rows(*cells: tuple[int, str, str, str, float]) -> Rows:
    """Return rows of time after T in ms, job, metric, GPU and value."""
    times, job, metric, gpu, values = zip(*cells, strict=True)
    return Rows(
        times_ms=T + np.array(times, np.int64),
        values=np.array(values),
        job=labels(job),
        metric=labels(metric),
        gpu=labels(gpu),
    )


def labels(names: tuple[str, ...]) -> Labels:
    unique = tuple(sorted(set(names)))
    return Labels(codes=np.array([unique.index(name) for name in names]), names=unique)


def test_jobs_of_different_rosters_lie_side_by_side() -> None:
    found = gathered(
        [
            rows(*((0, "big", "ofu", f"g{k}", 0.1 * k) for k in (10, 9, 2, 1))),
            rows((0, "small", "ofu", "g0", 0.4), (0, "whole", "ofu", "", 0.5)),
        ]
    )
    assert list(found) == ["big", "small", "whole"]
    job, window = found["big"]
    assert [gpu.uuid for gpu in job.roster] == ["g1", "g2", "g9", "g10"]
    assert window.gpus is not None
    np.testing.assert_allclose(window.gpus, [[0.1, 0.2, 0.9, 1.0]])
    assert window.fields["ofu"] == pytest.approx([0.55])
    assert window.fields["gpus"].tolist() == [4.0]
    job, window = found["whole"]
    assert job.roster == ()
    assert window.gpus is None
    assert list(window.fields) == ["ofu"]


def test_a_gpu_without_a_value_is_not_counted_in_the_mean() -> None:
    _, window = gathered(
        [
            rows(
                (0, "j", "ofu", "a", 0.4),
                (0, "j", "ofu", "b", np.nan),
                (9, "j", "ofu", "a", np.nan),
            )
        ]
    )["j"]
    np.testing.assert_allclose(window.fields["ofu"], [0.4, np.nan])
    assert window.fields["gpus"].tolist() == [1.0, 0.0]


def test_hosts_that_are_read_moments_apart_make_one_entry() -> None:
    steps, hosts = 50, 8
    rng = np.random.default_rng(3)
    cells = [
        (10_000 * k + int(rng.integers(0, 2_000)), "j", "ofu", f"h{host}", 0.1 * host)
        for k in range(steps)
        for host in range(hosts)
    ]
    _, window = gathered([rows(*cells)])["j"]
    assert len(window.times_ms) == steps
    assert window.fields["gpus"].tolist() == [float(hosts)] * steps
    np.testing.assert_allclose(window.fields["ofu"], 0.35)


def test_gpus_that_are_read_together_keep_every_time_however_odd() -> None:
    times = [0, 1_000, 1_300, 60_000, 60_001]
    cells = [(at, "j", "ofu", gpu, 0.4) for at in times for gpu in "ab"]
    _, window = gathered([rows(*cells)])["j"]
    assert (window.times_ms - T).tolist() == times


def test_another_metric_joins_the_next_entry_of_ofu_and_none_is_made_for_it() -> None:
    _, window = gathered(
        [
            rows(
                *((1_000 * k, "j", "ofu", "", 0.4) for k in (1, 2, 3)),
                *((at, "j", "mfu", "", 0.1 * at / 1_000) for at in (500, 1_500, 1_900, 9_000)),
            )
        ]
    )["j"]
    assert (window.times_ms - T).tolist() == [1_000, 2_000, 3_000]
    np.testing.assert_allclose(window.fields["mfu"], [0.05, 0.19, np.nan])


def test_a_metric_by_gpu_gives_the_job_the_mean() -> None:
    _, window = gathered(
        [
            rows(
                *((0, "j", "ofu", gpu, 0.4) for gpu in "ab"),
                (0, "j", "clock", "a", 1_900.0),
                (0, "j", "clock", "b", 1_700.0),
            )
        ]
    )["j"]
    assert window.fields["clock"].tolist() == [1_800.0]


def test_what_a_job_says_of_itself_stands_before_the_mean_of_its_gpus() -> None:
    _, window = gathered(
        [rows((0, "j", "ofu", "a", 0.2), (5, "j", "ofu", "", 0.3), (0, "j", "ofu", "b", 0.2))]
    )["j"]
    assert (window.times_ms - T).tolist() == [5]
    assert window.fields["ofu"].tolist() == [0.3]
    assert window.gpus is not None
    np.testing.assert_allclose(window.gpus, [[0.2, 0.2]])


def test_of_two_values_at_one_time_the_first_one_stands() -> None:
    _, window = gathered(
        [
            rows((5, "j", "ofu", "", 0.2), (5, "j", "ofu", "", 0.9)),
            rows((5, "j", "ofu", "", 0.8)),
        ]
    )["j"]
    assert window.fields["ofu"].tolist() == [0.2]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    cells = [
        (1_000 * k + shift, job, metric, gpu, (k + 1) / 100)
        for k in range(20)
        for job in ("a", "b")
        for metric, gpu, shift in (("ofu", "x", 0), ("ofu", "y", 40), ("mfu", "", 300))
    ]
    mixed = [cells[k] for k in np.random.default_rng(seed).permutation(len(cells))]
    for (job, window), (same_job, same) in zip(
        gathered([rows(*cells)]).values(), gathered([rows(*mixed)]).values(), strict=True
    ):
        assert job == same_job
        _equal(window.times_ms, same.times_ms)
        assert window.fields.keys() == same.fields.keys()
        for name, values in window.fields.items():
            _equal(values, same.fields[name])


def _equal(left: IntArray | FloatArray, right: IntArray | FloatArray) -> None:
    np.testing.assert_array_equal(left, right)
