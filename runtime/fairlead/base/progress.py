"""Progress as data: long work reports to an observer; only the command line draws it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Stage(Protocol):
    """One running piece of long work."""

    def advance(self, amount: float) -> None:
        """Adds ``amount`` finished units."""

    def total(self, amount: float) -> None:
        """Sets the total to ``amount`` units."""

    def note(self, text: str) -> None:
        """Sets a short note on the current step, e.g. a file name."""

    def result(self, text: str) -> None:
        """Sets the result for the stage's closing line, e.g. ``440 MB, cached``."""

    def failed(self, text: str) -> None:
        """Marks the stage as failed while the work continues; the closing line shows ``text``."""


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


class Silent(Progress):
    """Discards progress; the default in library use and in tests."""


def human_bytes(amount: float) -> str:
    """``1234567`` as ``1.2 MB``; powers of ten, as everywhere in fairlead."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(amount) < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
