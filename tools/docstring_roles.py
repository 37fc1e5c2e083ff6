"""Griffe extension: ``:func:`name``` and double backquotes of docstrings as Markdown code spans."""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension, Object

_ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")
# Google's sections stand without blank lines between them in this code; griffe needs one.
_SECTION = re.compile(r"(?<!\n)\n(?=(?:Returns|Raises|Attributes|Args|Yields):\n)")
_LITERAL = re.compile(r"``([^`]+)``")


def as_markdown(text: str) -> str:
    """A docstring's reStructuredText spans as Markdown, its sections apart."""
    return _LITERAL.sub(r"`\1`", _ROLE.sub(r"`\1`", _SECTION.sub("\n\n", text)))


class DocstringRoles(Extension):
    """Converts every docstring as griffe loads it."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        docstring: Docstring | None = obj.docstring
        if docstring:
            docstring.value = as_markdown(docstring.value)
