import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.store.chunks import (
    CHUNK_MS,
    Stretch,
    chunk_start,
    join,
    pack,
    split,
    unpack,
    unpack_many,
)
from detector.store.entries import FULL, NO_DATA, gpu_codes, gpu_values, pack_gpus

START = 1_700_000_100_000

ratio = st.floats(0, 1, width=32) | st.just(float("nan"))


@st.composite
def stretches(draw: st.DrawFn, width: int | None = None, span_ms: int = CHUNK_MS) -> Stretch:
    offsets = sorted(draw(st.sets(st.integers(0, span_ms - 1), max_size=12)))
    count = len(offsets)
    names = draw(st.sets(st.sampled_from(["gpus", "clock", "tokens"]))) | {"ofu"}
    fields = {
        name: np.array(draw(st.lists(ratio, min_size=count, max_size=count)), np.float64)
        for name in sorted(names)
    }
    size = draw(st.integers(0, 3)) if width is None else width
    code = st.integers(0, NO_DATA)
    rows = draw(
        st.lists(st.lists(code, min_size=size, max_size=size), min_size=count, max_size=count)
    )
    codes = np.array(rows, np.uint16).reshape(count, size) if size else None
    return Stretch(times_ms=START + np.array(offsets, np.int64), fields=fields, codes=codes)


def same(one: Stretch, other: Stretch) -> bool:
    return (
        one.times_ms.tolist() == other.times_ms.tolist()
        and one.fields.keys() == other.fields.keys()
        and all(
            np.array_equal(values, other.fields[name], equal_nan=True)
            for name, values in one.fields.items()
        )
        and (
            one.codes is other.codes
            or (
                one.codes is not None
                and other.codes is not None
                and np.array_equal(one.codes, other.codes)
            )
        )
    )


@given(stretches())
def test_a_packed_stretch_reads_back_bit_for_bit(stretch: Stretch) -> None:
    assert same(unpack(pack(stretch, START), START), stretch)


@given(stretches(span_ms=4 * CHUNK_MS))
def test_the_pieces_of_a_split_stretch_join_to_it(stretch: Stretch) -> None:
    pieces = split(stretch)
    assert all(
        start == chunk_start(int(time)) for start, p in pieces.items() for time in p.times_ms
    )
    if pieces:
        assert same(join(list(pieces.values())), stretch)


@given(stretches(), stretches())
def test_a_join_is_in_the_order_of_time_and_takes_the_first_of_equal_times(
    one: Stretch, other: Stretch
) -> None:
    joined = join([one, other])
    assert (np.diff(joined.times_ms) > 0).all()
    assert set(joined.times_ms.tolist()) == {*one.times_ms.tolist(), *other.times_ms.tolist()}
    rows = np.searchsorted(joined.times_ms, one.times_ms)
    assert np.array_equal(joined.fields["ofu"][rows], one.fields["ofu"], equal_nan=True)


@given(stretches(), st.data())
def test_a_broken_blob_is_a_value_error_or_a_chunk_in_good_order(
    stretch: Stretch, data: st.DataObject
) -> None:
    blob = bytearray(pack(stretch, START))
    where = data.draw(st.integers(0, len(blob) - 1))
    blob[where] ^= data.draw(st.integers(1, 255))
    with suppress(ValueError):
        read = unpack(bytes(blob[: data.draw(st.integers(0, len(blob)))]), START)
        assert (np.diff(read.times_ms) > 0).all()
        assert ((read.times_ms >= START) & (read.times_ms < START + CHUNK_MS)).all()


@given(st.lists(st.tuples(stretches(), st.integers(0, 3), st.booleans()), max_size=5))
def test_many_chunks_read_as_each_alone(items: list[tuple[Stretch, int, bool]]) -> None:
    starts = [START + at * CHUNK_MS for at, _ in enumerate(items)]
    blobs = []
    for stretch, copies, whole in items:
        # Neighbours of one layout are read together, so there must be some.
        kept = items[0][0] if copies else stretch
        blobs.append(pack(kept, START)[: None if whole else 20])
    many = unpack_many(blobs, starts)
    for at, (blob, start) in enumerate(zip(blobs, starts, strict=True)):
        rows = many.blob == at
        if at in many.broken:
            with pytest.raises(ValueError, match=re.escape(many.broken[at])):
                unpack(blob, start)
            assert not rows.any()
            continue
        alone = unpack(blob, start, gpus=False)
        assert many.times_ms[rows].tolist() == alone.times_ms.tolist()
        for name, values in many.fields.items():
            lacking = np.full(alone.times_ms.size, np.nan)
            expected = alone.fields.get(name, lacking)
            assert np.array_equal(values[rows], expected, equal_nan=True)


def test_five_minutes_of_ten_gpus_take_2_bytes_a_gpu_sample_and_4_a_mean() -> None:
    rng = np.random.default_rng(7)
    stretch = Stretch(
        times_ms=START + 10_000 * np.arange(30, dtype=np.int64),
        fields={"ofu": rng.random(30, np.float32).astype(float), "gpus": np.full(30, 10.0)},
        codes=rng.integers(0, FULL, (30, 10)).astype(np.uint16),
    )
    assert len(pack(stretch, START)) == 2 * 300 + 4 * 30 + 32


@given(st.lists(ratio, min_size=1, max_size=9))
def test_packed_gpus_read_back_within_a_code(values: list[float]) -> None:
    codes = gpu_codes([pack_gpus(np.array(values))])
    assert codes is not None
    assert gpu_values(codes)[0] == pytest.approx(values, abs=0.6 / FULL, nan_ok=True)


def test_what_is_no_ratio_is_packed_as_no_data() -> None:
    assert pack_gpus(np.array([-0.1, 1.1, np.inf, np.nan])) == b"\xff" * 8


def test_rosters_that_grow_are_padded_with_no_data() -> None:
    codes = gpu_codes([b"\x01\x00", b"\x02\x00\x03\x00", b"\x04", b""])
    assert codes is not None
    assert codes.tolist() == [[1, NO_DATA], [2, 3], [NO_DATA, NO_DATA], [NO_DATA, NO_DATA]]
