"""The figures of a run as tables: on the terminal, as JSON, and in docs/detection.md."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.detection.classes import CLASSES
from benchmarks.detection.score import Heard, Recall, false_alarms, recall
from detector.calibration.rate import Rate

# A drop of a quarter and more is what may wake somebody, within this long.
PAGE_MS = 900_000
PAGED = ("drop2.5x", "drop2x", "drop1.33x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a class must reach; None is not asked."""

    recall: float
    median_s: float | None = None
    p90_s: float | None = None
    easy_recall: float | None = None


# The table "What it must reach" of the project's plan for detection.
GOALS = {
    "drop2.5x": Goal(recall=1.0, median_s=200, p90_s=600),
    "drop2x": Goal(recall=1.0, median_s=200, p90_s=600),
    "drop1.33x": Goal(recall=1.0, median_s=360),
    "drop10": Goal(recall=0.98, median_s=360, easy_recall=1.0),
    "drop5": Goal(recall=0.90, median_s=480, easy_recall=1.0),
    "drop3": Goal(recall=0.70, median_s=800, easy_recall=0.93),
    "ramp25": Goal(recall=1.0),
    "ramp10": Goal(recall=0.97),
    "restart2.5x": Goal(recall=1.0),
    "restart10": Goal(recall=0.97, median_s=900),
    "young1.33x": Goal(recall=1.0, median_s=600),
    "straggler64": Goal(recall=0.98, median_s=300),
    "stress2.5x": Goal(recall=0.98),
}
# False alarms a job-day at most; for quiet jobs the interval's upper end.
RATES = {"quiet": 0.10, "quiet64": 0.01}


Figures = dict[str, Any]


def figures(heard: Mapping[str, Sequence[Heard]]) -> Figures:
    """Return everything that the tables say as plain numbers, by class."""
    out: Figures = {}
    for name, items in heard.items():
        if CLASSES[name].kind == "quiet":
            rate, pages = quiet_rate(name, items), false_alarms(items, which="pages")
            out[name] = {"false_alarms": _rate(rate), "pages": _rate(pages)}
        elif CLASSES[name].kind == "rise":
            out[name] = {"called_a_drop": recall(items).value, "jobs": len(items)}
        else:
            out[name] = _recall(recall(items))
            paged = recall(items, within_ms=PAGE_MS, pages=True)
            out[name]["paged_in_15_min"] = paged.value
    return out


def quiet_rate(name: str, items: Sequence[Heard]) -> Rate:
    """Return the false alarms that a class of quiet jobs is there for.

    Where GPUs report one by one it is those that name GPUs: the job's mean has its own class.
    """
    return false_alarms(items, which="named" if CLASSES[name].gpus else "alarms")


def _rate(rate: Rate) -> dict[str, float]:
    low, high = rate.interval
    return {
        "events": rate.events,
        "job_days": rate.exposure,
        "rate": rate.value,
        "low": low,
        "high": high,
    }


def _recall(found: Recall) -> Figures:
    low, high = found.interval
    return {
        "jobs": found.jobs,
        "recall": found.value,
        "low": low,
        "high": high,
        "median_s": found.delay_s(50),
        "p90_s": found.delay_s(90),
        "easy": found.easy,
        "easy_recall": found.easy_value,
        "ratio_median": _median(found.ratios),
        "delays_s": found.delays_s,
    }


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else math.nan


def rows(heard: Mapping[str, Sequence[Heard]]) -> list[tuple[str, ...]]:
    """Return the compact table: class, jobs, found, delay, easy jobs, ratio, goal, verdict."""
    out = []
    for name, items in heard.items():
        if not items:
            continue
        match CLASSES[name].kind:
            case "quiet":
                out.append(_quiet_row(name, items))
            case "rise":
                wrong = recall(items)
                out.append(
                    (name, str(wrong.jobs), f"{len(wrong.delays_s)} called a drop",
                     "", "", "", "<= 0.005", _verdict(wrong.value <= 0.005))
                )  # fmt: skip
            case _:
                out.append(_found_row(name, items))
    return out


def _quiet_row(name: str, items: Sequence[Heard]) -> tuple[str, ...]:
    rate, pages = quiet_rate(name, items), false_alarms(items, which="pages")
    low, high = rate.interval
    goal = RATES.get(name)
    return (
        name,
        f"{rate.exposure:.0f} d",
        f"{rate.value:.3f} ({low:.3f}-{high:.3f})",
        f"{rate.events} alarms",
        f"{pages.events} pages",
        "",
        "" if goal is None else f"<= {goal:g}",
        "" if goal is None else _verdict(high <= goal),
    )


def _found_row(name: str, items: Sequence[Heard]) -> tuple[str, ...]:
    found, goal = recall(items), GOALS.get(name)
    known = CLASSES[name].kind == "drop"  # the optimum's formula is for a job's mean
    easy = f"{found.easy_value:.2f} of {found.easy}" if known and found.easy else ""
    paged = ""
    if name in PAGED:
        paged = f", paged {recall(items, within_ms=PAGE_MS, pages=True).value:.3f}"
    return (
        name,
        str(found.jobs),
        f"{found.value:.3f}{paged}",
        f"{found.delay_s(50):.0f} / {found.delay_s(90):.0f} s" if found.delays_s else "-",
        easy,
        f"{_median(found.ratios):.2f}" if known and found.ratios else "",
        "" if goal is None else goal_text(goal),
        "" if goal is None else _verdict(reached(_recall(found), goal)),
    )


def goal_text(goal: Goal) -> str:
    """Return the goal in words."""
    parts = [f">= {goal.recall:g}"]
    if goal.median_s is not None:
        p90 = "" if goal.p90_s is None else f" / {goal.p90_s:g}"
        parts.append(f"{goal.median_s:g}{p90} s")
    if goal.easy_recall is not None:
        parts.append(f"easy {goal.easy_recall:g}")
    return ", ".join(parts)


def reached(found: Figures, goal: Goal) -> bool:
    """Whether a class's figures reach its goal."""
    easy = goal.easy_recall is None or not found["easy"]
    return bool(
        found["recall"] >= goal.recall
        and (goal.median_s is None or found["median_s"] <= goal.median_s)
        and (goal.p90_s is None or found["p90_s"] <= goal.p90_s)
        and (easy or found["easy_recall"] >= goal.easy_recall)
    )


def _verdict(is_reached: bool) -> str:
    return "yes" if is_reached else "NO"


HEAD = ("class", "jobs", "found", "median / p90", "D* < 5 min", "delay / D*", "must", "reached")
