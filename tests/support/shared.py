"""What this user has in places that all users of a machine share: others', and what their killed processes left, is not ours."""

from __future__ import annotations

import os
from pathlib import Path


def own(folder: str, pattern: str = "*", uid: int | None = None) -> set[Path]:
    """The files and folders of this user, or of ``uid``."""
    owner = os.geteuid() if uid is None else uid
    found = set()
    for path in Path(folder).glob(pattern):
        try:
            if path.lstat().st_uid == owner:
                found.add(path)
        except OSError:  # it has gone meanwhile
            continue
    return found
