"""The JSON Schema of ``recipe.toml``, for editors; see :mod:`fairlead.base.json_schema`."""

from __future__ import annotations

from typing import Any

from fairlead.base.json_schema import schema_of, schema_text
from fairlead_build.recipe.model import Written


def schema() -> dict[str, Any]:
    """The schema as data."""
    return schema_of(Written)


def text() -> str:
    """The schema as it is published."""
    return schema_text(schema())
