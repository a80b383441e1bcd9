"""The log: events with fields, safe to print, one JSON object a line, never a secret."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.log import printable

PROGRAM = """
import logging, sys, warnings
from detector import log
log.configure(log.LogSettings(format=sys.argv[1], level="info"))
log.get().info("set_aside", job="\\x1b[2Ja\\nb\\u202e", reason="no_value", count=3)
log.get().debug("not_said")
logging.getLogger("urllib3.connectionpool").warning("Retrying: %s", "/services/T0/HUSH")
logging.getLogger("apscheduler.scheduler").warning("Execution of job %s skipped", "tick")
logging.getLogger("anything").info("not said either")
warnings.warn("old", stacklevel=1)
token = "HUSH"
try:
    raise ValueError("broken\\x1b[2J")
except ValueError as error:
    log.get().error("job_failed", job="tick", exc_info=error)
"""


def logged(form: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form],
        check=True,
        text=True,
        capture_output=True,
    )
    assert done.stdout == ""
    return done.stderr


def test_json_is_one_object_a_line_libraries_and_tracebacks_included() -> None:
    events = [json.loads(line) for line in logged("json").splitlines()]
    assert [event["event"] for event in events] == [
        "set_aside",
        "library_warning",
        "library_warning",
        "job_failed",
    ]
    first = events[0]
    assert first["job"] == "\x1b[2Ja\nb\u202e"
    assert (first["count"], first["level"]) == (3, "info")
    assert first["timestamp"].endswith("Z")
    assert events[1]["library"] == "urllib3.connectionpool"
    assert "ValueError" in events[3]["exception"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_neither_what_libraries_say_nor_a_traceback_lets_a_secret_out(form: str) -> None:
    assert "HUSH" not in logged(form).replace('token = "HUSH"', "")


def test_a_terminal_gets_nothing_that_it_would_act_on() -> None:
    text = logged("console")
    assert all(line.isprintable() for line in text.split("\n"))
    assert "%1B[2Ja%0Ab" in text
    assert "Traceback" in text
    assert "not_said" not in text


@given(st.text())
def test_what_is_printable_is_printable_and_plain_text_stays_as_it_is(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    program = f"{PROGRAM}\nprint('went on')"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, "json"],
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=full,
            cwd=tmp_path,
        )
    assert done.stdout == "went on\n"
