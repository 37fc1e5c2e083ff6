"""Shared-memory files that killed ranks leave in ``/dev/shm``.

An MPI removes its files as soon as all ranks of a node have mapped them, or at its end; ranks that
are killed before do neither, and each such run would keep some megabytes of the node's memory.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

# MPICH and MVAPICH, Intel MPI, Open MPI (sm and vader), UCX, libfabric's shm provider; our own core.
_NAMES = re.compile(
    r"(mpich_shm_|mpich_|Intel_MPI_|sm_segment|vader_segment|ucx_shm_|fi_shm|osc_|fairlead-comm-)\w*"
)

_SETTLED_S = 1.0


def listing(folder: Path = Path("/dev/shm")) -> frozenset[Path]:
    """The shared-memory files of MPIs that are there now."""
    try:
        return frozenset(path for path in folder.iterdir() if _NAMES.match(path.name))
    except OSError:
        return frozenset()


def clear(before: frozenset[Path], folder: Path = Path("/dev/shm")) -> int:
    """Removes what came since ``before`` was listed and no process is seen to have mapped.

    Another job of the same user may be starting just now, and the maps of processes in a user
    namespace of their own cannot be read. So a file must have been there for a second: by then every
    rank of a node has mapped it, and a mapping outlives the name. Its own time says nothing, since
    clocks are set while jobs run.

    Returns:
        How many files were removed.
    """
    fresh = {path: _inode(path) for path in listing(folder) - before}
    if not fresh:
        return 0
    time.sleep(_SETTLED_S)
    used = _mapped()
    removed = 0
    for path, inode in fresh.items():
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's to remove
            if inode and str(path) not in used and path.stat().st_ino == inode:
                path.unlink()
                removed += 1
    return removed


def _inode(path: Path) -> int:
    """0 for a file that is gone."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _mapped() -> frozenset[str]:
    """Every path of shared memory that a process of this machine has mapped, as far as we may see."""
    names: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            names.update(re.findall(r"/dev/shm/\S+", maps.read_text(errors="replace")))
    return frozenset(names)
