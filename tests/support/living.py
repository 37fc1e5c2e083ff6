"""Whether a process lives."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """It is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
