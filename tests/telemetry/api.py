"""A JSON API on loopback or on a unix socket, as the tests want it to answer."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question: the path with its query, and the headers in lower case."""

    path: str
    headers: Mapping[str, str]


Reply = tuple[int, object]


@dataclass(slots=True, kw_only=True)
class Api:
    """A running server; ``answer`` may be changed while it runs."""

    answer: Callable[[Asked], Reply]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def serving(answer: Callable[[Asked], Reply], *, unix: Path | None = None) -> Iterator[Api]:
    """Serve ``answer``: a status and a body, as JSON unless it is bytes."""
    api = Api(answer=answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(path=self.path, headers=headers)
            api.asked.append(asked)
            status, content = api.answer(asked)
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

        def address_string(self) -> str:
            return "here"  # a unix socket has no address to name

    server: socketserver.BaseServer
    if unix is None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        api.url = f"http://127.0.0.1:{server.server_address[1]}"
    else:
        server = _UnixServer(str(unix), Handler)
        api.url = f"unix://{unix}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
