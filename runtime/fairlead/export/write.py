"""Writes an export, whole or not at all: each file gets its name only when it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fairlead.base.errors import fail
from fairlead.base.paths import atomic_write
from fairlead.export.model import ExportFile


def write(files: Sequence[ExportFile], folder: Path) -> tuple[Path, ...]:
    """Writes ``files`` below ``folder``; existing files of the same name are replaced.

    Raises:
        FairleadError: one cannot be written.
    """
    written = []
    for file in files:
        inner = PurePosixPath(file.path)
        assert not inner.is_absolute() and ".." not in inner.parts
        path = folder / inner
        try:
            with atomic_write(path, "w") as stream:
                stream.write(file.text)
            path.chmod(file.mode)
        except OSError as exc:
            raise fail(
                "output-unwritable-export",
                filename=exc.filename or path,
                reason=exc.strerror or str(exc),
            ) from None
        written.append(path)
    return tuple(written)
