"""The receivers that config.toml names, each with its secret."""

import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from detector.config import Config, ReceiverSettings, secret
from detector.notify import slack
from detector.notify.receiver import Histories, Receiver
from detector.notify.slack_settings import SlackSettings
from detector.notify.webhook import Webhook, WebhookSettings
from detector.tables import ContentErrors, Problem, attempt

_SECRET_FILES = ("password_file", "token_file", "webhook_file", "secret_file", "bearer_file")


def receivers(config: Config, *, histories: Histories) -> tuple[Receiver, ...]:
    """Return the configured receivers, each with its secret.

    Raises
    ------
    ContentErrors
        With every secret that cannot be read or is none.
    """
    wrong: list[Problem] = []
    for settings in config.receivers:
        attempt(secret, settings, wrong)
    wrong += mistaken_secrets(config.receivers)
    if wrong:
        raise ContentErrors(wrong)
    return tuple(_receiver(settings, config, histories) for settings in config.receivers)


def mistaken_secrets(settings: Iterable[ReceiverSettings]) -> Iterator[Problem]:
    """Yield why secrets that can be read are none, in words that do not repeat them."""
    for receiver in settings:
        with suppress(ContentErrors):  # one that cannot be read is told elsewhere
            text = secret(receiver)
            try:
                receiver.check_secret(text)
            except ValueError as error:
                place = f"receiver {receiver.name!r}"
                yield Problem(file=Path("config.toml"), path=place, message=str(error))


def doubts(config: Config) -> list[str]:
    """Return what works and should not be left as it is."""
    found = [text for receiver in config.receivers for text in receiver.problems]
    own = (config.redis, config.web, config.slurm, config.kubernetes)
    for settings in (*own, *config.receivers, *config.sources):
        for key in _SECRET_FILES:
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
