"""What most verbs begin with: the configuration, the content, and a way to the store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from detector.cli import EXIT_UNAVAILABLE, fail

if TYPE_CHECKING:
    import redis

    from detector.analysis.judge import Content
    from detector.config import Config
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

    own = Path("config.toml")
    try:
        return load(path or (own if own.exists() else None))
    except ContentErrors as errors:
        fail("\nofuwatch: ".join(str(problem) for problem in errors.problems))


def read_content(models: Path, rules: Path) -> "Content":
    """Return models and rules, or leave with all of their errors."""
    from detector.content import ContentErrors, load

    try:
        return load(models, rules)
    except ContentErrors as errors:
        fail("\nofuwatch: ".join(str(problem) for problem in errors.problems))


@contextmanager
def opened(config_file: Path | None) -> "Iterator[tuple[Config, redis.Redis, Keys]]":
    """Open the store for a verb that looks or asks, as a guest of a running service."""
    from detector.store.connection import open_store
    from detector.store.errors import StoreError
    from detector.store.keys import Keys

    config = read_config(config_file)
    try:
        store = open_store(config.redis, attach=True)
        try:
            yield config, store.client, Keys(config.redis.prefix)
        finally:
            store.close()
    except StoreError as error:
        fail(str(error), code=EXIT_UNAVAILABLE)
