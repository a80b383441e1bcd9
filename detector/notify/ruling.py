"""What an outcome means for its lane: gone, again later, or set aside. Pure."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from detector.notify.receiver import Attempt, Outcome, Policy, Refused, Retry, Sent

Ending = Literal["sent", "retry", "dead_letter", "dropped"]

_S, _M, _H = 1_000, 60_000, 3_600_000

# Waits between the tries at a lane's head, ms; when they are used up it is a dead letter.
_RETRIES: Mapping[Policy, tuple[int, ...]] = {
    # People wait for these: seconds at first, each minute for an hour, then for a day.
    "latest": (*(k * _S for k in (1, 2, 4, 8, 16, 32)), *(_M,) * 59, *(15 * _M,) * 92),
    # Standard Webhooks 1.0, "Deliverability and reliability": 75.6 h in all.
    "every": (5 * _S, 5 * _M, 30 * _M, *(k * _H for k in (2, 5, 10, 14, 20, 24))),
}
# A follow-up illustrates what was said already. It is given up soon, since the lane's next
# notice waits meanwhile.
_FOLLOW_UP_RETRIES = (5 * _S, 30 * _S)

# A provider's wish to be left alone is obeyed up to a day; chosen: as long as an incident stays
# interesting, so that a nonsensical header can't silence a receiver for years.
_LONGEST_WISH_MS = 24 * _H


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What an outcome means for the lane: its result, and when it is tried again.

    Attributes
    ----------
    result
        ``sent``; ``retry`` after ``wait_ms``; set aside as ``dead_letter``; ``dropped``, for
        a follow-up that failed for good.
    counts
        Whether it was a failed try: a provider that asks to wait has refused nothing.
    """

    result: Ending
    reason: str
    wait_ms: int = 0
    counts: bool = True


def ruling(attempt: Attempt, outcome: Outcome, *, policy: Policy, rng: random.Random) -> Ruling:
    """Return what is to be done about the notice of a lane with this policy."""
    given_up: Ending = "dropped" if attempt.notice.follow_up else "dead_letter"
    match outcome:
        case Sent():
            return Ruling(result="sent", reason=outcome.note)
        case Refused():
            return Ruling(result=given_up, reason=outcome.reason)
        case Retry(after_ms=int(after_ms)):
            wait_ms = wish_ms(after_ms)
            return Ruling(result="retry", reason=outcome.reason, wait_ms=wait_ms, counts=False)
        case Retry():
            waits = _FOLLOW_UP_RETRIES if attempt.notice.follow_up else _RETRIES[policy]
            if attempt.number > len(waits):
                reason = f"given up after {attempt.number} tries: {outcome.reason}"
                return Ruling(result=given_up, reason=reason)
            # Spread over a whole wait about its middle: full jitter (from 0 on) would halve
            # the time that a receiver may be down.
            wait_ms = round(waits[attempt.number - 1] * rng.uniform(0.5, 1.5))
            return Ruling(result="retry", reason=outcome.reason, wait_ms=wait_ms)
        case _:
            assert_never(outcome)


def wish_ms(after_ms: int) -> int:
    """How long a provider that asks to wait is left alone, ms; a second at the least."""
    return min(max(after_ms, _S), _LONGEST_WISH_MS)
