"""The image that a training script needs, by the frameworks that it imports."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from fairlead.base.errors import FairleadError, fail
from fairlead.base.python_imports import parsed

# Modules by the wheel that brings them, and the recipe that has it.
_FRAMEWORKS = {
    "keras": "tensorflow",
    "tensorflow": "tensorflow",
    "tf_keras": "tensorflow:keras2",
    "torch": "pytorch",
    "torchvision": "pytorch",
}
# What no recipe has, and what it works on.
_ABOVE = {
    "accelerate": "torch",
    "keras_cv": "keras",
    "keras_hub": "keras",
    "lightning": "torch",
    "pytorch_lightning": "torch",
    "tensorflow_datasets": "tensorflow",
    "tensorflow_probability": "tensorflow",
    "timm": "torch",
    "torch_geometric": "torch",
    "torchaudio": "torch",
    "torchmetrics": "torch",
    "transformers": "torch",
}
_USUAL = ("tensorflow", "pytorch", "tensorflow:keras2", "tensorflow-horovod")
_MOST_FILES = 1000
_UNNEEDED = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def imported(script: Path) -> frozenset[str]:
    """The frameworks that a script imports, on any of its lines, and in modules in its folder that it imports. They are
    parsed, not executed.

    An import in a ``try`` that catches its failure, or for type checkers only, counts for nothing. What cannot be
    parsed imports nothing: its rank says why.
    """
    modules: set[str] = set()
    pending, visited = [script], set[Path]()
    while pending and len(visited) < _MOST_FILES:
        file = pending.pop()
        if file in visited:
            continue
        visited.add(file)
        names: list[tuple[int, str]] = []
        with contextlib.suppress(OSError, RecursionError):
            tree = parsed(file.read_bytes())
            names = list(_names(tree)) if tree else []
        for level, name in names:
            own = list(_files(script.parent, file, level, name))
            pending += own
            if not own and not level:
                modules.add(name.partition(".")[0])
    modules |= {_ABOVE[name] for name in modules & _ABOVE.keys()}
    return frozenset(modules & (_FRAMEWORKS.keys() | _ABOVE.keys()))


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The modules that a piece of code needs: how many packages up, and the name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""
            # Each may be a module of that package.
            inside = f"{node.module}." if node.module else ""
            yield from ((node.level, inside + alias.name) for alias in node.names)
        elif isinstance(node, ast.Try) and any(map(_catches, node.handlers)):
            for part in (*node.handlers, *node.finalbody):
                yield from _names(part)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (pair for part in node.orelse for pair in _names(ast.Module([part], [])))
        else:
            yield from _names(node)


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether it catches that a module is not there."""
    if handler.type is None:
        return True
    return any(isinstance(n, ast.Name) and n.id in _UNNEEDED for n in ast.walk(handler.type))


def _files(top: Path, file: Path, level: int, name: str) -> Iterator[Path]:
    """The files of a module of the script's own; none for one from elsewhere."""
    base = file.parents[level - 1] if 0 < level <= len(file.parents) else top
    parts = name.split(".") if name else []
    if not all(part.isidentifier() or part == "*" for part in parts):
        return
    for depth in range(0 if level else 1, len(parts) + 1):
        place = base.joinpath(*parts[:depth])
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path.is_file():
                yield path


def choose(
    script: Path,
    asked: str,
    wheels_of: Callable[[str], Mapping[str, str] | None],
    built: Callable[[], Iterable[str]] = tuple,
    elsewhere: bool = False,
) -> str:
    """The image for a script: the requested one, or the first built one that has what the script imports.

    Args:
        asked: the requested image; empty for none.
        wheels_of: versions by name of an image's Python packages; None where it is not built, empty where it has
            no list of them.
        built: names of the images that were built here; one of them may be named, none is chosen.
        elsewhere: modules also come from folders that the user names, so that none is known to be lacking.
    Raises:
        FairleadError: exit code 2; the requested image, or each that is built, lacks a framework.
    """
    needed = imported(script)
    if not needed:
        return asked or _USUAL[0]
    if asked:
        wheels = wheels_of(asked)
        if wheels and not elsewhere and (lacking := needed - _modules(wheels)):
            raise _lacks(script, asked, lacking, _fitting(needed, wheels_of, (*_USUAL, *built())))
        return asked
    if fitting := _fitting(needed, wheels_of):
        return fitting
    likely = min((_FRAMEWORKS[name] for name in needed & _FRAMEWORKS.keys()), key=_rarity)
    wheels = wheels_of(likely)
    if wheels and not elsewhere:
        lacking = needed - _modules(wheels)
        raise _lacks(script, likely, lacking, _fitting(needed, wheels_of, built()))
    return likely  # whose launch says how to build it


def _fitting(
    needed: frozenset[str],
    wheels_of: Callable[[str], Mapping[str, str] | None],
    images: Iterable[str] = _USUAL,
) -> str | None:
    return next((name for name in images if needed <= _modules(wheels_of(name) or {})), None)


def _rarity(image: str) -> int:
    """The image of the framework that fewer of the usual ones have comes first."""
    return -_USUAL.index(image)


def _modules(wheels: Mapping[str, str]) -> set[str]:
    return {name.lower().replace("-", "_").removesuffix("_cpu") for name in wheels}


def _lacks(script: Path, image: str, lacking: frozenset[str], fitting: str | None) -> FairleadError:
    return fail(
        "train-image-of-script",
        lacking=", ".join(sorted(lacking)),
        image=image,
        script=script,
        remedy=f"--image {fitting}" if fitting else "",
    )
