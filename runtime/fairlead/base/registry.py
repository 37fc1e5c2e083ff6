"""Declarations by name: the modules of a package, and entry points of other distributions.

An engine, a scheduler, a check is one module with one declaration in it. To add one is to add a file; another
distribution adds its own by an entry point. A name is the module's, with ``-`` for ``_``, so that names are
known without importing what they stand for.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from fairlead.base.errors import fail

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """The declarations of one kind.

    Attributes:
        package: whose modules are declarations, e.g. ``fairlead.engines``.
        attribute: what the declaration is called in each module, e.g. ``ENGINE``.
        helpers: modules of the package that are not declarations.
    """

    package: str
    attribute: str
    helpers: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The entry-point group that other distributions use; the package's name."""
        return self.package

    def bundled(self) -> tuple[str, ...]:
        """The names in the package, sorted. Imports none of them."""
        left_out = {"__init__", "model", "registry", *self.helpers}
        modules = _modules(self.package) - left_out
        return tuple(sorted(name.replace("_", "-") for name in modules))

    def names(self) -> tuple[str, ...]:
        """Every name: the bundled ones, then those of other distributions."""
        bundled = self.bundled()
        return (*bundled, *sorted({e.name for e in self._entry_points()} - set(bundled)))

    def get(self, name: str) -> T:
        """The declaration called ``name``. Entry points are searched only where the package has none.

        Raises:
            KeyError: there is none.
            FairleadError: another distribution's cannot be loaded.
        """
        if name in self.bundled():
            module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
            declaration: T = getattr(module, self.attribute)
            return declaration
        for entry in self._entry_points():
            if entry.name == name:
                return self._loaded(entry)
        raise KeyError(name)

    def _loaded(self, entry: Any) -> T:
        try:
            declaration: T = entry.load()
        except Exception as exc:  # somebody else's code
            raise fail(
                f"`{entry.name}` cannot be loaded",
                where=f"{entry.dist.name if entry.dist else entry.value}, entry point {self.group}",
                why=f"{type(exc).__name__}: {exc}",
                remedy="update or uninstall that distribution",
                check="entry-point",
            ) from exc
        return declaration

    def __contains__(self, name: str) -> bool:
        return name in self.bundled() or any(entry.name == name for entry in self._entry_points())

    def __iter__(self) -> Iterator[T]:
        return (self.get(name) for name in self.names())

    def _entry_points(self) -> tuple[Any, ...]:
        return _entry_points(self.group, tuple(sys.path))


@functools.cache
def _modules(package: str) -> frozenset[str]:
    folders = importlib.import_module(package).__path__
    return frozenset(path.stem for folder in folders for path in Path(folder).glob("*.py"))


@functools.cache
def _entry_points(group: str, search_path: tuple[str, ...]) -> tuple[Any, ...]:
    """Reads every distribution's metadata, once for each state of ``sys.path``."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))
