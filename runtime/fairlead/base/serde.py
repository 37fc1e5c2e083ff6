"""Converts frozen values to JSON and back by their type hints; the one format between subpackages.

pydantic does this too, but importing it takes longer than reading most files.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_PLAIN = frozenset({float, int, str, bool, type(None)})


def to_json(value: Any) -> Any:
    """Dataclasses, enums, paths, tuples and mappings as plain JSON values."""
    if type(value) in _PLAIN:
        return value  # a run has a hundred thousand step times
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [to_json(v) for v in value]
    return value


def cached(
    cls: type[T], path: Path, make: Callable[[], T], keep: Callable[[T], bool] = lambda value: True
) -> T:
    """The value that the JSON file ``path`` holds; else that of ``make``, which it holds from then on.

    A damaged file counts as none. A full or read-only cache costs time, not the answer.

    Args:
        keep: whether a value is to stay.
    """
    from fairlead.base.paths import atomic_write

    with suppress(OSError, ValueError):
        return from_json(cls, json.loads(path.read_text("utf-8")))
    value = make()
    if keep(value):
        with suppress(OSError), atomic_write(path, "w") as stream:
            json.dump(to_json(value), stream)
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def from_json(cls: type[T], data: Any) -> T:
    """A ``cls`` from what :func:`to_json` made of one.

    Raises:
        ValueError: the data has another shape; the message names the field.
    """
    try:
        return typing.cast(T, _build(cls, data))
    except (TypeError, KeyError, ValueError) as exc:
        raise ValueError(f"not a {getattr(cls, '__name__', str(cls)).lstrip('_')}: {exc}") from None


def _build(hint: Any, data: Any) -> Any:
    if hint is Any:
        return data
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if data is None and type(None) in options:
            return None
        return _build(next(option for option in options if option is not type(None)), data)
    if origin is tuple:
        return _tuple(typing.get_args(hint), data)
    if origin is list:
        return [_build(typing.get_args(hint)[0], item) for item in data]
    if origin is not None and issubclass(origin, Mapping):
        inner = typing.get_args(hint)[1]
        return {key: _build(inner, item) for key, item in _object(data).items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint, _object(data))
    return _scalar(hint, data)


def _tuple(arguments: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"expected a list, found {type(data).__name__}")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        if arguments[0] in (str, float) and all(type(item) is arguments[0] for item in data):
            return tuple(data)  # symbol lists have thousands of entries
        return tuple(_build(arguments[0], item) for item in data)
    return tuple(_build(a, item) for a, item in zip(arguments, data, strict=True))


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, found {type(data).__name__}")
    return data


def _dataclass(hint: type, data: dict[str, Any]) -> Any:
    hints = _hints(hint)
    names = {field.name for field in dataclasses.fields(hint)}
    if unknown := set(data) - names:
        raise ValueError(f"unknown field {sorted(unknown)[0]}")
    return hint(**{key: _build(hints[key], item) for key, item in data.items()})


def _scalar(hint: Any, data: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, enum.Enum | Path):
        return hint(data)
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(hint, type) and not isinstance(data, hint):
        raise ValueError(f"expected {hint.__name__}, found {type(data).__name__}")
    return data
