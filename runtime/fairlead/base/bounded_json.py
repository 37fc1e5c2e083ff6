"""JSON from elsewhere: of registries, images, records and files that anybody may have written.

Python reads more than JSON is used for: integers of any length, which no float holds; lone surrogates, which cannot be
written as text; NaN; lists in lists until the stack ends; UTF-16. Each fails later, far from the file. Here they are
a ValueError, as all other damage is.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_DIGITS = 20  # of 2^64 - 1
_DEPTH = 64
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str | bytes | bytearray) -> Any:
    """The value of a JSON text: UTF-8, integers of 64 bits, finite numbers, at most 64 values within each other.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(text, str):
        text = text.decode("utf-8-sig")
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_constant)
    except RecursionError:
        raise ValueError(f"more than {_DEPTH} values within each other") from None
    _check_depth(value)
    if not text.isascii():
        text.encode()  # UnicodeEncodeError is a ValueError
    if _SURROGATE.search(text):
        # Pairs of surrogates are characters, and were joined.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS or not -(2**63) <= (value := int(digits)) < 2**64:
        raise ValueError(f"an integer of {len(digits)} digits: {digits[:24]}…")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:24]} is too large")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"more than {_DEPTH} values within each other")
