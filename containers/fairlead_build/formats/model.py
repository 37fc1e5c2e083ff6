"""What a format of an image is: a name, a suffix, and how it is written from the built SIF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base.progress import Progress
from fairlead_build.base.digest import sha256_of
from fairlead_build.formats.images import ImageEntry


@dataclass(frozen=True)
class Format:
    """One format: the ``FORMAT`` of a module of this package, or an entry point of another one.

    Attributes:
        name: its name on the command line.
        suffix: of the file or folder, with the dot.
        summary: one line on what it is for.
        write: writes the image into a path that does not exist yet: a file, or a folder.
        folder: the result is a folder.
        sidecars: files next to the result, by suffix, and what makes their text. They are written
            first: a result without them is incomplete.
        copied: handing it out copies the result that is kept in the cache, because making it takes
            longer; otherwise it is written again, and the cache keeps none.
        holds: whether an existing folder (target, kept, entry, progress) already is this image.
        digest: what ``build --check`` compares; None when there is no such digest.
    """

    name: str
    suffix: str
    summary: str
    write: Callable[[ImageEntry, Path, Progress], object]
    folder: bool = False
    sidecars: Mapping[str, Callable[[ImageEntry], str]] = field(default_factory=dict)
    copied: bool = False
    holds: Callable[[Path, Path, ImageEntry, Progress], bool] = lambda *_: False
    digest: Callable[[Path], str] | None = sha256_of
