"""Is root all of root? A container's or a VM's root often lacks CAP_SYS_RESOURCE."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.base.errors import info
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, well
from fairlead.doctor.world import World
from fairlead.engines.apptainer import CAP_SYS_RESOURCE


def raises_limits(world: World) -> bool | None:
    """Whether this process has CAP_SYS_RESOURCE; None where the kernel does not say."""
    status = world.read("/proc/self/status") or ""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return bool(int(match[1], 16) >> CAP_SYS_RESOURCE & 1) if match else None


def examine(world: World) -> Iterator[Diagnosis]:
    able = raises_limits(world)
    if world.uid != 0 or able is None:
        yield well("no special capabilities are needed", f"uid {world.uid}")
    elif able:
        yield well("root has CAP_SYS_RESOURCE")
    else:
        yield Diagnosis(info("capabilities"))


CHECK = Check("capabilities", "capabilities of root", examine, Topic.ENGINES, order=10)
