"""The one place where commands of the histories meet the Redis client.

Replies come as the server sent them: the client's own decoding of replies costs more than the
rest of a read (42 against 18 ms of CPU for the newest entries of 10,000 jobs).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from detector.store.errors import Trouble, translate, trouble

Command = Sequence[bytes | str | int | float]
Reply = Any  # what the server sent: bytes, int, None, list, dict or an error of one command

# Errors that speak of one key or one command; all others stop everything.
_LOCAL = {Trouble.WRONG_TYPE, Trouble.OTHER}


class Server:
    """Runs commands on a standalone server (or a primary); replies are bytes, never decoded.

    Parameters
    ----------
    client
        Shares its connections; its own settings stay as they are. ``decode_responses`` must
        be off.

    Raises
    ------
    StoreError
        From every method, when the server cannot be used at all.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = redis.Redis(connection_pool=client.connection_pool)
        self._client.response_callbacks.clear()
        self.where = address(client)

    def run(self, *command: bytes | str | int | float) -> Reply:
        """Return the reply to one command; an error of that command alone is returned too."""
        return self.pipeline([command])[0]

    def pipeline(self, commands: Iterable[Command]) -> list[Reply]:
        """Return the replies, in order; errors of single commands stand in their places."""
        return self._execute(commands, transaction=False)

    def atomic(self, commands: Iterable[Command]) -> list[Reply]:
        """Run all commands as one transaction."""
        return self._execute(commands, transaction=True)

    def _execute(self, commands: Iterable[Command], *, transaction: bool) -> list[Reply]:
        with self._translated(), self._client.pipeline(transaction=transaction) as pipe:
            for command in commands:
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            replies = pipe.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, redis.RedisError) and trouble(reply) not in _LOCAL:
                    raise reply
            return replies

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as exc:
            raise translate(exc, self.where) from exc


def address(client: redis.Redis) -> str:
    """Return where a client connects to, without user and password."""
    options = client.connection_pool.connection_kwargs
    if "path" in options:
        return f"unix://{options['path']}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}"


def pairs(reply: Reply) -> list[tuple[bytes, Reply]]:
    """Return a map's items, which RESP2 sends as a flat list and RESP3 as a map."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True)) if reply else []
