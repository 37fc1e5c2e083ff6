"""``/proc/PID/stat`` of a process, ``/proc/PID/task/TID/stat`` of a thread. Source: proc_pid_stat(5).

The second field, the name, may have spaces and parentheses: fields are counted from the third, the state.
"""

from __future__ import annotations

import os
from pathlib import Path

STATE, PARENT, USER_TICKS, SYSTEM_TICKS, BEGAN, PROCESSOR = 0, 1, 11, 12, 19, 36


def fields(folder: str | os.PathLike[str] = "/proc/self") -> list[str]:
    """The fields from the state on, by the numbers of this module.

    Args:
        folder: of the process or thread.
    Raises:
        OSError: it is gone.
    """
    return Path(folder, "stat").read_text("utf-8", "replace").rpartition(")")[2].split()


def began(pid: int) -> str:
    """When a process began, in the kernel's ticks: with its number, that names it; empty for one that is gone, or a zombie."""
    try:
        values = fields(f"/proc/{int(pid)}")
    except OSError:
        return ""
    return "" if values[STATE] in "ZX" else values[BEGAN]
