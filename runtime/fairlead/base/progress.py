"""Progress as data: long work tells an observer how far it is; only the command line draws it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Stage(Protocol):
    """One running piece of long work."""

    def advance(self, amount: float) -> None:
        """``amount`` more of the unit is done."""

    def total(self, amount: float) -> None:
        """The whole is now known to be ``amount`` units."""

    def note(self, text: str) -> None:
        """A short word on what is being done right now, e.g. a file name."""

    def result(self, text: str) -> None:
        """What came out of it, shown on the stage's closing line, e.g. ``440 MB, cached``."""

    def failed(self, text: str) -> None:
        """It has failed and the work goes on; the closing line says so, and ``text``."""


class Progress(Protocol):
    """Opens stages. ``unit`` is ``"B"`` for bytes, else a plural noun (``"packages"``)."""

    @contextmanager
    def stage(self, title: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        """A stage from entry to exit; an exception marks it as failed."""
        yield _SILENT_STAGE


class _SilentStage:
    def advance(self, amount: float) -> None: ...
    def total(self, amount: float) -> None: ...
    def note(self, text: str) -> None: ...
    def result(self, text: str) -> None: ...
    def failed(self, text: str) -> None: ...


_SILENT_STAGE = _SilentStage()


class Silent:
    """Progress that nobody watches; the default in library use and in tests."""

    @contextmanager
    def stage(self, title: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        yield _SILENT_STAGE
