import threading
from collections.abc import Iterator

import pytest

from detector.telemetry.background import ahead


def test_the_next_item_is_made_while_one_is_used() -> None:
    made = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        made.set()
        yield 2

    found = ahead(items(), name="items")
    assert next(found) == 1
    assert made.wait(10)
    assert list(found) == [2]


def test_what_was_made_before_a_failure_is_handed_out_first() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        msg = "gone"
        raise OSError(msg)

    found = ahead(items(), name="items")
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(OSError, match="gone"):
        next(found)
