"""The rows of the exporter's list that remedies name."""

import csv
import re
from pathlib import Path

from detector.metric import counter_named
from detector.telemetry.remedies import ROWS

_LIST = Path(__file__).parents[2] / "deploy" / "dcgm-exporter-counters.csv"


def _rows() -> dict[str, list[str]]:
    """All rows, with those that are commented out since not every DCGM has them."""
    text = _LIST.read_text("utf-8")
    lines = re.findall(r"^(?:# )?(DCGM_\S+,.*)$", text, flags=re.MULTILINE)
    return {row[0].strip(): [part.strip() for part in row[1:]] for row in csv.reader(lines)}


def test_the_list_has_every_row_that_doctor_asks_for() -> None:
    assert {row for row, _, _ in ROWS.values()} <= _rows().keys()


def test_the_rows_that_doctor_names_are_those_of_the_counters() -> None:
    for canonical, (row, field, _) in ROWS.items():
        found = counter_named(row)
        assert found is not None
        counter, _ = found
        assert counter.name == canonical
        assert field in (counter.field, 100, 113)
