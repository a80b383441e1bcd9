"""Times as HTTP headers say them."""

from datetime import UTC
from email.utils import parsedate_to_datetime


def http_date_ms(text: str) -> int | None:
    """Return the time that an HTTP date (``Date``, ``Retry-After``) names; None for none."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # a year of thirty digits
        return None
    if moment.tzinfo is None:  # "-0000": no zone stated, which RFC 9110 reads as UTC
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_retry_after(header: str | None, now_ms: int) -> int | None:
    """Return how long a ``Retry-After`` header asks to wait, ms; None when it says nothing.

    Seconds or an HTTP date, as RFC 9110 section 10.2.3 has it; a date that is past is 0.
    """
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return int(text[:9]) * 1000
    date_ms = http_date_ms(text)
    return None if date_ms is None else max(0, date_ms - now_ms)
