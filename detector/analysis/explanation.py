"""Which mistakes come to the ratio that is seen between a reported and a true MFU."""

import math
from dataclasses import dataclass
from itertools import combinations

from detector.analysis.mistakes import Mistake, together

# What fits worse than the best by less than this part of the doubt is tied with it: chosen,
# since the doubt is no more than a bound.
_TIE = 1 / 3
# Two mistakes at once are told up to this commonness taken together: no two seldom ones.
_PAIR_COMMON = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Mistakes that together give ``factor``.

    Attributes
    ----------
    off
        What is left, as a ratio above 0.
    tied
        Whether it fits as well as the best one, as far as the doubt can tell.
    """

    mistakes: tuple[Mistake, ...]
    factor: float
    off: float
    tied: bool


def agrees(ratio: float, *, tolerance: float) -> bool:
    """Return whether a ratio lies within the relative doubt of 1."""
    return abs(math.log(ratio)) <= tolerance


def explanations(
    observed: float, known: tuple[Mistake, ...], *, tolerance: float
) -> tuple[Explanation, ...]:
    """Return what would explain ``observed = reported / true``, the likeliest first.

    One mistake comes before two, and two are told where no single one fits. Those that fit as
    well as the best come first, the commonest before the others; then the rest by how well they
    fit. Nothing is returned when ``observed`` agrees with 1.

    Parameters
    ----------
    tolerance
        The relative doubt in ``observed``; what leaves more unexplained is not returned.
    """
    if agrees(observed, tolerance=tolerance):
        return ()
    for size in (1, 2):
        found = [
            (chosen, factor)
            for chosen in combinations(known, size)
            if _possible(chosen)
            and agrees(observed / (factor := together(chosen)), tolerance=tolerance)
        ]
        if found:
            return _ranked(observed, found, tolerance=tolerance)
    return ()


def _possible(chosen: tuple[Mistake, ...]) -> bool:
    if len(chosen) == 1:
        return True
    one, other = chosen
    return not one.about & other.about and one.common + other.common <= _PAIR_COMMON


def _ranked(
    observed: float, found: list[tuple[tuple[Mistake, ...], float]], *, tolerance: float
) -> tuple[Explanation, ...]:
    def misfit(factor: float) -> float:
        return abs(math.log(observed / factor))

    best = min(misfit(factor) for _, factor in found)
    explained = [
        Explanation(
            mistakes=chosen,
            factor=factor,
            off=observed / factor,
            tied=misfit(factor) - best <= tolerance * _TIE,
        )
        for chosen, factor in found
    ]

    def order(one: Explanation) -> tuple[bool, int, float]:
        common = sum(mistake.common for mistake in one.mistakes) if one.tied else 0
        return not one.tied, common, misfit(one.factor)

    return tuple(sorted(explained, key=order))
