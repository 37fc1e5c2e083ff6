"""Which Python files and packages of a tree import those that come with compiled code for an MPI, by what their text says.

A package counts as a whole: what one of its files imports, all of it may. Only names that lead to such a package are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base.python_imports import (
    ENTRY_POINTS,
    LONGEST,
    STARTUP,
    Imports,
    imports,
    names_of,
    package_of,
)
from fairlead.base.regular import open_regular
from fairlead.image.budget import Budget
from fairlead.image.packages import Folders

_WORD = re.compile(rb"[A-Za-z_]\w*")
_STANDARD = re.compile(r"/lib\w*/python3(\.\d+)?/(?!(site|dist)-packages/)")
_COMPILED = re.compile(r"\.(cpython-\w+|abi3)[^/]*\.so$|\.pyc$")
_PYTHON = re.compile(r"#!.*python")
_METADATA = re.compile(r"\.(dist|egg)-info$")
_ENTRIES = (b"entry_points", b"iter_entry_points")
# Of a file outside of packages: that it may import what it does not name.
_UNSEEN = re.compile(
    rb"exec|eval|__import__|import_module|run_path|run_module|load_source|spec_from|system|popen|spawn|subprocess|runpy|"
    rb"pkg_resources|stevedore|pluggy|IPython|pytest|papermill|nbconvert|addsitedir|\bimp\b|\bcode\b|\bpty\b"
)


@dataclass
class _Unit:
    """A package, a module, or a file outside of packages; ``files`` with the words of ``names`` in each."""

    name: str
    files: dict[Path, frozenset[str]] = field(default_factory=dict)
    entries: tuple[str, ...] = ()


def python_modules(
    root: Path, folders: Folders, scripts: Mapping[str, str], paths: Iterable[str], budget: Budget
) -> dict[str, Imports]:
    """Of each such package, of what imports it, and of each file outside of packages: what it imports of these, by its path.

    Empty where mpi4py alone uses MPI: it works with any that a swap allows, so who imports it decides nothing, and most
    images need not be read.

    Args:
        folders: of the tree, as ``packages.walk`` yields them.
        scripts: first lines by path.
        paths: of the files behind which is an MPI.
    """
    using = {name for path in paths if (name := package_of(path)[1])}
    if not using - {"mpi4py"}:
        return {}
    units = _units(root, folders, scripts)
    installed = {*using, *(unit.name for unit in units.values())}
    names = installed.union(*(names_of(path) for path, unit in units.items() if not unit.name))
    for path, unit in units.items():
        known = installed if unit.name else names
        for file in unit.files:
            budget.clock(path)
            unit.files[file] = _words(file, known if file.suffix != ".so" else using, budget)
    return _leading(units, using)


def _units(root: Path, folders: Folders, scripts: Mapping[str, str]) -> dict[str, _Unit]:
    units: dict[str, _Unit] = {}
    for folder, _, files in folders:
        inside = "/" + str(folder.relative_to(root))
        if _STANDARD.search(inside + "/"):
            continue
        for name in files:
            path = f"{inside.rstrip('/')}/{name}"
            start, package = package_of(path)
            if _METADATA.search(inside) and name == "entry_points.txt":
                units[path] = _Unit(ENTRY_POINTS, {folder / name: frozenset()})
            elif package and name.endswith(".pth") and start == inside:
                units[path] = _Unit(STARTUP, {folder / name: frozenset()})
            elif package and (name.endswith(".py") or _COMPILED.search(name)):
                if "/__pycache__" not in inside:
                    unit = units.setdefault(f"{start}/{package}", _Unit(package))
                    unit.files[folder / name] = frozenset()
            elif not package and (name.endswith(".py") or _PYTHON.match(scripts.get(path, ""))):
                units[path] = _Unit("", {folder / name: frozenset()})
    return units


def _words(file: Path, names: Collection[str], budget: Budget) -> frozenset[str]:
    """Those of ``names`` that a file has."""
    try:
        with open_regular(file) as stream:
            text = stream.read(LONGEST)
    except OSError:
        return frozenset()
    budget.read(len(text), file)
    if file.name == "entry_points.txt":
        text = b"\n".join(part for part in _sections(text) if not part.startswith(b"console_"))
    if file.suffix == ".so":
        return frozenset(name for name in names if name.encode() in text)
    words = {word.decode() for word in set(_WORD.findall(text))}
    more = {ENTRY_POINTS} if words.intersection(e.decode() for e in _ENTRIES) else set()
    unseen = {""} if _UNSEEN.search(text) else set()
    return frozenset({*words.intersection(names), *more, *unseen})


def _sections(text: bytes) -> list[bytes]:
    return re.split(rb"^\s*\[", text, flags=re.MULTILINE)


def _leading(units: Mapping[str, _Unit], using: set[str]) -> dict[str, Imports]:
    """What leads to ``using``; a file's text is read closely where it has a name that does."""
    read: dict[Path, Imports] = {}
    leading: dict[str, Imports] = {}
    wanted, before = set(using), set[str]()
    while wanted != before:
        before = set(wanted)
        for path, unit in units.items():
            own = _imports(unit, before, read)
            if own.names or not unit.name or unit.name in using:
                leading[path] = own
            if own.names:
                wanted |= {*names_of(path)}
    return leading


def _imports(unit: _Unit, wanted: set[str], read: dict[Path, Imports]) -> Imports:
    sure, perhaps, unseen = set[str](), set[str](), ""
    for file, words in unit.files.items():
        outside = not unit.name
        there = words & wanted - {unit.name}
        if not there and not (outside and "" in words):
            continue
        if file.suffix in (".so", ".pyc", ".pth", ".txt"):
            perhaps |= there
            continue
        if file not in read:
            with open_regular(file) as stream:
                read[file] = imports(stream.read(LONGEST))
        own = read[file]
        named = there if own.unseen == "is not Python that can be read" else own.names & there
        sure |= {*own.sure} & named if outside else set()
        perhaps |= named
        unseen = unseen or (own.unseen if outside else "")
    return Imports(tuple(sorted(sure)), tuple(sorted(perhaps - sure)), unseen)
