"""The image that a training script needs, by the frameworks that it imports."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

from fairlead.base.errors import FairleadError, fail

# Modules by the wheel that brings them, and the recipe that has it.
_FRAMEWORKS = {
    "keras": "tensorflow",
    "tensorflow": "tensorflow",
    "tf_keras": "tensorflow:keras2",
    "torch": "pytorch",
    "torchvision": "pytorch",
}
_USUAL = ("tensorflow", "pytorch", "tensorflow:keras2", "tensorflow-horovod")


def imported(script: Path) -> frozenset[str]:
    """The frameworks that a script imports, on any of its lines. It is parsed, not executed.

    What cannot be parsed imports nothing: its rank says why.
    """
    try:
        nodes = list(ast.walk(ast.parse(script.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and not n.level]
    return frozenset(name.partition(".")[0] for name in names) & _FRAMEWORKS.keys()


def choose(script: Path, asked: str, wheels_of: Callable[[str], Mapping[str, str] | None]) -> str:
    """The image for a script: the requested one, or the first built one that has what the script imports.

    Args:
        asked: the requested image; empty for none.
        wheels_of: versions by name of an image's Python packages; None where it is not built, empty where it has
            no list of them.
    Raises:
        FairleadError: exit code 2; the requested image, or each that is built, lacks a framework.
    """
    needed = imported(script)
    if not needed:
        return asked or _USUAL[0]
    if asked:
        wheels = wheels_of(asked)
        if wheels and (lacking := needed - _modules(wheels)):
            raise _lacks(script, asked, lacking, needed, wheels_of)
        return asked
    if fitting := _fitting(needed, wheels_of):
        return fitting
    likely = next((_FRAMEWORKS[name] for name in sorted(needed, key=_rarity)), _USUAL[0])
    wheels = wheels_of(likely)
    if wheels:
        raise _lacks(script, likely, needed - _modules(wheels), needed, wheels_of)
    return likely  # whose launch says how to build it


def _fitting(
    needed: frozenset[str], wheels_of: Callable[[str], Mapping[str, str] | None]
) -> str | None:
    return next((name for name in _USUAL if needed <= _modules(wheels_of(name) or {})), None)


def _rarity(name: str) -> int:
    """The framework that fewer of the usual images have comes first."""
    return -_USUAL.index(_FRAMEWORKS[name])


def _modules(wheels: Mapping[str, str]) -> set[str]:
    return {name.lower().replace("-", "_").removesuffix("_cpu") for name in wheels}


def _lacks(
    script: Path,
    image: str,
    lacking: frozenset[str],
    needed: frozenset[str],
    wheels_of: Callable[[str], Mapping[str, str] | None],
) -> FairleadError:
    fitting = _fitting(needed, wheels_of)
    remedy = f"--image {fitting}" if fitting else ""
    return fail(
        "train-image-of-script",
        lacking=", ".join(sorted(lacking)),
        image=image,
        script=script,
        remedy=remedy,
    )
