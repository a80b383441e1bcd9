"""The catalogue of counters, and the filter in front of everything else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.metric import BLANKS_INT32, COUNTERS, Counter, counter_named, usable

EVERY = pytest.mark.parametrize("counter", COUNTERS.values(), ids=lambda c: str(c.field))

# Blank, not found, not supported, not permitted: as DCGM writes them for its types.
INT64 = [2**63 - 16 + i for i in range(4)]
INT32 = [2**31 - 16 + i for i in range(4)]
FP64 = [float(2**47 + i) for i in range(4)]
TEXT = ["<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>"]


@EVERY
def test_no_sentinel_of_any_counter_is_usable_as_number_or_as_text(counter: Counter) -> None:
    blanks = [*INT64, *map(float, INT64), *INT32, *map(float, INT32)]
    blanks += FP64 if counter.type == "fp64" else []
    texts = [*TEXT, *map(str, blanks), *(f"{blank:.6f}" for blank in blanks), "", "NaN", "+Inf"]
    for raw in (*blanks, *texts, math.nan, math.inf, -math.inf, None):
        value, reason = usable(counter, raw)
        assert math.isnan(value), raw
        assert reason, raw


@EVERY
def test_the_bounds_alone_leave_out_all_sentinels_but_those_of_32_bits(
    counter: Counter,
) -> None:
    blanks = [*map(float, INT64), *(FP64 if counter.type == "fp64" else [])]
    assert not any(counter.low <= blank * counter.scale <= counter.high for blank in blanks)
    assert frozenset(map(float, INT32)) == BLANKS_INT32


@pytest.mark.parametrize(
    ("field", "raw", "reason"),
    [
        (100, "9223372036854775792", 'int64 sentinel "blank" (0x7ffffffffffffff0)'),
        (140, 9223372036854775794, 'int64 sentinel "not supported" (0x7ffffffffffffff2)'),
        (100, "9.223372036854776e+18", "int64 sentinel after a float round trip"),
        (150, "2147483635", 'int32 sentinel "not permissioned" (0x7ffffff3)'),
        (155, "140737488355328.000000", 'fp64 sentinel "blank" (2^47 + 0)'),
        (1004, "140737488355330.0", 'fp64 sentinel "not supported" (2^47 + 2)'),
        (1004, "1.31", "ratio 1.31 is outside [0, 1.02]"),
        (1004, "-0.1", "ratio -0.1 is outside [0, 1.02]"),
        (100, "0", "clock of 0"),
        (100, 10**400, "not a number"),
        (100, 5001, "clock of 5001 MHz is outside 1..5000"),
        (1603, 1755, "clock of 0.001755 MHz is outside 1..5000"),
        (203, "101", "utilisation 101 is outside 0..100"),
        (155, "-1.000000", "negative power"),
        (1002, "ERROR - FAILED TO CONVERT TO STRING",
         "not a number (the exporter's own error text)"),
    ],
)  # fmt: skip
def test_what_is_none_says_why(field: int, raw: str | float, reason: str) -> None:
    assert usable(COUNTERS[field], raw)[1] == reason


def test_totals_of_64_bits_may_pass_what_is_a_blank_in_a_ratio() -> None:
    assert usable(COUNTERS[1084], 2**47 + 1) == (float(2**47 + 1), "")
    assert usable(COUNTERS[241], str(2**60)) == (float(2**60), "")


def test_a_clock_in_hertz_and_one_in_megahertz_come_out_the_same() -> None:
    assert usable(COUNTERS[1603], "1837500000")[0] == usable(COUNTERS[100], 1837.5)[0]
    assert COUNTERS[1608].name == COUNTERS[113].name


def test_a_ratio_a_little_above_one_is_kept_as_it_is() -> None:
    assert usable(COUNTERS[1004], "1.012000") == (1.012, "")


@EVERY
def test_every_name_leads_to_its_counter_in_any_case_and_with_openmetrics_suffix(
    counter: Counter,
) -> None:
    for name in counter.names:
        for spelling in (name, name.lower(), name.upper(), f"{name}_total"):
            assert counter_named(spelling) == (counter, counter.scale)


def test_no_two_fields_share_a_name() -> None:
    names = [name.lower() for counter in COUNTERS.values() for name in counter.names]
    assert len(names) == len(set(names))


def test_fields_of_one_counter_have_one_unit_and_the_same_bounds() -> None:
    units: dict[str, tuple[str, float, float]] = {}
    for counter in COUNTERS.values():
        said = (counter.unit, counter.low, counter.high)
        assert units.setdefault(counter.name, said) == said


@given(
    counter=st.sampled_from(list(COUNTERS.values())),
    raw=st.one_of(st.floats(), st.integers(), st.text(max_size=30), st.none()),
)
def test_what_is_usable_is_within_the_bounds(counter: Counter, raw: str | float | None) -> None:
    value, reason = usable(counter, raw)
    assert (counter.low <= value <= counter.high) is (reason == "")
