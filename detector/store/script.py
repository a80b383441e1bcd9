"""The Lua scripts beside this file, and pipelines of commands: replies or one clear error."""

import re
from importlib.resources import files
from typing import Any

import redis
from redis.client import Pipeline
from redis.commands.core import Script

from detector.store.errors import translate
from detector.store.server import address

# Redis 6.2 puts this before the error of a command that a script called.
_IN_SCRIPT = re.compile(r"^.*@user_script: ?\d+: -?")


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
    try:
        replies = pipeline.execute(raise_on_error=False)
    except redis.RedisError as error:
        raise translate(error, address(pipeline)) from None
    for reply in replies:
        if isinstance(reply, redis.ResponseError):
            reply.args = (_IN_SCRIPT.sub("", str(reply)),)
        if isinstance(reply, redis.RedisError):
            raise translate(reply, address(pipeline)) from None
    return replies
