"""Secrets of ``config.toml``: what it names as such, and what must not stand in it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from detector.tables import ContentErrors, Problem, Table

# Keys under which somebody is likely to write a secret, and what to write instead.
_SECRET_KEYS = {
    "token": "token_file or token_env",
    "bot_token": "token_file or token_env",
    "webhook": "webhook_file",
    "webhook_url": "webhook_file",
    "secret": "secret_file",
    "signing_secret": "secret_file",
    "password": "password_file",
    "bearer": "bearer_file or bearer_env",
    "bearer_token": "bearer_file or bearer_env",
}
# Keys that name a file, or a variable, which must hold something.
_POINTERS = frozenset(
    ("password_file", "password_env", "token_file", "token_env", "webhook_file", "webhook_env",
     "secret_file", "secret_env", "bearer_file", "bearer_env", "ca_file")
)  # fmt: skip


def secret_of(
    settings: msgspec.Struct, kind: str, *, owner: str, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the secret that ``<kind>_file`` or ``<kind>_env`` points to; "" for neither.

    Raises
    ------
    ContentErrors
        When the file can't be read, or the file or the variable is empty.
    """
    for key in (f"{kind}_file", f"{kind}_env"):
        if value := getattr(settings, key, ""):
            text, why = pointed_to(key, value, environ)
            if why:
                problem = Problem(file=Path("config.toml"), path=f"{owner}: {key}", message=why)
                raise ContentErrors([problem])
            return text
    return ""


def unreadable(table: Table) -> Iterator[Problem]:
    """Yield which files and variables that ``config.toml`` names hold nothing that can be read.

    Those of parts too that are wrong otherwise. The store's own are told by who connects to it.
    """
    for path, owner in _owners(table.content):
        if path == "redis":
            continue
        for key in _POINTERS & owner.keys():
            value = owner[key]
            if not isinstance(value, str) or not value:
                continue
            if key.endswith("_file"):
                value = str(table.file.absolute().parent / Path(value).expanduser())
            _, why = pointed_to(key, value, os.environ)
            if why:
                yield table.problem(f"{path}.{key}", why)


def inline_secrets(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Find secrets that stand in the file; each is taken out, to be complained of once."""
    for path, table in _owners(content):
        for key in _SECRET_KEYS.keys() & table.keys():
            del table[key]
            yield (
                f"{path}.{key}",
                f"no secrets in this file: put it into a file of its own (chmod 600) and name "
                f"that with {_SECRET_KEYS[key]}",
            )
        if path.startswith("source"):
            yield from _source_passwords(path, table)
        if path == "redis" and _password_in(table.get("url")):
            yield (
                "redis.url",
                "no passwords in this file: put it into a file of its own (chmod 600) and name "
                "that with password_file, or set $REDIS_URL instead of url",
            )


def masked(text: str) -> str:
    """Hide the password and the query of a URL: both are where people put tokens."""
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
        user, at, host = parts.netloc.rpartition("@")
    except ValueError:
        return "***"
    if ":" in user:
        user = user.partition(":")[0] + ":***"
    query = "***" if parts.query else ""
    return urlunsplit((parts.scheme, f"{user}{at}{host}", parts.path, query, parts.fragment))


def _owners(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Find the tables that may have secrets, with their paths."""
    for name in ("redis", "web", "slurm", "kubernetes", "receiver", "source"):
        if isinstance(table := content.get(name), dict):
            yield name, table
        for k, entry in enumerate(table if isinstance(table, list) else ()):
            if isinstance(entry, dict):
                yield f"{name}[{k}]", entry


def _source_passwords(path: str, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Find passwords in the addresses of a source; those addresses are taken out."""
    advice = (
        "no passwords in this file: name the user with username, and put the password into a "
        "file of its own (chmod 600) that password_file names"
    )
    if _password_in(table.get("url")):
        table["url"] = "http://taken-out"
        yield f"{path}.url", advice
    targets = table.get("targets")
    if isinstance(targets, list) and any(map(_password_in, targets)):
        table["targets"] = [
            f"taken-out-{k}" if _password_in(one) else one for k, one in enumerate(targets)
        ]
        yield f"{path}.targets", advice


def _password_in(url: object) -> bool:
    if isinstance(url, str) and "://" not in url:
        url = f"//{url}"
    try:
        return isinstance(url, str) and urlsplit(url).password is not None
    except ValueError:
        return False


def pointed_to(key: str, value: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return what a file or a variable holds, and why that is nothing.

    Parameters
    ----------
    key
        The setting's name: ``..._env`` names a variable, any other a file.
    """
    if key.endswith("_env"):
        text, why = environ.get(value, ""), f"${value} is not set or empty"
    else:
        try:
            text, why = Path(value).read_text(encoding="utf-8"), f"{value} is empty"
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            return "", f"{value} cannot be read: {reason}"
    return text.strip(), "" if text.strip() else why
