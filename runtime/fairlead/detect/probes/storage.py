"""Places for data: in memory, on the node, shared, and burst buffers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import at_once
from fairlead.detect.model import StorageFact

SHARED = frozenset(("lustre", "gpfs", "beegfs", "panfs", "wekafs", "dvs", "ceph", "nfs", "nfs4", "fuse.daos",
                    "orangefs", "pvfs2", "afs"))  # fmt: skip
_SCRATCH = ("SCRATCH", "PSCRATCH", "CSCRATCH", "MEMBERWORK", "SCRATCHDIR", "WORK", "GSCRATCH")
_NODE_LOCAL = ("LOCAL_SCRATCH", "SLURM_TMPDIR", "TMP_LOCAL", "LOCALSCRATCH", "JOBFS", "NVME")
_BURST = ("DW_JOB_STRIPED", "DW_JOB_PRIVATE", "BBPATH", "BB_JOB_STRIPED")
_NODE_PLACES = ("/mnt/bb", "/mnt/nvme", "/local/scratch", "/local_scratch", "/nvme", "/scratch/local",
                "/tmp_user")  # fmt: skip


def probe(world: View) -> dict[str, Any]:
    mounts = _mounts(world)
    shared = dict(mount for mount in mounts if mount[1] in SHARED)
    facts = [
        *_plain(world, mounts),
        *_by_variable(world, mounts, _SCRATCH, "shared"),
        *_by_variable(world, mounts, _NODE_LOCAL, "node-local"),
        *_by_variable(world, mounts, _BURST, "burst buffer"),
        *(
            StorageFact("burst buffer", f"${variable}", "", None, f"${variable}")
            for variable in sorted(world.environ)
            if variable.startswith("DW_PERSISTENT_STRIPED_")
        ),
        *(
            StorageFact("node-local", path, kind, None, path)
            for path in _NODE_PLACES
            if world.access(path, 0) and (kind := _type(path, mounts)) not in SHARED
        ),
        *(
            StorageFact("shared", folder, kind, None, "/proc/self/mounts")
            for folder, kind in islice(shared.items(), 20)
        ),
    ]
    return {"storage": tuple(dict.fromkeys(facts))}


def _mounts(world: View) -> list[tuple[str, str]]:
    """``(folder, type)`` in the order in which they were mounted."""
    lines = (world.read("/proc/self/mounts") or "").splitlines()
    fields = (line.split() for line in lines if len(line.split()) > 2)
    return [(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), f[1]), f[2]) for f in fields]


def _type(path: str, mounts: list[tuple[str, str]]) -> str:
    """The type of the file system that a path is in: the longest folder, of equal ones the last."""
    inside = [m for m in mounts if path == m[0] or path.startswith(m[0].rstrip("/") + "/")]
    return max(reversed(inside), key=lambda mount: len(mount[0]), default=("", ""))[1]


def _free(world: View, path: str) -> int | None:
    free = at_once({"": lambda: world.free_bytes(path)}, 0.5).get("")
    return free if isinstance(free, int) else None


def _plain(world: View, mounts: list[tuple[str, str]]) -> Iterator[StorageFact]:
    shm = "/dev/shm"
    if world.access(shm, 0):
        yield StorageFact("memory", shm, _type(shm, mounts), _free(world, shm), shm)
    temporary = world.environ.get("TMPDIR") or "/tmp"
    kind = _type(temporary, mounts)
    free = None if kind in SHARED else _free(world, temporary)
    evidence = "$TMPDIR" if world.environ.get("TMPDIR") else "/tmp"
    yield StorageFact("temporary", temporary, kind, free, evidence)


def _by_variable(
    world: View, mounts: list[tuple[str, str]], variables: tuple[str, ...], role: str
) -> Iterator[StorageFact]:
    for variable in variables:
        value = world.environ.get(variable, "")
        if value.startswith("/"):
            yield StorageFact(role, f"${variable}", _type(value, mounts), None, f"${variable}")
