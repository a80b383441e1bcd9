"""The HTTP client against real sockets on loopback: what it sends, and what it must not do."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.httpdate import parse_retry_after
from detector.notify.http import (
    BODY_LIMIT,
    Failure,
    Response,
    host_of,
    post,
)
from tests.notify.loopback import serving, status

SECRET_PATH = "/services/T000/B000/hunter2"


def send(url: str, *, timeout_s: float = 5.0) -> Response | Failure:
    return post(url, body=b"{}", headers={"content-type": "text/plain"}, timeout_s=timeout_s)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}{SECRET_PATH}"


@pytest.fixture
def closed() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}{SECRET_PATH}"


def test_an_answer_comes_back_with_status_body_and_lower_case_headers() -> None:
    with serving(status(503, body=b"busy", headers={"Retry-After": "7"})) as url:
        answer = send(url)
    assert isinstance(answer, Response)
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b"busy", "7")


def test_a_redirect_is_returned_and_not_followed() -> None:
    hits: list[str] = []

    def redirect(request: BaseHTTPRequestHandler) -> None:
        hits.append(request.path)
        status(307, headers={"Location": "/elsewhere"})(request)

    with serving(redirect, path=SECRET_PATH) as url:
        answer = send(url)
    assert isinstance(answer, Response)
    assert answer.status == 307
    assert hits == [SECRET_PATH]


def test_no_more_of_an_answer_is_read_than_the_bound() -> None:
    with serving(status(200, body=b"x" * (BODY_LIMIT * 4))) as url:
        answer = send(url)
    assert isinstance(answer, Response)
    assert len(answer.body) == BODY_LIMIT


def test_an_answer_that_drips_is_cut_at_the_deadline_and_keeps_its_status() -> None:
    release = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        request.wfile.write(b"a")
        release.wait(5)

    with serving(drip) as url:
        answer = send(url, timeout_s=0.2)
        release.set()
    assert isinstance(answer, Response)
    assert answer.status == 200


def test_a_refused_connection_was_certainly_not_delivered(closed: str) -> None:
    answer = send(closed)
    assert isinstance(answer, Failure)
    assert not answer.ambiguous
    assert "Connection refused" in answer.reason


def test_no_answer_in_time_may_have_been_delivered(silent: str) -> None:
    answer = send(silent, timeout_s=0.1)
    assert isinstance(answer, Failure)
    assert answer.ambiguous
    assert "no answer within 0.1 s" in answer.reason


def test_a_connection_cut_after_the_request_may_have_been_delivered() -> None:
    def hang_up(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        request.connection.shutdown(socket.SHUT_RDWR)

    with serving(hang_up) as url:
        answer = send(url)
    assert isinstance(answer, Failure)
    assert answer.ambiguous


def test_plain_http_behind_an_https_url_is_a_tls_failure_that_sent_nothing() -> None:
    with serving(status(200), path=SECRET_PATH) as url:
        answer = send(url.replace("http://", "https://"))
    assert isinstance(answer, Failure)
    assert not answer.ambiguous
    assert "TLS failed" in answer.reason


def test_a_failure_names_the_host_and_never_the_path(closed: str, silent: str) -> None:
    urls = (closed, silent, f"http://nowhere.invalid{SECRET_PATH}", f"http://{SECRET_PATH}")
    for url in urls:
        answer = send(url, timeout_s=0.1)
        assert isinstance(answer, Failure)
        assert "hunter2" not in repr(answer)


def test_a_header_that_would_split_the_request_sends_nothing(silent: str) -> None:
    answer = post(silent, body=b"", headers={"x": "a\r\nb: c"}, timeout_s=0.1)
    assert isinstance(answer, Failure)
    assert not answer.ambiguous


def test_the_host_of_a_url_is_all_that_may_be_shown() -> None:
    assert host_of("https://user:pw@example.com:8443/a?b=c") == "example.com:8443"
    assert host_of("https://hooks.slack.com/services/x") == "hooks.slack.com"
    assert host_of("nonsense") in {"nonsense", "(not a URL)"}


NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


@pytest.mark.parametrize(
    ("header", "wait_ms"),
    [
        ("120", 120_000),
        (" 0 ", 0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30_000),
        ("Tue, 14 Nov 2023 22:13:50 -0000", 30_000),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("Tue, 14 Nov 99999999999999999999 22:13:00 GMT", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_reads_seconds_and_dates(header: str | None, wait_ms: int | None) -> None:
    assert parse_retry_after(header, NOW_MS) == wait_ms


@given(st.text())
def test_retry_after_never_raises(header: str) -> None:
    wait_ms = parse_retry_after(header, NOW_MS)
    assert wait_ms is None or wait_ms >= 0
