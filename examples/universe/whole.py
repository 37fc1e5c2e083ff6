"""Files that have their names only once they are complete: what is killed leaves none that a later step takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def whole(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """``path``, open for writing under another name until the block ends."""
    made = path.with_name(f".{path.name}.tmp")
    with made.open(mode) as stream:
        yield stream
    made.replace(path)
