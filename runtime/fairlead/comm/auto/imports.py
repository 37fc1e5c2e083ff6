"""Modules that are patched when they are imported, by any module and in any order."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a patch with its module each time that the module was executed.

    It keeps nothing of what it was asked: TensorFlow, for one, asks where Keras is long before anything imports it.
    """

    def __init__(self, patches: Mapping[str, Patch]):
        self._patches = patches
        self._asking = threading.local()

    def install(self) -> None:
        """First among the finders; a module that is there already is patched now."""
        sys.meta_path.insert(0, self)
        for name, patch in self._patches.items():
            if name in sys.modules:
                patch(sys.modules[name])

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._patches or getattr(self._asking, "name", "") == name:
            return None
        self._asking.name = name  # the other finders are asked through the list that this one is in
        try:
            spec = _spec_of(name, path, target)
        finally:
            self._asking.name = ""
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._patches[name])
        return spec


def _spec_of(name: str, path: Any, target: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        look = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = look(name, path, target) if look else None
        if spec is not None:
            return spec
    return None


class _Loader(importlib.abc.Loader):
    """The module's own loader, and then its patch."""

    def __init__(self, own: Any, patch: Patch):
        self._own, self._patch = own, patch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._own, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        self._patch(module)


def importer() -> str:
    """The file whose line imports the module that is being patched; empty where there is none."""
    frame: FrameType | None = sys._getframe(1)
    importing = False
    while frame is not None:
        file = frame.f_code.co_filename
        of_import = file.startswith("<frozen importlib") or file == importlib.__file__
        if importing and not of_import:
            return file
        importing |= of_import
        frame = frame.f_back
    return ""
