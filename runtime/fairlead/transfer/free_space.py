"""Whether a tree fits: space and inodes of the storage, and memory where the storage is in memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead.base.errors import fail
from fairlead.base.progress import human_bytes
from fairlead.base.system import mount_of
from fairlead.transfer.model import Tree

_BLOCK = 4096  # what an entry or the rest of a file takes, at most, bytes
# Of both versions of cgroups, by the controller in /proc/self/cgroup: the folder, the files with the limit
# and the use, and the reclaimable cache in memory.stat.
_CGROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


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
        limits += _memory(root)
    free, what = min(limits, key=lambda limit: limit[0])
    if space > free:
        missing = human_bytes(space - free)
        why = f"{human_bytes(space)} are needed; {what}: {missing} are missing"
        raise fail("stage-room", folder=folder, why=why)
    if storage.f_files and inodes > storage.f_favail:
        why = f"{inodes} inodes are needed, one a file or folder; {storage.f_favail} are free there"
        raise fail("stage-room", folder=folder, why=why)


def _memory(root: Path) -> Iterator[tuple[int, str]]:
    """Bytes of memory still available, for each limit."""
    if match := re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE):
        left = int(match[1]) * 1024
        yield left, f"it lies in memory, of which this node has {human_bytes(left)} available"
    for left, group in _cgroups(root):
        text = f"the job's cgroup {group} has {human_bytes(left)} left"
        yield left, f"it lies in memory, of which {text}"


def _cgroups(root: Path) -> Iterator[tuple[int, str]]:
    """Bytes that are left in every group of this process that has a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in _CGROUPS.keys() & set(controllers.split(",")):
            top, limit_name, used_name, cache_name = _CGROUPS[controller]
            group = Path(path.lstrip("/"))
            for here in (group, *group.parents):
                limit = _text(root / top / here / limit_name).strip()
                used = _text(root / top / here / used_name).strip()
                stat = _text(root / top / here / "memory.stat")
                cache = re.search(rf"^{cache_name} (\d+)$", stat, re.MULTILINE)
                # Version 1 shows a group without a limit as one beyond any machine's memory.
                if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
                    left = int(limit) - int(used) + (int(cache[1]) if cache else 0)
                    yield max(0, left), f"/{here}"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""
