"""Validations and references as files: every mistake is reported at once, files are written whole or not at all.

The values are plain dataclasses; what does not fit them is reported by its place, such as ``measurements[3].samples[0]``,
for several mistakes at once, which :mod:`fairlead.base.serde` does not do. Schemas for other tools are made from the same
classes (``tools/json_schemas.py``).
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fairlead import __version__
from fairlead.base import bounded_json
from fairlead.base.errors import ExitCode, FairleadError, error
from fairlead.base.paths import atomic_write
from fairlead.base.serde import from_json, to_json
from fairlead.base.suggest import suggest

T = TypeVar("T")
CHECK = "validate-document"
_MOST_BYTES = 256 << 20
_SHOWN = 20  # mistakes


def write(path: Path, value: Any, schema: str, version: int) -> None:
    """``value`` under its schema's name.

    Raises:
        OSError: as :func:`fairlead.base.paths.atomic_write`.
    """
    with atomic_write(path, "w") as stream:
        stream.write(text(value, schema, version))


def text(value: Any, schema: str, version: int) -> str:
    """As it is written: with line breaks, but lists of numbers in one line each."""
    whole = {"schema": schema, "version": version, "fairlead": __version__, **to_json(value)}
    return "".join(_lines(whole, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    """What ``json.dumps(value, indent=1)`` gives, but a list of numbers in one line instead of a line a number."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        for i, (key, item) in enumerate(value.items()):
            yield f"{',' if i else '{'}\n{inner}{json.dumps(key)}: "
            yield from _lines(item, inner)
        yield f"\n{indent}}}"
    elif isinstance(value, list) and value and isinstance(value[0], dict | list):
        for i, item in enumerate(value):
            yield f"{',' if i else '['}\n{inner}"
            yield from _lines(item, inner)
        yield f"\n{indent}]"
    else:
        yield json.dumps(value, allow_nan=False)


def read(path: Path, cls: type[T], schema: str, version: int, called: str, remedy: str) -> T:
    """The value in ``path``.

    Args:
        called: what the file is, for messages: ``a validation``.
    Raises:
        FairleadError: exit code 2; one finding a mistake, at most 20.
    """

    def refuse(*reasons: str) -> NoReturn:
        more = [f"{len(reasons) - _SHOWN} more mistakes"] if len(reasons) > _SHOWN else []
        shown = (*reasons[:_SHOWN], *more)
        findings = [
            error("validate-document-other-kind", called=called, path=path, why=why, remedy=remedy)
            for why in shown
        ]
        raise FairleadError(findings, ExitCode.USAGE)

    try:
        if path.stat().st_size > _MOST_BYTES:
            refuse(f"it is larger than {_MOST_BYTES >> 20} MiB")
        data = bounded_json.loads(path.read_bytes())
    except OSError as exc:
        refuse(exc.strerror or str(exc))
    except ValueError as exc:
        refuse(f"it is not JSON: {exc}")
    if not isinstance(data, dict) or data.get("schema") != schema:
        refuse(f"its `schema` is not `{schema}`")
    if data.get("version") != version:
        refuse(f"it is version {data.get('version')!r}; this fairlead reads version {version}")
    body = {k: v for k, v in data.items() if k not in ("schema", "version", "fairlead")}
    if mistakes := list(_mistakes(cls, body, "")):
        refuse(*mistakes)
    try:
        return from_json(cls, body)
    except ValueError as exc:  # what values say of each other
        refuse(str(exc))


def _mistakes(hint: Any, data: Any, at: str) -> Iterator[str]:
    """Every place at which ``data`` does not fit ``hint``."""
    if types.NoneType in typing.get_args(hint):
        if data is None:
            return
        hint = next(a for a in typing.get_args(hint) if a is not types.NoneType)
    kind = _KINDS.get(typing.get_origin(hint), dict if dataclasses.is_dataclass(hint) else hint)
    if hasattr(hint, "__members__"):
        known = [member.value for member in hint]
        if data not in known:
            yield f"{_where(at)}: unknown value {data!r}. {suggest(str(data), known)}"
    elif not (_is_number(data) if kind is float else type(data) is kind):
        actual = str(data) if type(data) in (int, float) else _WORDS[type(data)]
        yield f"{_where(at)}: expected {_WORDS[kind]}, not {actual}"
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield from _of_class(hint, data, at)
    else:
        yield from _of_items(typing.get_args(hint), data, at)


def _of_items(hints: tuple[Any, ...], data: Any, at: str) -> Iterator[str]:
    if isinstance(data, list):
        for i, item in enumerate(data):
            # Floats are by far the most, and seldom wrong.
            if hints[0] is not float or not _is_number(item):
                yield from _mistakes(hints[0], item, f"{at}[{i}]")
    elif isinstance(data, dict):
        for key, item in data.items():
            yield from _mistakes(hints[1], item, f"{at}[{key!r}]")


def _is_number(data: Any) -> bool:
    return type(data) in (int, float) and math.isfinite(data)


def _of_class(cls: type, data: dict[str, Any], at: str) -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in data.keys() - fields.keys():
        yield f"{_where(f'{at}.{name}')}: unknown key. {suggest(name, fields)}"
    for name, f in fields.items():
        if name in data:
            yield from _mistakes(hints[name], data[name], f"{at}.{name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            yield f"{_where(f'{at}.{name}')}: missing"


def _where(at: str) -> str:
    return at.lstrip(".") or "the file"


_KINDS = {tuple: list, Mapping: dict, dict: dict}
_WORDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
