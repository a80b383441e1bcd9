"""Series written as levels and counts, and what the detector makes of one."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from detector.analysis.baselines import Model, empty
from detector.analysis.candidate import Folded, fold
from detector.analysis.change import Candidate, Confirmed, Estimate, Rejected
from detector.analysis.early import early_start_ms, verify_early
from detector.analysis.verify import verify, window_start_ms
from detector.series import (
    ContextEvent,
    Duration,
    FloatArray,
    IntArray,
    Interval,
    Panel,
    Window,
)

START_MS = 1_700_000_000_000
MODELS = Path(__file__).parents[2] / "models"


def model(name: str) -> Model:
    """Return the model of that name as it is shipped."""

    def duration(kind: type, value: object) -> object:
        return Duration.parse(str(value)) if kind is Duration else value

    table = tomllib.loads((MODELS / f"{name}.toml").read_text())
    return msgspec.convert(table, Model, dec_hook=duration)


OFU = model("ofu")


def times(count: int, *, every_s: float = 10.0, start_s: float = 0.0) -> IntArray:
    return START_MS + np.round((start_s + every_s * np.arange(1, count + 1)) * 1000).astype(
        np.int64
    )


def levels(*parts: tuple[float, int], noise: float = 0.004, seed: int = 1) -> FloatArray:
    """Return ``count`` samples about each level, with white noise of this deviation."""
    values = np.concatenate([np.full(count, level) for level, count in parts])
    noisy = values + noise * np.random.default_rng(seed).standard_normal(len(values))
    return np.where(values > 0, np.clip(noisy, 0, 1), 0.0)


def panel(times_ms: IntArray, values: FloatArray) -> Panel:
    return Panel(times_ms=times_ms[:, None], values=values[:, None])


def window(
    times_ms: IntArray, values: FloatArray, *, metric: str = "ofu",
    events: Sequence[ContextEvent] = (),
) -> Window:  # fmt: skip
    fields: Mapping[str, FloatArray] = {"ofu": values, metric: values}
    return Window(times_ms=times_ms, fields=fields, events=tuple(events))


def detect(
    times_ms: IntArray, values: FloatArray, *, by: Model = OFU,
    events: Sequence[ContextEvent] = (),
) -> Folded:  # fmt: skip
    """Fold one series, every candidate being verified on its own history."""

    def confirm(column: int, candidate: Candidate) -> Confirmed | Rejected:
        return confirmed_by(times_ms, values, candidate, by=by, events=events)

    return fold(by, empty(by.baseline, 1), panel(times_ms, values), confirm)


def confirmed_by(
    times_ms: IntArray, values: FloatArray, candidate: Candidate, *, by: Model = OFU,
    events: Sequence[ContextEvent] = (),
) -> Confirmed | Rejected:  # fmt: skip
    """Verify a candidate on the part of its series that verification asks for."""
    early = candidate.early
    start_ms = early_start_ms(candidate, by) if early else window_start_ms(candidate, by)
    past = (times_ms >= start_ms) & (times_ms <= candidate.time_ms)
    known = [item for item in events if item.heard_ms <= candidate.time_ms]
    seen = window(times_ms[past], values[past], metric=by.metric, events=known)
    return verify_early(candidate, seen, by) if early else verify(candidate, seen, by)


def alarms(folded: Folded) -> list[Confirmed]:
    return [outcome for _, _, outcome in folded.outcomes if isinstance(outcome, Confirmed)]


def seconds(time_ms: int) -> float:
    """Seconds since the start of a written series."""
    return (time_ms - START_MS) / 1000


def believed(candidate: Candidate) -> Confirmed:
    """Return the candidate as if verification had agreed to the letter."""
    span = Interval(start_ms=candidate.onset_ms, end_ms=candidate.time_ms)

    def exactly(value: float) -> Estimate:
        return Estimate(value=value, low=value, high=value)

    return Confirmed(
        metric="ofu", cause=candidate.cause, direction=candidate.direction,
        onset_ms=candidate.onset_ms, onset=span, detected_ms=candidate.time_ms,
        before=exactly(candidate.before), after=exactly(candidate.after),
        relative_change=candidate.after / candidate.before - 1, confidence=1.0,
        before_span=span, after_span=span,
    )  # fmt: skip
