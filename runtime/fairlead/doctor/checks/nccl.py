"""Does NCCL reach this machine's fabric, or would it silently use TCP? The plugin is driven where there is one."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.site_expectations import FABRICS, fast_devices, says, severity
from fairlead.doctor.world import World
from fairlead.nccl.checks.plugin import NEED_A_PLUGIN
from fairlead.nccl.checks.provider import wanted_of
from fairlead.nccl.host import rules_of
from fairlead.nccl.model import HostNccl, HostNetwork
from fairlead.schedulers.registry import in_job
from fairlead.site import Site

# Values that leave the plugin out, by their variable.
_OFF = {"NCCL_NET": ("socket",), "NCCL_NET_PLUGIN": ("none",)}


def examine(world: World) -> Iterator[Diagnosis]:
    site, there = world.profile().site, world.net_plugins()
    fabrics = tuple(fast_devices(world))
    if site and site.fabric.kind in FABRICS and site.fabric.kind not in fabrics:
        fabrics = (*fabrics, site.fabric.kind)
    problems = [*_files(there), *_variables(world, fabrics)]
    if not there.networks:
        problems += _none(world, site, there, fabrics)
        yield from problems or [well("no network plugin of NCCL, and none is needed here")]
        return
    first = there.networks[0]
    problems += _network(first, site, fabrics)
    yield from problems
    if not first.missing:
        yield _driven(world, site, there)


def _files(there: HostNccl) -> Iterator[Diagnosis]:
    for path, why in there.damaged:
        yield ill("nccl-plugin-damaged", path=path, why=why)


def _variables(world: World, fabrics: tuple[str, ...]) -> Iterator[Diagnosis]:
    """Variables of the shell, which containers get too."""
    for name, values in _OFF.items():
        value = world.environ.get(name, "")
        if value.lower() in values and fabrics:
            yield ill("nccl-shell", name=name, value=value, fabric=FABRICS[fabrics[0]])


def _none(
    world: World, site: Site | None, there: HostNccl, fabrics: tuple[str, ...]
) -> Iterator[Diagnosis]:
    """No plugin, where a profile names one or GPUs need one for the fabric."""
    if site and there.gone:
        key, folders = "nccl.folders", ", ".join(there.gone)
        stated = says(site, key, folders)
        if in_job(world.environ):
            how = severity(site, key)
            yield ill("nccl-folders-gone", folders=folders, says=stated, site=site, severity=how)
        else:
            yield note("nccl-folders-login", folders=folders, says=stated)
        return
    needing = next((kind for kind in fabrics if kind in NEED_A_PLUGIN), "")
    if needing and there.gpu:
        yield ill("nccl-no-plugin", fabric=FABRICS[needing])


def _network(
    network: HostNetwork, site: Site | None, fabrics: tuple[str, ...]
) -> Iterator[Diagnosis]:
    plugin = network.plugin
    for name, by in network.missing[:1]:
        yield ill("nccl-plugin-lacks", plugin=plugin, name=name, by=by)
    rules = rules_of(site)
    kind = site.fabric.kind if site and site.fabric.kind in FABRICS else next(iter(fabrics), "")
    names = wanted_of(kind, rules)
    if kind and names and network.providers and not set(names).intersection(network.providers):
        has, wanted = ", ".join(network.providers), " or ".join(names)
        yield ill(
            "nccl-plugin-off-fabric", plugin=plugin, fabric=FABRICS[kind], has=has, wanted=wanted
        )


def _driven(world: World, site: Site | None, there: HostNccl) -> Diagnosis:
    """Two processes of this node move messages through the first, as ranks of two nodes would."""
    network = there.networks[0]
    driven = world.drive_plugin(network)
    if not driven.findings:
        return well(driven.line, f"{network.found_by}; two processes of this node, host memory")
    first = driven.findings[0]
    # Without GPUs the plugin may have nothing to start on; before a job, no network of its own.
    compute = in_job(world.environ) or (site is not None and site.scheduler.kind == "none")
    if there.gpu and compute:
        return ill("nccl-driven", plugin=network.plugin, what=first.what, why=first.why)
    return note("nccl-not-driven", plugin=network.plugin, what=first.what, why=first.why)


CHECK = Check(
    "nccl", "NCCL's network plugin: whole, on the fabric, and able to move messages", examine,
    Topic.NETWORK, order=40,
)  # fmt: skip
