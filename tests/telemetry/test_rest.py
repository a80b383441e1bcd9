"""Questions to servers that answer JSON: bounds, and what is said where no answer comes."""

import threading
from pathlib import Path

import pytest

from detector.telemetry.rest import Rest
from detector.telemetry.scheduler import SchedulerError
from tests.telemetry.api import serving

MIB = 1 << 20


def test_an_answer_beyond_the_bound_is_given_up_and_the_next_one_is_read() -> None:
    answers = iter((b" " * (3 * MIB), b"{}"))
    with serving(lambda _: (200, next(answers))) as api:
        rest = Rest(api.url, timeout_ms=5_000, longest=MIB)
        with pytest.raises(SchedulerError, match="the answer has more than 1 MiB"):
            rest.get("/", headers={})
        assert rest.get("/", headers={}).body == b"{}"
        rest.close()


def test_a_server_that_never_answers_costs_the_deadline_and_is_named() -> None:
    over = threading.Event()

    def hang(_: object) -> tuple[int, object]:
        over.wait()
        return 200, b"{}"

    with serving(hang) as api:
        rest = Rest(api.url, timeout_ms=50)
        with pytest.raises(SchedulerError) as error:
            rest.get("/", headers={})
        over.set()
        rest.close()
    assert str(error.value) == f"{api.url}: no answer within 0.05 s"


def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    rest = Rest(f"unix://{tmp_path}/none", timeout_ms=5_000)
    with pytest.raises(SchedulerError, match=r"/none: cannot connect: No such file"):
        rest.get("/", headers={})
    rest.close()


def test_a_ca_file_that_cannot_be_read_is_told_as_such(tmp_path: Path) -> None:
    with serving(lambda _: (200, b"{}")) as api:
        https = api.url.replace("http:", "https:")
        rest = Rest(https, ca_file=str(tmp_path / "none.pem"), timeout_ms=5_000)
        with pytest.raises(SchedulerError, match="ca_file cannot be read: No such file"):
            rest.get("/", headers={})
        rest.close()
