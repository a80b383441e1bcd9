"""States as structs of arrays, one column a series: cut, joined, packed.

A state is a dataclass whose every field is an array with the columns on its first axis. That is
all these functions know about it, so they serve the states of all baselines.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from detector.series import FloatArray, IntArray


@dataclass(slots=True, kw_only=True)
class Columns:
    """What the columns of every baseline remember.

    Attributes
    ----------
    last_ms
        Time of the latest sample, usable or not; 0 before the first. Shape ``(columns,)``.
    """

    last_ms: IntArray

    def __len__(self) -> int:
        return len(self.last_ms)


C = TypeVar("C", bound=Columns)


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """A state on its way to the store: whose, of which version, how many columns, what."""

    kind: str
    version: int
    columns: int
    arrays: dict[str, tuple[str, tuple[int, ...], bytes]]


def names(kind: type[Columns]) -> tuple[str, ...]:
    """Return the names of the arrays that a state of this kind holds."""
    # As dataclasses.fields, which takes ten times as long.
    return tuple(kind.__dataclass_fields__)


def array(state: Columns, name: str) -> FloatArray:
    """Return one array of a state by its name."""
    held: FloatArray = getattr(state, name)
    return held


def _made(kind: type[C], arrays: Iterable[tuple[str, Any]]) -> C:
    return kind(**dict(arrays))


def copied(state: C) -> C:
    """Return a state that shares no array with this one."""
    kind = type(state)
    return _made(kind, ((name, array(state, name).copy()) for name in names(kind)))


def taken(state: C, columns: IntArray) -> C:
    """Return the state of these columns alone, in this order."""
    kind = type(state)
    return _made(kind, ((name, array(state, name)[columns]) for name in names(kind)))


def written(state: C, columns: IntArray, part: C) -> None:
    """Write the columns of ``part`` over these columns of ``state``, in place."""
    for name in names(type(state)):
        array(state, name)[columns] = array(part, name)


def joined(state: C, more: C) -> C:
    """Return the columns of ``state`` followed by those of ``more``."""
    kind = type(state)
    return _made(
        kind,
        (
            (name, np.concatenate([array(state, name), array(more, name)]))
            for name in names(kind)
        ),
    )


def packed(state: Columns, version: int) -> bytes:
    """Return the state as bytes that :func:`unpacked` reads back, bit for bit."""
    kind = type(state)
    arrays = {
        name: (value.dtype.str, value.shape[1:], value.tobytes())
        for name in names(kind)
        for value in [array(state, name)]
    }
    return msgspec.msgpack.encode(_Packed(kind.__name__, version, len(state), arrays))


def unpacked(blank: C, version: int, blob: bytes) -> C:
    """Return the state in ``blob``, of the same kind as ``blank``.

    Raises
    ------
    ValueError
        When the blob was written by another version of the state or is damaged: the caller
        starts cold.
    """
    try:
        found = msgspec.msgpack.decode(blob, type=_Packed)
    except msgspec.MsgspecError as error:
        msg = f"packed state is damaged ({error}); start cold"
        raise ValueError(msg) from error
    kind = type(blank)
    expected = {
        name: (value.dtype.str, value.shape[1:])
        for name in names(kind)
        for value in [array(blank, name)]
    }
    shapes = {name: (dtype, shape) for name, (dtype, shape, _) in found.arrays.items()}
    if (found.kind, found.version, shapes) != (kind.__name__, version, expected):
        msg = f"packed state is a {found.kind} of version {found.version}, not {kind.__name__} "
        msg += f"of version {version}; start cold"
        raise ValueError(msg)
    return _made(
        kind,
        (
            (name, np.frombuffer(raw, dtype).reshape((found.columns, *shape)).copy())
            for name, (dtype, shape, raw) in found.arrays.items()
        ),
    )
