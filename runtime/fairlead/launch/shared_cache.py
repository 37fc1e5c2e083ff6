"""Whether every node of a job sees fairlead's cache: what is staged and what ranks report lie in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fairlead.base.errors import Finding, fail, warning
from fairlead.base.process import run
from fairlead.base.system import innermost, mounts_above
from fairlead.launchers.model import Launcher, Shape

# What mount(8) calls file systems that several machines see.
_SHARED = re.compile(
    r"nfs|nfs4|lustre|gpfs|beegfs\w*|ceph|cifs|smb3|panfs|wekafs|orangefs|pvfs2|dvs|9p|afs|virtiofs|glusterfs"
    r"|fuse\.(glusterfs|ceph\w*|sshfs|cvmfs2|juicefs|beegfs)|ocfs2|gfs2|daos\w*|vast\w*"
)
_MEMORY = ("tmpfs", "ramfs")
_PROBE_S = 60.0


def file_system(path: Path, mounts: str | None = None) -> tuple[str, str]:
    """Kind and mount point of the file system that ``path`` is on.

    Args:
        mounts: text as of /proc/self/mountinfo, which is read otherwise.
    """
    text = Path("/proc/self/mountinfo").read_text("utf-8") if mounts is None else mounts
    real = path.resolve() if mounts is None else path
    mount = innermost([mount for _, mount in mounts_above(text, str(real))])
    return mount.kind, mount.point or "/"


def is_shared(kind: str) -> bool:
    """Whether several machines see file systems of a kind: over a network."""
    return bool(_SHARED.fullmatch(kind))


def seen_by_all(
    cache: Path,
    shape: Shape,
    launcher: Launcher,
    environ: Mapping[str, str],
    mounts: str | None = None,
) -> Finding | None:
    """A warning where it cannot be known; None when all nodes see the cache.

    Under Slurm the nodes themselves are asked, with a step of one task each, unless the file system is of
    a kind that all nodes share.

    Raises:
        FairleadError: exit code 123; a node does not see it.
    """
    nodes = shape.nodes or len(shape.hosts)
    if nodes < 2:
        return None
    kind, place = file_system(cache, mounts)
    if is_shared(kind):
        return None
    if launcher.kind == "srun":
        if missing := _missing(cache, nodes, shape, launcher, environ):
            who = ", ".join(missing[:8])
            raise fail("shared-cache-not-shared", cache=cache, kind=kind, who=who)
        return None
    if kind in _MEMORY:
        who = "every node but this one"
        raise fail("shared-cache-not-shared", cache=cache, kind=kind, who=who)
    return warning("shared-cache-doubtful", cache=cache, kind=kind, place=place)


def _missing(
    cache: Path, nodes: int, shape: Shape, launcher: Launcher, environ: Mapping[str, str]
) -> list[str]:
    where = [f"--nodelist={','.join(shape.hosts)}"] if shape.hosts else []
    script = 'test -d "$0" || echo "blind: $SLURMD_NODENAME"'
    words = (
        launcher.path, "--export=ALL", "--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}",
        "--ntasks-per-node=1", *where, "/bin/sh", "-c", script, str(cache),
    )  # fmt: skip
    # The launch itself will say what is wrong with srun.
    ran = run(words, environ=environ, timeout_s=_PROBE_S)
    return sorted(set(re.findall(r"^blind: (\S+)$", ran.stdout, re.MULTILINE)))
