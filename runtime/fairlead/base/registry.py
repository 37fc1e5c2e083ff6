"""Registries of declarations: modules of a package, and entry points of other distributions.

Each engine, scheduler and check is a module with one declaration. To add one, add a file; another
distribution adds one by an entry point. The name is the module's name with ``-`` for ``_``, so names are
known without importing the modules.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fairlead.base.errors import fail

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """The declarations of one kind.

    Attributes:
        package: the package with the modules, e.g. ``fairlead.engines``.
        attribute: the name of the declaration in each module, e.g. ``ENGINE``.
        helpers: modules of the package that are not declarations.
        entry_points: the entry-point group that other distributions use; the package's name if empty.
    """

    package: str
    attribute: str
    helpers: tuple[str, ...] = ()
    entry_points: str = ""

    @property
    def group(self) -> str:
        """The entry-point group that other distributions use."""
        return self.entry_points or self.package

    def bundled(self) -> tuple[str, ...]:
        """The names in the package, sorted. Imports no module."""
        modules = _modules(self.package) - {"model", "registry", *self.helpers}
        return tuple(sorted(name.replace("_", "-") for name in modules))

    def names(self) -> tuple[str, ...]:
        """All names: bundled first, then those of other distributions."""
        bundled = self.bundled()
        return (*bundled, *sorted({e.name for e in self._entry_points()} - set(bundled)))

    def get(self, name: str) -> T:
        """The declaration called ``name``. Searches entry points only if the package has none.

        Raises:
            KeyError: the name is unknown.
            FairleadError: the entry point of another distribution cannot be loaded.
        """
        if name in self.bundled():
            module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
            declaration: T = getattr(module, self.attribute)
            return declaration
        other: T | None = _other(self.group, name)
        if other is None:
            raise KeyError(name)
        return other

    def __contains__(self, name: str) -> bool:
        return name in self.bundled() or any(entry.name == name for entry in self._entry_points())

    def __iter__(self) -> Iterator[T]:
        return (self.get(name) for name in self.names())

    def _entry_points(self) -> tuple[Any, ...]:
        return _entry_points(self.group, tuple(sys.path))


class Named(Protocol):
    """A declaration that carries its name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True)
class NamedRegistry(Generic[N]):
    """Declarations that carry their names; a module may contain several.

    Attributes:
        package: the package with the bundled declarations.
        attribute: the name of the sequence of declarations in each module.
        group: entry-point group for other distributions; each entry point loads the declaration of its name.
        module_of: returns the module that declares a bundled name.
        order: sort key of the bundled declarations.
    """

    package: str
    attribute: str
    group: str
    module_of: Callable[[str], str] = str
    order: Callable[[N], Any] = lambda declaration: declaration.name

    def find(self, name: str) -> N | None:
        """The declaration of that name, or None. Loads no other bundled module.

        Raises:
            FairleadError: the entry point of another distribution cannot be loaded.
        """
        module = self.module_of(name)
        for declaration in self._of(module) if module in _modules(self.package) else ():
            if declaration.name == name:
                return declaration
        other: N | None = _other(self.group, name)
        return other

    def bundled(self) -> tuple[N, ...]:
        """The declarations of this distribution, in order."""
        modules = sorted(_modules(self.package))
        return tuple(sorted((d for m in modules for d in self._of(m)), key=self.order))

    def every(self) -> tuple[N, ...]:
        """Bundled declarations, then those of other distributions. Skips entry points that cannot be loaded, since
        a broken plugin must not break a list; :meth:`find` reports it."""
        bundled = self.bundled()
        names = {declaration.name for declaration in bundled}
        others: list[N] = []
        for entry in _entry_points(self.group, tuple(sys.path)):
            with suppress(Exception):
                others.append(entry.load())
        others = [d for d in others if d.name not in names]
        return (*bundled, *sorted(others, key=lambda declaration: declaration.name))

    def names(self) -> tuple[str, ...]:
        """The names of :meth:`every`."""
        return tuple(declaration.name for declaration in self.every())

    def _of(self, module: str) -> tuple[N, ...]:
        return tuple(getattr(importlib.import_module(f"{self.package}.{module}"), self.attribute))


@functools.cache
def _modules(package: str) -> frozenset[str]:
    folders = importlib.import_module(package).__path__
    files = (path for folder in folders for path in Path(folder).glob("*.py"))
    return frozenset(path.stem for path in files) - {"__init__"}


@functools.cache
def _entry_points(group: str, search_path: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(_installed(search_path).select(group=group))


@functools.cache
def _installed(search_path: tuple[str, ...]) -> Any:
    """Reads the metadata of every distribution, once for each value of ``sys.path``: there may be hundreds."""
    from importlib.metadata import entry_points

    return entry_points()


def entry_points(group: str) -> tuple[Any, ...]:
    """The entry points of a group, for what is not a registry."""
    return _entry_points(group, tuple(sys.path))


def _other(group: str, name: str) -> Any:
    """The declaration of an entry point; None if there is none of that name.

    Raises:
        FairleadError: it cannot be loaded.
    """
    for entry in _entry_points(group, tuple(sys.path)):
        if entry.name != name:
            continue
        try:
            return entry.load()
        except Exception as exc:  # code of another distribution
            owner, kind = entry.dist.name if entry.dist else entry.value, type(exc).__name__
            raise fail("entry-point", entry=entry, owner=owner, kind=kind, reason=exc) from exc
    return None
