"""Is /dev/shm large enough? The ranks of a node exchange data through it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fairlead.base.errors import Severity
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.world import World

NAME = "shared-memory"
FOLDER = "/dev/shm"
ENOUGH_BYTES = 512 * 10**6


def examine(world: World) -> Iterator[Diagnosis]:
    if not world.access(FOLDER, os.R_OK | os.W_OK | os.X_OK):
        yield ill(
            NAME,
            f"{world.user} cannot use {FOLDER}",
            where=FOLDER,
            why="it is absent or not writable, and MPI needs it for ranks of one node",
            remedy=f"sudo mount -t tmpfs -o mode=1777 shm {FOLDER}",
        )
        return
    free = world.free_bytes(FOLDER)
    if free < ENOUGH_BYTES:
        yield ill(
            NAME,
            f"{FOLDER} has only {free / 1e6:.0f} MB free",
            where=FOLDER,
            why=f"ranks of one node exchange data through it; {ENOUGH_BYTES / 1e6:.0f} MB are safe",
            remedy=f"remove what fills it, or sudo mount -o remount,size=2G {FOLDER}; "
            "in Docker: --shm-size 2g",
            severity=Severity.WARNING,
        )
    else:
        yield well(NAME, f"{FOLDER} has {free / 1e9:.1f} GB free")


CHECK = Check(NAME, "room in /dev/shm", examine, Topic.NODE, order=10)
