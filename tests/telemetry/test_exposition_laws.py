"""What holds of every page, whatever it is made of."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from detector.metric import COUNTERS
from detector.telemetry.exposition import parse

NUMBERS = st.sampled_from(
    [
        "0",
        "1",
        "0.348203",
        "1755",
        "97.5",
        "1.02",
        "1.03",
        "-1",
        "-0",
        "1e3",
        "1.5E9",
        " 12 ",
        "9223372036854775792",
        "9223372036854775795",
        "9.223372036854776e+18",
        "2147483632",
        "2147483635",
        "140737488355328.000000",
        "140737488355331",
        "4294967295",
        "1837500000",
        "NaN",
        "nan",
        "+Inf",
        "-inf",
        "",
        "ERROR",
        "1_0",
        "1,2",
        "null",
        "[1]",
        "1 17e11",
        "00",
        "1755 1700000000000",
        "1 # {} 2",
        "\x1c1",
        "true",
        "1e999",
        "5e-324",
        "9" * 400,
    ]
)
NAMES = st.sampled_from(
    [name for counter in COUNTERS.values() for name in counter.names]
    + ["DCGM_FI_DEV_FB_FREE", "up", "gpu_clock", "gpu_prof_tensor_active_percent"]
)
LABELS = st.sampled_from(
    [
        'gpu="0",UUID="GPU-0"',
        'gpu="0",uuid="GPU-0",hpc_job="1"',
        'gpu="1", UUID="GPU-1"',
        'gpu="0",UUID="GPU-0",hpc_job="2"',
        'gpu="1",UUID="GPU-1",GPU_I_ID="1"',
        'gpu="0"',
        "",
        'serial_number="S",clock_type="system"',
        'UUID="GPU-0',
        'nvlink="1",gpu_uuid="GPU-0"',
    ]
)
SAMPLES = st.builds(lambda n, ls, v: f"{n}{{{ls}}} {v}".encode(), NAMES, LABELS, NUMBERS)
LINES = st.one_of(
    SAMPLES,
    SAMPLES,
    st.sampled_from(
        [b"", b"# HELP a b", b"\r", b"up 1", b"up", b"{", b"not a sample", b"\x00"]
    ),
    st.binary(max_size=30),
)
PAGES = st.lists(LINES, max_size=12).map(lambda lines: b"\n".join([*lines, b""]))


@st.composite
def pages_of_one_target(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two pages in a row: other values, and now and then another line, or a cut."""
    lines = draw(st.lists(LINES, max_size=12))
    other = list(lines)
    for place in range(len(lines)):
        if draw(st.booleans()):
            start, blank, _ = other[place].rpartition(b" ")
            other[place] = start + blank + draw(NUMBERS).encode()
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(other)))
        other[place : place + draw(st.integers(0, 1))] = draw(st.lists(LINES, max_size=1))
    page = b"\n".join([*other, b""])
    return b"\n".join([*lines, b""]), page[: draw(st.integers(0, len(page)) | st.just(10**6))]


@settings(max_examples=300)
@given(pages_of_one_target())
def test_a_page_reads_the_same_with_the_layout_of_the_one_before_and_without(
    pages: tuple[bytes, bytes],
) -> None:
    first, second = pages
    remembered = parse(first, time_ms=5, layout=parse(first, time_ms=1).layout)
    fresh = parse(first, time_ms=5)
    assert (remembered.readings, remembered.dropped) == (fresh.readings, fresh.dropped)
    remembered = parse(second, time_ms=5, layout=remembered.layout)
    fresh = parse(second, time_ms=5)
    assert (remembered.readings, remembered.dropped) == (fresh.readings, fresh.dropped)


@settings(max_examples=300)
@given(st.one_of(PAGES, st.binary(max_size=300)))
def test_no_page_raises_and_no_value_comes_through_that_is_none(page: bytes) -> None:
    read_first = parse(page, time_ms=5)
    bounds = {c.name: (c.low, c.high) for c in COUNTERS.values()}
    for reading in read_first.readings:
        assert reading.uuid
        for name, value in reading.values.items():
            low, high = bounds[name]
            assert low <= value <= high
            assert math.isfinite(value)
    lines = page.count(b"\n") + 1
    assert all(1 <= (line.line or 0) <= lines for line in read_first.dropped)


@settings(max_examples=100)
@given(st.lists(st.tuples(NAMES, st.sampled_from(["1", "0.5", "60", "1755"])), max_size=10))
def test_the_order_of_lines_changes_nothing_that_is_read(
    samples: list[tuple[str, str]],
) -> None:
    once = dict(samples)  # a counter twice would be read by its first line
    lines = [f'{name}{{gpu="0",UUID="GPU-0"}} {value}\n' for name, value in once.items()]
    names = {c.name for c in COUNTERS.values() if set(c.names) & set(once)}
    if len(names) < len([n for n in once if n.startswith(("DCGM_FI", "dcgm"))]):
        return  # one counter under two names
    there = parse("".join(lines).encode(), time_ms=5)
    back = parse("".join(reversed(lines)).encode(), time_ms=5)
    assert [dict(r.values) for r in there.readings] == [dict(r.values) for r in back.readings]
