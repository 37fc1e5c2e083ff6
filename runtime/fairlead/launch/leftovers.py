"""Shared memory of runs that SIGKILL ended, with the process that would have cleaned up: the next run does it.

Each run notes who runs it and what was in ``/dev/shm`` before it, and removes the note at its end.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.paths import atomic_write
from fairlead.launch import shm_cleanup

_NOTE = "shm.json"
_DEATH_S = 120.0  # the run's folder is touched every minute while it lives


def begin(folder: Path, memory: Path = Path("/dev/shm")) -> frozenset[Path]:
    """Notes that this process runs ``folder``'s run; returns what shared memory of MPIs is there already."""
    before = shm_cleanup.listing(memory)
    with suppress(OSError), atomic_write(folder / _NOTE, "w") as stream:
        owner = {"pid": os.getpid(), "started": _started(os.getpid()), "place": _place(memory)}
        json.dump(owner | {"before": sorted(path.name for path in before)}, stream)
    return before


def end(folder: Path) -> None:
    """Takes the note back."""
    with suppress(OSError):
        (folder / _NOTE).unlink(missing_ok=True)


def noted(folder: Path) -> bool:
    """Whether a run has left a note: it goes on, or was killed, on this node or another."""
    return any(folder.glob("shm*.json"))


def clear_dead(runs: Path, memory: Path = Path("/dev/shm")) -> int:
    """Removes what runs of this user on this machine left whose process is gone.

    Of what came since such a run began, until it can have lived, only what no process is seen to have mapped.

    Returns:
        How many files were removed.
    """
    removed = 0
    for note in runs.glob(f"*/{_NOTE}"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            owner = bounded_json.loads(note.read_bytes())
            until = note.parent.stat().st_mtime + _DEATH_S
            if owner["place"] != _place(memory) or _started(owner["pid"]) == owner["started"]:
                continue
            kept = {memory / name for name in owner["before"]}
            later = {p for p in shm_cleanup.listing(memory) if not _older(p, until)}
            removed += shm_cleanup.clear(frozenset(kept | later), memory)
            note.unlink()
    return removed


def _older(path: Path, than: float) -> bool:
    try:
        return path.stat().st_mtime <= than
    except OSError:
        return False


def _place(memory: Path) -> str:
    """What has to be the same for a process's number, and a name in shared memory, to mean the same."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    shared = memory.stat()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()} {shared.st_dev}:{shared.st_ino}"


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks; "" when there is none of that number."""
    try:
        return (
            Path(f"/proc/{int(pid)}/stat")
            .read_text("utf-8", "replace")
            .rpartition(")")[2]
            .split()[19]
        )
    except OSError:
        return ""
