"""Whether a tree fits: space and inodes of the storage, and memory where the storage is in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from fairlead.base import free_memory
from fairlead.base.errors import fail
from fairlead.base.progress import human_bytes
from fairlead.base.system import mount_of
from fairlead.transfer.model import Tree

_BLOCK = 4096  # what an entry or the rest of a file takes, at most, bytes


def check(folder: str, trees: Sequence[Tree], root: Path = Path("/")) -> None:
    """Tests whether copies of ``trees`` fit into ``folder``; holes take no space.

    Args:
        root: where this machine's ``proc`` and ``sys`` are.
    Raises:
        FairleadError: exit code 121; they do not.
    """
    inodes = sum(len(tree.entries) for tree in trees)
    if not inodes:
        return
    blocks = inodes + sum(-(-file.data // _BLOCK) for tree in trees for file in tree.contents)
    space = blocks * _BLOCK
    storage = os.statvfs(folder)
    kind = ""
    with contextlib.suppress(OSError):
        kind = mount_of(Path(folder), root).kind
    free = storage.f_bavail * storage.f_frsize
    limits = [
        (free, f"the file system there, {kind or 'of unknown kind'}, has {human_bytes(free)} free")
    ]
    if kind in ("tmpfs", "ramfs"):
        limits += [
            (left, f"it lies in memory, of which {whose}")
            for left, whose in free_memory.limits(root)
        ]
    free, what = min(limits, key=lambda limit: limit[0])
    if space > free:
        missing = human_bytes(space - free)
        why = f"{human_bytes(space)} are needed; {what}: {missing} are missing"
        raise fail("stage-room", folder=folder, why=why)
    if storage.f_files and inodes > storage.f_favail:
        why = f"{inodes} inodes are needed, one a file or folder; {storage.f_favail} are free there"
        raise fail("stage-room", folder=folder, why=why)
