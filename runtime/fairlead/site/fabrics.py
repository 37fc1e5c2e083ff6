"""The networks between nodes, by their devices; starts no program.

One look serves both the match of profiles and the table of ``site detect``, so that they cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.base.system import View
from fairlead.base.timeboxed import content

# As profiles name them. Of several in a node the first is the one between the nodes: others serve storage.
FAST = ("slingshot", "aries", "omni-path", "infiniband", "efa")
# What every program needs to reach a device that the kernel shows in /sys/class/infiniband.
_VERBS = "/dev/infiniband/uverbs*"


@dataclass(frozen=True)
class FabricFact:
    """A network between nodes.

    Attributes:
        kind: ``slingshot``, ``aries``, ``infiniband``, ``roce``, ``omni-path``, ``efa``, ``ethernet``.
        device: its name, e.g. ``cxi0``.
        state: the state that the kernel reports, e.g. ``ACTIVE, 200 Gb/sec (4X HDR)``; may be empty.
    """

    kind: str
    device: str
    state: str
    seen: str

    @property
    def profile_kind(self) -> str:
        """The kind as profiles name it."""
        return {"roce": "infiniband"}.get(self.kind, self.kind)


def fabrics(world: View) -> tuple[FabricFact, ...]:
    """Every network card, the fast ones first."""
    return (*_slingshot(world), *_aries(world), *cards(world), *_ethernet(world))


def fast(world: View) -> dict[str, FabricFact]:
    """The first device of each fast kind that programs can reach, by the kind as profiles name it, in order of FAST."""
    devices = [*_slingshot(world), *_aries(world), *cards(world)]
    verbs = bool(world.matching(_VERBS))
    by_kind = {
        f.profile_kind: f
        for f in reversed(devices)
        if verbs or f.profile_kind not in ("infiniband", "efa")
    }
    return {kind: by_kind[kind] for kind in FAST if kind in by_kind}


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


def cards(world: View) -> Iterator[FabricFact]:
    """What is in /sys/class/infiniband: InfiniBand, RoCE, Omni-Path, EFA."""
    for path in world.matching("/sys/class/infiniband/*"):
        device = path.rpartition("/")[2]
        ports = world.matching(f"{path}/ports/*") or (f"{path}/ports/1",)
        for port in ports:
            layer = content(world, f"{port}/link_layer")
            state = content(world, f"{port}/state")
            rate = content(world, f"{port}/rate")
            if device.startswith("hfi1"):
                kind = "omni-path"
            elif _is_efa(world, path, layer):
                kind = "efa"
            else:
                kind = "roce" if layer == "Ethernet" else "infiniband"
            shown = device if len(ports) == 1 else f"{device} port {port.rpartition('/')[2]}"
            status = ", ".join(filter(None, [re.sub(r"^\d+: ", "", state), rate]))
            yield FabricFact(kind, shown, status, f"{port}/link_layer" if layer else path)
    if not world.matching("/sys/class/infiniband/hfi1_*"):
        for path in world.matching("/dev/hfi1_[0-9]*"):
            yield FabricFact("omni-path", path.rpartition("/")[2], "", path)


def _is_efa(world: View, path: str, layer: str) -> bool:
    """udev may call it ``rdmap0s31``; its driver and its link layer stay."""
    by_driver = world.real(f"{path}/device/driver").endswith("/efa")
    return by_driver or path.rpartition("/")[2].startswith("efa") or layer == "Unspecified"


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
