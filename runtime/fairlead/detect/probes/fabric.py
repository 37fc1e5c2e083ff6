"""The networks between nodes, by their devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairlead.base.system import View
from fairlead.base.timeboxed import content
from fairlead.detect.model import FabricFact


def probe(world: View) -> dict[str, Any]:
    facts = [*_slingshot(world), *_aries(world), *_infiniband(world), *_ethernet(world)]
    xpmem = "/dev/xpmem" if world.access("/dev/xpmem", 0) else ""
    return {"fabrics": tuple(facts), "xpmem": xpmem}


def _slingshot(world: View) -> Iterator[FabricFact]:
    devices: dict[str, str] = {}
    for path in (*world.matching("/sys/class/cxi/cxi*"), *world.matching("/dev/cxi[0-9]*")):
        devices.setdefault(path.rpartition("/")[2], path)
    interfaces = [path.rpartition("/")[2] for path in world.matching("/sys/class/net/hsn[0-9]*")]
    for device, path in sorted(devices.items()):
        number = device.removeprefix("cxi")
        interface = f"hsn{number}" if f"hsn{number}" in interfaces else ""
        yield FabricFact(
            "slingshot",
            device,
            ", ".join(filter(None, [interface, _net_state(world, interface)])),
            path,
        )
    if not devices:
        for name in interfaces:  # the Mellanox-based Slingshot-10 has these and no cxi
            state = _net_state(world, name)
            yield FabricFact("slingshot", name, state, f"/sys/class/net/{name}")


def _aries(world: View) -> Iterator[FabricFact]:
    name = content(world, "/proc/cray_xt/cname")
    for path in world.matching("/dev/kgni[0-9]*"):
        yield FabricFact("aries", path.rpartition("/")[2], name and f"node {name}", path)


def _infiniband(world: View) -> Iterator[FabricFact]:
    for path in world.matching("/sys/class/infiniband/*"):
        device = path.rpartition("/")[2]
        ports = world.matching(f"{path}/ports/*") or (f"{path}/ports/1",)
        for port in ports:
            layer = content(world, f"{port}/link_layer")
            state = content(world, f"{port}/state")
            rate = content(world, f"{port}/rate")
            if device.startswith("hfi1"):
                kind = "omni-path"
            elif device.startswith("efa") or layer == "Unspecified":
                kind = "efa"
            else:
                kind = "roce" if layer == "Ethernet" else "infiniband"
            shown = device if len(ports) == 1 else f"{device} port {port.rpartition('/')[2]}"
            status = ", ".join(filter(None, [re.sub(r"^\d+: ", "", state), rate]))
            yield FabricFact(kind, shown, status, f"{port}/link_layer" if layer else path)
    if not world.matching("/sys/class/infiniband/hfi1_*"):
        for path in world.matching("/dev/hfi1_[0-9]*"):
            yield FabricFact("omni-path", path.rpartition("/")[2], "", path)


def _ethernet(world: View) -> Iterator[FabricFact]:
    """Interfaces that are devices; bridges, tunnels and virtual cables have none behind them."""
    for path in world.matching("/sys/class/net/*"):
        name = path.rpartition("/")[2]
        if name.startswith("hsn") or not world.access(f"{path}/device", 0):
            continue
        if (world.read(f"{path}/type") or "1").strip() == "1":  # ARPHRD_ETHER
            if world.access(f"{path}/wireless", 0):
                continue
            yield FabricFact("ethernet", name, _net_state(world, name), path)


def _net_state(world: View, name: str) -> str:
    if not name:
        return ""
    state = content(world, f"/sys/class/net/{name}/operstate")
    speed = content(world, f"/sys/class/net/{name}/speed")
    rate = f"{int(speed) / 1000:g} Gb/s" if speed.isdigit() and int(speed) else ""
    return ", ".join(filter(None, [state, rate]))
