"""Who can read what an export names: it is for other people than the one who makes it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def closed(path: str) -> str:
    """Why another user cannot read ``path``, in words; empty if others can, or if it is not there yet."""
    real = Path(os.path.realpath(path))
    for place in (*reversed(real.parents), real):
        try:
            mode = place.stat().st_mode
        except FileNotFoundError:
            return ""
        except OSError as exc:
            return f"{place}: {exc.strerror}"
        folder = place.is_dir()
        need = 0o5 if folder and place == real else 0o1 if folder else 0o4
        if mode & need != need:
            return (
                f"others may not {'enter' if folder else 'read'} {place} (mode {mode & 0o7777:04o})"
            )
    return ""


def closed_of(paths: Iterable[str]) -> dict[str, str]:
    """Those of ``paths`` that other users cannot read, each with the reason."""
    return {path: why for path in paths if path.startswith("/") and (why := closed(path))}
