"""Words from elsewhere, as they may be shown."""

from __future__ import annotations

from collections.abc import Sequence


def plain(text: str) -> str:
    """``text`` with what would steer a terminal, or turn its writing round, made visible: words of
    a file or a tool may come from any source."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t\u00a0" else c.encode("unicode_escape").decode()
        for c in text
    )


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"]), some(["a", "b"], most=1)
    ('a, b, c and 2 more', 'a and 1 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
