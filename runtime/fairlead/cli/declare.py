"""Verbs declared by their signature: ``batch: int | None = option("--batch N", "Samples per step.")``.

The same line declares a field of a dataclass, which is a group of options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

from fairlead.base.sizes import bytes_of
from fairlead.cli.names import completer

Function = Callable[..., Any]
SECONDS = click.FloatRange(1)


class _Size(click.ParamType):  # type: ignore[type-arg]
    """An amount of bytes, as ``20GB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return bytes_of(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


SIZE = _Size()


class _Output(click.Path):
    """A path; one that ends in a slash is a folder, which is made unless it is there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if str(value).endswith("/") and not (ctx and ctx.resilient_parsing):
            Path(str(path)).mkdir(parents=True, exist_ok=True)
        return path


OUTPUT = _Output(path_type=Path)
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FILE_HERE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
FOLDER_HERE = click.Path(exists=True, file_okay=False, path_type=Path)


def option(spec: str, help: str, **settings: Any) -> Any:
    """A parameter or field that is an option.

    A ``bool`` is a flag, an ``int`` at least 1, a ``Path`` any path, a ``str`` empty by default; a ``tuple[T, ...]`` may be
    repeated, and a default is shown.

    Args:
        spec: flags and metavar as in the help: ``-o --output FILE``.
        settings: further ones of ``click.option``, and ``names`` of :class:`LazyOption`.
    """
    declares = functools.partial(_option, spec, help, settings)
    return field(default=settings.get("default"), metadata={"declares": declares})


def argument(**settings: Any) -> Any:
    """A parameter that is an argument, with the settings of ``click.argument``."""

    def declares(name: str, kind: Any) -> Callable[[Function], Function]:
        shown = (settings.get("metavar") or name).strip("[].").lower()
        return click.argument(name, **{"shell_complete": completer(shown), **settings})

    return field(metadata={"declares": declares})


def _option(
    spec: str, help: str, settings: dict[str, Any], name: str, kind: Any
) -> Callable[[Function], Function]:
    flags = [word for word in spec.split() if word.startswith("-")]
    derived: dict[str, Any] = {
        "metavar": next((word for word in spec.split() if word not in flags), None),
        "multiple": get_args(kind)[-1:] == (Ellipsis,),
    }
    if kind is bool:
        derived["is_flag"] = True
    elif settings.get("default"):
        derived["show_default"] = True
    elif kind is str and not {"type", "required"} & settings.keys():
        derived["default"] = ""
    if kind in (int, int | None) and "type" not in settings:
        derived["type"] = click.IntRange(1)
    elif Path in (kind, *get_args(kind)):
        derived["type"] = PATH
    if complete := completer(flags[-1].lstrip("-")):
        derived["shell_complete"] = complete
    if "names" in settings:
        derived["cls"] = LazyOption
    return click.option(*flags, name, help=help, **{**derived, **settings})


SITE = option(
    "--site NAME|FILE",
    "Use this site profile, or this capture of another machine, instead of the detected one.",
)
JSON = option("--json", "Print one JSON object instead of text.")


def declared(function: Function) -> Function:
    """Decorator of a verb: its parameters declare its arguments and options, in the order of the help.

    A parameter whose type is a dataclass takes the options that the fields declare; one without a default is an argument
    that must be given. ``--json`` comes last.
    """
    kinds, declarations = get_type_hints(function), []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, own = kinds[name], parameter.default
        if is_dataclass(kind):
            inner = get_type_hints(kind)
            own_fields = [f for f in fields(kind) if "declares" in f.metadata]
            groups[name] = kind, [f.name for f in own_fields]
            declarations += [(f.name, inner[f.name], f) for f in own_fields]
        else:
            declarations.append((name, kind, argument() if own is parameter.empty else own))

    @functools.wraps(function)
    def verb(**values: Any) -> Any:
        for name, (group, names) in groups.items():
            values[name] = group(**{n: values.pop(n) for n in names})
        return function(**values)

    decorated: Function = verb
    declarations.sort(key=lambda declaration: declaration[2] is JSON)
    for name, kind, declaration in reversed(declarations):
        decorated = declaration.metadata["declares"](name, kind)(decorated)
    return decorated


class LazyOption(click.Option):
    """An option whose help is completed when it is shown: ``help`` has ``{names}`` in it."""

    def __init__(self, *args: Any, names: Callable[[], tuple[str, ...]], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._names = names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (record[0], record[1].replace("{names}", ", ".join(self._names())))
