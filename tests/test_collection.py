"""What the log is told of sources: each trouble once, and when a place is well again."""

from detector.collection import Troubles

_DOWN, _SLOW = "a:9400: connection refused", "a:9400: no answer within 5 s"


def test_a_place_is_told_once_for_each_reason() -> None:
    troubles = Troubles()
    assert troubles.step([_DOWN]) == ([_DOWN], [])
    assert troubles.step([_DOWN]) == ([], [])
    assert troubles.step([_SLOW]) == ([_SLOW], [])
    assert troubles.step([_DOWN]) == ([], [])


def test_a_place_is_well_after_three_good_rounds_in_a_row() -> None:
    troubles = Troubles()
    troubles.step([_DOWN])
    for lines in ([], [], [_DOWN], [], []):
        assert troubles.step(lines) == ([], [])
    assert troubles.step([]) == ([], [_DOWN])
    assert troubles.step([]) == ([], [])
    assert troubles.step([_DOWN]) == ([_DOWN], [])


def test_a_place_with_another_trouble_has_not_recovered() -> None:
    troubles = Troubles()
    troubles.step([_DOWN])
    for _ in range(5):
        assert troubles.step([_SLOW])[1] == []


def test_places_recover_each_by_itself() -> None:
    troubles, other = Troubles(), "b:9400: connection refused"
    troubles.step([_DOWN, other])
    told = [troubles.step([other])[1] for _ in range(4)]
    assert told == [[], [], [_DOWN], []]
