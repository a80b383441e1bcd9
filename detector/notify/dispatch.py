"""The dispatcher: takes what is owed out of the outbox, has it sent, and settles the outcome.

    claim a due lane -> attempt -> deliver -> sent: done | retry: postpone | refused: bury

At least once, in order within a lane: a notice leaves the outbox only when its receiver took
it, will never take it, or has not taken it for a day. Receivers take turns, one lane at a time,
so that none waits for another's backlog; a receiver that fails again and again is left alone
for a while, and one that asks to wait is waited for. A receiver that raises, or follow-up work
that fails (a chart), holds back nothing else.
"""

import random
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Literal, Protocol, assert_never

import msgspec
import structlog

from detector.incident.ledger import Claim, Notice
from detector.notify.receiver import Attempt, Outcome, Policy, Receiver, Refused, Retry, Sent
from detector.notify.ruling import Ending, Ruling, ruling, wish_ms
from detector.series import Duration, below, refuse

log = structlog.get_logger(__name__)


class Outbox(Protocol):
    """Where notices wait. Raises when the store is out of reach."""

    def claim(
        self, receivers: Collection[str], *, now_ms: int, lease_ms: int, limit: int
    ) -> tuple[Claim, ...]:
        """Return at most ``limit`` due lanes, which are the caller's for ``lease_ms``."""
        ...

    def done(
        self,
        claim: Claim,
        *,
        count: int,
        receipt: str | None,
        follow_ups: tuple[Notice, ...],
        now_ms: int,
    ) -> bool:
        """Take the first ``count`` notices off and queue ``follow_ups`` at the end."""
        ...

    def postpone(
        self, claim: Claim, *, due_ms: int, reason: str, maybe_sent: bool, counts: bool
    ) -> bool:
        """Give the lane back until ``due_ms``."""
        ...

    def bury(self, claim: Claim, *, count: int, reason: str, now_ms: int) -> bool:
        """Move the first ``count`` notices to the dead letters."""
        ...


class DispatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[delivery]`` of config.toml.

    Attributes
    ----------
    lease
        For how long a lane is claimed: longer than the longest delivery, or a second
        dispatcher sends it too.
    burst
        Deliveries of one receiver in one pass; the rest waits for the next pass.
    breaker_failures, breaker_pause
        After so many failures in a row a receiver is left alone for so long, then tried once.
    """

    # chosen: a Slack delivery is at most six calls of 15 s each
    lease: Duration = Duration(300_000)
    # chosen: Slack takes one message a second, so a pass is at most about two minutes
    burst: int = 100
    # chosen: five in a row is no accident; a pass costs a dead endpoint 5 x 15 s at most
    breaker_failures: int = 5
    # chosen: half a minute of outage after the end of an outage is tolerable
    breaker_pause: Duration = Duration(30_000)

    def __post_init__(self) -> None:
        """Refuse what would never deliver."""
        refuse(
            (
                *below("lease", self.lease, Duration(1_000)),
                *below("burst", self.burst, 1),
                *below("breaker_failures", self.breaker_failures, 1),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One try and what became of it, with why.

    Attributes
    ----------
    result
        ``sent``; ``retry`` later; set aside as ``dead_letter``; ``dropped`` (a follow-up that
        failed); ``lost``: another dispatcher had taken the lane over meanwhile, so it may be
        sent twice; ``unsettled``: the outbox could not be told, which is tried again.
    number
        Which try at the lane's head this was.
    time_ms
        Wall time of the try.
    """

    receiver: str
    notice: Notice
    result: Ending | Literal["lost", "unsettled"]
    reason: str
    number: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchReport:
    """What a pass did.

    Attributes
    ----------
    paused
        Receivers that are left alone now -> until when.
    more
        Whether a receiver had more than a burst to send: pass again at once.
    """

    deliveries: tuple[Delivery, ...] = ()
    paused: Mapping[str, int] = field(default_factory=dict)
    more: bool = False


@dataclass(slots=True, kw_only=True)
class _Gate:
    """Whether a receiver may be tried: its circuit breaker and the provider's own wish."""

    failures: int = 0
    shut_until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A claim whose notice at ``place`` was tried for the ``number``-th time."""

    claim: Claim
    place: int
    number: int
    outcome: Outcome
    ruling: Ruling


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unsettled:
    """An outcome that the outbox could not be told, and until when telling it helps."""

    tell: Callable[[], bool]
    until_ms: int


class Dispatcher:
    """Empties the outbox of the receivers it is given; one thread's."""

    def __init__(
        self,
        outbox: Outbox,
        receivers: Sequence[Receiver],
        *,
        settings: DispatchSettings | None = None,
        rng: random.Random | None = None,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the outbox and whom to serve.

        Parameters
        ----------
        rng
            For jitter, so that lanes which failed together are not tried together.
        stopwatch
            Seconds since any fixed moment: how long deliveries took within a pass.
        """
        self._outbox = outbox
        self._receivers = tuple(receivers)
        self._settings = settings or DispatchSettings()
        self._rng = rng or random.Random()
        self._stopwatch = stopwatch
        self._gates = {receiver.name: _Gate() for receiver in receivers}
        self._unsettled: list[_Unsettled] = []

    def run_once(
        self, now_ms: int, *, stop: Callable[[], bool] = lambda: False
    ) -> DispatchReport:
        """Deliver what is due at ``now_ms`` (wall time), a burst for each receiver at most.

        ``stop`` is asked before each delivery: what is left waits for another dispatcher.
        Raises whatever the outbox raises when nothing can be claimed.
        """
        begin = self._stopwatch()

        def clock() -> int:
            return now_ms + round(1000 * (self._stopwatch() - begin))

        self._settle_rest(now_ms)
        deliveries: list[Delivery] = []
        busy = list(self._receivers)
        for _ in range(self._settings.burst):
            tried = [
                (receiver, None if stop() else self._next(receiver, clock)) for receiver in busy
            ]
            deliveries += [delivery for _, delivery in tried if delivery is not None]
            busy = [receiver for receiver, delivery in tried if delivery is not None]
            if not busy:
                break
        now_ms = clock()
        shut = {name: gate.shut_until_ms for name, gate in self._gates.items()}
        return DispatchReport(
            deliveries=tuple(deliveries),
            paused={name: until for name, until in shut.items() if until > now_ms},
            more=bool(busy),
        )

    def _next(self, receiver: Receiver, clock: Callable[[], int]) -> Delivery | None:
        """Serve the receiver's longest-due lane; None when it has none or is left alone."""
        now_ms = clock()
        if now_ms < self._gates[receiver.name].shut_until_ms:
            return None
        claims = self._outbox.claim(
            (receiver.name,), now_ms=now_ms, lease_ms=self._settings.lease, limit=1
        )
        for claim in claims:
            place = _place(claim.notices, receiver.policy)
            attempt = Attempt(
                notice=claim.notices[place],
                skipped=tuple(one for one in claim.notices[:place] if not one.follow_up),
                receipt=claim.receipt,
                number=claim.attempts + 1,
                maybe_sent=claim.maybe_sent,
                now_ms=now_ms,
            )
            outcome = _deliver(receiver, attempt)
            now_ms = clock()
            self._mind(receiver.name, attempt, outcome, now_ms=now_ms)
            ruled = ruling(attempt, outcome, policy=receiver.policy, rng=self._rng)
            tried = _Tried(
                claim=claim, place=place, number=attempt.number, outcome=outcome, ruling=ruled
            )
            return self._settle(tried, now_ms=now_ms)
        return None

    def _mind(self, name: str, attempt: Attempt, outcome: Outcome, *, now_ms: int) -> None:
        """Let the outcome open or shut the receiver's gate."""
        gate = self._gates[name]
        match outcome:
            case Retry(after_ms=int(after_ms)):
                gate.shut_until_ms = now_ms + wish_ms(after_ms)
                log.warning("receiver_asks_to_wait", receiver=name, wait_ms=wish_ms(after_ms))
            case Retry() if attempt.notice.follow_up:
                pass  # a chart that can't be drawn says nothing about the receiver
            case Retry():
                gate.failures += 1
                if gate.failures >= self._settings.breaker_failures:
                    pause_ms = self._settings.breaker_pause
                    gate.shut_until_ms = now_ms + pause_ms
                    log.warning("receiver_left_alone", receiver=name, wait_ms=int(pause_ms))
            case Sent() | Refused():
                gate.failures = 0  # refused or not: there is somebody who answers
            case _:
                assert_never(outcome)

    def _settle(self, tried: _Tried, *, now_ms: int) -> Delivery:
        """Tell the outbox what came of the claim, and say so in the log."""
        claim, ruled = tried.claim, tried.ruling
        tell = partial(_tell, self._outbox, tried, now_ms=now_ms)
        result: Ending | Literal["lost", "unsettled"] = ruled.result
        try:
            if not tell():
                result = "lost"
        except Exception as error:
            # The store went away in mid-send. Told again later, while the claim is still ours,
            # it spares the receiver a second copy.
            until_ms = now_ms + self._settings.lease
            self._unsettled.append(_Unsettled(tell=tell, until_ms=until_ms))
            log.warning("outbox_not_told", lane=claim.lane, error=type(error).__name__)
            result = "unsettled"
        delivery = Delivery(
            receiver=claim.receiver,
            notice=claim.notices[tried.place],
            result=result,
            reason=ruled.reason,
            number=tried.number,
            time_ms=now_ms,
        )
        _log(delivery, wait_ms=ruled.wait_ms)
        return delivery

    def _settle_rest(self, now_ms: int) -> None:
        """Tell the outbox what it could not be told before."""
        rest, self._unsettled = self._unsettled, []
        for one in rest:
            try:
                one.tell()
            except Exception as error:
                log.warning("outbox_not_told", error=type(error).__name__)
                if now_ms < one.until_ms:
                    self._unsettled.append(one)


def _place(notices: Sequence[Notice], policy: Policy) -> int:
    """Which of a lane's notices is sent: follow-ups wait behind everything else."""
    alerts = [place for place, notice in enumerate(notices) if not notice.follow_up]
    if not alerts:
        return 0
    return alerts[-1] if policy == "latest" else alerts[0]


def _deliver(receiver: Receiver, attempt: Attempt) -> Outcome:
    """Have the receiver send; a receiver that raises has failed, and nothing else has."""
    try:
        return receiver.deliver(attempt)
    except Exception as error:
        # The class and the place: the message may hold anything, a secret too.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.error(
            "receiver_raised",
            receiver=receiver.name,
            error=type(error).__name__,
            place=f"{PurePath(frame.filename).name}:{frame.lineno}",
        )
        return Retry(reason=f"the receiver raised {type(error).__name__}")


def _tell(outbox: Outbox, tried: _Tried, *, now_ms: int) -> bool:
    """Tell the outbox how a claim ended; False when the claim had passed on."""
    claim, outcome, count = tried.claim, tried.outcome, tried.place + 1
    match tried.ruling:
        case Ruling(result="dead_letter", reason=reason):
            return outbox.bury(claim, count=count, reason=reason, now_ms=now_ms)
        case Ruling(result="retry", reason=reason, wait_ms=wait_ms, counts=counts):
            return outbox.postpone(
                claim,
                due_ms=now_ms + wait_ms,
                reason=reason,
                maybe_sent=isinstance(outcome, Retry) and outcome.ambiguous,
                counts=counts,
            )
    sent = outcome if isinstance(outcome, Sent) else Sent()  # or dropped
    return outbox.done(
        claim,
        count=count,
        receipt=sent.receipt,
        follow_ups=_follow_ups(claim.notices, tried.place, sent.follow_ups),
        now_ms=now_ms,
    )


def _follow_ups(
    notices: Sequence[Notice], place: int, wanted: Sequence[str]
) -> tuple[Notice, ...]:
    """What to queue behind a notice that was sent: what it wants, and what it overtook."""
    sent = notices[place]
    if sent.follow_up:
        return ()
    overtaken = (one.follow_up for one in notices[:place] if one.follow_up)
    waiting = {one.follow_up for one in notices[place + 1 :]}
    names = [name for name in dict.fromkeys((*overtaken, *wanted)) if name not in waiting]
    return tuple(
        Notice(receiver=sent.receiver, transition=sent.transition, follow_up=name)
        for name in names
    )


def _log(delivery: Delivery, *, wait_ms: int) -> None:
    transition = delivery.notice.transition
    told = log.bind(
        receiver=delivery.receiver,
        incident=transition.incident.id,
        transition=transition.type,
        attempt=delivery.number,
    )
    if delivery.notice.follow_up:
        told = told.bind(follow_up=delivery.notice.follow_up)
    if delivery.reason:
        told = told.bind(reason=delivery.reason)
    match delivery.result:
        case "sent":
            told.info("delivered")
        case "retry":
            told.warning("delivery_failed", again_in_ms=wait_ms)
        case "dead_letter":
            told.error("dead_letter")
        case "dropped":
            told.warning("follow_up_dropped")
        case "lost":
            told.warning("claim_lost")
        case "unsettled":
            pass  # said where it happened
        case _:
            assert_never(delivery.result)
