"""JSON Schema, by validators that fairlead does not use itself.

They take long to import, so the tests marked with ``validates`` share a worker.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

validates = pytest.mark.xdist_group("json-schema")


def mistakes(schema: dict[str, Any], document: object) -> list[str]:
    """What is wrong with a document; the schema itself must be sound."""
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # a format that no schema uses: 1 s
    import jsonschema

    jsonschema.Draft7Validator.check_schema(schema)
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(document)]


def sbom_mistake(text: str) -> object:
    """What is wrong with a CycloneDX 1.6 document, by CycloneDX's own library; None for nothing."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
