"""Values as TOML, for files that are written."""

from __future__ import annotations

import json
from collections.abc import Mapping


def value_text(value: object) -> str:
    """A number, text, truth value, list or table as it stands behind ``key =``; None becomes ``null``, which no reader takes.

    >>> value_text({"low": 1, "high": 2.0, "log": True, "of": ("a", 1e-05)})
    '{ "low" = 1, "high" = 2.0, "log" = true, "of" = ["a", 1e-05] }'
    """
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{json.dumps(k)} = {value_text(v)}" for k, v in value.items()) + " }"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = repr(value)
        return text if any(c in text for c in ".en") else f"{text}.0"
    if isinstance(value, int):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def text_block(text: str) -> str:
    """A text of several lines as TOML shows it best.

    >>> print(text_block("a = 1\nb = 2\n"))
    '''
    a = 1
    b = 2
    '''
    """
    odd = any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 for c in text)
    plain = "'''" not in text and not text.endswith("'") and not odd
    return f"'''\n{text}'''" if plain else value_text(text)
