"""The picture of an incident: a job's history, the level it had, the level it fell to.

One function, :func:`draw`, serves Slack's thread, ``replay --plot`` and the web pages. It is
made to be read at 3 a.m. and at a thumbnail's size: few words, large ones, colours that the
colour-blind can tell apart (Okabe and Ito). Missing data are shown as missing, never joined up.

Matplotlib is imported when something is drawn, and only its object-oriented part: pyplot keeps
global figures, which a service must not.
"""

import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from detector.incident.incident import Incident, State
from detector.metric import METRICS
from detector.notify.thinning import thinned, with_gaps
from detector.notify.wording import (
    cut,
    ending_text,
    gpu_text,
    levels_text,
    plain,
    relative_text,
    span_text,
    subject_text,
    value_text,
    words,
)
from detector.series import FloatArray, IntArray, Interval, Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito (2008), "Color Universal Design": told apart with every common colour blindness.
_LINE, _FALL, _BASE, _GPU = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_PHASE, _EVENT, _INK, _FAINT = "#999999", "#E69F00", "#222222", "#666666"

_DPI = 100
_DAY_MS = 86_400_000
# GPUs drawn one by one; more would hide the job's own line.
_MOST_GPUS = 8

# Matplotlib's caches of fonts and layouts are not made for several threads at once.
_drawing = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The level that was expected as time went by, with the width that was thought normal.

    Attributes
    ----------
    times_ms
        Shape ``(n,)``, increasing.
    level, low, high
        In the metric's unit, shape ``(n,)``; NaN where nothing was expected.
    """

    times_ms: IntArray
    level: FloatArray
    low: FloatArray
    high: FloatArray


def draw(
    window: Window,
    *,
    incidents: Sequence[Incident] = (),
    metric: str = "ofu",
    title: str = "",
    band: Band | None = None,
    excluded: Sequence[Interval] = (),
    size: tuple[int, int] = (1200, 500),
    fmt: Literal["png", "svg"] = "png",
) -> bytes:
    """Return a picture of one job's history with the incidents that were found in it.

    Parameters
    ----------
    window
        What is drawn. Nothing in it, or nothing finite, gives a picture that says so.
    incidents
        Of this job, oldest first. Each gets its level before and after, its onset with the
        95 % interval and its end. The first one makes the title when ``title`` is empty.
    metric
        Which field of the window; one that no history holds (a derived metric) is shown by
        the fields it is derived from, without levels.
    band
        What the baseline expected; without it the levels before each incident are drawn.
    excluded
        Stretches that detection left out: checkpoints, restarts, dips.
    size
        Width and height, pixels.
    """
    from matplotlib.figure import Figure

    with _drawing:
        width, height = size
        figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="white")
        axes = figure.add_axes((0.075, 0.14, 0.83, 0.64))
        _titles(
            figure,
            _title(incidents, title, metric),
            _subtitle(incidents, window, named=not title),
        )
        shown = _lines(axes, window, metric=metric, columns=width)
        if shown:
            if band is not None:
                _band(axes, band)
            since_ms = 0
            for incident in incidents:
                if shown == ("ofu",) and _gpus(axes, incident, window, columns=width):
                    shown = ("ofu", "gpu_ofu")
                _span(axes, incident, window)
                if _has_levels(incident, shown):
                    _levels(axes, incident, window, since_ms=None if band else since_ms)
                since_ms = incident.resolved_ms or incident.onset_ms
            _context(axes, window, excluded=excluded)
            _legend(axes)
        else:
            _nothing(axes, window)
        _frame(axes, window, metric=metric, empty=not shown)
        if incidents and _has_levels(incidents[-1], shown):
            _level_notes(axes, incidents[-1])
        out = io.BytesIO()
        # No date in the file: the same incident gives the same bytes.
        metadata = {"Date": None} if fmt == "svg" else {"Software": None}
        figure.savefig(out, format=fmt, metadata=metadata)
    return out.getvalue()


def _lines(axes: "Axes", window: Window, *, metric: str, columns: int) -> tuple[str, ...]:
    """Draw the metric (or what it is derived from) and return the names that had data."""
    names = [metric] if metric in window.fields else ["ofu"]
    if metric == "mfu_ratio":
        names.append("mfu")
    shown = []
    for name, colour in zip(names, (_LINE, _GPU), strict=False):
        values = window.fields.get(name)
        if values is None or not np.isfinite(values).any():
            continue
        entry = METRICS.get(name)
        _line(
            axes, window.times_ms, values, colour=colour, width=2.0, columns=columns,
            label=entry.title if entry else words(name),
        )  # fmt: skip
        shown.append(name)
    return tuple(shown)


def _line(
    axes: "Axes",
    times_ms: IntArray,
    values: FloatArray,
    *,
    colour: str,
    width: float,
    columns: int,
    label: str,
) -> None:
    times_ms, values = thinned(*with_gaps(times_ms, values), columns=columns)
    axes.plot(_days(times_ms), values, color=colour, lw=width, label=label, zorder=3,
              solid_joinstyle="round")  # fmt: skip
    # A sample between two gaps has no neighbour to draw a line to.
    known = np.isfinite(values)
    alone = known & ~np.r_[False, known[:-1]] & ~np.r_[known[1:], False]
    if alone.any():
        axes.plot(_days(times_ms[alone]), values[alone], ls="", marker="o", ms=2.5 * width,
                  color=colour, zorder=3)  # fmt: skip


def _span(axes: "Axes", incident: Incident, window: Window) -> None:
    """Draw when it began, how well that is known, and when it ended."""
    onset, end = _within(incident, window)
    low, high = sorted((incident.onset_low_ms, incident.onset_high_ms))
    axes.axvspan(_day(low), _day(high), color=_FALL, alpha=0.25, lw=0, zorder=1,
                 label="onset, 95 %")  # fmt: skip
    axes.axvline(_day(onset), color=_FALL, lw=2, zorder=2)
    if incident.resolved_ms is not None and incident.resolved_ms <= int(window.times_ms[-1]):
        axes.axvline(_day(end), color=_BASE, lw=2, ls=(0, (4, 2)), zorder=2, label="over")


def _levels(axes: "Axes", incident: Incident, window: Window, *, since_ms: int | None) -> None:
    """Draw the level it had, the one it fell to, and what lies between: the loss.

    The level before is drawn from ``since_ms`` on; None when the band shows it.
    """
    onset, end = (_day(time_ms) for time_ms in _within(incident, window))
    was, now = incident.before, incident.after
    if since_ms is not None:
        first = min(_day(max(since_ms, int(window.times_ms[0]))), onset)
        # Broad and pale, beneath the curve: on a steady job the two coincide.
        axes.plot([first, onset], [was.value] * 2, color=_BASE, lw=5, alpha=0.5, zorder=2)
        axes.fill_between([first, end], was.low, was.high, color=_BASE, alpha=0.25, lw=0,
                          zorder=1)  # fmt: skip
    axes.plot([onset, end], [was.value] * 2, color=_BASE, lw=2, ls=(0, (4, 2)), zorder=4)
    axes.plot([onset, end], [now.value] * 2, color=_FALL, lw=3, zorder=4)
    axes.fill_between(
        [onset, end], was.value, now.value, color=_FALL, alpha=0.08, lw=0, zorder=0
    )


def _has_levels(incident: Incident, shown: Sequence[str]) -> bool:
    """Whether its levels are known, and of a metric that is on the picture."""
    known = np.isfinite([incident.before.value, incident.after.value]).all()
    return bool(known) and incident.metric in shown


def _within(incident: Incident, window: Window) -> tuple[int, int]:
    """When it began and ended, ms, as far as the window shows it."""
    first, last = int(window.times_ms[0]), int(window.times_ms[-1])
    onset = min(max(incident.onset_ms, first), last)
    end = last if incident.resolved_ms is None else incident.resolved_ms
    return onset, min(max(end, onset), last)


def _level_notes(axes: "Axes", incident: Incident) -> None:
    """Write both levels in the right margin, beside their lines and clear of the curve."""
    low, high = axes.get_ylim()
    # Two lines of text need a seventh of the height each; closer levels are moved apart.
    was, now = ((estimate.value - low) / (high - low)
                for estimate in (incident.before, incident.after))  # fmt: skip
    apart = max(0.0, 0.15 - abs(was - now)) / 2 * (1 if was >= now else -1)
    for estimate, height, word, colour in (
        (incident.before, was + apart, "before", _BASE),
        (incident.after, now - apart, "after", _FALL),
    ):
        text = f"{value_text(estimate.value, incident.metric)}\n{word}"
        axes.text(1.01, min(max(height, 0.03), 0.97), text, transform=axes.transAxes,
                  color=colour, fontsize=14, fontweight="bold", va="center",
                  linespacing=0.95)  # fmt: skip


def _gpus(axes: "Axes", incident: Incident, window: Window, *, columns: int) -> bool:
    """Draw the GPUs that the change is attributed to; return whether the history has any."""
    if window.gpus is None:
        return False
    shown = [
        (gpu, index)
        for gpu, index in zip(incident.gpus, incident.gpu_places, strict=True)
        if index < window.gpus.shape[1]
    ]
    for gpu, index in shown[:_MOST_GPUS]:
        host = f" {plain(gpu.host, 24)}" if gpu.host else ""
        _line(axes, window.times_ms, window.gpus[:, index], colour=_GPU, width=1.2,
              columns=columns, label=f"GPU {gpu_text(gpu)}{host}")  # fmt: skip
    return bool(shown)


def _context(axes: "Axes", window: Window, *, excluded: Sequence[Interval]) -> None:
    """Shade what detection left out and what was announced."""
    for span in excluded:
        axes.axvspan(_day(span.start_ms), _day(span.end_ms), color=_PHASE, alpha=0.28, lw=0,
                     zorder=0, label="left out")  # fmt: skip
    for event in window.events:
        label = words(event.kind)
        if event.span.length_ms > 0:
            axes.axvspan(_day(event.span.start_ms), _day(event.span.end_ms), color=_EVENT,
                         alpha=0.28, lw=0, zorder=0, label=label)  # fmt: skip
        else:
            axes.axvline(_day(event.span.start_ms), color=_EVENT, lw=2, ls=":", zorder=1,
                         label=label)  # fmt: skip


def _band(axes: "Axes", band: Band) -> None:
    at = _days(band.times_ms)
    axes.fill_between(at, band.low, band.high, color=_BASE, alpha=0.2, lw=0, zorder=1)
    axes.plot(at, band.level, color=_BASE, lw=1.5, zorder=2, label="expected")


def _nothing(axes: "Axes", window: Window) -> None:
    said = f"none of the {len(window.times_ms):,} samples here has a usable value"
    if not len(window.times_ms):
        said = "no samples in this window"
    axes.text(0.5, 0.5, said, ha="center", va="center", transform=axes.transAxes, fontsize=20,
              color=_FAINT)  # fmt: skip


def _titles(figure: "Figure", title: str, subtitle: str) -> None:
    """Write both lines; names may hold ``$``, which is no formula here."""
    for text, height, size, colour in ((title, 0.965, 19, _INK), (subtitle, 0.885, 13, _FAINT)):
        line = figure.text(0.012, height, text, fontsize=size, color=colour, va="top",
                           fontweight="bold" if text is title else "normal",
                           parse_math=False)  # fmt: skip
        room = 0.976 * figure.bbox.width
        if (width := line.get_window_extent().width) > room:
            line.set_text(cut(text, max(8, int(len(text) * room / width) - 2)))


def _title(incidents: Sequence[Incident], title: str, metric: str) -> str:
    entry = METRICS.get(metric)
    named = title or (subject_text(incidents[0], limit=90) if incidents else "")
    return _printable(plain(named, 90) or (entry.title if entry else words(metric)))


def _subtitle(incidents: Sequence[Incident], window: Window, *, named: bool) -> str:
    """What became of the newest incidents, and what the picture spans.

    ``named`` says that the title has told already what the (only) incident is.
    """
    count = len(window.times_ms)
    if not count:
        return ""
    parts = []
    for incident in incidents[-3:]:
        over = incident.state is State.RESOLVED
        state = ending_text(incident) if over else incident.state.value
        what = f"{words(incident.kind)} {relative_text(incident)}: "
        parts.append(state if named and len(incidents) == 1 else what + state.lower())
    if len(incidents) == 1:
        (one,) = incidents
        # A level that has no line of its own is told here.
        parts += [] if one.metric in window.fields else [levels_text(one)]
        parts.append(f"seen after {span_text(one.detected_ms - one.onset_ms)}")
    span = span_text(int(window.times_ms[-1] - window.times_ms[0]))
    parts.append(f"{count:,} samples over {span}" if count > 1 else "one sample")
    if len(incidents) > 3:
        parts.insert(0, f"{len(incidents)} incidents, the last")
    return _printable(cut(" · ".join(parts), 160))


def _legend(axes: "Axes") -> None:
    """One row above the plot; every label once, however often its thing was drawn."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(reversed(labels), reversed(handles), strict=True))
    shown = [label for label in dict.fromkeys(labels)][:7]
    legend = axes.legend(
        [once[label] for label in shown], [_printable(label) for label in shown],
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(shown), fontsize=12,
        frameon=False, handlelength=1.4, columnspacing=1.1, borderaxespad=0.1, borderpad=0.1,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _frame(axes: "Axes", window: Window, *, metric: str, empty: bool) -> None:
    """Axes: UTC times, percent for ratios, from zero wherever that does not hide the change."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import FuncFormatter

    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=13, colors=_FAINT)
    axes.grid(axis="y", color="#dddddd", lw=0.8, zorder=0)
    axes.set_axisbelow(True)
    if empty:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    first, last = int(window.times_ms[0]), int(window.times_ms[-1])
    edge = max((last - first) // 50, 30_000 if first == last else 1)
    axes.set_xlim(_day(first - edge), _day(last + edge))
    locator = AutoDateLocator(minticks=4, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlabel("UTC", fontsize=12, color=_FAINT, loc="left")
    low, high = axes.get_ylim()
    # Chosen: what spans a quarter of its height is seen from zero too, in true proportion.
    if 0 < low < 0.75 * high:
        axes.set_ylim(0.0, high)
    shown = "ofu" if metric not in window.fields else metric
    entry = METRICS.get(shown)
    if entry is not None and entry.unit == "ratio" and shown != "mfu_ratio":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


@cache
def _characters() -> frozenset[int]:
    """Code points that the charts' font can draw."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def _printable(text: str) -> str:
    """Replace what the font lacks (most emoji) by a box, instead of a warning and nothing."""
    known = _characters()
    return "".join(character if ord(character) in known else "□" for character in text)


def _days(times_ms: npt.NDArray[np.int64]) -> FloatArray:
    """Matplotlib's dates: days since 1970, UTC."""
    return times_ms / float(_DAY_MS)


def _day(time_ms: int) -> float:
    return time_ms / _DAY_MS
