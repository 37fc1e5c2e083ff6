"""Words from elsewhere, as they may be shown."""

from __future__ import annotations

import email.utils
from datetime import UTC


def plain(text: str) -> str:
    """``text`` with what would steer a terminal, or turn its writing round, made visible: words of
    a file or a tool may come from any source."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t\u00a0" else c.encode("unicode_escape").decode()
        for c in text
    )


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
