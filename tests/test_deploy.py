"""What is shipped for other programs' use."""

import csv
from pathlib import Path

import pytest

from detector.metric import counter_named
from detector.telemetry.exposition import parse

COUNTERS = Path(__file__).parent.parent / "deploy" / "dcgm-exporter-counters.csv"


def rows() -> list[list[str]]:
    """The file as dcgm-exporter reads it: comments left out, columns trimmed of blanks."""
    lines = [line for line in COUNTERS.read_text().splitlines() if not line.startswith("#")]
    return [[column.strip(" ") for column in row] for row in csv.reader(lines) if row]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_exporter_counts_nothing_that_is_not_read(row: list[str]) -> None:
    assert len(row) == 3
    assert row[1] in {"gauge", "counter"}
    assert counter_named(row[0]) is not None


def test_a_page_with_these_counters_has_all_that_ofu_needs() -> None:
    text = "".join(f'{name}{{gpu="0",UUID="GPU-1"}} 1\n' for name, _, _ in rows())
    page = parse(text.encode(), time_ms=0)
    (reading,) = page.readings
    assert {"tensor_active", "sm_clock_mhz", "max_sm_clock_mhz"} < set(reading.values)
    assert len(reading.values) == len(rows())
    assert page.dropped == ()


def test_names_that_only_some_exporters_know_are_left_to_the_operator() -> None:
    # go-dcgm for DCGM 3 has no ..._EVENT_REASONS, that for 4.0 to 4.5 no ..._THROTTLE_REASONS,
    # and an exporter does not start with a field that it doesn't know.
    assert not any("REASON" in name for name, _, _ in rows())
