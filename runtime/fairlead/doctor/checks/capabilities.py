"""Is root all of root? A container's or a VM's root often lacks CAP_SYS_RESOURCE."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.base.errors import info
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, well
from fairlead.doctor.world import World
from fairlead.engines.apptainer import CAP_SYS_RESOURCE

NAME = "capabilities"


def examine(world: World) -> Iterator[Diagnosis]:
    match = re.search(
        r"^CapEff:\s*([0-9a-f]+)", world.read("/proc/self/status") or "", re.MULTILINE
    )
    if world.uid != 0 or not match:
        yield well(NAME, "no special capabilities are needed", f"uid {world.uid}")
    elif int(match[1], 16) >> CAP_SYS_RESOURCE & 1:
        yield well(NAME, "root has CAP_SYS_RESOURCE")
    else:
        yield Diagnosis(info("capabilities"))


CHECK = Check(NAME, "capabilities of root", examine, Topic.ENGINES, order=10)
