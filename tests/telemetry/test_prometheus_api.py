"""What servers and the proxies before them answer, by a server that answers as it is told."""

import gzip
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from detector.telemetry.prometheus import build
from detector.telemetry.prometheus_api import Api, samples
from detector.telemetry.prometheus_settings import PrometheusSettings
from detector.telemetry.source import SourceError, TooMuch

NONE = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'


@dataclass
class Told:
    """What the server answers next, and what it was asked."""

    status: int = 200
    body: bytes = NONE
    headers: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ("POST",)
    cut: int = 0
    asked: list[tuple[str, str, dict[str, str], dict[str, list[str]]]] = field(
        default_factory=list
    )


@pytest.fixture
def server() -> Iterator[tuple[str, Told]]:
    told = Told()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            form = self.rfile.read(length).decode() or urlsplit(self.path).query
            path = urlsplit(self.path).path
            told.asked.append((self.command, path, dict(self.headers), parse_qs(form)))
            allowed = self.command in told.methods
            self.send_response(told.status if allowed else 405)
            body = told.body if allowed else b""
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) + told.cut))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = bool(told.cut)

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/base", told
        http.shutdown()
        thread.join(5)


def api(url: str, **more: str) -> Api:
    return Api(url, headers=more, tls=None, timeout_s=5)


def refusal(url: str, told: Told, status: int, body: bytes, **headers: str) -> str:
    told.status, told.body, told.headers = status, body, headers
    with pytest.raises(SourceError) as caught:
        api(url).query("up")
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    return text


def error(kind: str, text: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": text}).encode()


def success(kind: str, result: list[object]) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"resultType": kind, "result": result}}
    ).encode()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, error("bad_data", 'parse error: unexpected "}"'), "is select right?"),
        (422, error("execution", "query processing would load too many samples"), "too many"),
        (503, error("timeout", "query timed out in expression evaluation"), "too long"),
        (401, b"Unauthorized\n", "bearer_file"),
        (401, b"no org id\n", "(no org id)"),
        (401, error("", "no org id"), "tenant"),
        (403, b"<html>no</html>", "HTTP 403"),
        (404, b"404 page not found", "/prometheus"),
        (429, b"", "too much to do"),
        (500, b"<html><body>oops</body></html>", "HTTP 500"),
        (502, b"upstream\nis gone", "upstream is gone"),
        (200, b"<!doctype html><title>Sign in</title>", "a login or a proxy?"),
        (200, NONE[:-9], "cut off"),
        (200, b"", "no JSON"),
        (200, b'{"status":"success"}', "without a reason"),
        (
            200,
            b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}',
            "scalar",
        ),
        (
            200,
            b'{"status":"success","data":{"resultType":"vector","result":[{"a":1}]}}',
            "none",
        ),
    ],
)
def test_what_is_no_answer_is_told_in_one_line(
    server: tuple[str, Told], status: int, body: bytes, said: str
) -> None:
    assert said in refusal(*server, status, body)


def test_a_redirect_is_named_and_not_followed(server: tuple[str, Told]) -> None:
    url, told = server
    to = "https://user:secret@sso.example.com/login?token=abc"
    said = refusal(url, told, 302, b"", Location=to)
    assert "sso.example.com" in said
    assert "secret" not in said
    assert "abc" not in said
    assert len(told.asked) == 1


def test_a_server_that_has_too_much_to_do_is_left_alone_as_long_as_it_asks(
    server: tuple[str, Told],
) -> None:
    url, told = server
    now = [1_000.0]
    source = Api(url, headers={}, tls=None, timeout_s=5, clock=lambda: now[0])
    told.status, told.headers = 503, {"Retry-After": "30"}
    told.body = b"busy"
    for _ in range(3):
        with pytest.raises(SourceError):
            source.query("up")
    assert len(told.asked) == 1
    now[0] += 31
    told.status, told.body = 200, NONE
    assert source.query("up").series == ()


def test_an_answer_that_breaks_off_is_no_answer(server: tuple[str, Told]) -> None:
    url, told = server
    told.cut = 100
    with pytest.raises(TooMuch, match="broke off"):
        api(url).query("up")
    assert refusal(url, told, 400, b"Client sent").startswith("HTTP 400: ")


@pytest.mark.parametrize(
    ("status", "body", "less"),
    [
        (422, error("execution", "query processing would load too many samples"), True),
        (503, error("timeout", "query timed out in expression evaluation"), True),
        (504, b"", True),
        (413, b"", True),
        (400, error("bad_data", "parse error"), False),
        (503, b"busy", False),
    ],
)
def test_what_is_too_much_at_once_is_told_from_what_no_less_would_mend(
    server: tuple[str, Told], status: int, body: bytes, less: bool
) -> None:
    url, told = server
    told.status, told.body = status, body
    source = api(url)
    with pytest.raises(SourceError) as caught:
        source.query("up")
    assert isinstance(caught.value, TooMuch) == less
    if less:
        told.status, told.body = 200, NONE
        assert source.query("up").series == ()  # at once: nobody asked for a rest


def test_a_huge_answer_is_not_read_to_its_end(
    server: tuple[str, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, told = server
    monkeypatch.setattr("detector.telemetry.prometheus_api._LARGEST", 1 << 20)
    told.body = b" " * (3 << 20)
    with pytest.raises(SourceError, match="narrow it with select"):
        api(url).query("up")


def test_a_proxy_that_lets_only_get_pass_is_asked_so(server: tuple[str, Told]) -> None:
    url, told = server
    told.methods = ("GET",)
    api(url).query('up{a="b&c"}', at_ms=1_500)
    assert [one[0] for one in told.asked] == ["POST", "GET"]
    assert told.asked[1][3] == {"query": ['up{a="b&c"}'], "time": ["1.500"]}


def test_a_compressed_answer_is_read(server: tuple[str, Told]) -> None:
    url, told = server
    told.body, told.headers = gzip.compress(NONE), {"Content-Encoding": "gzip"}
    assert api(url).query("up").series == ()


def test_credentials_tenants_and_the_path_are_sent(server: tuple[str, Told]) -> None:
    url, told = server
    headers = {"X-Scope-OrgID": "team-a"}
    basic = PrometheusSettings(url=f"{url}/", username="ofu", password_env="P", headers=headers)
    build(basic, secret=lambda _, key: "p:w" if key == "password" else "").scrape(0)
    _, path, headers, _ = told.asked[0]
    assert path == "/base/api/v1/query"
    assert headers["Authorization"] == "Basic b2Z1OnA6dw=="
    assert headers["X-Scope-OrgID"] == "team-a"
    bearer = PrometheusSettings(url=url, bearer_env="B")
    build(bearer, secret=lambda _, key: "token" if key == "bearer" else "").scrape(0)
    assert told.asked[1][2]["Authorization"] == "Bearer token"


def test_a_token_that_is_refused_is_told_with_its_place(server: tuple[str, Told]) -> None:
    url, told = server
    told.status, told.body = 401, b"Unauthorized"
    settings = PrometheusSettings(url=url, bearer_file="prom-token")
    (scrape,) = build(settings, secret=lambda _, key: "hush" if key == "bearer" else "").scrape(
        0
    )
    assert "HTTP 401 (Unauthorized): the token in prom-token was refused" in scrape.error
    assert "hush" not in scrape.error


def test_a_token_that_was_rotated_is_sent_with_the_next_query(
    server: tuple[str, Told],
) -> None:
    url, told = server
    token = ["old"]
    settings = PrometheusSettings(url=url, bearer_file="token")
    source = build(settings, secret=lambda _, key: token[0] if key == "bearer" else "")
    for text in ("old", "new"):
        token[0] = text
        source.scrape(0)
    sent = [headers["Authorization"] for _, _, headers, _ in told.asked]
    assert sent == ["Bearer old", "Bearer new"]


def test_a_server_that_is_down_costs_a_line_and_no_exception() -> None:
    settings = PrometheusSettings(url="http://127.0.0.1:9/prom")
    (scrape,) = build(settings, secret=lambda settings, key: "").scrape(0)
    assert scrape.error.startswith("cannot connect")
    assert scrape.target == "http://127.0.0.1:9/prom"


def test_certificates_that_cannot_be_read_are_told_at_once() -> None:
    settings = PrometheusSettings(url="https://localhost", ca_file="/nowhere/ca.pem")
    with pytest.raises(SourceError, match=r"/nowhere/ca\.pem"):
        build(settings, secret=lambda settings, key: "")


def test_a_server_without_tls_is_no_https_server(server: tuple[str, Told]) -> None:
    url, _ = server
    https = url.replace("http:", "https:")
    with pytest.raises(SourceError, match="speaks http, no https; write http://"):
        Api(https, headers={}, tls=ssl.create_default_context(), timeout_s=5).query("up")


def test_numbers_that_are_none_are_nan_and_time_has_milliseconds(
    server: tuple[str, Told],
) -> None:
    url, told = server
    values = [[1.5, "NaN"], [2.001, "+Inf"], [3, "-Inf"], [4, "0.25"], [5, "x"]]
    result = [{"metric": {"__name__": "up"}, "values": values}]
    told.body = success("matrix", [*result])
    (one,) = api(url).query("up").series
    times, found = samples(one)
    assert times.tolist() == [1500, 2001, 3000, 4000, 5000]
    assert [str(value) for value in found] == ["nan", "inf", "-inf", "0.25", "nan"]


def test_warnings_come_with_the_answer(server: tuple[str, Told]) -> None:
    url, told = server
    told.body = NONE[:-1] + b',"warnings":["a store\\nis gone"]}'
    told.headers = {"Date": "Mon, 30 Nov 2026 07:00:00 GMT"}
    answer = api(url).query("up")
    assert answer.warnings == ("a store is gone",)
    assert answer.time_ms is not None
    assert abs(answer.time_ms - time.time() * 1000) < 365 * 86_400_000


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"url": "prometheus:9090"}, "url must look like"),
        ({"url": "http://u:p@host"}, "must not hold a password"),
        ({"url": "http://host/?token=a"}, "url must look like"),
        ({"url": "http://host", "select": "cluster=a"}, "select must look like"),
        ({"url": "http://host", "select": '{a="b"} or up'}, "select must look like"),
        ({"url": "http://host", "headers": {"Authorization": "x"}}, "bearer_file"),
        ({"url": "http://host", "headers": {"X-A": "a\nb"}}, "can't be sent"),
        ({"url": "http://host", "window": "1s"}, "at least 2s"),
        ({"url": "http://host", "username": "ofu"}, "username and password_file"),
        (
            {"url": "http://host", "username": "a", "password_env": "B", "bearer_env": "C"},
            "not both",
        ),
    ],
)
def test_settings_that_cannot_work_say_what_to_write(
    table: dict[str, object], said: str
) -> None:
    from detector.config import SourceSettings

    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert({"type": "prometheus", **table}, SourceSettings, dec_hook=_duration)


def _duration(kind: type, value: object) -> object:
    from detector.series import Duration

    assert kind is Duration
    return Duration.parse(str(value))
