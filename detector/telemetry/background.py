"""Work beside the rounds, in threads that no exit waits for."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_background(call: Callable[[], T], *, name: str) -> Future[T]:
    """Make a call in a thread of its own; its exception is raised where the answer is read."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # it is raised where the answer is read
            answer.set_exception(error)

    Thread(target=work, name=name, daemon=True).start()
    return answer


def ahead(items: Iterator[T], *, name: str) -> Iterator[T]:
    """Yield items, each made while the one before it is used."""
    pending = in_background(partial(next, items, None), name=name)
    while (item := pending.result()) is not None:
        pending = in_background(partial(next, items, None), name=name)
        yield item
