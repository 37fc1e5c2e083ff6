"""NCCL's network plugins, as their files show them; no code of one is run."""

from __future__ import annotations

from typing import Any

from fairlead.detect.machine import MpiMachine
from fairlead.detect.model import NetPluginFact, Unknown
from fairlead.nccl.model import HostNetwork


def probe(world: MpiMachine) -> dict[str, Any]:
    plugins = world.net_plugins()
    gdrcopy = "/dev/gdrdrv" if world.access("/dev/gdrdrv", 0) else ""
    unknown = tuple(Unknown(f"which plugin {path} is", why) for path, why in plugins.damaged)
    return {"plugins": tuple(map(fact, plugins.networks)), "gdrcopy": gdrcopy, "unknown": unknown}


def fact(network: HostNetwork) -> NetPluginFact:
    """What of a plugin is a fact for people and profiles."""
    plugin = network.plugin
    return NetPluginFact(
        title=plugin.title,
        path=plugin.path,
        network=plugin.name,
        interfaces=plugin.interfaces.get("net", ()),
        tuner=network.tuner.interfaces.get("tuner", ()) if network.tuner else (),
        runtime=plugin.runtime,
        libfabric=next((e.path for e in network.closure if e.name.startswith("libfabric.so")), ""),
        providers=network.providers,
        missing=tuple(sorted({name for name, _ in network.missing})),
        seen=f"{plugin.path}, {network.found_by}",
    )
