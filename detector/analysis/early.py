"""Early candidates: what announcements and the other metrics say before the series alone can.

A fall that lasts a minute may be a checkpoint, an evaluation or a restart, so the series alone
waits until no phase of the job would last as long. A job that announced its phases so far would
have announced this one. What it is known to do at this level is waited for all the same, unless
the other metrics say that it is not that: an evaluation keeps the SMs busy, a stalled host does
not. Both are held to this job's own falls of the last hours, never to absolute figures.

The other metrics alone make no fall early: a checkpoint and a stalled host look alike in all of
them, and two phases at a time like nothing before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from detector.analysis.baselines import Level, Model
from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.analysis.lows import BoolArray
from detector.analysis.phases import CLOCKS, OF_TRAINING, OPEN_PHASE, phases_of
from detector.analysis.quantile import median
from detector.analysis.verify import verify, window_start_ms
from detector.series import ContextEvent, Duration, FloatArray, Series, Window, iso

# How far back falls are looked at. Chosen: three rounds of what recurs every hour.
_LOOKBACK = Duration(10_800_000)
# The same for standstills: a job restarts up to a few times a day.
_STILL_LOOKBACK = Duration(86_400_000)
# So many phases must have been announced, or gone by, to go by them. Chosen: one may be chance.
_LEAST_PHASES = 2
# Standard deviations of a sample within which it is at a fall's level.
_NEAR = 3.0
# Metrics that tell a phase from a slow-down.
_OTHERS = frozenset({"sm", "power", "dram", "pcie", "nvlink"})
# Two falls are of different kinds when a metric takes part in them by shares that differ by so
# much, and by so many standard errors. Chosen: half-way between a busy SM and an idle one would
# be 0.5; a third leaves room for phases that vary.
_APART, _APART_ERRORS = 0.3, 4.0
# Standard error of a median over that of a mean, and samples that neighbours are worth.
_MEDIAN_ERROR, _ALIKE = 1.25, 2.0
_LEAST_SAMPLES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fall:
    """A fall that ended.

    Attributes
    ----------
    start_ms, end_ms
        End of the last sample before it, and of its last one.
    relative
        Its level over the level before.
    event
        The phase that was announced for it.
    shares
        Metric -> which share of OFU's fall it took part in, and its standard error.
    """

    start_ms: int
    end_ms: int
    relative: float
    event: ContextEvent | None
    shares: dict[str, tuple[float, float]]

    @property
    def lasted_ms(self) -> int:
        """How long it lasted, ms."""
        return self.end_ms - self.start_ms

    @property
    def late_ms(self) -> int:
        """How long after its start it was announced, ms."""
        return max(self.event.heard_ms - self.start_ms, 0) if self.event else 0

    @property
    def overrun_ms(self) -> int:
        """How long it went on after the end that was announced, ms."""
        closed = self.event is not None and self.event.span.length_ms > 0
        return max(self.end_ms - self.event.span.end_ms, 0) if closed and self.event else 0


def early_start_ms(candidate: Candidate, model: Model) -> int:
    """Return from when on :func:`verify_early` wants the job's history."""
    still = _stands_still(candidate, model)
    lookback_ms = candidate.onset_ms - (_STILL_LOOKBACK if still else _LOOKBACK)
    return min(lookback_ms, window_start_ms(candidate, model))


def verify_early(candidate: Candidate, window: Window, model: Model) -> Confirmed | Rejected:
    """Return the change that an early candidate is, or why not yet and when to ask again.

    Parameters
    ----------
    window
        The job's history from :func:`early_start_ms` to the candidate's time, with events.
    """
    grounds = _grounds_of(candidate, window, model)
    if isinstance(grounds, Rejected):
        return grounds
    outcome = verify(candidate, window.since(window_start_ms(candidate, model)), model)
    if isinstance(outcome, Confirmed):
        return replace(outcome, grounds=grounds)
    return replace(outcome, again_ms=asked_again_ms(candidate))


def _grounds_of(candidate: Candidate, window: Window, model: Model) -> str | Rejected:
    """Return why a fall is news already, or why not yet and when to ask again."""
    series, baseline = window.series(model.metric), model.baseline
    if series is None or not isinstance(baseline, Level):
        return Rejected(reason=f"the history holds no {model.metric} around the onset")
    events = phases_of(window.events)
    low = series.values < candidate.before - _depth(candidate, baseline)
    others = _Others.of(series, low, window)
    falls = _falls(candidate, series, events, low, others)
    if _stands_still(candidate, model):
        return _hang(candidate, falls, events, baseline)
    since = _counted_from(candidate, events, falls, factor=baseline.habit_factor)
    if isinstance(since, Rejected):
        return since
    heard = [i for i in events if i.kind in OF_TRAINING and i.heard_ms <= candidate.onset_ms]
    if len(heard) < _LEAST_PHASES:
        return Rejected(
            reason="too few phases were announced to go by them",
            again_ms=candidate.time_ms + OPEN_PHASE if events else 0,
        )
    # At the level it has now: a checkpoint before it is another matter.
    near = max(baseline.habit_width * candidate.before, _NEAR * candidate.scale)
    now = low & (series.times_ms > since) & (abs(series.values - candidate.after) <= near)
    present = others.shares(now)
    relative = candidate.after / candidate.before
    alike = [i for i in falls if abs(i.relative - relative) <= baseline.habit_width]
    unlike = [item for item in alike if _differ(item.shares, present)]
    # What the job does at this level, unless the other metrics say that it is not that.
    known = 0.0 if unlike and len(unlike) == len(alike) else float(candidate.known_ms)
    # Known phases are waited for: who stops announcing goes on writing checkpoints.
    longest = _longest_ms([item for item in falls if item not in unlike], baseline)
    wait_ms = max(float(baseline.early), longest, _late_ms(candidate, falls), known)
    if candidate.time_ms - since < wait_ms:
        return _not_yet(since + wait_ms)
    grounds = f"{len(heard)} phases were announced before, this fall was not"
    if unlike and not known:
        grounds += f"; other metrics tell it from all {len(unlike)} falls to this level"
    return grounds


def _hang(
    candidate: Candidate, falls: Sequence[_Fall], events: Sequence[ContextEvent],
    baseline: Level,
) -> str | Rejected:  # fmt: skip
    """Return why a standstill is none of the restarts that the job announces."""
    stills = [item for item in falls if item.relative < baseline.still]
    since = _counted_from(candidate, events, stills, factor=baseline.habit_factor)
    if isinstance(since, Rejected):
        return since
    restarts = [i for i in stills if i.event is not None and i.event.kind == "restart"]
    latest = [item for item in falls if item.lasted_ms >= baseline.early][-1:]
    # Who has stopped announcing does not announce restarts either.
    if not restarts or any(item.event is None for item in latest):
        again_ms = candidate.time_ms + OPEN_PHASE if events else 0
        return Rejected(reason="nothing tells it from a restart", again_ms=again_ms)
    wait_ms = max(
        float(baseline.cap), _longest_ms(stills, baseline), _late_ms(candidate, stills)
    )
    if candidate.time_ms - since < wait_ms:
        return _not_yet(since + wait_ms)
    return f"{len(restarts)} restarts were announced before, this standstill was not"


def _not_yet(until_ms: float) -> Rejected:
    return Rejected(reason="it may still be a phase of the job", again_ms=int(until_ms))


def asked_again_ms(candidate: Candidate) -> int:
    """Return when to ask again about a fall that something explains for now.

    Once it has lasted a third longer: a phase of ten minutes costs a handful of questions.
    """
    return candidate.time_ms + (candidate.time_ms - candidate.onset_ms) // 3


def _longest_ms(falls: Sequence[_Fall], baseline: Level) -> float:
    """Return how long one more of the falls that nobody announced may last."""
    lasted = [item.lasted_ms for item in falls if item.event is None]
    return baseline.habit_margin * max(lasted, default=0)


def _late_ms(candidate: Candidate, falls: Sequence[_Fall]) -> float:
    """Return how long after its start a phase is usually announced, and two samples more."""
    late = [item.late_ms for item in falls if item.event is not None]
    return float(np.median(late)) + 2 * candidate.step_ms if late else 0.0


def _counted_from(
    candidate: Candidate, events: Sequence[ContextEvent], falls: Sequence[_Fall], *,
    factor: float,
) -> int | Rejected:  # fmt: skip
    """Return from when on no announced phase explains the fall, or that one does."""
    since, now = candidate.onset_ms, candidate.time_ms
    for event in events:
        until_ms = _explained_until(event, candidate, falls, factor=factor)
        since = max(since, until_ms)
        if until_ms > now:
            kind = event.kind.replace("_", " ")
            return Rejected(
                reason=f"an announced {kind} explains it (since {iso(event.span.start_ms)})",
                again_ms=min(until_ms, asked_again_ms(candidate)),
            )
    return since


def _explained_until(
    event: ContextEvent, candidate: Candidate, falls: Sequence[_Fall], *, factor: float
) -> int:
    """Return until when a phase explains the fall, as others of its kind went; 0 is not at all.

    How long phases go on after the end that was announced is the clocks' difference too.
    """
    start_ms, end_ms, onset_ms = event.span.start_ms, event.span.end_ms, candidate.onset_ms
    if start_ms > candidate.time_ms + CLOCKS:
        return 0
    alike = [item for item in falls if item.event and item.event.kind == event.kind]
    if event.kind == "planned_change":
        # It explains a lasting fall, however long that lasts.
        return candidate.time_ms + OPEN_PHASE if onset_ms <= end_ms + OPEN_PHASE else 0
    if event.span.length_ms:
        overrun = [item.overrun_ms for item in alike]
        return end_ms + (int(np.median(overrun)) if overrun else 0)
    if event.kind in OF_TRAINING and onset_ms > start_ms + CLOCKS:
        return 0
    if len(alike) < _LEAST_PHASES:
        return start_ms + OPEN_PHASE
    longest = max(item.lasted_ms for item in alike)
    return max(start_ms, onset_ms) + min(int(factor * longest), OPEN_PHASE)


def _stands_still(candidate: Candidate, model: Model) -> bool:
    still = model.baseline.still if isinstance(model.baseline, Level) else 0.0
    return candidate.after < still * candidate.before


def _depth(candidate: Candidate, baseline: Level) -> float:
    """Return how far below the level a sample is low."""
    return max(baseline.deep * candidate.before, baseline.deep_sigmas * candidate.scale)


def _falls(
    candidate: Candidate, series: Series, events: Sequence[ContextEvent], low: BoolArray,
    others: "_Others",
) -> list[_Fall]:  # fmt: skip
    """Return the falls that ended before the present one."""
    # One sample that is back is no end.
    filled = low.copy()
    filled[1:-1] |= low[:-2] & low[2:]
    bounds = np.flatnonzero(np.diff(np.concatenate([[False], filled, [False]]).astype(int)))
    falls = []
    for first, end in bounds.reshape(-1, 2).tolist():
        # How long a fall has lasted that the window begins with is not known.
        if first == 0 or series.times_ms[end - 1] > candidate.onset_ms:
            continue
        if end - first < _LEAST_SAMPLES:
            continue
        start_ms, end_ms = int(series.times_ms[first - 1]), int(series.times_ms[end - 1])
        mine = np.zeros(len(low), bool)
        mine[first + (end - first > 3) : end - (end - first > 3)] = True
        falls.append(
            _Fall(
                start_ms=start_ms,
                end_ms=end_ms,
                relative=median(series.values[mine]) / candidate.before,
                event=_event_of(start_ms, end_ms, events),
                shares=others.shares(mine & low),
            )
        )
    return falls


def _event_of(
    start_ms: int, end_ms: int, events: Sequence[ContextEvent]
) -> ContextEvent | None:
    """Return the phase that was announced for a fall, as far as the clocks agree."""
    for event in events:
        last_ms = event.span.end_ms if event.span.length_ms else event.span.start_ms
        if event.span.start_ms <= end_ms and last_ms >= start_ms - CLOCKS:
            return event
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Others:
    """How the other metrics stand where the series is not low, to hold falls to.

    Attributes
    ----------
    values
        The series' own. Shape ``(n,)``.
    usual
        Its level where it is not low; None where too few samples are.
    metrics
        Metric -> its values at the series' samples, its usual level and relative spread.
    """

    values: FloatArray
    usual: float | None
    metrics: dict[str, tuple[FloatArray, float, float]]

    @classmethod
    def of(cls, series: Series, low: BoolArray, window: Window) -> Self:
        """Return how a window's other metrics stand beside a series."""
        if (~low).sum() < 10 * _LEAST_SAMPLES:
            return cls(values=series.values, usual=None, metrics={})
        rows = np.searchsorted(window.times_ms, series.times_ms)
        metrics: dict[str, tuple[FloatArray, float, float]] = {}
        for name in sorted(_OTHERS & window.fields.keys()):
            values = window.fields[name][rows]
            high = values[~low]
            high = high[np.isfinite(high)]
            if len(high) < 10 * _LEAST_SAMPLES:
                continue
            usual = median(high)
            if usual > 0:
                spread = 1.4826 * median(abs(high - usual)) / usual
                metrics[name] = values, usual, spread
        return cls(values=series.values, usual=median(series.values[~low]), metrics=metrics)

    def shares(self, use: BoolArray) -> dict[str, tuple[float, float]]:
        """Return which share of the series' fall each metric took part in, with its error.

        1 is a metric that falls as the series does, 0 one that stays, below 0 one that rises.
        The error is the share's standard error.
        """
        if self.usual is None or use.sum() < _LEAST_SAMPLES:
            return {}
        fell = 1 - median(self.values[use]) / self.usual
        if fell <= 0:
            return {}
        found: dict[str, tuple[float, float]] = {}
        for name, (values, usual, spread) in self.metrics.items():
            during = values[use]
            during = during[np.isfinite(during)]
            if len(during) < _LEAST_SAMPLES:
                continue
            error = _MEDIAN_ERROR * spread * float(np.sqrt(_ALIKE / len(during)))
            found[name] = (1 - median(during) / usual) / fell, error / fell
        return found


def _differ(one: dict[str, tuple[float, float]], other: dict[str, tuple[float, float]]) -> bool:
    """Whether some metric says clearly that two falls are of different kinds."""
    for name in one.keys() & other.keys():
        apart = abs(one[name][0] - other[name][0])
        error = float(np.hypot(one[name][1], other[name][1]))
        if apart > max(_APART, _APART_ERRORS * error):
            return True
    return False
