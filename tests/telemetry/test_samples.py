"""Samples of a GPU's fields, brought to one value for each counter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.telemetry.samples import Sample, Track, sample, summary

SECOND = 1_000_000
START_S = 1_800_000_000
TENSOR, CLOCK, XID = 1004, 100, 230

times = st.lists(st.integers(1, 10**6), min_size=1, max_size=40, unique=True)


def at(time_s: int, value: float) -> Sample:
    return Sample(time_us=(START_S + time_s) * SECOND, value=value)


def kept(track: Track, field: int = TENSOR) -> list[Sample]:
    return list(track.fields[field])


@given(times, st.data())
def test_samples_in_pieces_repeated_and_replayed_are_what_they_are_at_once(
    moments: list[int], data: st.DataObject
) -> None:
    samples = [Sample(time_us=one, value=one / 10**6) for one in sorted(moments)]
    once, pieces = Track(), Track()
    once.add(TENSOR, samples)
    for _ in range(5):
        cut = data.draw(st.integers(0, len(samples)))
        pieces.add(TENSOR, samples[:cut])  # from the beginning again, as DCGM replays
    pieces.add(TENSOR, samples)
    assert kept(pieces) == kept(once) == samples


def test_a_clock_of_the_host_that_steps_back_adds_nothing_until_it_is_past() -> None:
    track = Track()
    track.add(TENSOR, [at(10, 0.5), at(20, 0.5)])
    track.add(TENSOR, [at(15, 0.9)])
    track.add(TENSOR, [at(21, 0.6)])
    assert kept(track) == [at(10, 0.5), at(20, 0.5), at(21, 0.6)]


def test_a_clock_that_is_set_back_by_far_begins_anew() -> None:
    track = Track()
    for field, value in ((TENSOR, 0.5), (CLOCK, 1500.0)):
        track.add(field, [at(3600, value), at(3610, value)])
    assert summary(track, track, interval_us=10 * SECOND, fresh=False) is not None
    for field, value in ((TENSOR, 0.2), (CLOCK, 900.0)):
        track.add(field, [at(15, value), at(20, value)])
    found = summary(track, track, interval_us=10 * SECOND, fresh=False)
    assert found is not None
    assert found.time_us == (START_S + 20) * SECOND
    assert (found.values["tensor_active"], found.values["sm_clock_mhz"]) == (0.2, 900.0)


def test_what_was_never_sampled_has_no_reading() -> None:
    track = Track()
    track.add(TENSOR, [sample(TENSOR, 0, None)])
    assert summary(track, track, interval_us=10 * SECOND, fresh=True) is None


def test_an_xid_is_news_at_its_own_time_only() -> None:
    track = Track()
    track.add(XID, [at(7, 31)])
    track.add(TENSOR, [at(10, 0.5)])
    first = summary(track, track, interval_us=10 * SECOND, fresh=False)
    assert first is not None
    assert first.values["xid_last"] == 31
    track.add(TENSOR, [at(20, 0.5)])
    second = summary(track, track, interval_us=10 * SECOND, fresh=False)
    assert second is not None
    assert "xid_last" not in second.values


def test_a_clock_further_away_than_an_interval_is_none() -> None:
    near, far = Track(), Track()
    near.add(CLOCK, [at(95, 1500)])
    far.add(CLOCK, [at(70, 1500)])
    for track in (near, far):
        track.add(TENSOR, [at(110, 0.5)])
    found = [
        summary(track, track, interval_us=10 * SECOND, fresh=False) for track in (near, far)
    ]
    assert [one is not None and one.values.get("sm_clock_mhz") for one in found] == [1500, None]


@pytest.mark.parametrize("raw", [None, 2.0**47, float("nan")])
def test_a_blank_says_why_it_is_none(raw: float | None) -> None:
    assert sample(TENSOR, 1, raw).reason
