"""Reports of jobs over real HTTP, into a real inbox."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest
import redis
import urllib3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from detector.store.intake import Intake
from detector.store.keys import Keys
from detector.web.app import Web, application
from detector.web.settings import WebSettings

NOW = 1_764_000_000_000
JSON = {"Content-Type": "application/json"}


@dataclass
class Door:
    """A served API and what lies behind it."""

    address: str
    client: redis.Redis

    def post(
        self, body: object, *, job: str = "4711", headers: dict[str, str] | None = None
    ) -> urllib3.BaseHTTPResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"http://{self.address}/api/v1/jobs/{job}/metrics"
        return urllib3.request(
            "POST", url, body=data, headers={**JSON, **(headers or {})}, retries=False
        )

    def inbox(self) -> list[dict[bytes, bytes]]:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", self.client.xrange("ofu:in"))
        return [fields for _, fields in entries]


def served(client: redis.Redis, token: str = "") -> Iterator[Door]:
    app = application(Intake(client, Keys()), token=token, clock=lambda: NOW)
    web = Web(WebSettings(listen="127.0.0.1:0"), app)
    try:
        yield Door(web.address, client)
    finally:
        web.close()


@pytest.fixture
def door(redis_client: redis.Redis) -> Iterator[Door]:
    yield from served(redis_client)


@pytest.fixture
def locked(redis_client: redis.Redis) -> Iterator[Door]:
    yield from served(redis_client, token="s3cret")


def test_a_report_lands_in_the_inbox_under_its_job_and_time(door: Door) -> None:
    answer = door.post({"timestamp": NOW / 1000 - 5, "tokens": 812345.5, "mfu": 0.41})
    assert (answer.status, answer.json()) == (202, {"accepted": 1})
    (entry,) = door.inbox()
    assert entry == {
        b"job": b"4711",
        b"ts": str(NOW - 5000).encode(),
        b"tokens": b"812345.5",
        b"mfu": b"0.41",
    }


def test_a_report_without_time_is_of_now_and_several_go_at_once(door: Door) -> None:
    reports = [{"tokens": 1}, {"tokens": 2, "timestamp": NOW / 1000 - 10}]
    assert door.post(reports, job="ml/llm").status == 202
    assert [entry[b"ts"] for entry in door.inbox()] == [b"%d" % NOW, b"%d" % (NOW - 10_000)]
    assert {entry[b"job"] for entry in door.inbox()} == {b"ml/llm"}


def test_a_jobs_id_may_be_percent_encoded(door: Door) -> None:
    assert door.post({"tokens": 1}, job="train%207%2Fa").status == 202
    assert door.inbox()[0][b"job"] == b"train 7/a"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "the body is not what is taken here"),
        (b"{", 400, "the body is not what is taken here"),
        (b"\xff", 400, "the body is not what is taken here"),
        ([], 400, "send 1 to 360 reports"),
        ([{"tokens": 1}] * 361, 400, "send 1 to 360 reports"),
        ({}, 400, "give at least one of tokens, mfu"),
        ({"token": 5}, 400, "unknown field `token`"),
        ({"tokens": "5"}, 400, "$.tokens"),
        ({"tokens": -1}, 400, "tokens -1 is outside"),
        ({"mfu": 41}, 400, "mfu 41 is outside 0..10; give a ratio, not percent"),
        ([{"tokens": 1}, {"mfu": 41}], 400, "report 2: mfu 41"),
        ({"tokens": 1, "timestamp": NOW}, 400, "it is epoch seconds"),
        ({"tokens": 1, "timestamp": 5}, 400, "more than an hour old"),
        (b" " * 70_000, 413, "at most 65536 bytes"),
        (b"[" * 60_000, 400, "the body is not what is taken here"),
    ],
)
def test_a_report_that_is_none_is_refused_in_one_line_and_nothing_is_written(
    door: Door, body: object, status: int, says: str
) -> None:
    answer = door.post(body)
    assert answer.status == status
    error = answer.json()["error"]
    assert says in error
    assert "\n" not in error
    assert door.inbox() == []


@pytest.mark.parametrize("job", ["x" * 513, "%FF%FE", "%C3", "%00", "a%00b", "%7F", "%C2%85"])
def test_an_impossible_job_is_refused(door: Door, job: str) -> None:
    answer = door.post({"tokens": 1}, job=job)
    assert answer.status == 404
    assert answer.json()["error"].startswith("that is no job's id: 1 to 512 bytes of UTF-8")
    assert door.inbox() == []


def test_what_is_not_served_is_told_with_what_is(door: Door) -> None:
    for path in ("api/v1/jobs/%0A/metrics", "api/v1/jobs/1/metrics/", ""):
        url = f"http://{door.address}/{path}"
        answer = urllib3.request("POST", url, headers=JSON, body=b"{}", retries=False)
        assert answer.status == 404
        assert "POST /api/v1/jobs/{job}/metrics" in answer.json()["error"]
    got = urllib3.request("GET", f"http://{door.address}/api/v1/jobs/1/metrics", retries=False)
    assert (got.status, got.headers["Allow"]) == (405, "POST")
    assert "Allow" in got.json()["error"]


def test_a_page_in_a_browser_cannot_post(door: Door) -> None:
    """A form sends text/plain without asking; application/json is asked for, and refused."""
    answer = door.post({"tokens": 1}, headers={"Content-Type": "text/plain"})
    assert answer.status == 415
    url = f"http://{door.address}/api/v1/jobs/1/metrics"
    asked = urllib3.request("OPTIONS", url, headers={"Origin": "http://x"}, retries=False)
    assert asked.status == 405
    assert "access-control-allow-origin" not in asked.headers


def test_a_token_is_asked_for_before_anything_is_read(locked: Door) -> None:
    assert locked.post({"tokens": 1}).status == 401
    for wrong in ("Bearer", "Bearer wrong", "Basic s3cret", "Bearer s3cret2"):
        assert locked.post({"tokens": 1}, headers={"Authorization": wrong}).status == 401
    assert locked.inbox() == []
    right = locked.post({"tokens": 1}, headers={"Authorization": "Bearer s3cret"})
    assert right.status == 202


def test_a_store_out_of_reach_is_told_with_a_time_to_try_again(tmp_path: object) -> None:
    none = f"{tmp_path}/none"
    away = redis.Redis(unix_socket_path=none, retry=Retry(NoBackoff(), 0))
    for door in served(away):
        answer = door.post({"tokens": 1})
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "10"


def test_a_key_that_is_no_stream_is_told_as_out_of_reach(door: Door) -> None:
    door.client.set("ofu:in", "x")
    assert door.post({"tokens": 1}).status == 503


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["tokens", "mfu", "timestamp", "x"]), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_body_breaks_the_service(door: Door, body: bytes) -> None:
    assert door.post(body).status in (202, 400)


def test_an_address_in_use_is_told_in_one_line(door: Door) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {door.address}: Address already"):
        Web(WebSettings(listen=door.address), application(
            Intake(door.client, Keys()), token="", clock=lambda: NOW))  # fmt: skip


@pytest.mark.parametrize(
    "listen", ["9467", "x:y", "http://x:1", "127.0.0.1", "a:99999", "h:1/x"]
)
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match="listen must look like"):
        WebSettings(listen=listen)


def test_a_door_to_the_network_needs_a_token() -> None:
    for listen in ("0.0.0.0:9467", "[::]:9467", "gpu-head:9467"):
        with pytest.raises(ValueError, match="reachable from other hosts"):
            WebSettings(listen=listen)
        assert WebSettings(listen=listen, token_env="T").address[1] == 9467
    for listen in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        assert WebSettings(listen=listen).address[1] == 1
