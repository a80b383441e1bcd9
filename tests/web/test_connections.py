"""Connections that never say anything whole, and a store that hangs, over real sockets."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import islice

import pytest
import redis
import urllib3

from detector.store.intake import Intake
from detector.store.keys import Keys
from detector.web.app import Web, application
from detector.web.connections import MOST
from detector.web.settings import WebSettings

NOW = 1_764_000_000_000
BEGUN = b"POST /api/v1/jobs/1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HALVES = {
    "nothing": b"",
    "half a header": BEGUN,
    "half a body": BEGUN + b'Content-Length: 100\r\n\r\n{"to',
}


def served(client: redis.Redis, patience_s: int) -> Iterator[str]:
    app = application(Intake(client, Keys()), token="", clock=lambda: NOW)
    web = Web(WebSettings(listen="127.0.0.1:0"), app, patience_s=patience_s)
    try:
        yield web.address
    finally:
        web.close()


@pytest.fixture
def address(redis_client: redis.Redis) -> Iterator[str]:
    yield from served(redis_client, 60)


def opened(address: str, text: bytes) -> socket.socket:
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(text)
    return connection


def post(
    address: str, body: bytes | Iterator[bytes] = b'{"tokens":1}'
) -> urllib3.BaseHTTPResponse:
    url = f"http://{address}/api/v1/jobs/1/metrics"
    headers = {"Content-Type": "application/json"}
    return urllib3.request("POST", url, body=body, headers=headers, retries=False)


def healthy(address: str) -> bool:
    url = f"http://{address}/healthz"
    return urllib3.request("GET", url, retries=False, timeout=10).status == 200


def is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())
def test_any_number_of_connections_that_send_no_whole_request_keeps_nobody_out(
    address: str, half: bytes
) -> None:
    with ExitStack() as open_ones:
        first = open_ones.enter_context(opened(address, half))
        for _ in range(MOST + 40):
            last = open_ones.enter_context(opened(address, half))
        assert [post(address).status for _ in range(5)] == [202] * 5
        assert healthy(address)
        assert is_cut(first)
        last.setblocking(False)
        with pytest.raises(BlockingIOError):  # who has waited longest was cut, nobody else
            last.recv(1)


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())
def test_a_connection_that_sends_no_whole_request_in_time_is_cut(
    redis_client: redis.Redis, half: bytes
) -> None:
    for address in served(redis_client, 1):
        with opened(address, half) as connection:
            assert is_cut(connection)


def test_a_request_that_announces_too_much_is_refused_before_it_is_sent(address: str) -> None:
    with opened(address, BEGUN + b'Content-Length: 999999999999\r\n\r\n{"to') as connection:
        assert connection.recv(1_000).startswith(b"HTTP/1.1 413 ")
    for large in (b" " * 4_000_000, iter([b" " * 1_000_000] * 4)):  # the latter in chunks
        answer = post(address, large)
        assert answer.status == 413
        assert "at most 65536 bytes" in answer.json()["error"]


def test_after_an_answer_that_took_long_a_connection_may_wait_as_long_as_any(
    redis_client: redis.Redis,
) -> None:
    whole = BEGUN + b'Content-Length: 12\r\n\r\n{"tokens":1}'
    for address in served(redis_client, 2):
        redis_client.client_pause(1_400, all=False)
        with opened(address, whole) as connection:
            assert connection.recv(1_000).startswith(b"HTTP/1.1 202 ")
            time.sleep(1)
            connection.sendall(whole)
            assert connection.recv(1_000).startswith(b"HTTP/1.1 202 ")
            assert is_cut(connection)


def send_on(connection: socket.socket) -> None:
    while True:
        connection.sendall(b" " * 10_000)


def test_who_goes_on_sending_what_is_refused_is_cut(redis_client: redis.Redis) -> None:
    for address in served(redis_client, 1):
        with (
            opened(address, BEGUN + b"Content-Length: 999999999999\r\n\r\n") as connection,
            pytest.raises(OSError, match=r"reset|Broken pipe"),
        ):
            send_on(connection)


def test_a_store_that_hangs_is_told_as_overload_while_health_is_answered(
    address: str, redis_client: redis.Redis
) -> None:
    redis_client.client_pause(60_000, all=False)
    with ThreadPoolExecutor(80) as pool:
        try:
            answers = [pool.submit(post, address) for _ in range(80)]
            refused = list(islice(as_completed(answers, timeout=30), 40))
            assert healthy(address)
        finally:
            redis_client.client_unpause()
        statuses = sorted(one.result().status for one in answers)
    assert statuses == [202] * 40 + [503] * 40
    for answer in (one.result() for one in refused):
        assert answer.headers["Retry-After"] == "10"
        assert "too much at once" in answer.json()["error"]
