"""How much a look into an image may take: an image can be made so that reading it never ends.

One budget goes through everything that reads an image; the first limit that is hit ends the look and is named.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.base.errors import FairleadError, fail
from fairlead.base.regular import open_regular

# Far beyond what images have: 400,000 entries, 30 folders deep, 60 GB; 20 MB of dpkg's status, 40 MPIs.
MOST_ENTRIES = 4_000_000
MOST_DEPTH = 200
MOST_BYTES = 1 << 40
MOST_TEXT_BYTES = 64 << 20
MOST_MPIS = 500
_MOST_PATH_BYTES = 4095 - len(
    "/.fairlead/sbom.cdx.json"
)  # PATH_MAX, less what is looked for below a path
_MOST_S = 600.0
VARIABLE = "FAIRLEAD_IMAGE_LIMIT_S"


class Budget:
    """What is left for one look into one image.

    Args:
        root: where its tree is; in messages, paths are relative to it. ``Path()`` where nothing is mounted.
        shown: the image itself, where that is not the root.
    """

    def __init__(
        self, root: Path, shown: Path | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.seconds = limit_s(environ)
        self._root = "" if root == Path() else os.fspath(root)
        self._shown = shown or root
        self._until = time.monotonic() + self.seconds
        self._entries = self._bytes = self._text = 0

    def clock(self, path: str | Path = "") -> None:
        """Raises FairleadError: the time is over; ``path`` is being read."""
        if time.monotonic() > self._until:
            raise too_long(self._shown, self.seconds, self._inside(path))

    def entry(self, path: str, depth: int) -> None:
        """Counts one name; ``depth`` is the number of folders above it.

        Raises:
            FairleadError: it is too deep, or one too many, or the time is over.
        """
        self._entries += 1
        if depth > MOST_DEPTH:
            raise fail("image-limit-depth", **self._at(path), most=MOST_DEPTH)
        if len(os.fsencode(path)) > _MOST_PATH_BYTES:
            raise fail("image-limit-path", **self._at(path), most=_MOST_PATH_BYTES)
        if self._entries > MOST_ENTRIES:
            raise fail("image-limit-entries", **self._at(path), most=MOST_ENTRIES)
        self.clock(path)

    def read(self, amount: int, path: str | Path) -> None:
        """Counts content that is read, or is going to be, in bytes.

        Raises:
            FairleadError: it is too much, or the time is over.
        """
        self._bytes += amount
        if self._bytes > MOST_BYTES:
            raise fail("image-limit-bytes", **self._at(path), most=MOST_BYTES >> 40)
        self.clock(path)

    def text(self, path: Path) -> str:
        """The text of a small file; a link, a pipe or a device is not opened.

        Raises:
            FairleadError: it is too long, or all such files together are.
            OSError: it cannot be read.
        """
        with open_regular(path) as stream:
            raw = stream.read(MOST_TEXT_BYTES + 1)
        self._text += len(raw)
        self.clock(path)
        if len(raw) > MOST_TEXT_BYTES or self._text > 4 * MOST_TEXT_BYTES:
            raise fail("image-limit-text", **self._at(path), most=MOST_TEXT_BYTES >> 20)
        return raw.decode("utf-8", "replace")

    def mpis(self, count: int) -> None:
        """Raises FairleadError: no machine can replace that many MPI libraries."""
        if count > MOST_MPIS:
            raise fail("image-limit-mpis", **self._at(""), most=MOST_MPIS)

    def costly(self, path: Path, why: str) -> FairleadError:
        """The error for an ELF file that takes too much."""
        return fail("image-limit-elf", **self._at(path), why=why)

    def _at(self, path: str | Path) -> dict[str, Any]:
        inside = self._inside(path)
        short = inside if len(inside) < 200 else f"{inside[:80]}…{inside[-80:]}"
        return {"image": self._shown, "inside": short}

    def _inside(self, path: str | Path) -> str:
        text = os.fspath(path)
        inside = text[len(self._root) :] if text.startswith(self._root) else text
        return "/" + inside.lstrip("/").encode("utf-8", "replace").decode()


def limit_s(environ: Mapping[str, str] = os.environ) -> float:
    """The seconds that a look may take.

    Raises:
        FairleadError: exit code 2; the variable is not a number of seconds.
    """
    text = environ.get(VARIABLE, "")
    try:
        seconds = float(text or _MOST_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise fail("image-limit-variable", variable=VARIABLE, text=shlex.quote(text[:80]))
    return seconds


def too_long(image: Path, seconds: float, inside: str = "") -> FairleadError:
    """The error for a look that took longer than it may."""
    more = f"{VARIABLE}={seconds * 6:.0f}"
    return fail("image-limit-time", image=image, inside=inside, seconds=seconds, more=more)
