"""What came of playing recordings: rows of tables, a sentence, and their part of the page."""

from collections import Counter
from pathlib import Path

from benchmarks.detection.page import PAGE, put, table
from benchmarks.machine import machine, today
from benchmarks.recordings.disturb import DISTURBANCES
from benchmarks.recordings.labelled import Judged, Labelled
from benchmarks.recordings.play import Played

CAUSES = ("disturbance", "copies", "judged right", "without it")
HEAD = ("recording", "as it is", "each event found, share of copies", "false alarm, share",
        "what those said")  # fmt: skip


def row(recording: Labelled, found: list[Played]) -> tuple[str, ...]:
    """Return a recording's line of the table."""
    mine = [item for item in found if item.name == recording.name]
    whole = next(item.judged for item in mine if not item.copy)
    copies = [item.judged for item in mine if item.copy]
    required = [event for event in recording.events if event.required]
    shares = [
        f"{event.kind} {event.change:+.0%}: {_share([item.found[k] for item in copies])}"
        for k, event in enumerate(required)
    ]
    said = Counter(
        alarm.kind + ("" if alarm.change is None else f" {alarm.change:+.0%}")
        for item in copies
        for alarm in item.wrong
    )
    return (
        recording.name,
        "right" if whole.right else _wrongs(whole),
        "; ".join(shares),
        _share([bool(item.wrong) for item in copies]),
        ", ".join(f"{count} x {text}" for text, count in said.most_common(3)),
    )


def _wrongs(judged: Judged) -> str:
    missed = [] if all(judged.found) else ["missed"]
    return " and ".join(missed + (["false alarm"] if judged.wrong else []))


def by_cause(found: list[Played]) -> list[tuple[str, ...]]:
    """Return for each disturbance the share judged right with it and without it."""
    copies = [item for item in found if item.copy]
    rows: list[tuple[str, ...]] = []
    for name in DISTURBANCES:
        having = [item.judged.right for item in copies if name in item.done]
        lacking = [item.judged.right for item in copies if name not in item.done]
        rows.append((name, str(len(having)), _share(having), _share(lacking)))
    return rows


def total(found: list[Played]) -> str:
    """Return the sum of it in a sentence."""
    whole = [item.judged for item in found if not item.copy]
    copies = [item.judged for item in found if item.copy]
    events = [hit for item in copies for hit in item.found]
    return (
        f"As they are, {sum(item.right for item in whole)} of {len(whole)} are judged right. "
        f"Of {len(copies)} disturbed copies {_share([item.right for item in copies])} are; "
        f"{_share(events)} of their {len(events)} events are found, and "
        f"{_share([bool(item.wrong) for item in copies])} have a false alarm."
    )


def write(
    rows: list[tuple[str, ...]], found: list[Played], *, command: str, page: Path = PAGE
) -> None:
    """Put the tables into the page."""
    block = "\n\n".join(
        (
            f"{total(found)} `{command}`, {today()}, on {machine()}.",
            table(HEAD, rows),
            table(CAUSES, by_cause(found)),
        )
    )
    page.write_text(put(page.read_text(), "recordings", block))


def _share(claims: list[bool]) -> str:
    return f"{sum(claims) / len(claims):.2f}" if claims else "-"
