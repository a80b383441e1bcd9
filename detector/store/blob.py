"""How values lie in Redis: one version byte, then MessagePack.

A reader meets blobs that a later or earlier release wrote. Added optional fields are no new
version; a change that old readers would misunderstand is, and they refuse it by the byte.
"""

from typing import TypeVar

import msgspec

_T = TypeVar("_T")

_VERSION = b"\x01"


def encode(value: object) -> bytes:
    """Return ``value`` (a msgspec struct, or plain containers) as a blob."""
    return _VERSION + msgspec.msgpack.encode(value)


def decode(data: bytes, kind: type[_T]) -> _T:
    """Return the value in ``data``.

    Raises
    ------
    ValueError
        When another version wrote it, or it is no ``kind``.
    """
    if data[:1] != _VERSION:
        msg = f"written by another release (version byte {data[:1]!r})"
        raise ValueError(msg)
    try:
        return msgspec.msgpack.decode(data[1:], type=kind)
    except msgspec.MsgspecError as error:
        msg = f"unreadable: {error}"
        raise ValueError(msg) from None
