"""The measured parts of docs/detection.md: tables and plots between their markers."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.detection.report import GOALS, PAGED, RATES, Figures, goal_text, reached

PAGE = Path(__file__).parents[2] / "docs" / "detection.md"
IMAGES = PAGE.parent / "images"
BIG = ("drop2.5x", "drop2x", "drop1.33x")
# Half of the median delay of these by OFU alone, 190 s.
WITH_CONTEXT_S = 95

Results = dict[str, Any]


def write(results: Results, *, page: Path = PAGE) -> None:
    """Replace every measured part of the page, and draw its plots beside it.

    Raises
    ------
    ValueError
        When the page lacks the markers of a part.
    """
    text = page.read_text()
    parts: dict[str, Callable[[Results], str]] = {
        "about": about,
        "goals": goals,
        "peers": peers,
        "settings": settings,
        "context": context,
        "speed": speed,
    }
    for name, part in parts.items():
        text = put(text, name, part(results))
    page.write_text(text)
    draw(results, page.parent / "images")


def write_heldout(results: Results, *, page: Path = PAGE) -> None:
    """Replace the part of the page about another author's jobs."""
    found = goals({**results, "optimum": {}})
    block = f"`{results['command']}`, {results['date']}, on {results['machine']}.\n\n{found}"
    page.write_text(put(page.read_text(), "heldout", block))


def put(text: str, section: str, block: str) -> str:
    """Return the page with a section's content replaced.

    Raises
    ------
    ValueError
        When the page has no markers for it.
    """
    start, end = f"<!-- measured: {section} -->", "<!-- end -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        msg = f"the page has no {start} ... {end} to put the figures between"
        raise ValueError(msg)
    return pattern.sub(lambda _: f"{start}\n{block}\n{end}", text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def about(results: Results) -> str:
    """Return what was run, when and on what."""
    return (
        f"`{results['command']}`, {results['date']}, on {results['machine']}. Jobs to choose "
        f"settings on: seed {results['seeds'][0]}; jobs to measure on: seed "
        f"{results['seeds'][1]}. Took {results['minutes']:.0f} min."
    )


def goals(results: Results) -> str:
    """Return our figures beside the goals and the optimum's."""
    ours, best = results["ours"], results["optimum"]
    rows: list[tuple[str, ...]] = []
    for name in ours:
        found = ours[name]
        if "false_alarms" in found:
            rate, goal = found["false_alarms"], RATES.get(name)
            verdict = "" if goal is None else _yes(rate["high"] <= goal)
            must = "" if goal is None else f"<= {goal:g} a job-day"
            rows.append((name, f"{rate['job_days']:.0f} d", _rate(rate), "", must, verdict, ""))
        elif "called_a_drop" in found:
            share = found["called_a_drop"]
            rows.append((name, str(found["jobs"]), f"{share:.3f} called a drop", "",
                         "<= 0.005", _yes(share <= 0.005), ""))  # fmt: skip
        else:
            rows.append(_goal_row(name, found, best.get(name)))
    if "context" in results:
        rows.append(_context_goal(results))
    pages = ours["quiet"]["pages"]
    paged = min(ours[name]["paged_in_15_min"] for name in PAGED if name in ours)
    rows.append(
        ("page, drops of 25 % and more", f"{pages['job_days']:.0f} d", f"{_rate(pages)}",
         f"{paged:.2f} in 15 min", "<= 0.001, >= 0.97 in 15 min",
         _yes(pages["high"] <= 0.001 and paged >= 0.97), "")
    )  # fmt: skip
    head = ("class", "jobs", "found, or false alarms a job-day (95 %)", "delay median / p90",
            "must", "reached", "optimum: found, median")  # fmt: skip
    return table(head, rows)


def _goal_row(name: str, found: Figures, best: Figures | None) -> tuple[str, ...]:
    goal = GOALS.get(name)
    easy = ""
    if name in ("drop10", "drop5", "drop3"):
        ratio = _number(found["ratio_median"], ".2f")
        easy = f"; easy {_number(found['easy_recall'], '.2f')}, delay / D* {ratio}"
    return (
        name,
        str(found["jobs"]),
        f"{found['recall']:.2f} ({found['low']:.2f}-{found['high']:.2f}){easy}",
        f"{_number(found['median_s'])} / {_number(found['p90_s'])} s",
        "" if goal is None else goal_text(goal),
        "" if goal is None else _yes(reached(found, goal)),
        "" if best is None else f"{best['recall']:.2f}, {_number(best['median_s'])} s",
    )


def peers(results: Results) -> str:
    """Return one row a detector: false alarms, and what each finds how fast."""
    rows = []
    for line in by_merit(results):
        classes = line["classes"]
        quiet = classes["quiet"]["false_alarms"]
        rows.append(
            (
                line["name"],
                f"{_rate(quiet)}, {quiet['job_days']:.0f} d",
                _cell(pooled(classes, BIG)),
                *(_cell(classes[c]) for c in ("drop10", "drop5", "drop3")),
                *(_cell(classes[c]) for c in ("restart2.5x", "young1.33x")),
                _number(classes["rise1.33x"]["called_a_drop"], ".2f"),
                f"{classes['stress_quiet']['false_alarms']['rate']:.2f}",
                _number(line["ms_per_1000"], ".3g"),
            )
        )
    head = ("detector", "false alarms a job-day (95 %), days", ">= 1.33x", "10 %", "5 %",
            "3 %", "restart 2.5x", "young 1.33x", "rise called a drop", "false alarms, stress",
            "CPU ms / 1,000 points")  # fmt: skip
    return table(head, rows)


def by_merit(results: Results) -> list[Results]:
    """Return ours and the peers, each with a name, the one that finds most first."""
    ours = {
        "name": "**ofuwatch**",
        "classes": results["ours"],
        "ms_per_1000": results["cost"]["ms_per_1000"],
    }
    lines = [ours, *({**peer, "name": peer["peer"]} for peer in results["peers"])]
    # One that cannot keep the bound stands below all that can.
    return sorted(lines, key=lambda line: (not line.get("within", True), -merit(line)))


def merit(line: Results) -> float:
    """Mean recall over the drops of a job's mean."""
    names = (*BIG, "drop10", "drop5", "drop3")
    return sum(float(line["classes"][name]["recall"]) for name in names) / len(names)


def pooled(classes: Figures, names: Sequence[str]) -> Figures:
    """Return several classes as one."""
    delays = sorted(d for name in names for d in classes[name]["delays_s"])
    jobs = sum(classes[name]["jobs"] for name in names)
    median = delays[len(delays) // 2] if delays else math.nan
    return {
        "recall": len(delays) / jobs, "median_s": median, "delays_s": delays, "jobs": jobs,
    }  # fmt: skip


def settings(results: Results) -> str:
    """Return which setting was chosen for each peer, and of what."""
    rows = [
        (
            peer["peer"],
            peer["package"] or "published rule, stated anew",
            peer["setting"],
            f"{peer['calibration'][0]} in {peer['calibration'][1]:.0f} d"
            + ("" if peer["within"] else ", above the bound: none keeps it"),
        )
        for peer in results["peers"]
    ]
    return table(("peer", "package", "chosen setting", "calibration: false alarms"), rows)


def context(results: Results) -> str:
    """Return what announcements and the other metrics are worth, each alone and together."""
    columns = {"OFU alone": results["ours"], **results["context"]}
    rows = [("quiet", *(_rate(found["quiet"]["false_alarms"]) for found in columns.values()))]
    rows += [
        (name, *(f"{_cell(found[name])}, p90 {_number(found[name]['p90_s'])} s"
                 for found in columns.values()))
        for name in BIG
    ]  # fmt: skip
    return table(("class", *columns), rows)


def _context_goal(results: Results) -> tuple[str, ...]:
    """Return the row of the goal that context has: half the delay at the same bound."""
    found = results["context"]["with both"]
    rate, slowest = found["quiet"]["false_alarms"], max(found[n]["median_s"] for n in BIG)
    least = min(found[name]["recall"] for name in BIG)
    return (
        "2.5x to 1.33x with context events and other metrics",
        f"{found[BIG[0]]['jobs']} each, {rate['job_days']:.0f} d",
        f"{least:.2f}; {_rate(rate)}",
        f"{_number(slowest)} s at most",
        f">= 1, {WITH_CONTEXT_S} s; <= {RATES['quiet']:g} a job-day",
        _yes(least >= 1 and slowest <= WITH_CONTEXT_S and rate["high"] <= RATES["quiet"]),
        "",
    )


def speed(results: Results) -> str:
    """Return the figures of speed and memory beside their goals."""
    cost, batch = results["cost"], results["batch"]
    jobs = f"{cost['jobs']:,} jobs"
    rows = [
        (f"one sample for {jobs}, one core", f"{cost['sample_s'] * 1000:.0f} ms", "< 100 ms"),
        (f"6 h of {jobs} (21.6 million samples), one core", f"{cost['day_quarter_s']:.0f} s",
         "< 60 s"),
        ("state of a job, all models", f"{cost['job_bytes'] / 1000:.1f} kB", "< 20 kB"),
        ("10,000 points as one of 10,000 jobs, each judged as it comes",
         f"{cost['ms_per_1000'] / 100:.3f} s", ""),
        ("one series of 10,000 points alone, each judged as it comes",
         f"{cost['series_s']:.2f} s", "a 100th of apache-otava's and a 20th of PELT's"),
    ]  # fmt: skip
    for peer, per_call in results["calls"].items():
        taken_s = per_call * 10_000
        rows.append(
            (f"{peer}: the same series, run again at each point on its last 3 h of minutes",
             f"{taken_s:.1f} s, {taken_s / cost['series_s']:.2g} times as long", "")
        )  # fmt: skip
    rows += [
        (f"{name}: the whole series once, afterwards", f"{seconds:.3f} s", "")
        for name, seconds in batch.items()
    ]
    return table(("what", "measured (CPU)", "must"), rows)


def _cell(found: Figures) -> str:
    if not found["recall"]:
        return "0"
    return f"{found['recall']:.2f} / {_number(found['median_s'])} s"


def _rate(rate: Mapping[str, float]) -> str:
    return f"{rate['rate']:.3f} ({rate['low']:.3f}-{rate['high']:.3f})"


def _number(value: float, form: str = ".0f") -> str:
    return "-" if math.isnan(value) else format(value, form)


def _yes(is_reached: bool) -> str:
    return "yes" if is_reached else "no"


def draw(results: Results, folder: Path) -> None:
    """Draw how much is found within how long: ours, the best peers, the optimum."""
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    lines = [line for line in by_merit(results) if line.get("within", True)][:6]
    panels = {"2.5x, 2x and 1.33x": BIG, "10 %": ("drop10",), "5 %": ("drop5",),
              "3 %": ("drop3",)}  # fmt: skip
    figure = Figure(figsize=(10, 7), layout="constrained")
    for axes, (title, names) in zip(
        figure.subplots(2, 2, sharex=True, sharey=True).flat, panels.items(), strict=True
    ):
        best = {name: results["optimum"][name] for name in names}
        _curve(axes, pooled(best, names), label="optimum", color="0.6", linestyle="--")
        for line in lines:
            mine = line["name"].startswith("**")
            style = {"color": "black", "linewidth": 2.5} if mine else {"linewidth": 1.2}
            found = pooled(line["classes"], names)
            _curve(axes, found, label=line["name"].strip("*"), **style)
        axes.set(title=f"drops of {title}", xlim=(0, 60), ylim=(0, 1.02))
        axes.grid(alpha=0.3)
    for axes in figure.axes[2:]:
        axes.set_xlabel("minutes after the onset")
    figure.supylabel("share found, at a bound of 0.1 false alarms a job-day")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.savefig(folder / "detection-delay.png", dpi=110)


def _curve(axes: Any, found: Figures, **style: Any) -> None:
    minutes = [delay / 60 for delay in found["delays_s"]]
    shares = [(k + 1) / found["jobs"] for k in range(len(minutes))]
    axes.step([0.0, *minutes, 60.0], [0.0, *shares, shares[-1] if shares else 0.0],
              where="post", **style)  # fmt: skip
