"""Sends prepared commands to Redis as fast as a socket takes them."""

import socket
from collections.abc import Iterable, Sequence

import hiredis


class Wire:
    """A connection that sends raw commands and only looks whether the replies are errors."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = hiredis.Reader()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, commands: bytes, count: int) -> None:
        """Send ``count`` commands and wait for their replies.

        Raises
        ------
        RuntimeError
            When a reply is an error.
        """
        self._socket.sendall(commands)
        while count:
            self._reader.feed(self._socket.recv(1 << 20))
            while (reply := self._reader.gets()) is not False:
                if isinstance(reply, hiredis.ReplyError):
                    msg = f"the server refused a prepared command: {reply}"
                    raise RuntimeError(msg)
                count -= 1

    def send_all(self, commands: Iterable[Sequence[str | bytes | int]]) -> None:
        """Send commands given as their arguments, a hundred at a time."""
        batch: list[bytes] = []
        for command in commands:
            batch.append(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]
            if len(batch) == 100:
                self.send(b"".join(batch), len(batch))
                batch = []
        self.send(b"".join(batch), len(batch))

    def set_hashes(self, hashes: Iterable[tuple[str, dict[str, bytes]]]) -> None:
        """Write whole hashes; an empty one is none."""
        self.send_all(
            ("HSET", key, *(argument for pair in fields.items() for argument in pair))
            for key, fields in hashes
            if fields
        )
