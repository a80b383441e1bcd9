"""Small random changes of a recording that leave its truth the same.

What a job does to the people who run it does not depend on which samples were lost, on how the
meter rounds or how fast the clock of the source ran: a detector that is not fitted to the
recordings decides the same on all copies.
"""

import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.recordings.labelled import Labelled
from detector.series import FloatArray, IntArray

# Each copy gets each disturbance with this chance: about three at a time. Chosen.
_CHANCE = 0.4
# The share of the samples before the first event, and after the last, that may be missing.
_TRIMMED = 0.1
# Samples lost at random; a scrape that fails now and then.
_LOST = 0.03
# The highest value that a louder copy reads.
_HIGHEST = 0.99
# Fewest samples that a thinned copy has.
_FEWEST = 60


def disturbed(recording: Labelled, copy: int, *, seed: int) -> tuple[Labelled, tuple[str, ...]]:
    """Return the recording's copy of this number, and the names of what was done to it.

    The same copy comes out whichever others are made.
    """
    rng = np.random.default_rng([seed, zlib.crc32(recording.name.encode()), copy])
    done: list[str] = []
    for name, disturbance in DISTURBANCES.items():
        if rng.random() < _CHANCE:
            changed = disturbance(recording, rng)
            if changed is not recording:
                recording, done = changed, [*done, name]
    return recording, tuple(done)


def _stretched(recording: Labelled, rng: np.random.Generator) -> Labelled:
    """Let time pass half to twice as fast, events with it."""
    factor = 2 ** rng.uniform(-1, 1)
    times_ms = recording.window.times_ms
    origin_ms = float(times_ms[0])

    def at(time_ms: float) -> float:
        return origin_ms + (time_ms - origin_ms) * factor

    events = [
        replace(
            event,
            first_ms=at(event.first_ms), last_ms=at(event.last_ms), end_ms=at(event.end_ms),
        )
        for event in recording.events
    ]  # fmt: skip
    offsets = np.rint((times_ms - times_ms[0]) * factor).astype(np.int64)
    return replace(
        _with(recording, times_ms[0] + offsets, _values(recording)),
        events=tuple(events),
        ignore=tuple((at(start), at(end)) for start, end in recording.ignore),
    )


def _trimmed(recording: Labelled, rng: np.random.Generator) -> Labelled:
    """Begin a few samples later and end a few earlier; the events' windows stay whole."""
    times_ms = recording.window.times_ms
    first_ms = min((event.first_ms for event in recording.events), default=np.inf)
    last_ms = max((event.last_ms for event in recording.events), default=-np.inf)
    before = int(np.count_nonzero(times_ms < first_ms))
    # Two samples after the window an alert is still right.
    after = max(0, int(np.count_nonzero(times_ms > last_ms)) - 2)
    first = int(rng.integers(0, int(_TRIMMED * before) + 1))
    last = len(times_ms) - int(rng.integers(0, int(_TRIMMED * after) + 1))
    return _kept(recording, np.arange(len(times_ms))[first:last])


def _lossy(recording: Labelled, rng: np.random.Generator) -> Labelled:
    """Lose single samples."""
    kept = rng.random(len(recording.window.times_ms)) >= _LOST
    return _kept(recording, np.flatnonzero(kept))


def _thinned(recording: Labelled, rng: np.random.Generator) -> Labelled:
    """Keep every second sample where enough remain; windows are a sample wider."""
    n = len(recording.window.times_ms)
    if n < 2 * _FEWEST:
        return recording
    kept = np.arange(int(rng.integers(2)), n, 2)
    return replace(_kept(recording, kept), slack=recording.slack + 1)


def _jittered(recording: Labelled, rng: np.random.Generator) -> Labelled:
    """Move time stamps by up to a twentieth of a step, and leave their order."""
    times_ms = recording.window.times_ms
    off = rng.uniform(-0.05, 0.05, len(times_ms)) * recording.step_ms
    moved = np.rint(times_ms + off).astype(np.int64)
    if (np.diff(moved) <= 0).any():
        return recording
    return _with(recording, moved, _values(recording))


def _noisier(recording: Labelled, rng: np.random.Generator) -> Labelled:
    """Add white noise of a tenth to a third of the recording's own."""
    values = _values(recording)
    steps = np.diff(values)
    # MAD of the steps from sample to sample, which no level shift touches.
    own = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / np.sqrt(2)
    added = rng.normal(0, own * rng.uniform(0.1, 1 / 3), len(values))
    return _with(recording, recording.window.times_ms, np.clip(values + added, 0, 1))


def _rescaled(recording: Labelled, rng: np.random.Generator) -> Labelled:
    """Multiply the level by 0.5 to 1.6, as far as it stays a ratio."""
    values = _values(recording)
    factor = rng.uniform(0.5, min(1.6, _HIGHEST / float(values.max())))
    return _with(recording, recording.window.times_ms, values * factor)


def _rounded(recording: Labelled, rng: np.random.Generator) -> Labelled:
    """Round to three digits after the point, as meters write ratios."""
    del rng
    return _with(recording, recording.window.times_ms, np.round(_values(recording), 3))


# In the order in which they are done: the meter's own last.
DISTURBANCES: dict[str, Callable[[Labelled, np.random.Generator], Labelled]] = {
    "stretched": _stretched,
    "trimmed": _trimmed,
    "thinned": _thinned,
    "lossy": _lossy,
    "jittered": _jittered,
    "noisier": _noisier,
    "rescaled": _rescaled,
    "rounded": _rounded,
}


def _values(recording: Labelled) -> FloatArray:
    return recording.window.fields["ofu"]


def _kept(recording: Labelled, rows: IntArray) -> Labelled:
    return _with(recording, recording.window.times_ms[rows], _values(recording)[rows])


def _with(recording: Labelled, times_ms: IntArray, values: FloatArray) -> Labelled:
    # A history keeps values as float32.
    stored = values.astype(np.float32).astype(np.float64)
    window = replace(recording.window, times_ms=times_ms, fields={"ofu": stored})
    return replace(recording, window=window)
