"""Words from elsewhere, as they may be shown."""

from __future__ import annotations


def plain(text: str) -> str:
    """``text`` with what would steer a terminal, or turn its writing round, made visible: words of
    a file or a tool may come from any source."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t\u00a0" else c.encode("unicode_escape").decode()
        for c in text
    )
