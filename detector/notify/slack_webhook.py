"""Slack's incoming webhooks, the tier without an app: no edits, no threads, no charts."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from detector.notify.http import Failure, post
from detector.notify.message import slack_message
from detector.notify.receiver import Attempt, Outcome, Policy, Refused, Retry, Sent
from detector.notify.slack_api import LOUD, MALFORMED, TIMEOUT_S, Denied, judge_status


class SlackWebhook:
    """Posts each opening, escalation and end as a message of its own.

    What happened while Slack was away is one message: "fired and recovered".
    """

    policy: Policy = "latest"

    def __init__(
        self, name: str, *, url: str, mention: str = "", permalink_base: str = ""
    ) -> None:
        self.name = name
        self._url = url  # the secret: never shown
        self._mention = mention
        self._permalink_base = permalink_base

    def deliver(self, attempt: Attempt) -> Outcome:
        """Post the newest state, if anything in the lane must be heard."""
        waiting = [*attempt.skipped, attempt.notice]
        if not any(notice.transition.type in LOUD for notice in waiting):
            return Sent()
        message = slack_message(
            waiting[-1].transition,
            permalink_base=self._permalink_base,
            mention=self._mention,
        )
        notes = (
            ["may be a duplicate: a webhook can't be looked up"] if attempt.maybe_sent else []
        )
        trouble = self._post({"text": message.text, "blocks": message.blocks}, attempt)
        if isinstance(trouble, Denied) and trouble.error in MALFORMED:
            notes.append(f"sent as plain text ({trouble.error})")
            trouble = self._post({"text": message.brief}, attempt)
        if isinstance(trouble, Denied):
            return Refused(reason=str(trouble))
        if isinstance(trouble, Retry):
            return replace(trouble, ambiguous=trouble.ambiguous or attempt.maybe_sent)
        return Sent(note="; ".join(notes))

    def _post(self, payload: Mapping[str, object], attempt: Attempt) -> Denied | Retry | None:
        answer = post(
            self._url,
            body=msgspec.json.encode(payload),
            headers={"Content-Type": "application/json"},
            timeout_s=TIMEOUT_S,
        )
        if isinstance(answer, Failure):
            return Retry(reason=answer.reason, ambiguous=answer.ambiguous)
        return judge_status(answer, now_ms=attempt.now_ms)
