"""Ranks that stand still: stopped by SIGSTOP, or by a kernel that has frozen them, while the others wait for them.

A whole job that its scheduler suspends is not such: fairlead and its agents stand still with it, and see nothing.
A debugger's stop is another state (``t``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from fairlead.base import proc_stat
from fairlead.launchers.registry import LAUNCHERS

_EVERY_S = 5.0
_LOOKS = 3  # at which a process has to be stopped in a row


class Stopped:
    """Looks at the processes of a run on one node."""

    def __init__(
        self, pids: Callable[[], Collection[int]], clock: Callable[[], float] = time.monotonic
    ):
        self._pids, self._clock = pids, clock
        self._next = clock() + _EVERY_S
        self._looks: dict[int, int] = {}

    def look(self) -> str | None:
        """The rank that has stood still for 10 s or more, "" where it is unknown; None where there is none."""
        if self._clock() < self._next:
            return None
        self._next = self._clock() + _EVERY_S
        now = {pid for pid in self._pids() if _is_stopped(pid)}
        self._looks = {pid: self._looks.get(pid, 0) + 1 for pid in now}
        late = sorted(pid for pid, looks in self._looks.items() if looks >= _LOOKS)
        return _rank(late[0]) if late else None


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return proc_stat.fields(f"/proc/{pid}")[proc_stat.STATE] == "T"
    return False


def _rank(pid: int) -> str:
    names = {driver.rank_in[0] for driver in LAUNCHERS} | {"FAIRLEAD_RANK", "PMIX_RANK"}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.decode("utf-8", "replace").partition("=")
            if name in names and value.isdigit():
                return value
    return ""
