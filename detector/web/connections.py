"""Connections that may wait, but not for ever and not in the way of others.

uvicorn cuts a connection that idles between two requests. One that never sends a whole request
it keeps, and counts against its limit of connections, above which it refuses everybody. Here a
request must be whole in time, and where there are too many connections the one that has waited
longest is cut for the new one.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

# Chosen: a quarter of the 1,024 files that a process may have open by default; senders are few
# and quick.
MOST = 256


class Connection(H11Protocol):
    """One connection; uvicorn's ``timeout_keep_alive`` is how long any wait may last, s."""

    _deadline: asyncio.TimerHandle | None = None
    _since_s = 0.0
    _between = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait, in the place of who has waited longest if there are too many."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST:
            others = (one for one in self.connections if isinstance(one, Connection))
            waiting = [one for one in others if not one.is_answered and one is not self]
            if waiting:
                min(waiting, key=lambda one: one._since_s).cut()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first ones of a request begin its time."""
        if self._between:
            self._wait()
            self._between = False
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._between = True
        if not self.transport.is_closing():
            self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    @property
    def is_answered(self) -> bool:
        """Whether a whole request is being answered."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def cut(self) -> None:
        """End it without another word, unless its request is being answered."""
        if not self.is_answered:
            self.transport.abort()

    def _wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._since_s = self.loop.time()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self.cut)
