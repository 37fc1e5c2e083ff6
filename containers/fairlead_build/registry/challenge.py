"""The ``WWW-Authenticate`` header of a 401: what a registry wants to see.

Source: RFC 9110, section 11.6.1; docs/spec/auth/token.md of github.com/distribution/distribution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# One token, and what may follow: `=value`, `="value"`, or a comma.
_PART = re.compile(
    r'\s*([A-Za-z0-9!#$%&\'*+.^_`|~-]+)(?:\s*=\s*("(?:[^"\\]|\\.)*"|[^\s,"]*))?\s*,?'
)
_LONGEST = 8192


@dataclass(frozen=True)
class Challenge:
    """One way to be known. ``scheme`` is in small letters; only ``bearer`` uses the rest."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def read_challenges(header: str) -> tuple[Challenge, ...]:
    """Every challenge of the header, in its order; what cannot be read is left out.

    >>> read_challenges('Bearer realm="https://a/token",service="a", Basic realm="b"')[1].scheme
    'basic'
    """
    challenges: list[dict[str, str]] = []
    at = 0
    text = header[:_LONGEST]
    while match := _PART.match(text, at):
        at = match.end()
        name, value = match[1].lower(), match[2]
        if value is None:
            challenges.append({"scheme": name})
        elif challenges:
            plain = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
            challenges[-1].setdefault(name, plain)
    known = ("scheme", "realm", "service", "scope")
    return tuple(Challenge(**{k: v for k, v in item.items() if k in known}) for item in challenges)
