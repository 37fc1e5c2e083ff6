"""Whether there is room for a tree: space and inodes of the storage, and memory where it lies in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairlead.base.errors import ExitCode, FairleadError, error
from fairlead.transfer.model import Kind, Tree

_BLOCK = 4096  # what an entry or the rest of a file takes, at most, bytes
_IN_MEMORY = ("tmpfs", "ramfs")


def needed(trees: Iterable[Tree]) -> tuple[int, int]:
    """Bytes and inodes that copies of ``trees`` take; holes take none."""
    space = inodes = 0
    for tree in trees:
        inodes += len(tree.entries)
        for entry in tree.entries:
            space += _BLOCK
            if entry.kind is Kind.FILE and not entry.same_as:
                space += -(-entry.data // _BLOCK) * _BLOCK
    return space, inodes


def check(folder: str, trees: Iterable[Tree], root: Path = Path("/")) -> None:
    """Looks whether ``trees`` fit into ``folder``.

    Args:
        root: where this machine's ``proc`` and ``sys`` are.
    Raises:
        FairleadError: exit code 121; they do not.
    """
    space, inodes = needed(trees)
    if not inodes:
        return
    have = os.statvfs(folder)
    free, kind = have.f_bavail * have.f_frsize, filesystem(folder, root)
    what = f"the file system there, {kind or 'of unknown kind'}, has {_amount(free)} free"
    if kind in _IN_MEMORY:
        for left, why in _memory(root):
            if left < free:
                free, what = left, why
    if space > free:
        raise no_room(
            folder,
            f"{_amount(space)} are needed; {what}: {_amount(space - free)} are missing",
        )
    if have.f_files and inodes > have.f_favail:
        raise no_room(
            folder,
            f"{inodes} inodes are needed, one a file or folder; {have.f_favail} are free there",
        )


def no_room(folder: str, why: str) -> FairleadError:
    """The error of a storage that is too small."""
    return FairleadError(
        error("stage-room", folder=folder, why=why),
        ExitCode.PREFLIGHT_REFUSED,
    )


def filesystem(path: str, root: Path = Path("/")) -> str:
    """The kind of the file system that ``path`` is on; empty where it is unknown."""
    real, best = os.path.realpath(path), ("", "")
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.split()
        # A later mount at the same place lies over an earlier one.
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), words[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, words[words.index("-") + 1])
    return best[1]


def _memory(root: Path) -> Iterator[tuple[int, str]]:
    """Bytes of memory still available, for each limit."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        text = ""
    if found := re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE):
        left = int(found[1]) * 1024
        yield left, f"it lies in memory, of which this node has {_amount(left)} available"
    for limit, used, cache, where in _cgroups(root):
        left = max(0, limit - used + cache)
        yield left, f"it lies in memory, of which the job's cgroup {where} has {_amount(left)} left"


def _cgroups(root: Path) -> Iterator[tuple[int, int, int, str]]:
    """Limit, use and reclaimable cache, bytes, of every group of this process that has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        here = Path(path.lstrip("/"))
        for group in (here, *here.parents):
            try:
                limit = (top / group / names[0]).read_text().strip()
                used = int((top / group / names[1]).read_text())
                stat = (top / group / "memory.stat").read_text()
            except (OSError, ValueError):
                continue
            cache = re.search(rf"^{names[2]} (\d+)$", stat, re.MULTILINE)
            # A group without a limit of the first version has one beyond any machine's memory.
            if limit.isdigit() and int(limit) < 1 << 60:
                yield int(limit), used, int(cache[1]) if cache else 0, f"/{group}"


def _amount(count: int) -> str:
    """Bytes for people, in powers of ten."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1000:.1f} kB"
