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
from fairlead.base.errors import ExitCode, FairleadError, Finding, error
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
        raise FairleadError([_mistake(path, called, why, remedy) for why in shown], ExitCode.USAGE)

    try:
        if path.stat().st_size > _MOST_BYTES:
            refuse(f"it is larger than {_MOST_BYTES >> 20} MiB")
        data = json.loads(path.read_bytes(), parse_constant=_no_number)
    except OSError as exc:
        refuse(exc.strerror or str(exc))
    except (ValueError, RecursionError) as exc:
        refuse(f"it is not JSON: {exc}")
    if not isinstance(data, dict) or data.get("schema") != schema:
        refuse(f"its `schema` is not `{schema}`")
    if data.get("version") != version:
        refuse(f"it is version {data.get('version')!r}; this fairlead reads version {version}")
    body = {k: v for k, v in data.items() if k not in ("schema", "version", "fairlead")}
    mistakes = list(_mistakes(cls, body, ""))
    if mistakes:
        refuse(*mistakes)
    try:
        return from_json(cls, body)
    except ValueError as exc:  # what values say of each other
        refuse(str(exc))


def _mistake(path: Path, called: str, why: str, remedy: str) -> Finding:
    return error("validate-document-other-kind", called=called, path=path, why=why, remedy=remedy)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _mistakes(hint: Any, data: Any, at: str) -> Iterator[str]:
    """Every place at which ``data`` does not fit ``hint``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if data is not None:
            yield from _mistakes(next(a for a in arguments if a is not types.NoneType), data, at)
    elif origin is tuple:
        yield from _of_list(arguments[0], data, at)
    elif origin is not None and issubclass(origin, Mapping):
        if isinstance(data, dict):
            for key, item in data.items():
                yield from _mistakes(arguments[1], item, f"{at}[{key!r}]")
        else:
            yield _wanted("an object", data, at)
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield from _of_class(hint, data, at)
    else:
        yield from _of_value(hint, data, at)


def _of_value(hint: Any, data: Any, at: str) -> Iterator[str]:
    if hint is float:
        if isinstance(data, bool) or not isinstance(data, int | float) or not math.isfinite(data):
            yield _wanted("a number", data, at)
    elif hasattr(hint, "__members__"):
        known = [member.value for member in hint]
        if data not in known:
            yield f"{_where(at)}: unknown value {data!r}. {suggest(str(data), known)}"
    elif type(data) is not hint:
        yield _wanted(_WORDS.get(hint, hint.__name__), data, at)


def _of_list(item_hint: Any, data: Any, at: str) -> Iterator[str]:
    if not isinstance(data, list):
        yield _wanted("a list", data, at)
        return
    for i, item in enumerate(data):
        # Floats are by far the most, and seldom wrong.
        if item_hint is not float or type(item) is not float or not math.isfinite(item):
            yield from _mistakes(item_hint, item, f"{at}[{i}]")


def _of_class(cls: type, data: Any, at: str) -> Iterator[str]:
    if not isinstance(data, dict):
        yield _wanted("an object", data, at)
        return
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


_WORDS = {dict: "an object", list: "a list", str: "a string", int: "an integer", bool: "true or false"}  # fmt: skip


def _wanted(kind: str, data: Any, at: str) -> str:
    words = "null" if data is None else str(data)
    if isinstance(data, dict | list | str | bool):
        words = _WORDS[type(data)]
    return f"{_where(at)}: expected {kind}, not {words}"
