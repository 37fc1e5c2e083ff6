"""Memory that programs on this node can still have, by the kernel and by the control groups of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fairlead.base.progress import human_bytes

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


def limits(root: Path = Path("/")) -> Iterator[tuple[int, str]]:
    """Bytes of memory still available, for each limit, and whose it is.

    Args:
        root: where this machine's ``proc`` and ``sys`` are.
    """
    if match := re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE):
        left = int(match[1]) * 1024
        yield left, f"this node has {human_bytes(left)} available"
    for left, group in _cgroups(root):
        yield left, f"the job's cgroup {group} has {human_bytes(left)} left"


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
