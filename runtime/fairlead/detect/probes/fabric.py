"""The networks between nodes, by their devices."""

from __future__ import annotations

from typing import Any

from fairlead.base.system import View
from fairlead.site import fabrics


def probe(world: View) -> dict[str, Any]:
    xpmem = "/dev/xpmem" if world.access("/dev/xpmem", 0) else ""
    return {"fabrics": fabrics.fabrics(world), "xpmem": xpmem}
