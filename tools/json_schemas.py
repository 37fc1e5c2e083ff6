"""JSON Schemas of what ``fairlead validate``, ``fairlead bench`` and ``python -m benchmarks.peers`` write, made of the classes that are written.

``python -m tools.json_schemas`` writes them into ``docs/reference/``; a test compares. Draft 7, as
:mod:`fairlead.base.json_schema`; but here a null stands for what there is not.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import results as peers

from fairlead.base.json_schema import DRAFT, schema_text
from fairlead.base.paths import atomic_write, checkout
from fairlead.perf import bench
from fairlead.perf.judge import references as reference
from fairlead.perf.records import validation as model

PUBLISHED = {
    "validation.schema.json": (model.Validation, model.SCHEMA, model.SCHEMA_VERSION),
    "references.schema.json": (
        reference.References,
        reference.SCHEMA,
        reference.SCHEMA_VERSION,
    ),
    "bench-peers.schema.json": (peers.PeersBench, peers.SCHEMA, peers.SCHEMA_VERSION),
    "bench-collectives.schema.json": (bench.CollectivesBench, bench.SCHEMA, bench.SCHEMA_VERSION),
}


def schema(cls: type, name: str, version: int) -> dict[str, Any]:
    """The schema of files that hold a ``cls``."""
    definitions: dict[str, Any] = {}
    whole = _object(cls, definitions)
    head = {
        "schema": {"const": name},
        "version": {"const": version},
        "fairlead": {"type": "string", "description": "the version that wrote it"},
    }
    whole["properties"] = {**head, **whole["properties"]}
    whole["required"] = ["schema", "version", *whole["required"]]
    return {"$schema": DRAFT, "title": name, **whole, "definitions": definitions}


def _object(
    cls: type,
    definitions: dict[str, Any],
    name_of: Callable[[type], str] = lambda cls: cls.__name__,
) -> dict[str, Any]:
    hints, words = typing.get_type_hints(cls), _described(cls)
    fields = dataclasses.fields(cls)
    properties = {}
    for f in fields:
        shape = shape_of(hints[f.name], definitions, name_of)
        # In draft 7, whatever stands next to a `$ref` is ignored.
        shape = {"allOf": [shape]} if "$ref" in shape and f.name in words else shape
        properties[f.name] = shape | ({"description": words[f.name]} if f.name in words else {})
    missing = dataclasses.MISSING
    return {
        "type": "object",
        "description": (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " "),
        "properties": properties,
        "required": [
            f.name for f in fields if f.default is missing and f.default_factory is missing
        ],
        "additionalProperties": False,
    }


def shape_of(
    hint: Any,
    definitions: dict[str, Any],
    name_of: Callable[[type], str] = lambda cls: cls.__name__,
) -> dict[str, Any]:
    """The schema of what serde writes of a ``hint``; classes go to ``definitions``, under ``name_of`` them.

    Raises:
        KeyError: serde does not write it.
    """
    if hint is Any:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        some = [shape_of(a, definitions, name_of) for a in arguments if a is not types.NoneType]
        return {"anyOf": some + [{"type": "null"}] * (types.NoneType in arguments)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [shape_of(argument, definitions, name_of) for argument in arguments]
        return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (tuple, list):
        return {"type": "array", "items": shape_of(arguments[0], definitions, name_of)}
    if origin is not None and issubclass(origin, Mapping):
        return {
            "type": "object",
            "additionalProperties": shape_of(arguments[1], definitions, name_of),
        }
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        name = name_of(hint)
        if name not in definitions:
            definitions[name] = {}  # its place; a class may hold its like
            definitions[name] = _object(hint, definitions, name_of)
        return {"$ref": f"#/definitions/{name}"}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    return {
        "type": {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}[
            hint
        ]
    }


def _described(cls: type) -> dict[str, str]:
    """What the docstring's ``Attributes:`` say, by name."""
    _, found, after = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    words: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", after.split("\n\n")[0]) if found else ():
        names, _, text = entry.strip().partition(": ")
        for name in names.split(", "):
            words[name] = " ".join(text.split())
    return words


def text(file: str) -> str:
    """One of :data:`PUBLISHED` as it is published."""
    return schema_text(schema(*PUBLISHED[file]))


def main() -> None:
    root = checkout()
    if root is None:
        raise SystemExit("the schemas belong to a checkout of fairlead")
    for file in PUBLISHED:
        with atomic_write(Path(root, "docs/reference", file), "w") as out:
            out.write(text(file))


if __name__ == "__main__":
    main()
