"""What can be wrong with the store, in one clear line that says what to do.

No message here repeats what the server or the client said: their texts may carry arguments
of commands, and an address may carry a password.
"""

import re
from enum import StrEnum

import redis

_USERINFO = re.compile(r"//\S*@")


class Trouble(StrEnum):
    """What kind of trouble a store is in."""

    UNREACHABLE = "unreachable"
    WRONG_PASSWORD = "wrong_password"
    FORBIDDEN = "forbidden"
    READ_ONLY = "read_only"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_TYPE = "wrong_type"
    LOADING = "loading"
    NOT_PERSISTING = "not_persisting"
    TOO_OLD = "too_old"
    OTHER = "other"


_ADVICE = {
    Trouble.UNREACHABLE: "does not answer; check that the server runs, its address and port, "
    "and the network between",
    Trouble.WRONG_PASSWORD: "refuses the login; check the user and the password in the store's "
    "address or in its password file",
    Trouble.FORBIDDEN: "does not allow this user the command or the key; extend the user's ACL "
    "to all commands of streams, hashes, keys, scripts and transactions on the prefix's keys",
    Trouble.READ_ONLY: "is a read-only replica; point the address at the primary",
    Trouble.OUT_OF_MEMORY: "is full (maxmemory is reached); raise maxmemory or shorten "
    "`history.keep`, and leave the policy at noeviction",
    Trouble.WRONG_TYPE: "holds a key of another type where ofuwatch keeps its own; delete or "
    "rename that key, or choose another key prefix",
    Trouble.LOADING: "is still loading its data; wait, it is tried again",
    Trouble.NOT_PERSISTING: "refuses writes because it cannot save to its disk; free disk "
    "space and look at the server's log",
    Trouble.TOO_OLD: "does not know a command that is needed; run Redis 6.2 or later, or "
    "Valkey",
    Trouble.OTHER: "answered with an error that ofuwatch does not know; look at the server's "
    "log",
}

_BY_CODE = {
    "OOM": Trouble.OUT_OF_MEMORY,
    "READONLY": Trouble.READ_ONLY,
    "NOPERM": Trouble.FORBIDDEN,
    "NOAUTH": Trouble.WRONG_PASSWORD,
    "WRONGPASS": Trouble.WRONG_PASSWORD,
    "WRONGTYPE": Trouble.WRONG_TYPE,
    "LOADING": Trouble.LOADING,
    "MISCONF": Trouble.NOT_PERSISTING,
    "BUSY": Trouble.UNREACHABLE,
    "MASTERDOWN": Trouble.UNREACHABLE,
    "CLUSTERDOWN": Trouble.UNREACHABLE,
}


class StoreError(OSError):
    """The store could not do what was asked; the message is one line and says what to do."""

    def __init__(self, message: str, *, kind: Trouble = Trouble.OTHER) -> None:
        super().__init__(message)
        self.kind = kind


def trouble(exc: redis.RedisError) -> Trouble:
    """Return what kind of trouble ``exc`` speaks of."""
    match exc:
        case redis.exceptions.BusyLoadingError():
            return Trouble.LOADING
        case redis.AuthenticationError() | redis.exceptions.AuthorizationError():
            return Trouble.WRONG_PASSWORD
        case redis.exceptions.NoPermissionError():
            return Trouble.FORBIDDEN
        case redis.exceptions.ReadOnlyError():
            return Trouble.READ_ONLY
        case redis.exceptions.OutOfMemoryError():
            return Trouble.OUT_OF_MEMORY
        case redis.ConnectionError() | redis.TimeoutError():
            return Trouble.UNREACHABLE
        case redis.ResponseError():
            return _by_text(str(exc))
    return Trouble.OTHER


def translate(exc: redis.RedisError, where: str) -> StoreError:
    """Return the error to raise for ``exc``; ``where`` is the store's address."""
    kind = trouble(exc)
    address = _USERINFO.sub("//", where)
    return StoreError(f"the store at {address} {_ADVICE[kind]}", kind=kind)


def _by_text(text: str) -> Trouble:
    # A pipeline puts "Command # 1 (...) of pipeline caused error: " before the server's text.
    text = text.rsplit("caused error: ", 1)[-1]
    if text.lower().startswith("unknown command"):
        return Trouble.TOO_OLD
    return _BY_CODE.get(text.split(" ", 1)[0], Trouble.OTHER)
