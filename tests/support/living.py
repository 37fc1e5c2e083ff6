"""Processes that live."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def alive(pid: int) -> bool:
    """It is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Those below a process, which are all of a job below its launcher."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(words[1]), []).append(int(path.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found
