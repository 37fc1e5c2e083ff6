"""What is kept between builds goes when no build has used it for a month: it can be made again.

Trees of the images that are known by name stay, however old.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from fairlead_build.cache.store import Cache

KEPT_S = 30 * 24 * 3600.0


def used(*paths: Path) -> None:
    """Says that a build uses ``paths`` now; what cannot be written to is not swept either."""
    for path in paths:
        with suppress(OSError):
            os.utime(path)


def sweep(cache: Cache, trees: Collection[str]) -> None:
    """Removes Debian parts, sources and trees unused for ``KEPT_S``, but for the keys ``trees``."""
    oldest = time.time() - KEPT_S
    for name in ("debian", "sources", "trees"):
        for path in (cache.root / name).glob("*"):
            if path.name.partition(".")[0] in trees:
                continue
            # Another build may have removed it meanwhile.
            with suppress(OSError):
                if path.lstat().st_mtime < oldest:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
