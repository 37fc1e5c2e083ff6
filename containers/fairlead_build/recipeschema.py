"""The JSON Schema of ``recipe.toml``, for editors: completion, the meaning of each key, mistakes.

Made of the model that reads recipes, so both always say the same. Draft 7, which the TOML servers
of editors know.
"""

from __future__ import annotations

import json
from typing import Any

from fairlead_build.recipemodel import Written

DRAFT = "http://json-schema.org/draft-07/schema#"


def schema() -> dict[str, Any]:
    """The schema as data."""
    made: dict[str, Any] = _plain(Written.model_json_schema())
    return {"$schema": DRAFT, **made}


def text() -> str:
    """The schema as it is published."""
    return json.dumps(schema(), indent=1) + "\n"


def _plain(value: Any) -> Any:
    """Without what TOML does not have: a null; and with words beside a reference kept.

    In draft 7, whatever stands beside a ``$ref`` is ignored.
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
