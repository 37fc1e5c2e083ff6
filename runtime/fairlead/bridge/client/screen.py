"""Progress of a client on its terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from fairlead.base.progress import Progress, Silent, Stage


def progress_here(stream: IO[str]) -> Progress:
    """Bars on a terminal; nothing elsewhere, or without the package ``rich``."""
    if not stream.isatty():
        return Silent()
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return Silent()
    return _Bars(stream)


class _Bars(Progress):
    def __init__(self, stream: IO[str]):
        self._stream = stream

    @contextmanager
    def stage(self, title: str, total: float | None = None, unit: str = "") -> Iterator[Stage]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bars

        amount = (DownloadColumn(), TransferSpeedColumn()) if unit == "B" and total else ()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            *amount,
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=Console(file=self._stream), transient=True) as bars:
            yield _Bar(bars, bars.add_task(title, total=total))


class _Bar:
    def __init__(self, bars: Any, task: Any):
        self._bars, self._task = bars, task

    def advance(self, amount: float) -> None:
        self._bars.advance(self._task, amount)

    def total(self, amount: float) -> None:
        self._bars.update(self._task, total=amount)

    def note(self, text: str) -> None:
        self._bars.update(self._task, description=text)

    def result(self, text: str) -> None: ...

    def failed(self, text: str) -> None: ...
