"""How a source gets in: credentials, certificates, and what of a URL may be shown."""

import ssl
from base64 import b64encode
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

import msgspec

from detector.tables import ContentErrors
from detector.telemetry.sign_in import SignIn
from detector.telemetry.source import SourceError

# OpenSSL's codes for a certificate whose issuer is not among those that are trusted.
_UNKNOWN_CA = (18, 19, 20, 21)

# What its versions say of an answer that is no TLS, such as an HTTP server's.
_PLAIN = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")

# Reads what ``<key>_file`` or ``<key>_env`` of some settings point to; "" for nothing.
Secret = Callable[[msgspec.Struct, str], str]


def authorization(settings: SignIn, secret: Secret) -> dict[str, str]:
    """Return the header that signs in: a bearer token, else user and password, else none."""
    if bearer := secret(settings, "bearer"):
        return {"Authorization": f"Bearer {bearer}"}
    if settings.username:
        return basic(settings.username, secret(settings, "password"))
    return {}


def signing(settings: SignIn, secret: Secret) -> Callable[[], dict[str, str]]:
    """Return what gives the header that signs in, by what its file holds then.

    Service accounts' tokens are rotated every hour. It raises SourceError where the file cannot
    be read any more.

    Raises
    ------
    ContentErrors
        When the secret cannot be read now.
    """
    authorization(settings, secret)

    def sign_in() -> dict[str, str]:
        try:
            return authorization(settings, secret)
        except ContentErrors as errors:
            raise SourceError("; ".join(map(str, errors.problems))) from None

    return sign_in


def credential(settings: SignIn) -> str:
    """Return what signs in, and where that is, for people; "" for nothing."""
    if settings.bearer_file or settings.bearer_env:
        return f"the token in {settings.bearer_file or f'${settings.bearer_env}'}"
    if settings.username:
        where = settings.password_file or f"${settings.password_env}"
        return f"the password of {settings.username!r} in {where}"
    return ""


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header of basic authentication."""
    pair = b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def tls_context(settings: SignIn) -> ssl.SSLContext | None:
    """Return what is trusted; None for the system's certificates.

    Raises
    ------
    SourceError
        When the certificates cannot be read.
    """
    if settings.verify and not settings.ca_file:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        msg = f"{settings.name}: ca_file {settings.ca_file} cannot be read: {error}"
        raise SourceError(msg) from None
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def tls_trouble(error: object) -> str:
    """Return what is wrong with a TLS connection, and what to do, by OpenSSL's own error."""
    if getattr(error, "reason", "") in _PLAIN:
        return "TLS: what answers there speaks http, no https; write http://"
    detail = getattr(error, "verify_message", "") or getattr(error, "reason", "")
    unknown = getattr(error, "verify_code", 0) in _UNKNOWN_CA
    do = "name its CA with ca_file" if unknown else "is the address right?"
    return f"TLS: {detail or type(error).__name__}; {do}"


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "***"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
