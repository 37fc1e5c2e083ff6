"""Whether a file in the cache still is what was put there: its sha256 is noted, with its identity at that time.

While inode, size, mtime and ctime stay, nothing was written: no call sets a ctime. Otherwise the file is read. A device's
number is left out, since each node of a cluster mounts the same cache under another.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead.base import bounded_json
from fairlead.base.paths import atomic_write

# The coarsest clock of a file system in use (Lustre's has seconds): of a younger file, a later change may not show.
SETTLED_S = 2.0
_BLOCK = 4 << 20


@dataclass(frozen=True)
class Seal:
    """What a file held.

    Attributes:
        state: its identity at that time; empty where a later change could leave it as it is.
    """

    sha256: str
    state: str


def state_of(status: os.stat_result) -> str:
    """What changes with every write to a file, and with its replacement."""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def seal(file: Path) -> Seal:
    """What ``file`` holds now; every byte is read.

    Raises:
        OSError: it cannot be read.
    """
    whole = hashlib.sha256()
    with file.open("rb") as stream:
        begun, before = time.time(), os.fstat(stream.fileno())
        while block := stream.read(_BLOCK):
            whole.update(block)
        after = os.fstat(stream.fileno())
    settled = state_of(before) == state_of(after) and after.st_ctime < begun - SETTLED_S
    return Seal(whole.hexdigest(), state_of(after) if settled else "")


def again(file: Path, before: Seal) -> Seal:
    """What ``file`` holds now, read only if it may be something else than ``before``.

    Raises:
        OSError: it cannot be read.
    """
    return before if before.state == state_of(file.stat()) else seal(file)


def note_of(file: Path) -> Path:
    """Where the seal of a file is kept that has one of its own."""
    return file.with_name(f"{file.name}.json")


def holds(file: Path, sha256: str = "") -> bool:
    """Whether ``file`` has that digest, or without one the digest that was noted."""
    noted = Seal("", "")
    with suppress(OSError, ValueError, LookupError, TypeError):
        data = bounded_json.loads(note_of(file).read_bytes())
        noted = Seal(str(data["sha256"]), str(data["state"]))
    expected = sha256 or noted.sha256
    try:
        now = again(file, noted)
    except OSError:
        return False
    if now.sha256 != expected:
        return False
    if now != noted:
        with suppress(OSError):
            note(file, now)
    return True


def note(file: Path, current: Seal | None = None) -> None:
    """Notes what ``file`` holds, for :func:`holds`.

    Raises:
        OSError: it cannot be read, or the note not written.
    """
    current = current or seal(file)
    with atomic_write(note_of(file), "w") as out:
        json.dump({"sha256": current.sha256, "state": current.state}, out)
