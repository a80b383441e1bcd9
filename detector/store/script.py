"""The Lua scripts beside this file, and pipelines of commands: replies or one clear error."""

import re
from importlib.resources import files
from typing import Any

import redis
from redis.client import Pipeline
from redis.commands.core import Script

from detector.store.errors import StoreError, Trouble, translate, trouble
from detector.store.server import address

# Redis 6.2 puts this before the error of a command that a script called.
_IN_SCRIPT = re.compile(r"^.*@user_script: ?\d+: -?")

# Errors that speak of some keys; all others speak of the server.
_LOCAL = {Trouble.WRONG_TYPE, Trouble.OTHER}


def script(client: redis.Redis, name: str) -> Script:
    """Return the script in ``<name>.lua``, ready to be called on pipelines of ``client``."""
    source = files("detector.store").joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return client.register_script(source)


def answers(pipeline: Pipeline) -> list[Any]:
    """Run the pipeline's commands and return their replies.

    Raises
    ------
    StoreError
        When one of them failed; the others were carried out all the same.
    """
    replies = outcomes(pipeline)
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies


def outcomes(pipeline: Pipeline) -> list[Any]:
    """Run the pipeline's commands and return their replies, or errors in their places.

    An error that speaks of a command's keys stands in that command's place: keys that are
    broken in one shard must not stop the other shards.

    Raises
    ------
    StoreError
        When the server cannot be used.
    """
    commands = [args for args, _ in pipeline.command_stack]
    try:
        replies: list[Any] = pipeline.execute(raise_on_error=False)
    except redis.RedisError as error:
        raise translate(error, address(pipeline)) from None
    return [
        _error(reply, command, pipeline) if isinstance(reply, redis.RedisError) else reply
        for reply, command in zip(replies, commands, strict=True)
    ]


def _error(error: redis.RedisError, command: tuple[Any, ...], pipeline: Pipeline) -> StoreError:
    """Return what a failed command means when it is local, else raise it."""
    if isinstance(error, redis.ResponseError):
        error.args = (_IN_SCRIPT.sub("", str(error)),)
    if trouble(error) not in _LOCAL:
        raise translate(error, address(pipeline)) from None
    # EVALSHA <hash> <number of keys> <key>..., others <command> <key>...
    key = str(command[3] if command[0] == "EVALSHA" else command[1])
    keys = key.partition("}")[0] + "}:*"
    return translate(error, f"{address(pipeline)} (keys {keys})")
