"""Text as a Lua literal."""

from __future__ import annotations


def text(value: str) -> str:
    """A Lua string; every byte that is not plain is written by its number, unless brackets do."""
    if (
        value.isascii()
        and value.isprintable()
        and set(value) & set('"\\')
        and "]=]" not in value + "]"
    ):
        return f"[=[{value}]=]"
    plain = "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03d}" for b in value.encode()
    )
    return f'"{plain}"'
