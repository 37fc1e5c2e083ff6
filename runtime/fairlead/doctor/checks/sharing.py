"""Do the ranks of a node, each in a container, share what MPI exchanges data through?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fairlead.base.errors import Severity
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World

# What shared-memory transports of MPICH, Open MPI and UCX map a rank, with room to spare.
BYTES_PER_RANK = 16 * 10**6


class _Shared(NamedTuple):
    """What ranks must share, how much they depend on it, and what comes of it when they do not."""

    name: str
    severity: Severity
    harm: str
    remedy: str


_KINDS = {
    "shm": _Shared(
        "/dev/shm",
        Severity.ERROR,
        "ranks of one node wait forever for each other's memory, or copy through TCP",
        "`mount dev = yes` in the engine's configuration, and no --contain among its options",
    ),
    "pid": _Shared(
        "process ids",
        Severity.WARNING,
        "a rank cannot name another's process: cross-memory attach and UCX's shared memory fail",
        "start the engine without --pid or --containall",
    ),
    "ipc": _Shared(
        "System V memory",
        Severity.WARNING,
        "UCX's sysv transport finds no segment of another rank",
        "start the engine without --ipc or --containall",
    ),
    "tmp": _Shared(
        "/tmp",
        Severity.WARNING,
        "Open MPI's ranks meet in files there, and its launcher hangs when they are not the same",
        "`mount tmp = yes` in the engine's configuration, or --bind /tmp",
    ),
}


def examine(world: World) -> Iterator[Diagnosis]:
    yield from _room(world)
    if world.engine() is None:
        yield note("sharing-untested-no-engine")
        return
    outside, inside = world.look_inside()
    if inside.returncode or outside.returncode:
        yield note("sharing-untested-no-container", ran=inside if inside.returncode else outside)
        return
    here, there = (_values(ran.stdout) for ran in (outside, inside))
    apart = [kind for kind in _KINDS if here.get(kind) != there.get(kind)]
    for kind in apart:
        local, other = here.get(kind), there.get(kind)
        shared = _KINDS[kind]
        yield ill(
            "sharing-separate", shared=shared, here=local, there=other, severity=shared.severity
        )
    if not apart:
        yield well("a container sees the node's /dev/shm, /tmp, process ids and IPC")


def _values(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _room(world: World) -> Iterator[Diagnosis]:
    total = world.file_system("/dev/shm").total_bytes
    site = world.profile().site
    cores = site.node.cores if site and site.node.cores else world.cores()
    if total < cores * BYTES_PER_RANK:
        yield ill(
            "sharing-shm-size",
            total=total / 1e6,
            cores=cores,
            bytes_per_rank=BYTES_PER_RANK / 1e6,
            remedy=max(1, cores * BYTES_PER_RANK * 2 // 10**9),
        )


CHECK = Check(
    "sharing",
    "sharing between containers of a node (tested)",
    examine,
    Topic.NODE,
    order=20,
    limit_s=90,
)
