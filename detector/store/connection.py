"""The way to Redis: which server, with what patience, and whether it is fit for its task.

Timeouts are short and nothing is tried twice behind the caller's back: the tick comes again in
ten seconds, and what a lost reply left undone only the caller can tell.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from detector.store import embedded
from detector.store.binary import OLDEST
from detector.store.embedded import EmbeddedServer
from detector.store.errors import StoreError, Trouble, translate
from detector.store.keys import Keys
from detector.store.server import address

# chosen: a server in the same data centre connects in milliseconds; a tick must not hang.
_CONNECT_S = 3.0
# A load of 8 shards of 10,000 jobs takes a tenth of a second; a saving server may stall longer.
_ANSWER_S = 10.0


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[redis]`` of config.toml.

    Attributes
    ----------
    url
        ``redis://``, ``rediss://`` (TLS) or ``unix://``; empty takes $REDIS_URL, and without
        that the embedded server.
    password_file
        File that holds the password, so that it need not stand in the address.
    prefix
        What every key begins with.
    state
        Folder of the embedded server's data; empty is ``$XDG_STATE_HOME/ofuwatch``, else
        ``~/.local/state/ofuwatch``.
    tls_ca_file
        Certificates to trust for ``rediss://`` instead of the system's.
    """

    url: str = ""
    password_file: str = ""
    prefix: str = "ofu"
    state: str = ""
    tls_ca_file: str = ""

    def __post_init__(self) -> None:
        """Refuse a prefix that keys cannot begin with."""
        try:
            Keys(self.prefix)
        except ValueError as error:
            msg = f"prefix: {error}"
            raise ValueError(msg) from None

    def folder(self, environ: Mapping[str, str] = os.environ) -> Path:
        """Return the state folder that these settings mean."""
        if self.state:
            return Path(self.state).expanduser()
        home = environ.get("XDG_STATE_HOME")
        return (Path(home) if home else Path("~/.local/state").expanduser()) / "ofuwatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server says of itself.

    Attributes
    ----------
    engine
        ``valkey`` or ``redis``.
    used_bytes, max_bytes
        Memory in use and its limit; 0 is no limit.
    policy
        What it does at the limit (``maxmemory-policy``).
    aof
        Whether it writes an append-only file: without, a crash loses what came after the
        last snapshot.
    saving
        Whether its last write to disk went well.
    """

    engine: str
    version: tuple[int, ...]
    used_bytes: int
    max_bytes: int
    policy: str
    aof: bool
    saving: bool
    loading: bool
    replica: bool
    cluster: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An open way to the store.

    Attributes
    ----------
    server
        The embedded server, when it is that.
    chosen
        Which server was taken and why, for the log; holds no password.
    """

    client: redis.Redis
    server: EmbeddedServer | None
    chosen: str

    def revived(self) -> "Store":
        """Return the store with its embedded server running again, if that is ours and died.

        The client, and whatever was built on it, goes on as it is: the socket is the same.
        """
        if self.server is None or not self.server.owned or self.server.alive():
            return self
        self.server.stop()
        return replace(self, server=embedded.start(self.server.state))

    def close(self) -> None:
        """Close the connections, and stop the embedded server if it is ours."""
        self.client.close()
        if self.server is not None:
            self.server.stop()


def open_store(
    settings: RedisSettings,
    *,
    attach: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Store:
    """Return a store that answers and is fit for its task: the configured, else the embedded.

    Parameters
    ----------
    attach
        Whether to be the guest of a process that already runs the embedded server.

    Raises
    ------
    StoreError
        When it cannot be reached or used; one line that says what to do.
    """
    url = settings.url or environ.get("REDIS_URL", "")
    if url:
        client = connect(settings, environ=environ)
        source = "[redis] url" if settings.url else "$REDIS_URL"
        store = Store(client=client, server=None, chosen=f"{address(client)} ({source})")
    else:
        server = embedded.start(settings.folder(environ), attach=attach)
        client = _client(f"unix://{quote(str(server.socket))}")
        whose = "embedded" if server.owned else "embedded, of another process"
        store = Store(client=client, server=server, chosen=f"{server.binary} ({whose})")
    try:
        refuse(inspect(client), where=address(client))
    except BaseException:
        store.close()
        raise
    return store


def connect(settings: RedisSettings, *, environ: Mapping[str, str] = os.environ) -> redis.Redis:
    """Return a client of the configured server; nothing is sent yet.

    Raises
    ------
    StoreError
        When no server is configured, its address is none, or the password cannot be read.
    """
    url = settings.url or environ.get("REDIS_URL", "")
    if not url:
        msg = "no store is configured; set `url` under [redis], or $REDIS_URL"
        raise StoreError(msg)
    options: dict[str, Any] = {}
    if settings.password_file:
        options["password"] = _password(Path(settings.password_file).expanduser())
    if settings.tls_ca_file and url.startswith("rediss:"):
        options["ssl_ca_certs"] = settings.tls_ca_file
    return _client(url, **options)


def inspect(client: redis.Redis) -> ServerFacts:
    """Ask the server what it is; also the first contact, which explains any refusal.

    Raises
    ------
    StoreError
        When it does not answer, or refuses.
    """
    try:
        facts: dict[str, Any] = client.info()
    except (redis.RedisError, OSError) as error:
        raise _refusal(error, address(client)) from None
    engine = "valkey" if "valkey_version" in facts else "redis"
    version = str(facts.get(f"{engine}_version", "0"))
    return ServerFacts(
        engine=engine,
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        used_bytes=int(facts.get("used_memory", 0)),
        max_bytes=int(facts.get("maxmemory", 0)),
        policy=str(facts.get("maxmemory_policy", "")),
        aof=bool(facts.get("aof_enabled")),
        saving="err"
        not in (facts.get("aof_last_write_status"), facts.get("rdb_last_bgsave_status")),
        loading=bool(facts.get("loading")),
        replica=facts.get("role") in ("slave", "replica"),
        cluster=bool(facts.get("cluster_enabled")),
    )


def refuse(facts: ServerFacts, *, where: str) -> None:
    """Raise StoreError when ofuwatch cannot work with such a server at all."""
    if facts.cluster:
        msg = (
            f"the store at {where} is a cluster, which is not supported yet; point `url` at a "
            "single server"
        )
        raise StoreError(msg)
    if facts.engine == "redis" and facts.version < OLDEST:
        version = ".".join(str(part) for part in facts.version)
        msg = f"the store at {where} is Redis {version}; run Redis 6.2 or later, or Valkey"
        raise StoreError(msg, kind=Trouble.TOO_OLD)


def problems(facts: ServerFacts) -> tuple[str, ...]:
    """Return what makes the server unfit to be trusted with alerts, each in one line."""
    found = []
    if facts.loading:
        found.append("the store is still loading its data; wait")
    if facts.replica:
        found.append("the store is a read-only replica; point `url` at the primary")
    if facts.max_bytes and facts.policy != "noeviction":
        found.append(
            f"the store evicts keys when it is full (maxmemory-policy {facts.policy}), which "
            "loses alerts silently; set maxmemory-policy noeviction"
        )
    # chosen: one tenth is hours of growth, time to act
    if facts.max_bytes and facts.used_bytes > 0.9 * facts.max_bytes:
        share = facts.used_bytes / facts.max_bytes
        found.append(f"the store is {share:.0%} full; raise maxmemory or keep less history")
    if not facts.aof:
        found.append(
            "the store writes no append-only file: a crash loses what came after its last "
            "snapshot; set appendonly yes"
        )
    if not facts.saving:
        found.append("the store cannot save to its disk; free space and look at its log")
    return tuple(found)


def _client(url: str, **options: Any) -> redis.Redis:
    if options.get("password") is None:
        options.pop("password", None)
    try:
        client = redis.Redis.from_url(
            url,
            socket_connect_timeout=_CONNECT_S,
            socket_timeout=_ANSWER_S,
            health_check_interval=30,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **options,
        )
        client.connection_pool.make_connection()  # connects to nothing: checks the options
    except (ValueError, TypeError, redis.RedisError):
        msg = (
            f"{_shown(url)} is no address of a store; write redis://HOST:PORT/DB, "
            "rediss://HOST:PORT/DB or unix:///PATH"
        )
        raise StoreError(msg) from None
    return client


def _shown(url: str) -> str:
    """Return a URL without whatever may be a secret in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "what `url` under [redis] or $REDIS_URL holds"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme and host else "the url"


def _password(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        msg = f"cannot read the store's password from {path}: {reason}"
        raise StoreError(msg, kind=Trouble.WRONG_PASSWORD) from None


def _refusal(error: Exception, where: str) -> StoreError:
    """Return the error of a first contact; a failed TLS handshake says why it failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            msg = (
                f"the store at {where} and ofuwatch agree on no TLS connection "
                f"({cause.reason or 'handshake failed'}); check the certificate, "
                "`tls_ca_file`, and that the port speaks TLS"
            )
            return StoreError(msg, kind=Trouble.UNREACHABLE)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, redis.RedisError):
        return translate(error, where)
    return translate(redis.ConnectionError(), where)
