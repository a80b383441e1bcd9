"""A real HTTP server on loopback that plays the other side, and keeps what it was sent."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request as it arrived; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@contextmanager
def serving(
    answer: Answer, *, path: str = "/", received: list[Received] | None = None
) -> Iterator[str]:
    """The URL of a server that answers each POST with ``answer``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if received is not None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                received.append(Received(path=self.path, headers=headers, body=body))
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{path}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def status(code: int, *, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
    """Answer with this status, body and headers."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer
