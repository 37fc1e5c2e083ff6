"""Declarations of one kind: the bundled ones, a module each, and those of other packages, by entry point.

A bundled declaration is found by the name of its module, so nothing but that module has to be written to add one.
Entry points are read only for a name that is not bundled, or to list all: scanning the metadata of every installed
distribution costs thousands of ranks a storm on the file system.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Generic, Protocol, TypeVar

from fairlead.base.errors import fail


class Named(Protocol):
    """What can be declared: anything with a name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Registry(Generic[T]):
    """All declarations of one kind.

    Attributes:
        package: whose modules hold the bundled declarations; modules that begin with ``_`` hold none.
        attribute: the sequence of declarations in such a module. Modules without it are passed over.
        group: the entry points of other packages; each loads one declaration, under its name.
        module_of: the module that a bundled name would be in, without the package.
        order: key for lists.
    """

    package: str
    attribute: str
    group: str
    module_of: Callable[[str], str] = str
    order: Callable[[T], object] = lambda declaration: declaration.name

    def find(self, name: str) -> T | None:
        """The declaration of that name, or None. Loads no other bundled module.

        Raises:
            FairleadError: another package declares it, and cannot be loaded.
        """
        module = self.module_of(name)
        if module.isidentifier() and not module.startswith("_") and self._has(module):
            for declaration in self._of(module):
                if declaration.name == name:
                    return declaration
        from importlib.metadata import entry_points

        for point in entry_points(group=self.group, name=name):
            try:
                found: T = point.load()
            except Exception as exc:
                raise fail(
                    f"the plugin `{name}` cannot be loaded",
                    where=f"{point.value}, entry point of {self.group}",
                    why=f"{type(exc).__name__}: {exc}",
                    remedy="fix or uninstall the package that brings it",
                    check="plugin",
                ) from exc
            return found
        return None

    def bundled(self) -> tuple[T, ...]:
        """The declarations of this package, in order."""
        package = importlib.import_module(self.package)
        modules = [info.name for info in pkgutil.iter_modules(package.__path__)]
        every = [d for name in modules if not name.startswith("_") for d in self._of(name)]
        return tuple(sorted(every, key=self.order))  # type: ignore[arg-type]

    def every(self) -> tuple[T, ...]:
        """Bundled declarations, then those of other packages. One that cannot be loaded is left out: a broken plugin
        must not break a list; :meth:`find` says what is wrong with it."""
        bundled = self.bundled()
        names = {declaration.name for declaration in bundled}
        others = [d for d in self._others() if d.name not in names]
        return (*bundled, *sorted(others, key=lambda declaration: declaration.name))

    def names(self) -> tuple[str, ...]:
        """The names of :meth:`every`."""
        return tuple(declaration.name for declaration in self.every())

    def _has(self, module: str) -> bool:
        return find_spec(f"{self.package}.{module}") is not None

    def _of(self, module: str) -> Sequence[T]:
        found: Sequence[T] = getattr(
            importlib.import_module(f"{self.package}.{module}"), self.attribute, ()
        )
        return found

    def _others(self) -> Iterator[T]:
        from importlib.metadata import entry_points

        for point in entry_points(group=self.group):
            try:
                yield point.load()
            except Exception:  # see `every`
                continue
