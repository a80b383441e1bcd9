"""DCGM's host engine on this node, through the bindings that DCGM's packages bring.

The engine is never started from here: a second one beside the node's own takes the counters
from it. :class:`DcgmSettings` refuses an address that would.
"""

import os
import re
import secrets
import socket
from collections.abc import Iterator

import msgspec

from detector.series import Duration, below, refuse
from detector.telemetry.worker import NodeSource, Reader, serve

_ADDRESS = re.compile(
    r"unix:///\S+|(\[[\da-fA-F:]+\]|[^\s:/\[\]]+)(:(?P<port>\d{1,5}))?", re.ASCII
)


class DcgmSettings(
    msgspec.Struct,
    tag_field="type",
    tag="dcgm",
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """``[[source]]`` with ``type = "dcgm"``.

    Attributes
    ----------
    host
        What this node is called in readings; "" for its host name.
    address
        The host engine's: ``host[:port]``, with 5555 where there is no port, or
        ``unix:///path`` of its socket.
    bindings
        The folder of ``pydcgm.py``; "" looks where NVIDIA's packages put it.
    interval
        What one sample of the profiling counters stands for; clocks are sampled every second.
    deadline
        How long the engine may take to answer before the process that asks it is killed.
    """

    name: str = "dcgm"
    host: str = ""
    address: str = "127.0.0.1:5555"
    bindings: str = ""
    interval: Duration = Duration.parse("10s")
    deadline: Duration = Duration.parse("8s")

    def __post_init__(self) -> None:
        """Refuse what would start an engine, and paces that DCGM has no values for."""
        refuse(self._wrong())

    def _wrong(self) -> Iterator[str]:
        if self.address.strip().removeprefix("unix://") in ("", "embedded", "none"):
            yield (
                "address must name the node's host engine (127.0.0.1:5555, or unix:///path): "
                "none would start a second one, which takes the counters from the first"
            )
        elif not (host := _ADDRESS.fullmatch(self.address.strip())) or (
            int(host["port"] or 1) not in range(1, 65_536)
        ):
            yield f"address must be host, host:port or unix:///path, not {self.address!r}"
        # 100 ms is DCGM's floor; clocks are sampled once a second.
        yield from below("interval", self.interval, Duration(1_000))
        # 3 s of them are for connecting.
        yield from below("deadline", self.deadline, Duration(5_000))


def build(settings: DcgmSettings) -> NodeSource:
    """Return the source; its process starts with the first scrape."""
    return NodeSource(
        settings.name,
        "detector.telemetry.dcgm",
        settings={
            "address": settings.address,
            "bindings": settings.bindings,
            "host": settings.host or socket.gethostname(),
            "interval_ms": int(settings.interval),
        },
        target=settings.address,
        deadline_s=settings.deadline / 1000,
        hint="if it lasts, systemctl restart nvidia-dcgm, and dmesg | grep Xid for a lost GPU",
        # Two samples of the profiling counters, and a second for them to be taken.
        settle_s=2 * settings.interval / 1000 + 1,
    )


def _reader(line: bytes) -> Reader:
    from detector.telemetry.dcgm_bindings import find
    from detector.telemetry.dcgm_engine import Engine

    told = msgspec.json.decode(line)
    return Engine(
        find(told["bindings"]), address=told["address"], interval_ms=told["interval_ms"],
        host=told["host"], tag=f"ofuwatch-{os.getpid()}-{secrets.token_hex(4)}",
    )  # fmt: skip


if __name__ == "__main__":
    serve(_reader)
