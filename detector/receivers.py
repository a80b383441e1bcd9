"""The receivers that config.toml names, each with its secret."""

import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from detector.config import Config, ReceiverSettings, secret
from detector.notify import slack
from detector.notify.receiver import Histories, Receiver
from detector.notify.slack_settings import SlackSettings
from detector.notify.webhook import Webhook, WebhookSettings
from detector.tables import ContentErrors, Problem

_SECRET_FILES = ("password_file", "token_file", "webhook_file", "secret_file", "bearer_file")


def receivers(config: Config, *, histories: Histories) -> tuple[Receiver, ...]:
    """Return the configured receivers, each with its secret.

    Raises
    ------
    ContentErrors
        With every secret that cannot be read or is none.
    """
    wrong = refused_secrets(config.receivers)
    if wrong:
        raise ContentErrors(wrong)
    return tuple(_receiver(settings, config, histories) for settings in config.receivers)


def refused_secrets(settings: Iterable[ReceiverSettings]) -> list[Problem]:
    """Return why secrets cannot be read or are none, in words that do not repeat them."""
    wrong: list[Problem] = []
    for receiver in settings:
        try:
            receiver.check_secret(secret(receiver))
        except ContentErrors as errors:
            wrong += errors.problems
        except ValueError as error:
            place = f"receiver {receiver.name!r}"
            wrong.append(Problem(file=Path("config.toml"), path=place, message=str(error)))
    return wrong


def doubts(config: Config) -> list[str]:
    """Return what works and should not be left as it is."""
    found = [text for receiver in config.receivers for text in receiver.problems]
    for settings in (config.redis, *config.receivers, *config.sources):
        for key in (
            "password_file",
            "token_file",
            "webhook_file",
            "secret_file",
            "bearer_file",
        ):
            path = Path(getattr(settings, key, ""))
            with suppress(OSError):  # one that cannot be read is an error, told elsewhere
                if path.is_file() and path.stat().st_mode & stat.S_IROTH:
                    found.append(f"{path}: every user of this machine can read it; chmod 600")
    return found


def _receiver(settings: ReceiverSettings, config: Config, histories: Histories) -> Receiver:
    match settings:
        case SlackSettings():
            return slack.receiver(
                settings,
                secret=secret(settings),
                histories=histories,
                permalink_base=config.permalink_base,
            )
        case WebhookSettings():
            base = config.permalink_base or "urn:ofuwatch"
            return Webhook(
                settings,
                secret=secret(settings),
                source=f"{base}/clusters/{config.cluster}",
                permalink_base=config.permalink_base,
            )
        case _:
            assert_never(settings)
