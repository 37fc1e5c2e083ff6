"""What files of an image need of the libraries of its MPIs, beyond the functions of the standard.

Open MPI's interfaces for C++, Fortran and OpenSHMEM use symbols of libmpi and libopen-pal that change with each release.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.elf import reader
from fairlead.elf.facts import Elf
from fairlead.elf.mpi_symbols import RUNTIME_PIECES
from fairlead.elf.reader import NotElf, Symbols, TooCostly
from fairlead.image.budget import Budget
from fairlead.image.objects import Objects

_NOTHING = Symbols(frozenset(), frozenset(), frozenset(), versioned=True)


def own_libraries(
    root: Path, objects: Objects, ends: Collection[str], budget: Budget
) -> dict[str, Symbols]:
    """The MPIs and their interfaces, whose paths are ``ends``, and the libraries behind them, without those that have
    symbol versions: by path, with their symbols."""
    behind = {
        elf.path for path in ends for elf in objects.behind(path) if elf.name not in RUNTIME_PIECES
    }
    symbols = {path: _symbols(root, path, budget) for path in sorted({*ends, *behind})}
    return {path: known for path, known in symbols.items() if not known.versioned or path in ends}


def with_imports(
    root: Path, elf: Elf, objects: Objects, own: Mapping[str, Symbols], budget: Budget
) -> Elf:
    """``elf`` with what it needs of each of these libraries; of several that define a symbol, the first behind it."""
    wanted = _symbols(root, elf.path, budget)
    needed, called = set(wanted.needed), set(wanted.called)
    imports, calls = {}, {}
    for library in objects.behind(elf.path):
        if library.path in own:
            defined = own[library.path].defined
            imports[library.path] = tuple(sorted(needed & defined))
            calls[library.path] = tuple(sorted(called & defined))
            needed, called = needed - defined, called - defined
    return replace(
        elf,
        imports={path: names for path, names in imports.items() if names},
        calls={path: names for path, names in calls.items() if names},
    )


def _symbols(root: Path, path: str, budget: Budget) -> Symbols:
    budget.clock(path)
    try:
        return reader.symbols(root / path.lstrip("/"))
    except TooCostly as exc:
        raise budget.costly(Path(path), str(exc)) from None
    except (NotElf, OSError):
        return _NOTHING
