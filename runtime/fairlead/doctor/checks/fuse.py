"""Can this user open /dev/fuse? Apptainer without root mounts images through it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, RootFix, Topic, ill, well
from fairlead.doctor.world import World

DEVICE = "/dev/fuse"
_OPEN = RootFix(
    f"makes {DEVICE} usable by all users",
    ("chmod", "666", DEVICE),
    f"sudo chmod 666 {DEVICE}",
)


def examine(world: World) -> Iterator[Diagnosis]:
    if not world.access(DEVICE, os.F_OK):
        yield ill("fuse-no-device", device=DEVICE)
    elif not world.access(DEVICE, os.R_OK | os.W_OK):
        yield ill("fuse-no-permission", user=world.user, device=DEVICE, line=_OPEN.line, fix=_OPEN)
    else:
        yield well(f"{world.user} can mount images through {DEVICE}")


CHECK = Check("fuse", "permission to mount images", examine, Topic.MACHINE, order=50)
