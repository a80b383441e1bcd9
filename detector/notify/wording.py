"""An incident's facts in plain words, for messages, charts, terminals and pages. Pure.

Whatever comes from outside (a job's name, an owner, a rule's text) passes :func:`plain` here.
"""

import math
import unicodedata
from collections.abc import Sequence

from detector.fleet import Gpu
from detector.incident.export import wasted_gpu_hours
from detector.incident.incident import Incident, State
from detector.metric import METRICS

ENDINGS = {
    "recovered": ("Recovered", "The level is back."),
    "job_ended": ("Job ended", "The job ended; nothing is left to recover."),
    "expected_change": ("Expected change", "Somebody marked the change as expected."),
    "false_positive": ("Not real", "Somebody marked it as not real."),
    "superseded": ("Superseded", "Another incident tells this story better."),
    "telemetry_lost": ("Telemetry lost", "No samples any more: whether it is over is unknown."),
    "expired": ("Expired", "Open for too long without news; whether it is over is unknown."),
}

_ACTIONS = {
    "none": "",
    "notify_owner": "tell the job's owner",
    "investigate_node": "look at the node before anything else",
    "drain_node": "drain the node once the job allows it",
    "requeue_job": "take the stacks of a few ranks, then requeue from the last checkpoint",
    "capture_profile": "capture a profile of one rank while it is slow",
}

_ACRONYMS = {"gpu": "GPU", "gpus": "GPUs", "mfu": "MFU", "ofu": "OFU", "nccl": "NCCL"}


def plain(text: str, limit: int) -> str:
    """Return ``text`` on one line, free of control and format characters, at most ``limit``.

    Lone surrogates, bidirectional overrides, escape sequences' ESC and the like are dropped:
    they would break the encoding, the reading order or the terminal.
    """
    # Ten times the limit is looked at, so that a label of megabytes costs nothing.
    kept = "".join(
        " " if character.isspace() else character
        for character in text[: limit * 10]
        if character.isspace() or unicodedata.category(character)[0] != "C"
    )
    return cut(" ".join(kept.split()), limit)


def cut(text: str, limit: int) -> str:
    """Return ``text``, or its beginning and an ellipsis where it is longer than ``limit``."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def words(slug: str) -> str:
    """Return a slug as words: ``mfu_ofu_divergence`` becomes ``MFU OFU divergence``."""
    return plain(" ".join(_ACRONYMS.get(part, part) for part in slug.split("_")), 80)


def action_words(action: str) -> str:
    """Return what is recommended, as a person would say it; "" for nothing."""
    return _ACTIONS.get(action, words(action))


def runbook_text(runbook: str, permalink_base: str = "") -> str:
    """Return where a runbook is: its address, else its section's name in words.

    A path such as ``docs/rules.md#hang`` is an address only where people reach the service.
    """
    if not runbook or runbook.startswith(("https://", "http://")):
        return runbook
    if permalink_base:
        return f"{permalink_base.rstrip('/')}/{runbook.lstrip('/')}"
    path, _, section = runbook.partition("#")
    return f"section {words(section.replace('-', '_'))} of {path}" if section else path


def value_text(value: float, metric: str) -> str:
    """Return one value with its unit: shares in percent, ratios of ratios as a factor."""
    if not math.isfinite(value):
        return "unknown"
    entry = METRICS.get(metric)
    if entry is None or metric == "mfu_ratio":
        return f"{value:.2f}" + ("×" if metric == "mfu_ratio" else "")
    match entry.unit:
        case "ratio":
            return f"{100 * value:.1f} %"
        case "count":
            return f"{value:,.0f}"
        case unit:
            return f"{value:,.4g} {unit}"


def span_text(length_ms: int) -> str:
    """Return a length of time as people say it: 45 s, 29 min, 2 h 05 min, 3 d 4 h."""
    seconds = max(0, round(length_ms / 1000))
    if seconds < 90:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def relative_text(incident: Incident) -> str:
    """Return the change with its sign (``−19.7 %``), or that there is none any more."""
    change = 100 * incident.relative_change
    if not math.isfinite(change):
        return "from nothing"
    if abs(change) < 0.05:
        return "frozen" if incident.cause == "frozen" else "±0 %"
    sign = "−" if change < 0 else "+"
    return f"{sign}{abs(change):.{0 if abs(change) >= 99.95 else 1}f} %"


def levels_text(incident: Incident) -> str:
    """Return the level before and after, and the change between them."""
    before = value_text(incident.before.value, incident.metric)
    after = value_text(incident.after.value, incident.metric)
    if relative_text(incident) == "frozen":
        return f"stuck at {after}"
    entry = METRICS.get(incident.metric)
    if incident.family == "telemetry" and entry is not None:
        # Of what, nobody would guess; and a share of a share says nothing more.
        return f"{entry.title} {before} → {after}"
    return f"{before} → {after} ({relative_text(incident)})"


def sure_text(probability: float) -> str:
    """Return a probability as percent, with no claim of certainty."""
    percent = 100 * probability
    if percent > 99.9:
        return "> 99.9 %"
    return f"{percent:.{1 if percent >= 99 else 0}f} %"


def job_title(incident: Incident, limit: int) -> str:
    """Return the job's name and id, cleaned; the id survives however long the name is."""
    name, known = plain(incident.job.name, limit), plain(incident.job.id, limit)
    if not name or name == known:
        return known
    if len(name) + len(known) + 3 <= limit:
        return f"{name} ({known})"
    known = cut(known, max(8, limit // 3))
    return f"{cut(name, max(8, limit - len(known) - 3))} ({known})"


def subject_text(incident: Incident, *, limit: int) -> str:
    """Return what changed, by how much, in which job: the line everything else hangs on."""
    what = words(incident.kind)
    if incident.family in ("performance", "capacity"):
        entry = METRICS.get(incident.metric)
        title = entry.title if entry else words(incident.metric)
        # News is never called by a rule's name, which may sound like a fault.
        kind = "" if neutral(incident) else f" · {what}"
        what = f"{title} {relative_text(incident)}{kind}"
    return cut(f"{what} · {job_title(incident, max(20, limit - len(what) - 3))}", limit)


def neutral(incident: Incident) -> bool:
    """Whether it is told as news, not as a fault: infos, and rises of how well a job runs."""
    rise = incident.direction == "up" and incident.family in ("performance", "capacity")
    return incident.severity == "info" or rise


def ending_text(incident: Incident) -> str:
    """Return how a resolved incident ended, and after how long: ``Recovered after 29 min``."""
    end = ENDINGS[incident.resolve_reason or "recovered"][0]
    if incident.resolved_ms is None:
        return end
    return f"{end} after {span_text(incident.resolved_ms - incident.onset_ms)}"


def well_ended(incident: Incident) -> bool:
    """Whether it is over and known to be: a green mark must not promise what nobody saw."""
    unknown = incident.resolve_reason in ("telemetry_lost", "expired")
    return incident.state is State.RESOLVED and not unknown


def waste_text(incident: Incident, *, until_ms: int) -> str:
    """Return the loss in GPU-hours, or "" where nothing is lost or known."""
    wasted = wasted_gpu_hours(incident, until_ms=until_ms)
    if wasted is None:
        return ""
    total, per_hour = (f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}" for hours in wasted)
    if not incident.live:
        return f"{total} GPU-hours lost"
    return f"{total} GPU-hours so far, {per_hour} more each hour"


def where_text(incident: Incident) -> str:
    """Return which GPUs on which hosts, or that it is the whole job."""
    total = incident.gpus_total or 0
    if not incident.gpus:
        return f"whole job, {total:,} GPU{'s' if total != 1 else ''}" if total else "whole job"
    by_host: dict[str, list[Gpu]] = {}
    for gpu in incident.gpus:
        by_host.setdefault(gpu.host, []).append(gpu)
    # Four places: what fits on two lines of a phone.
    places = [_place(host, gpus) for host, gpus in list(by_host.items())[:4]]
    if len(by_host) > 4:
        places.append(f"{len(by_host) - 4} more hosts")
    if not total:
        return "; ".join(places)
    hosts = incident.hosts_total or 0
    share = f"{len(incident.gpus):,} of {total:,} GPUs"
    if hosts > 1:
        share += f", {len(by_host):,} of {hosts:,} hosts"
    return f"{'; '.join(places)} ({share})"


def gpu_text(gpu: Gpu) -> str:
    """Return a GPU's index on its host, or the beginning of its uuid."""
    return plain(str(gpu.index) if gpu.index is not None else gpu.uuid, 16)


def _place(host: str, gpus: Sequence[Gpu]) -> str:
    names = ", ".join(gpu_text(gpu) for gpu in gpus[:8])
    more = f" and {len(gpus) - 8} more" if len(gpus) > 8 else ""
    place = f"GPU{'s' if len(gpus) > 1 else ''} {names}{more}"
    return f"{place} on {plain(host, 60)}" if host else place
