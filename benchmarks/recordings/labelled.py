"""Recordings with what is known of them, and which alerts on them are right or wrong."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detector.incident.incident import Incident
from detector.series import Window
from detector.store.recording import read

# What somebody must be told of; ``planned`` is part of the workload, a rise is good news.
_FALLS = ("level_shift_down", "stall", "sag", "straggler")
# An alert may come so many samples early or late: times read off a series are no better.
_EARLY, _LATE = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job. Times in ms.

    Attributes
    ----------
    end_ms
        The end of the recording where it lasted.
    first_ms, last_ms
        Between which an alert on it is right, before the allowance of :data:`_EARLY` and
        :data:`_LATE` samples.
    required
        Whether a missing alert is a miss; if not, an alert is neither right nor wrong.
    """

    kind: str
    change: float
    first_ms: float
    last_ms: float
    end_ms: float
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A recording and its truth.

    Attributes
    ----------
    events
        Falls alone: after an improvement no alert is right.
    ignore
        Spans in which alerts are neither right nor wrong, ms.
    slack
        Samples by which windows are wider than the labels say, to both sides.
    """

    name: str
    window: Window
    events: tuple[Event, ...]
    ignore: tuple[tuple[float, float], ...]
    slack: int = 0

    @property
    def step_ms(self) -> float:
        """Median distance of two samples."""
        return float(np.median(np.diff(self.window.times_ms)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An alert: when after the start, and what it said."""

    after_s: float
    kind: str
    change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the alerts on a recording are worth.

    Attributes
    ----------
    found
        Of each required event, whether it was told in time.
    told
        All alerts.
    wrong
        Those that are false alarms.
    """

    found: tuple[bool, ...]
    told: tuple[Told, ...]
    wrong: tuple[Told, ...]

    @property
    def right(self) -> bool:
        """Whether everything was found and nothing else told."""
        return all(self.found) and not self.wrong


def load(folder: Path, names: Sequence[str] = ()) -> list[Labelled]:
    """Return the folder's recordings with their labels, by name; all, or those named.

    Raises
    ------
    ValueError
        When a name has no label.
    """
    labels = json.loads((folder / "labels.json").read_text())
    unknown = set(names) - labels.keys()
    if unknown:
        msg = f"{folder.name}/labels.json has no {', '.join(sorted(unknown))}"
        raise ValueError(msg)
    found = []
    for name in sorted(names or labels):
        window = read([folder / f"{name}.csv"])[name].window
        label, last_ms = labels[name], float(window.times_ms[-1])
        events = [
            _event(item, last_ms)
            for item in label["events"]
            if item["kind"] != "level_shift_up"
        ]
        ignore = tuple((start * 1000, end * 1000) for start, end, _ in label["ignore"])
        found.append(Labelled(name=name, window=window, events=tuple(events), ignore=ignore))
    return found


def _event(item: dict[str, Any], last_ms: float) -> Event:
    end_ms = last_ms if item["end"] is None else item["end"] * 1000
    # What is part of the workload may have no window for alerts.
    first_s, until_s = item["alert_window"] or (item["start"], end_ms / 1000)
    return Event(
        kind=item["kind"],
        change=item["magnitude_rel"],
        first_ms=first_s * 1000,
        last_ms=until_s * 1000,
        end_ms=end_ms,
        required=item["kind"] in _FALLS and not item.get("optional"),
    )


def alerts(incidents: Sequence[Incident]) -> list[Incident]:
    """Return what somebody is told about: a rise is none, and information is none."""
    return [item for item in incidents if item.direction == "down" and item.severity != "info"]


def judge(recording: Labelled, incidents: Sequence[Incident]) -> Judged:
    """Return what the incidents of a recording are worth."""
    due = alerts(incidents)
    step_ms, slack = recording.step_ms, recording.slack
    found, allowed = [], list(recording.ignore)
    for event in recording.events:
        start_ms = event.first_ms - (_EARLY + slack) * step_ms
        last_ms = event.last_ms + (_LATE + slack) * step_ms
        if event.required:
            found.append(any(start_ms <= item.detected_ms <= last_ms for item in due))
        # More alerts until the end belong to the same event.
        allowed.append((start_ms, max(last_ms, event.end_ms)))

    def told(item: Incident) -> Told:
        after_ms = item.detected_ms - int(recording.window.times_ms[0])
        return Told(after_s=after_ms / 1000, kind=item.kind, change=item.relative_change)

    return Judged(
        found=tuple(found),
        told=tuple(told(item) for item in due),
        wrong=tuple(
            told(item)
            for item in due
            if not any(start <= item.detected_ms <= end for start, end in allowed)
        ),
    )
