"""Amounts of bytes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?(?:/s)?\s*", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """``20GB``, ``1.5 TiB`` or ``200MB/s`` as bytes.

    Raises:
        ValueError: it is not an amount.

    >>> bytes_of("2kB"), bytes_of("1MiB")
    (2000, 1048576)
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not an amount; write e.g. 200GB or 1.5TiB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _UNITS[match[2].lower()])
