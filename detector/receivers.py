"""The receivers that config.toml names, each with its secret."""

from pathlib import Path
from typing import assert_never

from detector.config import Config, ReceiverSettings, secret
from detector.notify import slack
from detector.notify.receiver import Histories, Receiver
from detector.notify.slack import SlackSettings
from detector.notify.webhook import Webhook, WebhookSettings
from detector.tables import ContentErrors, Problem


def receivers(config: Config, *, histories: Histories) -> tuple[Receiver, ...]:
    """Return the configured receivers, each with its secret.

    Raises
    ------
    ContentErrors
        With every secret that cannot be read or is none.
    """
    made: list[Receiver] = []
    wrong: list[Problem] = []
    for settings in config.receivers:
        try:
            made.append(_receiver(settings, config, histories))
        except ContentErrors as errors:
            wrong += errors.problems
        except ValueError as error:
            place = f"receiver {settings.name!r}"
            wrong.append(Problem(file=Path("config.toml"), path=place, message=str(error)))
    if wrong:
        raise ContentErrors(wrong)
    return tuple(made)


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
