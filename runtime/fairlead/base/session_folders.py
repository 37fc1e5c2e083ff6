"""Folders of sessions that outlive their command, each named by its user, below a folder of theirs."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

_KEPT_S = 7 * 86400


def is_name(name: str) -> bool:
    """Whether a session may be called so: its folder is replaced, and must not be any other.

    >>> is_name("analysis-1"), is_name("../data"), is_name(".."), is_name("")
    (True, False, False, False)
    """
    named = bool(name) and not name.startswith(".")
    return named and all(letter.isalnum() or letter in "-_." for letter in name)


def name_for(image: str) -> str:
    """The name of an image's session that was given none."""
    stem = Path(image).stem.partition(":")[0]
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "session"


def renewed(top: Path, name: str) -> Path:
    """An empty folder of a session, without what an earlier one has left.

    Raises:
        ValueError: it is not a valid name.
        OSError: it cannot be made.
    """
    if not is_name(name):
        raise ValueError(name)
    folder = top / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


def forget_old(top: Path, ended: str) -> None:
    """Removes the sessions that were over a week ago.

    Args:
        ended: name of the file that a session which is over has.
    """
    for folder in top.iterdir():
        with suppress(OSError):
            if time.time() - (folder / ended).stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder)
