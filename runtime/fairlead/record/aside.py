"""Results of a recorded run make room for those of its repetition, and come back."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairlead.base.errors import fail, os_error_as
from fairlead.record.model import Data

ASIDE, NEW = ".recorded", ".replayed"


@contextmanager
def set_aside(results: Sequence[Data], folder: Path) -> Iterator[None]:
    """While the block runs, what is at the results' places is under another name, ``NAME.recorded``.

    Afterwards it is back. What the block has made in its place becomes ``NAME.replayed``, unless there was nothing.

    Raises:
        FairleadError: exit code 2; it cannot be renamed, or an interrupted repetition has left something there.
    """
    moved: list[tuple[Path, Path]] = []
    try:
        for result in results:
            place = folder / result.name
            kept = place.with_name(place.name + ASIDE)
            with os_error_as("replay-aside", place=place):
                if os.path.lexists(kept):
                    words = f"mv {shlex.quote(str(kept))} {shlex.quote(str(place))}"
                    raise fail("replay-left", kept=kept, words=words)
                if os.path.lexists(place):
                    place.rename(kept)
                    moved.append((place, kept))
                    if result.before == "folder":
                        place.mkdir()
        yield
    finally:
        for place, kept in moved:
            new = place.with_name(place.name + NEW)
            with os_error_as("replay-aside", place=place):
                if os.path.lexists(place):
                    _remove(new)
                    place.rename(new)
                kept.rename(place)


def drop_equal(names: Sequence[str], folder: Path) -> None:
    """Removes the ``NAME.replayed`` of results that are the same as before."""
    for name in names:
        place = folder / name
        _remove(place.with_name(place.name + NEW))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
