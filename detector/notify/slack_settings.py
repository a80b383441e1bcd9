"""What config.toml says of a Slack receiver, and what it refuses."""

import re
from collections.abc import Iterator

import msgspec

from detector.analysis.rules import Severity
from detector.notify.slack_api import CHANNEL_ID
from detector.series import refuse

_MENTION = re.compile(r"(?:<(?:![a-z]+(?:\^[A-Z0-9]+)?|@[UW][A-Z0-9]+)> ?){1,5}")
# Slack's reference, "Token types": of an app's bot, and of the user who installed it.
_TOKENS = ("xoxb-", "xoxp-")
_LOOPBACK = ("http://127.0.0.1:", "http://localhost:", "http://[::1]:")


class SlackSettings(
    msgspec.Struct,
    tag_field="type",
    tag="slack",
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """A ``[[receiver]]`` entry with ``type = "slack"``.

    Attributes
    ----------
    channel
        With a token: the channel's ID (``C0123456789``; a name works, but then a post that
        got no answer can't be looked up).
    token_file, token_env
        Where the bot token is: a file's path, or an environment variable's name.
    webhook_file, webhook_env
        Instead of a token: where the incoming webhook's URL is.
    severity
        Incidents below it are not sent here.
    api_url
        Where the Web API is; another one than Slack's must be https or on this machine.
    mention
        Whom an incident calls that passes the page bound: ``<!here>``,
        ``<!subteam^S0123456789>`` (a user group) or ``<@U0123456789>``.
    """

    name: str
    channel: str = ""
    token_file: str = ""
    token_env: str = ""
    webhook_file: str = ""
    webhook_env: str = ""
    severity: Severity = "warning"
    api_url: str = "https://slack.com/api"
    mention: str = ""

    def __post_init__(self) -> None:
        """Refuse what can't work, with what to write instead."""
        refuse(self._wrong())

    def _wrong(self) -> Iterator[str]:
        places = (self.token_file, self.token_env, self.webhook_file, self.webhook_env)
        if sum(map(bool, places)) != 1:
            yield "give exactly one of token_file, token_env, webhook_file, webhook_env"
        elif self.uses_token and not self.channel:
            yield 'channel: give the channel to post to, for example channel = "C0123456789"'
        elif not self.uses_token and self.channel:
            yield "channel: an incoming webhook has its channel built in; leave channel out"
        if not self.api_url.startswith(("https://", *_LOOPBACK)):
            yield "api_url must begin with https:// (the token travels with every call)"
        if self.mention and not _MENTION.fullmatch(self.mention):
            yield "mention must look like <!here>, <!subteam^S0123456789> or <@U0123456789>"

    @property
    def uses_token(self) -> bool:
        """Whether it is an app with a bot token, not an incoming webhook."""
        return bool(self.token_file or self.token_env)

    @property
    def problems(self) -> tuple[str, ...]:
        """What works and should not be left like that."""
        if self.uses_token and not CHANNEL_ID.fullmatch(self.channel):
            return (
                f"{self.name}: channel {self.channel!r} is no channel's ID (C0123456789, at "
                "the end of the channel's details): after a lost answer one may come twice",
            )
        return ()

    def check_secret(self, secret: str) -> None:
        """Raise ValueError when ``secret`` is of no use, in words that do not repeat it."""
        if self.uses_token:
            if not secret.startswith(_TOKENS) or not secret.isascii() or " " in secret:
                msg = (
                    "the Slack token must begin with xoxb- (or xoxp-); it is the Bot User "
                    "OAuth Token of the app's page OAuth & Permissions"
                )
                raise ValueError(msg)
        elif not secret.startswith(("https://", *_LOOPBACK)):
            msg = (
                "the incoming webhook must be the whole URL that Slack shows, beginning with "
                "https://"
            )
            raise ValueError(msg)
