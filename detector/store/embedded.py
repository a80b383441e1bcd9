"""The server that ofuwatch starts for itself when none is configured.

It listens on a unix socket only, keeps an append-only file under the state folder and dies
with the process that started it, even when that one is killed with SIGKILL (on Linux; macOS
cannot ask for that, there the next start ends what was left). Two locks keep order in
``<state>/store``: ``owner.lock`` is held by the owning process, ``server.lock`` is inherited
by the server, so that a server that outlives its owner for a moment is waited for.
"""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from detector.store.binary import find_binary
from detector.store.errors import StoreError, Trouble
from detector.store.server_log import last_words

# sun_path holds 108 bytes on Linux and 104 on macOS, the closing zero included.
_SOCKET_BYTES = 103
# A server's log line is about 100 bytes and comes at a rewrite of the file: years of them.
_LOG_BYTES = 4_000_000
# chosen: a start takes 0.05 s; loading is waited for however long it takes.
_START_S = 15.0
# A verb that only reads may own the server for the moment that it runs.
_PATIENCE_S = 2.0

# Asks the kernel for SIGTERM at the parent's death, makes sure that the parent did not die
# before it could ask, and becomes the server. A separate interpreter, because Python code
# between fork and exec (preexec_fn) can deadlock in a process with threads.
_LAUNCH = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None, use_errno=True).prctl(1, 15, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGTERM
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class _Record(msgspec.Struct, frozen=True):
    """What the owner writes into its lock for others to read."""

    pid: int
    server: int
    socket: str
    binary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedServer:
    """A running server: our own, or another process's that we are a guest of.

    Attributes
    ----------
    state
        The folder that it was started for.
    socket
        Path of its unix socket; the same at every start.
    pid
        Of the server itself.
    binary
        Which program it is.
    owned
        Whether this process started it, and stops it.
    """

    state: Path
    socket: Path
    pid: int
    binary: Path
    owned: bool
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _locks: list[int] = field(default_factory=list, repr=False)

    def alive(self) -> bool:
        """Whether the server still runs."""
        if self._process is not None:
            return self._process.poll() is None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> None:
        """End our own server, its data safe on disk; a guest leaves quietly."""
        if self._process is not None:
            _end(self._process)
        while self._locks:
            os.close(self._locks.pop())


def start(state: Path, *, attach: bool = False, wait_s: float = _START_S) -> EmbeddedServer:
    """Start the server on ``<state>/store`` and return once it answers.

    Parameters
    ----------
    attach
        Whether to be the guest of a process that already runs it, instead of refusing.
    wait_s
        How long to wait for an answer, seconds; loading an old file is not counted.

    Raises
    ------
    StoreError
        When another process owns the folder, no server program is there, the folder cannot
        be used, or the server does not come up; the message says which and what to do.
    """
    try:
        folder = _private(state / "store")
        owner = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
        patience_s = 0.0 if attach else _PATIENCE_S
        if _soon_locked(owner, patience_s):
            return _launch(folder, owner, wait_s=wait_s)
        os.close(owner)
    except StoreError:
        raise
    except OSError as error:
        msg = (
            f"cannot keep the embedded server's data in {state}: {error.strerror}; free or "
            "allow the folder, or set `state` under [redis] to another one"
        )
        raise StoreError(msg) from None
    if attach:
        return _attached(folder, wait_s=wait_s)
    holder = _record(folder)
    who = f"process {holder.pid}" if holder else "another process"
    msg = (
        f"{who} already runs the embedded server in {state}, and shares it with nobody: to "
        "split the work, give all parts one `url` under [redis]; for another fleet, set "
        "another `state`"
    )
    raise StoreError(msg)


def _launch(folder: Path, owner: int, *, wait_s: float) -> EmbeddedServer:
    """Start the server as the holder of ``owner.lock``, whose descriptor ``owner`` is."""
    locks = [owner]
    process = None
    try:
        last = _record(folder)
        os.ftruncate(owner, 0)
        binary = find_binary(last.binary if last else "")
        locks.append(os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600))
        _await_end(locks[1], last)
        socket = _socket(folder)
        socket.unlink(missing_ok=True)
        process = _spawn(_command(binary, folder, socket), folder, inherit=locks[1])
        _await_answer(process, folder, socket, wait_s=wait_s)
        record = _Record(os.getpid(), process.pid, str(socket), str(binary))
        os.pwrite(owner, msgspec.json.encode(record), 0)
    except BaseException:
        if process is not None:
            _end(process)
        for lock in locks:
            os.close(lock)
        raise
    return EmbeddedServer(
        state=folder.parent,
        socket=socket,
        pid=process.pid,
        binary=binary,
        owned=True,
        _process=process,
        _locks=locks,
    )


def _command(binary: Path, folder: Path, socket: Path) -> list[str]:
    data = _private(folder / "data")
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "save": "",
        "appendonly": "yes",
        # everysec may answer before it writes while a sync is under way: a server killed then
        # forgets what was sent, and it is sent again. Measured: 0.2 ms a single command
        "appendfsync": "always",
        # a crash of the machine may cut the last entry: the rest must load all the same
        "aof-load-truncated": "yes",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    command = [str(binary)]
    for name, value in options.items():
        command += [f"--{name}", value]
    return command


def _spawn(command: list[str], folder: Path, *, inherit: int) -> subprocess.Popen[bytes]:
    """Start the command so that it gets SIGTERM when this process ends, however it ends.

    The kernel sends that signal when the *thread* that forked ends. So a thread of its own
    forks, and then lives exactly as long as the server: it waits for it.
    """
    log = folder / "server.log"
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(folder / "server.log.1")
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
    started: Future[subprocess.Popen[bytes]] = Future()

    def keep() -> None:
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    launch,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(inherit,),
                    start_new_session=True,  # Ctrl-C is for us: we stop the server last
                )
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        process.wait()

    threading.Thread(target=keep, name="embedded-store", daemon=True).start()
    return started.result()


def _await_answer(
    process: subprocess.Popen[bytes], folder: Path, socket: Path, *, wait_s: float
) -> None:
    """Return once the server answers; while it loads, patience has no end."""
    deadline = time.monotonic() + wait_s
    while process.poll() is None:
        answer = _ping(socket)
        if answer == "pong":
            return
        if answer == "none" and time.monotonic() > deadline:
            msg = f"the embedded server does not answer; look at {folder / 'server.log'}"
            raise StoreError(msg, kind=Trouble.UNREACHABLE)
        time.sleep(0.005)
    msg = (
        f"the embedded server did not start: {last_words(folder / 'server.log')}; "
        f"look at {folder / 'server.log'}"
    )
    raise StoreError(msg, kind=Trouble.UNREACHABLE)


def _ping(socket: Path) -> str:
    """Return ``pong``, ``loading`` or ``none``."""
    with redis.Redis(
        unix_socket_path=str(socket),
        socket_timeout=1.0,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    ) as client:
        try:
            client.ping()
        except redis.exceptions.BusyLoadingError:
            return "loading"
        except redis.RedisError:
            return "none"
    return "pong"


def _attached(folder: Path, *, wait_s: float) -> EmbeddedServer:
    """Return the server of the process that owns the folder, once it answers."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        record = _record(folder)
        if record is not None and _ping(Path(record.socket)) == "pong":
            return EmbeddedServer(
                state=folder.parent,
                socket=Path(record.socket),
                pid=record.server,
                binary=Path(record.binary),
                owned=False,
            )
        time.sleep(0.01)
    msg = (
        f"another process owns the embedded server in {folder}, but it does not answer; "
        f"look at {folder / 'server.log'}"
    )
    raise StoreError(msg, kind=Trouble.UNREACHABLE)


def _await_end(lock: int, last: _Record | None) -> None:
    """Return once no earlier server holds ``lock``; one that lost its owner is told to end."""
    if _locked(lock):
        return
    if last is not None:
        # It holds the lock, so it lives, and its pid cannot be another's by now
        with contextlib.suppress(ProcessLookupError):
            os.kill(last.server, signal.SIGTERM)
    if _soon_locked(lock, 15.0):  # chosen: far above what a shutdown with a sync takes
        return
    who = f" (pid {last.server})" if last else ""
    msg = f"an earlier embedded server{who} does not end; end it by hand"
    raise StoreError(msg)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _soon_locked(descriptor: int, patience_s: float) -> bool:
    """Whether the lock on the open file became ours before ``patience_s`` were over."""
    deadline = time.monotonic() + patience_s
    while not _locked(descriptor):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _locked(descriptor: int) -> bool:
    """Whether the lock on the open file is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _record(folder: Path) -> _Record | None:
    """Return what the present or last owner wrote; None before it has."""
    try:
        return msgspec.json.decode((folder / "owner.lock").read_bytes(), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _socket(folder: Path) -> Path:
    """Return where the socket goes: in ``folder``, or somewhere short when that is too long."""
    socket = folder / "socket"
    if len(os.fsencode(socket)) <= _SOCKET_BYTES:
        return socket
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    short = _private(Path(runtime) / f"ofuwatch-{os.getuid()}-{name}") / "socket"
    if len(os.fsencode(short)) <= _SOCKET_BYTES:
        return short
    msg = f"the path {short} is too long for a unix socket; set a shorter `state` under [redis]"
    raise StoreError(msg)


def _private(folder: Path) -> Path:
    """Return ``folder``, made if need be, which is ours alone.

    Raises
    ------
    OSError
        When it cannot be made, or is someone else's: a shared folder such as /tmp may hold
        a folder that was planted there.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid():
        msg = f"{folder} belongs to another user"
        raise PermissionError(1, msg)
    folder.chmod(0o700)
    return folder.absolute()
