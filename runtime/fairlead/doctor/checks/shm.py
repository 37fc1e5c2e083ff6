"""Is /dev/shm large enough? The ranks of a node exchange data through it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.world import World

FOLDER = "/dev/shm"
ENOUGH_BYTES = 512 * 10**6


def examine(world: World) -> Iterator[Diagnosis]:
    if not world.access(FOLDER, os.R_OK | os.W_OK | os.X_OK):
        yield ill("shared-memory-unusable", user=world.user, folder=FOLDER)
        return
    free = world.free_bytes(FOLDER)
    if free < ENOUGH_BYTES:
        yield ill(
            "shared-memory-little-space",
            folder=FOLDER,
            free=free / 1e6,
            enough_bytes=ENOUGH_BYTES / 1e6,
        )
    else:
        yield well(f"{FOLDER} has {free / 1e9:.1f} GB free")


CHECK = Check("shared-memory", "space in /dev/shm", examine, Topic.NODE, order=10)
