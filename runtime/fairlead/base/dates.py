"""Dates of others."""

from __future__ import annotations

import email.utils
from datetime import UTC


def seconds_of_date(text: str) -> float:
    """Seconds since 1970 of a date as HTTP, e-mail and Debian's archives write it.

    Raises:
        ValueError: it is not a date, or of a year that has no such number.
    """
    try:
        date = email.utils.parsedate_to_datetime(text)
        return date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    except (TypeError, OverflowError) as exc:
        raise ValueError(f"{text[:60]!r} is not a date") from exc
