"""What the text of a Python file imports, without running it.

Imports by a name that only a run shows, code from elsewhere, and other programs are named as the reason why nothing is
known of a file. Inside of installed packages these load what a name in their own text says, or what
entry points name; so there only names count.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fairlead.base.regular import open_regular

LONGEST = 4 << 20  # bytes of a file that is looked at
_MOST_FILES = 2000  # of a package next to a script
STARTUP = "site"  # Python's own, which runs .pth files
SEARCH_PATH = "sys.path"  # whose folders a file changes, or reads
ENTRY_POINTS = "entry_points"  # what is imported stands in the metadata of installed packages
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_BY_NAME = frozenset({"__import__", "import_module"})
# Builtins, and calls of modules, that run what the text does not show.
_RUN = frozenset({"exec", "eval", "execfile", *_BY_NAME})
_RUN_OF_MODULE = frozenset(
    {
        "import_module", "run_path", "run_module", "exec_module", "load_module", "load_source", "spec_from_file_location",
        "spec_from_loader", "addsitedir",
    }
)  # fmt: skip
_STARTS = re.compile(
    r"system|popen|exec[lv]p?e?|spawn[lv]p?e?|posix_spawnp?|create_subprocess_\w+|Popen"
)
# Modules whose purpose is to run another text, or another program.
_RUNNERS = frozenset(
    {"runpy", "imp", "code", "codeop", "IPython", "nbconvert", "papermill", "pytest", "subprocess", "pty", "execnet"}
)  # fmt: skip
_PLUGINS = frozenset({"pkg_resources", "stevedore", "pluggy"})
_INSTALLED = re.compile(r"(.*/(?:site|dist)-packages)(?:/([^/]+)|$)")


def package_of(path: str) -> tuple[str, str]:
    """Where a path is installed as a part of a Python package or module, and that one's name; empty for other paths.

    >>> package_of("/usr/lib/python3/dist-packages/h5py/_errors.so"), package_of("/opt/a/site-packages/one.abi3.so")
    (('/usr/lib/python3/dist-packages', 'h5py'), ('/opt/a/site-packages', 'one'))
    """
    match = _INSTALLED.match(path)
    return (match[1], (match[2] or "").partition(".")[0]) if match else ("", "")


def names_of(path: str) -> tuple[str, ...]:
    """By what names a Python file or package can be imported: a package's, or a file's own and those of its folders.

    ``__main__`` is what Python was started with, and no file of that name.

    >>> names_of("/usr/lib/python3/dist-packages/h5py"), names_of("/opt/app/solver/main.py")
    (('h5py',), ('opt', 'app', 'solver', 'main'))
    >>> names_of("/opt/solver/__main__.py")
    ('opt', 'solver')
    """
    if path.endswith("/entry_points.txt"):
        return (ENTRY_POINTS,)
    _, package = package_of(path)
    if package:
        return (STARTUP,) if path.endswith(".pth") else (package,)
    return tuple(n for n in path.removesuffix(".py").split("/") if n not in ("", "__main__"))


@dataclass(frozen=True)
class Imports:
    """Names of top-level modules.

    Attributes:
        sure: what is imported whenever the file is run.
        perhaps: what is imported in a function or a branch, or by a name that the text has.
        unseen: why anything may be imported; empty: nothing else is.
    """

    sure: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    unseen: str = ""

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.sure, *self.perhaps))


def parsed(text: bytes | str) -> ast.Module | None:
    """The tree of a Python file; None for what this Python does not read. Its warnings are not ours to show."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def imports(text: bytes | str) -> Imports:
    """What a Python file imports.

    >>> imports("import numpy.linalg\\ntry:\\n  from h5py import File\\nexcept ImportError: pass")
    Imports(sure=('numpy',), perhaps=('h5py',), unseen='')
    >>> imports("import importlib\\nm = importlib.import_module(name)").unseen
    'imports modules by names that only a run shows, in line 2'
    """
    tree = parsed(text)
    if tree is None:
        return Imports(unseen="is not Python that can be read")
    sure = {name for node in _always(tree.body) for name in _imported(node)}
    perhaps, unseen = set[str](), ""
    for node in ast.walk(tree):
        perhaps |= {*_imported(node), *_in_text(node)}
        unseen = unseen or _unseen(node)
    return Imports(tuple(sorted(sure)), tuple(sorted(perhaps - sure)), unseen)


def imports_of(script: Path) -> Imports:
    """What a script of this machine imports, with the modules and packages next to it that it imports on the way."""
    own = _read(script)
    names, unseen, pending, visited = {*own.names}, own.unseen, [*own.names], set[str]()
    while pending:
        if (name := pending.pop()) in visited:
            continue
        visited.add(name)
        for file in _next_to(script.parent, name):
            there = _read(file)
            unseen = unseen or (
                f"imports {file.name}, which {there.unseen}" if there.unseen else ""
            )
            pending += there.names - names
            names |= there.names
    if SEARCH_PATH in names:
        unseen = unseen or "uses sys.path, by which it may import from other folders"
    return Imports(own.sure, tuple(sorted(names - {*own.sure})), unseen)


def _next_to(folder: Path, name: str) -> Iterator[Path]:
    file, package = folder / f"{name}.py", folder / name
    if file.is_file():
        yield file
    if package.is_dir():
        yield from islice(sorted(package.rglob("*.py")), _MOST_FILES)


def modules_in(folder: Path) -> Iterator[str]:
    """The names of the modules and packages in a folder of this machine."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            name = entry.name.partition(".")[0]
            if name.isidentifier() and (
                entry.is_dir() or entry.name.endswith((".py", ".so", ".pyc"))
            ):
                yield name


def _read(file: Path) -> Imports:
    try:
        with open_regular(file, follow=True) as stream:
            return imports(stream.read(LONGEST))
    except OSError:
        return Imports(unseen="cannot be read")


def _always(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run whenever a file is run; its ``if __name__ == "__main__"`` among them."""
    for node in body:
        yield node
        is_main = isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
        if isinstance(node, ast.With | ast.If) and (is_main or isinstance(node, ast.With)):
            yield from _always(node.body)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []


def _in_text(node: ast.AST) -> list[str]:
    """A name that stands in the text for itself, as those that are imported by name do."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        whole = _DOTTED.fullmatch(node.value)
        return [node.value.partition(".")[0]] if whole else []
    name = getattr(node, "id", "") or getattr(node, "attr", "")
    if isinstance(node, ast.Attribute) and name == "path":
        return [SEARCH_PATH] if getattr(node.value, "id", "") == "sys" else []
    return [ENTRY_POINTS] if name in (ENTRY_POINTS, "iter_entry_points") else []


def _unseen(node: ast.AST) -> str:
    """Why a part of a file may import anything; empty where it does not."""
    line = f", in line {getattr(node, 'lineno', 0)}"
    if runner := _RUNNERS.intersection(_imported(node)):
        return f"runs other code by `{min(runner)}`{line}"
    if _PLUGINS.intersection(_imported(node)):
        return f"loads plugins that other packages name{line}"
    if not isinstance(node, ast.Call):
        return ""
    called = node.func
    name = getattr(called, "id", "") or getattr(called, "attr", "")
    if name not in (_RUN if isinstance(called, ast.Name) else _RUN_OF_MODULE):
        starts = isinstance(called, ast.Attribute) and _STARTS.fullmatch(name)
        return f"starts other programs{line}" if starts else ""
    if name not in _BY_NAME:
        return f"runs other code by `{name}`{line}"
    given = node.args[0] if node.args else None
    by_text = isinstance(given, ast.Constant) and isinstance(given.value, str)
    return "" if by_text else f"imports modules by names that only a run shows{line}"
