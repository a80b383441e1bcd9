"""What most verbs begin with: the configuration, the content, and a way to the store."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from detector.cli import EXIT_UNAVAILABLE, fail

if TYPE_CHECKING:
    import redis

    from detector.analysis.judge import Content
    from detector.config import Config
    from detector.content import ContentErrors
    from detector.store.keys import Keys

_F = TypeVar("_F", bound=Callable[..., None])


def config_option(command: _F) -> _F:
    """Add ``--config`` to a verb."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        envvar="OFUWATCH_CONFIG",
        help="Configuration; default: ./config.toml if there is one, else the shipped one.",
    )(command)


def read_config(path: Path | None) -> "Config":
    """Return the configuration, or leave with all of its errors."""
    from detector.config import load
    from detector.content import ContentErrors

    try:
        return load(config_path(path))
    except ContentErrors as errors:
        refused(errors)


def config_path(path: Path | None) -> Path:
    """Return which configuration a verb reads, the same one for every verb."""
    from detector.tables import shipped

    own = Path("config.toml")
    return path or (own if own.exists() else shipped() / "config.toml")


def read_content(models: Path, rules: Path) -> "Content":
    """Return models and rules, or leave with all of their errors."""
    from detector.content import ContentErrors, load

    try:
        return load(models, rules)
    except ContentErrors as errors:
        refused(errors)


def refused(errors: "ContentErrors") -> NoReturn:
    """Leave with all that is wrong, each in one line."""
    fail("\nofuwatch: ".join(str(problem) for problem in errors.problems))


@contextmanager
def opened(config_file: Path | None) -> "Iterator[tuple[Config, redis.Redis, Keys]]":
    """Open the store for a verb that looks or asks, as a guest of a running service.

    Where the service does not run just now, its embedded server is started for the moment; on
    a machine where it never ran, nothing is.
    """
    from detector.store.connection import open_store
    from detector.store.errors import StoreError
    from detector.store.keys import Keys

    config = read_config(config_file)
    folder = config.redis.folder()
    named = config.redis.url or os.environ.get("REDIS_URL")
    if not named and not (folder / "store" / "data").exists():
        fail(
            f"there is no store yet: `ofuwatch serve` makes one in {folder}; a server of your "
            "own is named by `url` under [redis], or by $REDIS_URL",
            code=EXIT_UNAVAILABLE,
        )
    try:
        store = open_store(config.redis, attach=True)
        try:
            yield config, store.client, Keys(config.redis.prefix)
        finally:
            store.close()
    except StoreError as error:
        fail(str(error), code=EXIT_UNAVAILABLE)
