"""What is told of exporters that answer, answer badly, or don't: all over loopback."""

import base64
import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detector.reading import Scrape
from detector.series import Duration
from detector.sources import source
from detector.telemetry.access import without_secrets
from detector.telemetry.exporter import Exporter, build
from detector.telemetry.settings import ExporterSettings
from detector.telemetry.source import SourceError

PAGE = (Path(__file__).parent.parent / "data" / "dcgm" / "01_h100_8gpu_host.prom").read_bytes()
NOW_MS = 1_700_000_000_000
SECRET = "s3cr3t"

Reply = tuple[int, dict[str, str], bytes]
Answer = Callable[["Asked"], Reply]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request: its path, its headers in lower case, the client's port."""

    path: str
    headers: dict[str, str]
    port: int


@dataclass(slots=True, kw_only=True)
class Served:
    """A running exporter; ``answer`` may be changed while it runs."""

    answer: Answer
    port: int = 0
    asked: list[Asked] = field(default_factory=list)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"


def page(_: Asked) -> Reply:
    return 200, {"Content-Type": "text/plain; version=0.0.4"}, PAGE


@contextmanager
def serving(
    answer: Answer = page, *, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Served]:
    """Serve ``answer``; a Content-Length of its own cuts the body off."""
    served = Served(answer=answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(path=self.path, headers=headers, port=self.client_address[1])
            served.asked.append(asked)
            status, extra, body = served.answer(asked)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | extra).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            if extra.get("Content-Length", str(len(body))) != str(len(body)):
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 400
        open: list[socket.socket]

        def handle_error(self, *_: Any) -> None:
            pass  # the client went away: that is what is tried

        def process_request(self, request: Any, client_address: Any) -> None:
            self.open.append(request)
            super().process_request(request, client_address)

    server = Server(("127.0.0.1", port), Handler)
    server.open = []
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        for one in server.open:  # as a process that dies: kept connections die with it
            break_off(one)
        server.server_close()
        thread.join()


def break_off(connection: socket.socket) -> None:
    """Break a connection that may be broken already."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def exporter(
    *targets: str, password: str = "", bearer: str = "", **options: Any
) -> Iterator[Exporter]:
    settings = ExporterSettings(targets=targets, **options)

    def secret(_: msgspec.Struct, kind: str) -> str:
        return {"password": password, "bearer": bearer}[kind]

    with closing(build(settings, secret=secret)) as source:
        yield source


def once(*targets: str, **options: Any) -> Scrape:
    with exporter(*targets, **options) as source:
        (scrape,) = source.scrape(NOW_MS)
    return scrape


def answered(status: int, body: bytes = b"", **headers: str) -> Answer:
    return lambda _: (status, {name.replace("_", "-"): v for name, v in headers.items()}, body)


def test_a_page_becomes_a_reading_of_each_gpu() -> None:
    with serving() as served:
        scrape = once(served.target)
    assert not scrape.error
    assert len(scrape.readings) == 8
    assert scrape.target == f"http://{served.target}/metrics"
    assert scrape.asked_ms == NOW_MS
    assert served.asked[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answered(401), "HTTP 401: give username and password_file"),
        (answered(403), "HTTP 403: give username"),
        (answered(400), "does it speak https?"),
        (answered(404), "HTTP 404: is the path right"),
        (answered(500), "HTTP 500: the exporter has a problem of its own"),
        (answered(204), "HTTP 204"),
        (answered(302, Location=f"http://a:{SECRET}@b/m?t={SECRET}"), "sends on to 'http://b/m'"),
        (answered(200, b"<html>", Content_Type="text/html; charset=utf-8"), "a web page"),
        (answered(200, b"<html><body>no</body></html>"), "no counter of a GPU"),
        (answered(200), "an empty page"),
        (answered(200, b" \n\n"), "an empty page"),
        (answered(200, b"up 1\n"), "no counter of a GPU"),
        (answered(200, bytes(range(256)) * 100), "no counter of a GPU"),
        (answered(200, PAGE, Content_Length=str(len(PAGE) * 2)), "broke off in the middle"),
        (answered(200, b"#" * 20_000_000), "more than 16 MiB"),
        (answered(200, b"\x1f\x8b?" * 9, Content_Encoding="gzip"), "broke off in the middle"),
    ],
)  # fmt: skip
def test_what_is_no_page_is_told_in_one_line_that_helps(answer: Answer, said: str) -> None:
    with serving(answer) as served:
        scrape = once(served.target)
    assert said in scrape.error
    assert not scrape.readings
    assert "\n" not in scrape.error
    assert SECRET not in scrape.error


def test_a_page_that_unpacks_to_too_much_is_refused() -> None:
    with serving(
        answered(200, gzip.compress(b"#" * 40_000_000), Content_Encoding="gzip")
    ) as served:
        scrape = once(served.target)
    assert "more than 16 MiB" in scrape.error


def test_a_page_that_is_packed_though_not_asked_for_is_read() -> None:
    with serving(answered(200, gzip.compress(PAGE), Content_Encoding="gzip")) as served:
        scrape = once(served.target)
    assert len(scrape.readings) == 8


def test_what_speaks_no_http_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        scrape = once(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert scrape.error == "the answer is no HTTP"


def test_a_target_that_is_down_or_slow_costs_no_other() -> None:
    release = threading.Event()

    def slow(asked: Asked) -> Reply:
        release.wait(20)
        return page(asked)

    with serving() as good, serving(slow) as hanging, closed_port() as port:
        targets = (
            good.target,
            hanging.target,
            f"127.0.0.1:{port}",
            "no-such-host.invalid:9400",
            "a\\b:9400",
        )
        with exporter(*targets, timeout=Duration.parse("1s")) as source:
            fine, late, down, unknown, none = source.scrape(NOW_MS)
        release.set()
    assert len(fine.readings) == 8
    assert late.error == "no answer within 1s"
    assert "connection refused" in down.error
    assert unknown.error == "there is no host 'no-such-host.invalid'"
    assert none.error == "that is no URL"


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens on, and nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_connection_is_kept_for_the_next_round() -> None:
    with serving() as served, exporter(served.target) as source:
        for turn in range(3):
            (scrape,) = source.scrape(NOW_MS + turn * 10_000)
            assert not scrape.error
        assert len({asked.port for asked in served.asked}) == 1


def test_an_exporter_that_is_started_anew_is_read_again() -> None:
    with serving() as served:
        port = served.port
        source = build(ExporterSettings(targets=(f"127.0.0.1:{port}",)), secret=lambda *_: "")
        assert not source.scrape(NOW_MS)[0].error
    with closing(source):
        assert "connection refused" in source.scrape(NOW_MS + 10_000)[0].error
        with serving(port=port):
            (scrape,) = source.scrape(NOW_MS + 20_000)
    assert len(scrape.readings) == 8


def test_three_hundred_targets_are_asked_at_once() -> None:
    there = threading.Barrier(300)

    def together(asked: Asked) -> Reply:
        there.wait(20)  # nobody is answered before all have asked
        return page(asked)

    with serving(together) as served:
        targets = tuple(f"http://{served.target}/metrics?node={n}" for n in range(300))
        with exporter(*targets, timeout=Duration.parse("20s")) as source:
            scrapes = source.scrape(NOW_MS)
    assert len(scrapes) == 300
    assert not any(scrape.error for scrape in scrapes)


def test_what_is_remembered_of_a_target_goes_with_it(tmp_path: Path) -> None:
    names = tmp_path / "targets.json"
    with serving() as served:
        settings = ExporterSettings(files=(str(names),), refresh=Duration.parse("1s"))
        with closing(build(settings, secret=lambda *_: "")) as source:
            for turn in range(5):
                urls = [f"{served.target}/{turn}/{n}" for n in range(10)]
                names.write_bytes(msgspec.json.encode([{"targets": urls}]))
                assert len(source.scrape(NOW_MS + turn * 10_000)) == 10
            assert source.remembered == 10


def test_the_clock_of_a_target_is_told_at_first() -> None:
    with serving() as served, exporter(served.target) as source:
        first, second = (source.scrape(NOW_MS + turn)[0] for turn in range(2))
    assert first.time_ms is not None
    assert abs(first.time_ms / 1000 - time.time()) < 60
    assert second.time_ms is None  # it costs too much to be read each time


def test_a_user_and_a_password_are_sent() -> None:
    with serving() as served:
        once(served.target, username="prom", password_env="P", password=SECRET + "ä")
        once(f"http://own:p%40ss@{served.target}/metrics", bearer=SECRET)
        once(served.target, bearer=SECRET)
    sent = [asked.headers["authorization"] for asked in served.asked]
    assert basic(sent[0]) == f"prom:{SECRET}ä"
    assert basic(sent[1]) == "own:p@ss"  # the target's own go before the source's
    assert sent[2] == f"Bearer {SECRET}"


def test_a_token_is_sent_as_its_file_has_it_at_each_round(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")

    def answer(asked: Asked) -> Reply:
        good = asked.headers["authorization"] == f"Bearer {token.read_text()}"
        return page(asked) if good else (401, {}, b"")

    with serving(answer) as served:
        settings = ExporterSettings(targets=(served.target,), bearer_file=str(token))
        with closing(source(settings)) as exporter:
            for text in ("first", "second"):  # service accounts' tokens change every hour
                token.write_text(text)
                assert exporter.scrape(NOW_MS)[0].readings
            token.unlink()
            with pytest.raises(
                SourceError, match=f"bearer_file: {token} cannot be read: No such"
            ):
                exporter.scrape(NOW_MS)
            token.write_text("third")
            assert exporter.scrape(NOW_MS)[0].readings
            served.answer = lambda _: (401, {}, b"")
            error = exporter.scrape(NOW_MS)[0].error
            assert f"HTTP 401: the token in {token} was refused" in error
            assert "third" not in error


def basic(header: str) -> str:
    kind, _, value = header.partition(" ")
    assert kind == "Basic"
    return base64.b64decode(value).decode()


def test_a_password_that_is_refused_is_told_with_its_place_and_not_shown() -> None:
    with serving(answered(401)) as served:
        configured = once(served.target, username="ofu", password_env="P", password=SECRET)
        own = once(f"http://ofu:{SECRET}@{served.target}/metrics")
    assert "the password of 'ofu' in $P was refused" in configured.error
    assert "the password in its address was refused" in own.error
    assert SECRET not in configured.error + own.error


@pytest.mark.parametrize("status", [200, 302, 401, 500])
def test_no_secret_is_shown(status: int) -> None:
    location = f"http://user:{SECRET}@elsewhere/?token={SECRET}"
    with serving(answered(status, PAGE, Location=location)) as served:
        target = f"http://user:{SECRET}@{served.target}/metrics?token={SECRET}"
        scrape = once(target, bearer=SECRET)
        assert served.asked[0].path == f"/metrics?token={SECRET}"
    down = once(target)
    assert SECRET not in repr((scrape, down))


def test_an_address_that_cannot_be_read_is_shown_as_stars() -> None:
    assert without_secrets("http://[half/") == "***"


def test_tls_is_checked_by_the_ca_that_is_named(certificate: tuple[Path, Path]) -> None:
    made, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    with serving(tls=context) as served:
        target = f"https://{served.target}"
        trusted = once(target, ca_file=str(made))
        unknown = once(target)
        unchecked = once(target, verify=False)
        plain = once(served.target)
    assert len(trusted.readings) == len(unchecked.readings) == 8
    assert unknown.error.startswith("TLS: ")
    assert "ca_file" in unknown.error
    assert plain.error
    assert not plain.readings


def test_a_target_that_speaks_http_is_told_from_one_whose_certificate_is_unknown() -> None:
    with serving() as served:
        error = once(f"https://{served.target}").error
    assert "speaks http, no https; write http://" in error
    assert "ca_file" not in error


def test_a_ca_file_that_is_none_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        settings = ExporterSettings(targets=("a:1",), ca_file=str(path))
        with pytest.raises(SourceError, match="ca_file"):
            build(settings, secret=lambda *_: "")


def test_a_source_whose_places_name_nobody_says_so(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[]")
    with (
        exporter(files=(f"{tmp_path}/*.json",)) as source,
        pytest.raises(SourceError, match="no target to scrape"),
    ):
        source.scrape(NOW_MS)


def test_a_place_that_cannot_be_read_is_told_beside_the_targets(tmp_path: Path) -> None:
    with serving() as served, exporter(served.target, files=(str(tmp_path / "no"),)) as source:
        fine, place = source.scrape(NOW_MS)
    assert fine.readings
    assert place.target == str(tmp_path / "no")
    assert "cannot be read" in place.error


def test_closing_ends_the_thread() -> None:
    before = threading.active_count()
    with serving() as served:
        once(served.target)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [one for one in threading.enumerate() if one.name.startswith("scrape:")]
