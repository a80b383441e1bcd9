"""``[web]`` of ``config.toml``, apart from the server, which takes a while to load."""

import ipaddress
from urllib.parse import urlsplit

import msgspec


class WebSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[web]``.

    Attributes
    ----------
    listen
        ``host:port``; "" for no HTTP at all.
    token_file, token_env
        Where the token is that senders show. Needed where others than this host can connect.
    """

    listen: str = ""
    token_file: str = ""
    token_env: str = ""

    def __post_init__(self) -> None:
        """Refuse an address that is none, and a door that is open to the network."""
        if not self.listen:
            return
        host, _ = self.address
        if not (self.token_file or self.token_env) and not _is_loopback(host):
            msg = (
                f"listen {self.listen!r} is reachable from other hosts: name a token with "
                "token_file or token_env, or listen on 127.0.0.1"
            )
            raise ValueError(msg)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port.

        Raises
        ------
        ValueError
            When ``listen`` is not ``host:port``.
        """
        try:
            parts = urlsplit(f"//{self.listen}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or port is None or parts.path:
            msg = f'listen must look like "127.0.0.1:9467", not {self.listen!r}'
            raise ValueError(msg)
        return host, port


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
