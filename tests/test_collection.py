"""What the log is told of sources: each trouble once, and when a place is well again."""

from detector.collection import Troubles

_DOWN, _SLOW = "a:9400: connection refused", "a:9400: no answer within 5 s"


def _round(troubles: Troubles, *lines: str) -> tuple[list[str], list[str]]:
    return troubles.step((line[:6], line) for line in lines)


def test_a_place_is_told_once_for_each_reason() -> None:
    troubles = Troubles()
    assert _round(troubles, _DOWN) == ([_DOWN], [])
    assert _round(troubles, _DOWN) == ([], [])
    assert _round(troubles, _SLOW) == ([_SLOW], [])
    assert _round(troubles, _DOWN) == ([], [])


def test_a_place_is_well_after_three_good_rounds_in_a_row() -> None:
    troubles = Troubles()
    _round(troubles, _DOWN)
    for lines in ([], [], [_DOWN], [], []):
        assert _round(troubles, *lines) == ([], [])
    assert _round(troubles) == ([], [_DOWN])
    assert _round(troubles) == ([], [])
    assert _round(troubles, _DOWN) == ([_DOWN], [])


def test_a_place_with_another_trouble_has_not_recovered() -> None:
    troubles = Troubles()
    _round(troubles, _DOWN)
    for _ in range(5):
        assert _round(troubles, _SLOW)[1] == []


def test_places_recover_each_by_itself() -> None:
    troubles, other = Troubles(), "b:9400: connection refused"
    _round(troubles, _DOWN, other)
    told = [_round(troubles, other)[1] for _ in range(4)]
    assert told == [[], [], [_DOWN], []]
