"""The alert as people read it: Slack's blocks, its plain fallback, a terminal's lines. Pure.

Everything that comes from outside is cleaned (:mod:`detector.notify.wording`) and, for Slack,
escaped and bounded here, so that no label can mention a channel, make a link or grow a message
past what Slack accepts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from msgspec.structs import replace

from detector.incident.incident import Incident, State, Transition, TransitionType
from detector.notify.wording import (
    ENDINGS,
    action_words,
    cut,
    ending_text,
    job_title,
    levels_text,
    neutral,
    plain,
    runbook_text,
    span_text,
    subject_text,
    sure_text,
    waste_text,
    well_ended,
    where_text,
    words,
)
from detector.series import iso

# Slack's limits (docs.slack.dev, Block Kit reference; held in tests against the validators of
# slack_sdk). The fallback stays below 3,000: above about 4,000 Slack posts a text but refuses
# to edit it.
_HEADER = 150
_FIELD = 2_000
_SECTION = 3_000
_TEXT = 2_900
_URL = 2_000

# What our messages are marked with, so that one whose answer was lost can be found again.
EVENT_TYPE = "ofu_incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackMessage:
    """A transition in Slack's terms.

    Attributes
    ----------
    text
        The whole of it in plain words; what notifications show.
    blocks
        The same as Block Kit.
    metadata
        Unseen: the event's and the incident's id, and the revision.
    """

    text: str
    blocks: list[dict[str, object]]
    metadata: Mapping[str, object]

    @property
    def brief(self) -> str:
        """The first lines of ``text``, for a Slack that takes nothing else."""
        return "\n".join(self.text.splitlines()[:3])


def slack_message(
    transition: Transition, *, permalink_base: str = "", mention: str = ""
) -> SlackMessage:
    """Return the transition's message, told as of its own time: each try says the same.

    A mention is used for what passed the page bound and nobody has taken, and never at an end.
    """
    base, now_ms = permalink_base.rstrip("/"), transition.time_ms
    incident = transition.incident
    incident = replace(incident, runbook=runbook_text(incident.runbook, base))
    permalink = f"{base}/i/{incident.id}" if base else ""
    called = mention if calls(incident) else ""
    return SlackMessage(
        text=slack_text(incident, transition.type, now_ms=now_ms, permalink=permalink),
        blocks=slack_blocks(
            incident, transition.type, now_ms=now_ms, permalink=permalink, mention=called
        ),
        metadata=slack_metadata(transition),
    )


def calls(incident: Incident) -> bool:
    """Whether people are to be called: it passed the page bound, and nobody has taken it.

    A further drop of it is critical too, and calls nobody until it passes the bound itself.
    """
    return incident.paged_ms is not None and incident.state is State.OPEN


def slack_metadata(transition: Transition) -> dict[str, object]:
    """Return the mark by which a message of this transition is found again."""
    incident = transition.incident
    payload = {
        "event_id": transition.event_id,
        "incident_id": incident.id,
        "revision": incident.revision,
    }
    return {"event_type": EVENT_TYPE, "event_payload": payload}


def escape(text: str, limit: int = _FIELD) -> str:
    """Return ``text`` as Slack shows it literally; ``limit`` holds for the escaped text."""
    pieces: list[str] = []
    room = limit - 1
    for character in plain(text, limit):
        piece = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, character)
        if len(piece) > room:
            return "".join(pieces) + "…"
        pieces.append(piece)
        room -= len(piece)
    return "".join(pieces)


def slack_blocks(
    incident: Incident,
    transition_type: TransitionType,
    *,
    now_ms: int,
    permalink: str = "",
    mention: str = "",
) -> list[dict[str, object]]:
    """Return the Block Kit message that tells the incident as it now stands.

    Parameters
    ----------
    now_ms
        The time the message speaks from, which "so far" is counted up to. Give the
        transition's own time: then every retry makes the same message.
    permalink
        Where the incident can be looked at; "" leaves the link out.
    mention
        Slack mark-up that calls somebody (``<!here>``), put in as it is.
    """
    lead = escape(_summary(incident, transition_type), 1_500)
    if mention:
        lead = f"{mention} {lead}"
    if steps := _steps(incident):
        lead += f"\n*Do:* {steps}"
    fields = [_mrkdwn(text, _FIELD) for text in _fields(incident, now_ms)]
    blocks: list[dict[str, object]] = [
        {"type": "header", "text": _plain_text(_headline(incident))},
        {"type": "section", "text": _mrkdwn(lead, _SECTION)},
        {"type": "section", "fields": fields},
    ]
    if doubts := "\n".join(filter(None, (_runners_up(incident), _ruled_out(incident)))):
        blocks.append({"type": "context", "elements": [_mrkdwn(doubts, _SECTION)]})
    origin = _origin(incident, permalink)
    blocks.append({"type": "context", "elements": [_mrkdwn(origin, _SECTION)]})
    return blocks


def slack_text(
    incident: Incident, transition_type: TransitionType, *, now_ms: int, permalink: str = ""
) -> str:
    """Return the message in plain words: for notifications, screen readers and as fallback."""
    facts = (
        levels_text(incident),
        f"since {_slack_time(incident.onset_ms)}",
        escape(where_text(incident), 300),
        waste_text(incident, until_ms=now_ms),
    )
    steps = action_words(incident.recommended_action) if incident.live else ""
    lines = (
        f"{_status(incident)}: {escape(subject_text(incident, limit=500), 700)}",
        escape(_summary(incident, transition_type), 900),
        " · ".join(filter(None, facts)),
        f"Do: {escape(steps, 200)}" if steps else "",
        _link(permalink, "open") if len(permalink) < 500 else "",
    )
    return cut("\n".join(filter(None, lines)), _TEXT)


def thread_line(
    incident: Incident, transition_type: TransitionType, *, now_ms: int, mention: str = ""
) -> str:
    """Return the one line that a transition adds to the message's thread, as mrkdwn."""
    icon, levels = _icon(incident), levels_text(incident)
    if mention and calls(incident):
        icon = f"{mention} {icon}"
    if incident.state is State.RESOLVED:
        waste = waste_text(incident, until_ms=now_ms)
        return f"{icon} {ending_text(incident)}." + (f" {waste}." if waste else "")
    match transition_type:
        case "opened":
            return f"{icon} Open again: {levels}."
        case "acknowledged":
            return (
                f"{icon} Acknowledged by {escape(incident.acknowledged_by, 100) or 'somebody'}."
            )
        case "escalated":
            why = f", {escape(incident.page_reason, 300)}" if calls(incident) else ""
            return f"{icon} Escalated to *{incident.severity}*: {levels}{why}."
        case _:
            return f"{icon} Now {levels}."


def terminal_line(transition: Transition, *, permalink_base: str = "") -> str:
    """Return the transition as plain lines for a terminal or a log: what, why, what to do.

    The first line is whole in itself; a second and a third follow while the incident lives.
    """
    incident = transition.incident
    what = f"{words(incident.kind)}  {job_title(incident, 120)}: {levels_text(incident)}"
    head = f"{iso(transition.time_ms)}  {transition.type:<12}  {incident.severity:<8}  {what}"
    if incident.state is State.RESOLVED:
        return f"{head}, {ending_text(incident).lower()}"
    lines = [f"{head}, since {iso(incident.onset_ms)}, {plain(where_text(incident), 200)}"]
    if incident.summary:
        lines.append(f"    why: {plain(incident.summary, 300)}")
    if steps := action_words(incident.recommended_action):
        runbook = plain(runbook_text(incident.runbook, permalink_base), 300)
        lines.append(f"    do:  {steps}" + (f" (runbook: {runbook})" if runbook else ""))
    return "\n".join(lines)


def _headline(incident: Incident) -> str:
    """The header: state, how bad, which job, in 150 characters."""
    status = f"{_icon(incident)} "
    if incident.state is State.RESOLVED:
        status += f"{ending_text(incident)} · "
    elif incident.state is State.ACKNOWLEDGED:
        by = plain(incident.acknowledged_by, 30)
        status += f"Acknowledged{f' by {by}' if by else ''} · "
    return status + subject_text(incident, limit=_HEADER - len(status))


def _summary(incident: Incident, transition_type: TransitionType) -> str:
    """The sentence that explains, after what the transition was where that needs saying."""
    why = plain(incident.summary, 1_500) or f"Looks like {words(incident.kind)}."
    if incident.state is State.RESOLVED:
        return f"{ENDINGS[incident.resolve_reason or 'recovered'][1]} It was: {why}"
    if transition_type == "escalated":
        page = plain(incident.page_reason, 300) if incident.paged_ms is not None else ""
        return f"Escalated to {incident.severity}{f': {page}' if page else ''}. {why}"
    if incident.flap_count:
        times = f"{incident.flap_count} times" if incident.flap_count > 1 else "once"
        return f"Came back after a recovery ({times} so far). {why}"
    return why


def _fields(incident: Incident, now_ms: int) -> list[str]:
    """The facts side by side, most urgent first; Slack shows two in a row."""
    seen = span_text(incident.detected_ms - incident.onset_ms)
    half_ms = (incident.onset_high_ms - incident.onset_low_ms) // 2
    about = f" ± {span_text(half_ms)}" if half_ms >= 1000 else ""
    until = f"seen after {seen}"
    if incident.resolved_ms is not None:
        until = f"until {_slack_time(incident.resolved_ms)}"
    certain = f"{sure_text(incident.confidence)} that it changed"
    if incident.attribution_confidence is not None and incident.gpus:
        certain += f", {sure_text(incident.attribution_confidence)} that it is these GPUs"
    people = [name for name in (incident.job.owner, incident.job.team) if name.strip()]
    entries = {
        "Before → after": levels_text(incident),
        "Waste": waste_text(incident, until_ms=now_ms),
        "Since": f"{_slack_time(incident.onset_ms)}{about}, {until}",
        "Where": escape(where_text(incident), 800),
        "How sure": certain,
        "Owner": " · ".join(escape(name, 100) for name in people) or "not known",
    }
    return [f"*{label}*\n{text}" for label, text in entries.items() if text]


def _steps(incident: Incident) -> str:
    """What to do next, with the runbook; "" when it is over or there is nothing to do."""
    if not incident.live:
        return ""
    link = _link(incident.runbook, "runbook")
    if incident.runbook and not link:
        link = f"runbook: {escape(runbook_text(incident.runbook), 300)}"
    return " · ".join(filter(None, (escape(action_words(incident.recommended_action)), link)))


def _ruled_out(incident: Incident) -> str:
    """The five rules that came closest without holding, and why they did not."""
    shown = [
        escape(words(entry.rule)) + (f" ({escape(entry.reason, 200)})" if entry.reason else "")
        for entry in incident.ruled_out[:5]
    ]
    more = len(incident.ruled_out) - len(shown)
    tail = f" and {more} more" if more else ""
    return f"*Ruled out:* {', '.join(shown)}{tail}" if shown else ""


def _runners_up(incident: Incident) -> str:
    names = ", ".join(escape(words(name), 120) for name in incident.runners_up[:5])
    return f"*Could also be:* {names}" if names else ""


def _origin(incident: Incident, permalink: str) -> str:
    """Where it comes from, for whoever searches the logs."""
    parts = (
        incident.severity,
        f"rule {escape(incident.rule, 100)}",
        f"cluster {escape(incident.cluster, 100)}" if incident.cluster else "",
        f"{_code(incident.id, 100)} revision {incident.revision}",
        _link(permalink, "open"),
    )
    return " · ".join(filter(None, parts))


def _icon(incident: Incident) -> str:
    match incident.state:
        case State.RESOLVED:
            return ":white_check_mark:" if well_ended(incident) else ":grey_question:"
        case State.ACKNOWLEDGED:
            return ":eyes:"
        case _:
            return ":information_source:" if neutral(incident) else ":red_circle:"


def _status(incident: Incident) -> str:
    match incident.state:
        case State.RESOLVED:
            return f"RESOLVED ({ending_text(incident)})"
        case State.ACKNOWLEDGED:
            return "ACKNOWLEDGED"
        case _:
            return "NOTE" if neutral(incident) else f"FIRING ({incident.severity})"


def _slack_time(time_ms: int) -> str:
    """A time that Slack shows in each reader's own zone; UTC where it can't."""
    fallback = iso(time_ms)[:16].replace("T", " ")
    return f"<!date^{time_ms // 1000}^{{date_short_pretty}} {{time}}|{fallback} UTC>"


def _link(url: str, label: str) -> str:
    """A Slack link, or "" for anything but a plain http(s) address."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return ""
    if scheme not in ("http", "https"):
        return ""
    # "|" and ">" would end the address early; quote turns both into %xx.
    address = quote(url.encode(errors="ignore"), safe=":/?#[]@!$'()*+,;=%~&")
    address = address.replace("&", "&amp;")
    return f"<{address}|{label}>" if len(address) <= _URL else ""


def _code(text: str, limit: int) -> str:
    return f"`{escape(text.replace('`', ' '), limit)}`"


def _mrkdwn(text: str, limit: int) -> dict[str, object]:
    # verbatim: Slack must not make links or mentions of what only looks like one.
    return {"type": "mrkdwn", "text": cut(text, limit), "verbatim": True}


def _plain_text(text: str) -> dict[str, object]:
    # A header has no escapes; look-alikes keep a name from reading as mark-up.
    shown = text.replace("<", "‹").replace(">", "›")
    return {"type": "plain_text", "text": cut(shown, _HEADER), "emoji": True}
