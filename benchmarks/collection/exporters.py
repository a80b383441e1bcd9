"""Exporters that cost little: many in one process, each on a port of its own of loopback.

Started as ``python -m benchmarks.collection.exporters FIRST COUNT``; prints its ports as JSON,
then serves until its input ends. Each page has eight GPUs of its own host, every eight hosts
have a job, and values differ from one scrape to the next.
"""

import asyncio
import json
import random
import sys
from functools import partial
from typing import cast

import uvloop

from benchmarks.collection.parse import page_of

# As many sets of values as are served in turn.
_PAGES = 6
_HOSTS_A_JOB = 8


class _Exporter(asyncio.Protocol):
    """One connection to one exporter."""

    def __init__(self, number: int, pages: list[bytes]) -> None:
        self._number, self._pages = number, pages
        self._turn = number
        self._asked = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's derive from none

    def data_received(self, data: bytes) -> None:
        self._asked += data
        if not self._asked.endswith(b"\r\n\r\n"):
            return
        self._asked = b""
        self._turn += 1
        body = _owned(self._pages[self._turn % _PAGES], self._number)
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)


def _owned(page: bytes, number: int) -> bytes:
    """Return a page as the exporter of host ``number`` has it."""
    page = page.replace(b"GPU-a92d91b0-", b"GPU-%08x-" % number)
    page = page.replace(b"gpu-a-07.", b"gpu-a-%04d." % number)
    return page.replace(b'hpc_job="48213"', b'hpc_job="%d"' % (48_213 + number // _HOSTS_A_JOB))


async def _serve(first: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    chance = random.Random(first)
    pages = [page_of(chance) for _ in range(_PAGES)]
    ports = []
    for number in range(first, first + count):
        made = partial(_Exporter, number, pages)
        server = await loop.create_server(made, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
