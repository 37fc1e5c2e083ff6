"""JSON Schemas of fairlead's own files, for editors: completion, the meaning of each key, mistakes.

Made of the models that read the files, so both always say the same. Draft 7, which the TOML servers
of editors know. See :mod:`fairlead.site.profile`; recipes have theirs in ``fairlead_build``.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

DRAFT = "http://json-schema.org/draft-07/schema#"


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of ``model``'s files, as data."""
    made: dict[str, Any] = _plain(model.model_json_schema())
    return {"$schema": DRAFT, **made}


def schema_text(schema: dict[str, Any]) -> str:
    """A schema as published text."""
    return json.dumps(schema, indent=1) + "\n"


def _plain(value: Any) -> Any:
    """Without what TOML does not have: a null; and with keywords next to a reference kept.

    In draft 7, keywords next to a ``$ref`` are ignored.
    """
    if isinstance(value, list):
        return [_plain(item) for item in value if item != {"type": "null"}]
    if not isinstance(value, dict):
        return value
    kept = {
        key: _plain(item)
        for key, item in value.items()
        if not (key == "default" and item is None)
        and not (key == "title" and isinstance(item, str) and "properties" not in value)
    }
    if len(kept.get("anyOf", ())) == 1:
        (only,) = kept.pop("anyOf")
        kept = {**only, **kept}
    if "patternProperties" in kept:
        kept.setdefault("additionalProperties", False)
    if "$ref" in kept and len(kept) > 1:
        kept["allOf"] = [{"$ref": kept.pop("$ref")}]
    return kept
