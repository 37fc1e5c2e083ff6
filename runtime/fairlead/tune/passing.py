"""How a trial's script gets its parameters: as options, as variables, and always as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.paths import atomic_write
from fairlead.tune import reporting
from fairlead.tune.figures import REPORTS
from fairlead.tune.space import Space, Value

FILE = "parameters.json"


def text(value: Value) -> str:
    """A value as a word: ``0.01``, ``true``, ``64,32``."""
    if isinstance(value, list):
        return ",".join(map(text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def words(space: Space, parameters: Mapping[str, Value]) -> list[str]:
    """The options that pass parameters."""
    if space.by != "option":
        return []
    out = []
    for name, value in parameters.items():
        option = space.parameters[name].name or f"--{name}"
        # A value such as -0.5 would be taken for an option.
        out += [f"{option}={text(value)}"] if text(value).startswith("-") else [option, text(value)]
    return out


def variables(space: Space, parameters: Mapping[str, Value]) -> dict[str, str]:
    """The variables that pass parameters."""
    if space.by != "environment":
        return {}
    names = {
        name: space.parameters[name].name or name.upper().replace("-", "_") for name in parameters
    }
    return {names[name]: text(value) for name, value in parameters.items()}


def own_variables(folder: Path, seed: int) -> dict[str, str]:
    """The variables by which :mod:`fairlead.tune` works in a trial."""
    return {
        reporting.PARAMETERS: str(folder / FILE),
        reporting.REPORTS: str(folder / REPORTS),
        reporting.FOLDER: str(folder),
        reporting.SEED: str(seed),
    }


def write(folder: Path, parameters: Mapping[str, Value]) -> None:
    """Writes the file of a trial's parameters into its folder."""
    with atomic_write(folder / FILE, "w") as stream:
        json.dump(dict(parameters), stream, indent=2)


def filled(words: tuple[str, ...], folder: Path, number: int, seed: int) -> list[str]:
    """A script's arguments, with ``{folder}``, ``{trial}`` and ``{seed}`` filled in; other braces stay."""
    known = {"{folder}": str(folder), "{trial}": str(number), "{seed}": str(seed)}
    out = []
    for word in words:
        for name, value in known.items():
            word = word.replace(name, value)
        out.append(word)
    return out
