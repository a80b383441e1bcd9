"""Slack: one message an incident, edited as it goes on, with a thread for what must be heard.

With a bot token the incident is posted once and edited with each transition. Edits are silent,
so an escalation or a reopening adds a line to the thread that the channel sees too; a resolve
adds a quiet one and calls nobody. The chart goes into the thread afterwards, as a follow-up:
the alert never waits for it, and its failure is a note. With an incoming webhook, which can
neither edit nor thread, each opening, escalation and end is a message of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from detector.incident.incident import Incident, State, Transition
from detector.notify.chart import draw
from detector.notify.message import (
    SlackMessage,
    slack_message,
    slack_metadata,
    thread_line,
)
from detector.notify.receiver import (
    Attempt,
    Histories,
    Outcome,
    Policy,
    Receiver,
    Refused,
    Retry,
    Sent,
)
from detector.notify.slack_api import LOUD, MALFORMED, Api, Denied
from detector.notify.slack_settings import SlackSettings
from detector.notify.slack_webhook import SlackWebhook
from detector.notify.wording import subject_text
from detector.series import Window

CHART = "chart"

# The message can't be edited, but its channel may well take a new one.
_UNEDITABLE = (
    "message_not_found",
    "cant_update_message",
    "edit_window_closed",
    "channel_not_found",
    "is_archived",
    "not_in_channel",
)
# Slack is to make no links, names or previews out of our text.
_UNTOUCHED = {
    "parse": "none",
    "link_names": False,
    "unfurl_links": False,
    "unfurl_media": False,
}


def receiver(
    settings: SlackSettings, *, secret: str, histories: Histories, permalink_base: str = ""
) -> Receiver:
    """Return the receiver that ``settings`` describe.

    Parameters
    ----------
    secret
        The bot token, or the incoming webhook's URL.
    permalink_base
        Where the service's pages are (``https://ofu.example.com``); "" gives no links.

    Raises
    ------
    ValueError
        When ``secret`` is none, in words that do not repeat it.
    """
    settings.check_secret(secret)
    if settings.uses_token:
        return Slack(
            settings, secret=secret, histories=histories, permalink_base=permalink_base
        )
    return SlackWebhook(
        settings.name, url=secret, mention=settings.mention, permalink_base=permalink_base
    )


class _Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Which message tells this incident."""

    channel: str
    ts: str


class Slack:
    """The Web API with a bot token: a message that is edited, a thread, a chart."""

    policy: Policy = "latest"

    def __init__(
        self,
        settings: SlackSettings,
        *,
        secret: str,
        histories: Histories,
        permalink_base: str = "",
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._api = Api(url=settings.api_url, token=secret)
        self._histories = histories
        self._permalink_base = permalink_base

    def deliver(self, attempt: Attempt) -> Outcome:
        """Post or edit the incident's message, or put its chart into the thread."""
        if attempt.notice.follow_up:
            return self._chart(attempt)
        waiting = [*attempt.skipped, attempt.notice]
        outcome = self._tell([notice.transition for notice in waiting], attempt)
        # What may have been sent stays so until a try has gone all the way.
        if attempt.maybe_sent and isinstance(outcome, Retry):
            return replace(outcome, ambiguous=True)
        return outcome

    def _tell(self, transitions: Sequence[Transition], attempt: Attempt) -> Outcome:
        """Bring the channel up to date with the newest of the transitions."""
        newest = transitions[-1]
        message = slack_message(
            newest, permalink_base=self._permalink_base, mention=self._settings.mention
        )
        receipt, note = _read_receipt(attempt.receipt), ""
        if receipt is not None:
            edited = self._edit(receipt, message, attempt)
            match edited:
                case Sent():
                    return self._continue_thread(receipt, transitions, attempt, sent=edited)
                case Retry():
                    return edited
                case Denied() if edited.error not in _UNEDITABLE:
                    return Refused(reason=str(edited))
            note = f"posted anew: the old message can't be edited ({edited.error})"
        if attempt.maybe_sent:
            found = self._reconcile(transitions, message, receipt, attempt)
            if not isinstance(found, str):
                return found
            note = _joined(note, found)
        return self._post(message, attempt, note=note)

    def _reconcile(
        self,
        transitions: Sequence[Transition],
        message: SlackMessage,
        receipt: _Receipt | None,
        attempt: Attempt,
    ) -> Sent | Retry | str:
        """Take up the post of an earlier try that got no answer; a note when there is none."""
        channel = self._settings.channel
        found = self._api.find(
            channel=channel,
            incident_id=transitions[-1].incident.id,
            after=receipt.ts if receipt else "",
            now_ms=attempt.now_ms,
        )
        match found:
            case Retry():
                return found
            case Denied():
                return f"may be a duplicate: {found}"
            case None:
                return ""
        taken = _Receipt(channel=channel, ts=found)
        outcome: Sent | Denied | Retry = self._edit(taken, message, attempt)
        if isinstance(outcome, Sent):
            # The post itself told of the opening; what came after is still to be heard.
            later = [
                each
                for each in transitions
                if each.type != "opened" or each.incident.flap_count
            ]
            outcome = self._continue_thread(taken, later, attempt, sent=outcome)
        match outcome:
            case Sent():
                return replace(outcome, receipt=_encode(taken), follow_ups=(CHART,))
            case Retry():
                return outcome
            case Denied():
                return f"posted anew: the message found can't be edited ({outcome.error})"

    def _post(self, message: SlackMessage, attempt: Attempt, *, note: str) -> Outcome:
        """Post the incident's message for the first time."""
        arguments = {"channel": self._settings.channel, **_UNTOUCHED}
        answer, degraded = self._say("chat.postMessage", arguments, message, attempt)
        match answer:
            case Denied():
                return Refused(reason=str(answer))
            case Retry():
                return answer
        receipt = _Receipt(channel=str(answer.get("channel", "")), ts=str(answer.get("ts", "")))
        return Sent(receipt=_encode(receipt), follow_ups=(CHART,), note=_joined(note, degraded))

    def _edit(
        self, receipt: _Receipt, message: SlackMessage, attempt: Attempt
    ) -> Sent | Denied | Retry:
        """Make the posted message say what is true now. Repeating it changes nothing."""
        # Unlike posting, editing makes links and names of the text unless told not to.
        arguments = {"channel": receipt.channel, "ts": receipt.ts, "parse": "none"}
        answer, degraded = self._say("chat.update", arguments, message, attempt)
        return answer if isinstance(answer, Denied | Retry) else Sent(note=degraded)

    def _say(
        self,
        method: str,
        arguments: Mapping[str, object],
        message: SlackMessage,
        attempt: Attempt,
    ) -> tuple[Mapping[str, Any] | Denied | Retry, str]:
        """Send a message; once more as plain text where Slack dislikes its form."""
        rich = {
            **arguments,
            "text": message.text,
            "blocks": message.blocks,
            "metadata": message.metadata,
        }
        answer = self._api.call(method, rich, now_ms=attempt.now_ms)
        if not isinstance(answer, Denied) or answer.error not in MALFORMED:
            return answer, ""
        bare = {**arguments, "text": message.brief, "blocks": []}
        note = f"sent as plain text ({answer.error})"
        return self._api.call(method, bare, now_ms=attempt.now_ms), note

    def _continue_thread(
        self,
        receipt: _Receipt,
        transitions: Sequence[Transition],
        attempt: Attempt,
        *,
        sent: Sent,
    ) -> Sent | Retry:
        """Add the line that makes an edit heard; at an end a quiet one, which may fail."""
        heard = next((each for each in reversed(transitions) if each.type in LOUD), None)
        if heard is None:
            return sent
        newest = transitions[-1].incident
        over = newest.state is State.RESOLVED
        if attempt.maybe_sent:
            told = self._api.in_thread(
                channel=receipt.channel,
                ts=receipt.ts,
                event_id=heard.event_id,
                now_ms=attempt.now_ms,
            )
            match told:
                case True:
                    return sent
                case Retry() if not over:
                    return told
                case Denied():
                    note = f"the thread line may be a duplicate: {told}"
                    sent = replace(sent, note=_joined(sent.note, note))
        answer = self._reply(receipt, heard, newest, now_ms=attempt.now_ms)
        match answer:
            case Retry() if not over:
                return answer
            case Denied() | Retry():
                note = f"no thread line: {_reason(answer)}"
                return replace(sent, note=_joined(sent.note, note))
        return replace(sent, follow_ups=(CHART,)) if heard.type == "opened" else sent

    def _reply(
        self, receipt: _Receipt, heard: Transition, newest: Incident, *, now_ms: int
    ) -> Mapping[str, Any] | Denied | Retry:
        """Post the line of ``heard`` under the message; in the simplest form if need be."""
        place = {"channel": receipt.channel, "thread_ts": receipt.ts, **_UNTOUCHED}
        text = thread_line(
            newest, heard.type, now_ms=heard.time_ms, mention=self._settings.mention
        )
        broadcast = newest.state is not State.RESOLVED
        line = {**place, "text": text, "reply_broadcast": broadcast}
        marked = {**line, "metadata": slack_metadata(heard)}
        answer = self._api.call("chat.postMessage", marked, now_ms=now_ms)
        if isinstance(answer, Denied) and answer.error in MALFORMED:
            return self._api.call("chat.postMessage", line, now_ms=now_ms)
        return answer

    def _chart(self, attempt: Attempt) -> Outcome:
        """Draw the incident and put the picture into its thread."""
        receipt = _read_receipt(attempt.receipt)
        if receipt is None:
            return Refused(reason="no chart: the message it belongs to is not known")
        incident = attempt.notice.transition.incident
        try:
            window = self._window(attempt.notice.transition)
            picture = draw(window, incidents=(incident,), metric=incident.metric)
        except Exception as error:  # of the store or the drawing: the alert stands without it
            return Retry(reason=f"no chart: {type(error).__name__}: {error}")
        trouble = self._api.share(
            picture,
            filename=f"{incident.id}.png",
            title=subject_text(incident, limit=120),
            channel=receipt.channel,
            thread_ts=receipt.ts,
            now_ms=attempt.now_ms,
        )
        match trouble:
            case None:
                return Sent()
            case Denied():
                return Refused(reason=f"no chart: {trouble}")
            case Retry(ambiguous=True):
                # Two charts are worse than none.
                return Sent(note=f"the chart may be missing: {trouble.reason}")
            case Retry():
                return trouble

    def _window(self, transition: Transition) -> Window:
        """The history that shows what was normal, the change and what followed."""
        incident = transition.incident
        # How long detection took says on which scale the change lives. Chosen: four times as
        # much before it, at least half an hour, at most a day.
        taken = max(0, incident.detected_ms - incident.onset_ms)
        before = min(max(4 * taken, 1_800_000), 86_400_000)
        return self._histories.window(
            incident.job.id,
            start_ms=max(0, incident.onset_ms - before),
            end_ms=max(transition.time_ms, incident.detected_ms + taken) + 1,
        )


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _reason(trouble: Denied | Retry) -> str:
    return trouble.reason if isinstance(trouble, Retry) else str(trouble)


def _encode(receipt: _Receipt) -> str:
    return msgspec.json.encode(receipt).decode()


def _read_receipt(text: str | None) -> _Receipt | None:
    """The receipt of an earlier delivery; one that can't be read counts as none."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=_Receipt)
    except msgspec.DecodeError:
        return None
