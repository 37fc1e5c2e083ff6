"""Options declared next to their values: ``batch: int | None = option("--batch N", "Samples per step.", type=COUNT)``.

The fields of a dataclass declare the options of a verb, in the order of the help.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

Function = Callable[..., Any]
COUNT = click.IntRange(1)
SECONDS = click.FloatRange(1)
FILE = click.Path(dir_okay=False, path_type=Path)
FILE_HERE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def option(spec: str, help: str, **settings: Any) -> Any:
    """A field that is an option.

    A ``bool`` is a flag, a ``str`` is empty by default, a ``tuple[T, ...]`` may be repeated, and a default is shown.

    Args:
        spec: flags and metavar as in the help: ``-o --output FILE``.
        settings: further ones of ``click.option``, and ``names`` of :class:`LazyOption`.
    """
    return field(default=settings.get("default"), metadata={"option": (spec, help, settings)})


SITE = option(
    "--site NAME|FILE",
    "Use this site profile, or this capture of another machine, instead of the detected one.",
)


def decorator(name: str, kind: Any, declaration: Field[Any]) -> Callable[[Function], Function]:
    """The decorator that adds the option of a field of the type ``kind``."""
    spec, help, settings = declaration.metadata["option"]
    flags = [word for word in spec.split() if word.startswith("-")]
    derived: dict[str, Any] = {
        "metavar": next((word for word in spec.split() if word not in flags), None),
        "multiple": get_args(kind)[-1:] == (Ellipsis,),
    }
    if kind is bool:
        derived["is_flag"] = True
    elif settings.get("default"):
        derived["show_default"] = True
    elif kind is str and "type" not in settings:
        derived["default"] = ""
    if "names" in settings:
        derived["cls"] = LazyOption
    return click.option(*flags, name, help=help, **{**derived, **settings})


def collected(
    into: Any, name: str = "flags", but: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Decorator of a verb: adds the options that the fields of a dataclass declare.

    They reach the verb as one value called ``name``, with other parameters named like fields. A field whose parameter
    is missing takes its default.

    Args:
        into: a frozen dataclass.
        but: fields that are left to the verb.
    """
    declared = {f.name: f for f in fields(into) if f.name not in but}
    kinds = get_type_hints(into)

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(**parameters: Any) -> Any:
            values = {n: parameters.pop(n) for n in declared if n in parameters}
            return function(**parameters, **{name: into(**values)})

        decorated: Function = wrapper
        for field_name, declaration in reversed(declared.items()):
            if "option" in declaration.metadata:
                decorated = decorator(field_name, kinds[field_name], declaration)(decorated)
        return decorated

    return decorate


class LazyOption(click.Option):
    """An option whose help is completed when it is shown: ``help`` has ``{names}`` in it."""

    def __init__(self, *args: Any, names: Callable[[], tuple[str, ...]], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._names = names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (record[0], record[1].replace("{names}", ", ".join(self._names())))
