"""Shared memory of runs that SIGKILL ended, with the process that would have cleaned up: the next run does it.

Each run notes, for each of its nodes, who looks after it and what was in ``/dev/shm`` before it, and removes the note
at its end.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.paths import atomic_write
from fairlead.base.proc_stat import began
from fairlead.launch import shm_cleanup
from fairlead.launch.nodes import key

_NOTE = "shm.json"
_DEATH_S = 120.0  # the run's folder is touched every minute while it lives


def begin(
    folder: Path,
    memory: Path = Path("/dev/shm"),
    note: str = _NOTE,
    before: frozenset[Path] | None = None,
) -> frozenset[Path]:
    """Notes that this process runs ``folder``'s run.

    Args:
        before: the shared memory of MPIs that was there before the run; None: what is there now.
    Returns:
        That.
    """
    before = shm_cleanup.listing(memory) if before is None else before
    with suppress(OSError), atomic_write(folder / note, "w") as stream:
        owner = {"pid": os.getpid(), "started": began(os.getpid()), "place": _place(memory)}
        json.dump(owner | {"before": sorted(path.name for path in before)}, stream)
    return before


def note_of(node: str) -> str:
    """The name of the note of a node other than the launching host."""
    return f"shm.{node}.json"


def end(folder: Path, note: str = _NOTE) -> None:
    """Takes the note back."""
    with suppress(OSError):
        (folder / note).unlink(missing_ok=True)


def noted(folder: Path) -> bool:
    """Whether a run has left a note: it goes on, or was killed, on this node or another."""
    return any(folder.glob("shm*.json"))


def clear_dead(
    runs: Path, memory: Path = Path("/dev/shm"), among: frozenset[Path] | None = None
) -> int:
    """Removes what runs of this user on this machine left whose process is gone.

    Of what came since such a run began, until it can have lived, only what no process is seen to have mapped.

    Args:
        among: nothing else is removed, where a run has begun.
    Returns:
        How many files were removed.
    """
    removed = 0
    for note in (*runs.glob(f"*/{_NOTE}"), *runs.glob(f"*/{note_of(key())}")):
        with suppress(OSError, ValueError, LookupError, TypeError):
            owner = bounded_json.loads(note.read_bytes())
            until = note.parent.stat().st_mtime + _DEATH_S
            if owner["place"] != _place(memory) or began(owner["pid"]) == owner["started"]:
                continue
            kept = {memory / name for name in owner["before"]}
            now = shm_cleanup.listing(memory)
            later = {p for p in now if not _older(p, until)}
            later |= now - (now if among is None else among)
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
