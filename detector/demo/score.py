"""The demo's own judgement: what was played, beside what was found and told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from detector.demo.play import Part
from detector.incident.incident import Incident
from detector.series import Duration

# An incident's document as the webhook's consumer got it.
_Told = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How many faults were told, missed, and how many alerts had no fault behind them."""

    told: int
    missed: int
    false: int

    @property
    def good(self) -> bool:
        """Whether every fault was told and nothing else was."""
        return not self.missed and not self.false

    @property
    def text(self) -> str:
        """The score in a sentence."""
        return (
            f"{self.told} of {self.told + self.missed} faults were told; {self.false} alerts "
            "had no fault behind them."
        )


def sum_up(
    play: Sequence[Part],
    told: Sequence[_Told],
    recorded: Sequence[Incident],
    console: Console,
) -> Score:
    """Print what was played and what came of it, and return the score.

    Parameters
    ----------
    told
        The latest document of each incident that the webhook's consumer heard of.
    recorded
        Every incident on record, those of before the play too, which nobody is told.
    """
    table = Table(
        title="What was played, and what was told of it", title_justify="left", box=SIMPLE_HEAD
    )
    for name in ("job", "what happened", "told as", "after", "end"):
        table.add_column(name, no_wrap=name in ("told as", "after"), overflow="fold")
    told_of, recorded_of = _by_job(told), {item.job.id: item for item in recorded}
    faults = missed = false = 0
    for part in sorted(play, key=lambda part: (not part.real, not part.what, part.job.id)):
        found = told_of.get(part.job.id, [])
        expected = bool(part.what) and (part.real or bool(part.kind))
        faults += expected and bool(found)
        missed += expected and not found
        false += len(found) if not expected else 0
        title = part.job.name if part.real else f"{part.job.name} [dim]{part.job.id}[/]"
        if part.what and not found:
            silence = _silence(recorded_of.get(part.job.id), expected=expected)
            table.add_row(title, part.what, silence, "", "")
        for data in found:
            what = part.what or f"no fault ({_phase(part, data)})"
            table.add_row(title, what, *_cells(part, data))
            title = ""
    console.print(table)
    return Score(told=faults, missed=missed, false=false)


def _by_job(told: Sequence[_Told]) -> dict[str, list[_Told]]:
    by_job: dict[str, list[_Told]] = {}
    for data in told:
        by_job.setdefault(data["job"]["id"], []).append(data)
    return by_job


def _silence(recorded: Incident | None, *, expected: bool) -> str:
    """Why nobody was told of what happened to a job."""
    if not expected:
        return "[green]left alone, rightly[/]"
    if recorded is not None:
        return "[yellow]before the play[/]"
    return "[red]missed[/]"


def _phase(part: Part, data: _Told) -> str:
    """What a healthy job went through when an alert was raised."""
    incident = data["incident"]
    start_ms, end_ms = _ms(incident["onset_time"]), _ms(incident["detected_time"])
    shared = {
        phase: min(phase.span.end_ms, end_ms) - max(phase.span.start_ms, start_ms)
        for phase in part.phases
    }
    phase = max(shared, key=shared.__getitem__, default=None)
    if phase is None or shared[phase] <= 0:
        return "noise"
    return phase.kind if phase in part.window.events else f"unannounced {phase.kind}"


def _cells(part: Part, data: _Told) -> tuple[str, str, str]:
    incident = data["incident"]
    after = ""
    if part.onset_ms:
        late_ms = _ms(incident["detected_time"]) - part.onset_ms
        early = "-" if late_ms < 0 else ""
        after = f"{early}{Duration(abs(late_ms) // 1000 * 1000)}"
    fits = not part.kind or incident["kind"] == part.kind
    kind = incident["kind"] if fits else f"[yellow]{incident['kind']}[/]"
    return kind, after, incident["resolve_reason"] or "open"


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
