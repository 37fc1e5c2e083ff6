"""Requirements as PEP 508 writes them, of any text."""

from __future__ import annotations

from packaging.requirements import InvalidRequirement, Requirement


def parse_requirement(text: str) -> Requirement:
    """What ``text`` requires.

    ``packaging`` lets Python evaluate quoted strings, so that some of them raise what Python's compiler does.

    Raises:
        InvalidRequirement: it is not a requirement.
    """
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise
    except (SyntaxError, ValueError, RecursionError) as exc:
        raise InvalidRequirement(f"a quoted string cannot be read: {exc}") from None
