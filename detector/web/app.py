"""The HTTP server: a thread of its own beside the tick, which it never holds up."""

import socket
import threading
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from detector.web.api import Intake, Metrics, reply
from detector.web.connections import Connection
from detector.web.settings import WebSettings

# Chosen: a report is one packet; senders that report every 10 s may keep their connection.
_PATIENCE_S = 15
_SERVED = (
    "nothing is served here but POST /api/v1/jobs/{job}/metrics and GET /healthz; a job's id "
    "is percent-encoded and has no control characters"
)


def application(intake: Intake, *, token: str, clock: Callable[[], int]) -> Starlette:
    """Return all that is served."""
    metrics = Metrics(intake, token=token, clock=clock)

    async def post(request: Request) -> Response:
        return await metrics(request)

    async def healthy(request: Request) -> Response:
        del request
        return reply(200, {"status": "ok"})

    app = Starlette(
        routes=[
            # A job's id may hold slashes: namespace/name.
            Route("/api/v1/jobs/{job:path}/metrics", post, methods=["POST"]),
            Route("/healthz", healthy),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False  # senders do not follow
    return app


async def _refused(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    # What Starlette itself refuses it gives no reason for.
    why = {
        "Not Found": _SERVED,
        "Method Not Allowed": "send one of the methods that Allow names",
    }
    return reply(error.status_code, {"error": why.get(error.detail, error.detail)}, headers)


async def _failed(request: Request, error: Exception) -> Response:
    del request, error  # uvicorn logs it; a sender is told nothing of our insides
    return reply(500, {"error": "a fault of the service; it is in its log"})


class Web:
    """Serves an application until :meth:`close`.

    Parameters
    ----------
    patience_s
        How long a request may take to come, and a connection may wait for its next one, s.

    Raises
    ------
    OSError
        When the address cannot be listened on, in one line.
    """

    def __init__(
        self, settings: WebSettings, app: Starlette, *, patience_s: int = _PATIENCE_S
    ) -> None:
        host, port = settings.address
        try:
            family, _, _, _, bound = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(bound[:2], family=family)
        except OSError as error:
            msg = f"cannot listen on {settings.listen}: {error.strerror or error}"
            raise OSError(msg) from None
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                access_log=False,
                log_level="error",
                server_header=False,
                http=Connection,
                ws="none",
                timeout_keep_alive=patience_s,
                h11_max_incomplete_event_size=16 * 1024,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="web", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """``host:port`` as bound, which shows the port where 0 was asked for."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Answer what is under way and end."""
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()
