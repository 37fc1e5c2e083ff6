"""Which NCCL of an image ranks map, and which plugin of the host serves it. Pure functions of facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.elf.facts import ImageFacts, NcclLibrary
from fairlead.nccl.interfaces import common, net_versions
from fairlead.nccl.model import HostNetwork

_VARIANT = re.compile(r"(cuda|rocm)-?(\d+)")


@dataclass(frozen=True)
class Chosen:
    """The plugin for a library, and the others.

    Attributes:
        host: None if the host has no plugin.
        interface: the newest common version; 0: none.
        left: the other plugins, each with the reason why it was not taken.
    """

    host: HostNetwork | None
    interface: int = 0
    left: tuple[tuple[HostNetwork, str], ...] = ()


def mapped(facts: ImageFacts) -> NcclLibrary | None:
    """The NCCL that a process of the image maps; None if the image has none.

    That which most files find behind their NEEDED entries; frameworks that open NCCL by name take the one of a Python
    package, where there is one.
    """
    if not facts.nccl:
        return None
    counts = Counter(facts.nccl_mapped.values())

    def rank(library: NcclLibrary) -> tuple[int, bool, str]:
        return -counts[library.path], "/site-packages/" not in library.path, library.path

    return min(facts.nccl, key=rank)


def others(facts: ImageFacts) -> tuple[NcclLibrary, ...]:
    """NCCLs of other versions than the mapped one."""
    first = mapped(facts)
    return tuple(
        library
        for library in facts.nccl
        if first and (library.version, library.runtime) != (first.version, first.runtime)
    )


def choose(library: NcclLibrary, networks: Sequence[HostNetwork]) -> Chosen:
    """The first plugin of the host that serves a library; if none does, the one with the fewest obstacles."""
    if not networks:
        return Chosen(None)
    obstacles = {network.plugin.path: tuple(_obstacles(library, network)) for network in networks}
    best = min(networks, key=lambda network: len(obstacles[network.plugin.path]))
    left = [
        (network, "; ".join(obstacles[network.plugin.path]) or _comes_first(best))
        for network in networks
        if network is not best
    ]
    return Chosen(best, common(library, best.plugin), tuple(left))


def _comes_first(best: HostNetwork) -> str:
    return f"{best.plugin.path} comes first: {best.found_by}"


def _obstacles(library: NcclLibrary, network: HostNetwork) -> Iterator[str]:
    plugin = network.plugin
    if plugin.elf.machine != library.elf.machine:
        yield f"it is for {plugin.elf.machine}, {library.title} for {library.elf.machine}"
    if net_versions(library) and not common(library, plugin):
        yield f"it has no version of the net interface that {library.title} knows"
    kind = "librccl" if library.kind == "rccl" else "libnccl"
    name = plugin.path.rpartition("/")[2]
    if plugin.runtime and not same_runtime(plugin.runtime, library.runtime):
        yield f"it is built for {plugin.runtime}, {library.title} for {library.runtime}"
    elif not plugin.runtime and not _fits_variant(plugin.path, library.runtime):
        yield f"its folder is for another run time than {library.runtime}"
    elif not plugin.runtime and not name.startswith(kind) and library.kind == "rccl":
        yield f"its name is that of a plugin for NCCL, the image has {library.title}"
    if network.missing:
        yield f"{network.missing[0][0]}, which it needs, is not on this host"


def same_runtime(left: str, other: str) -> bool:
    """Whether two run times, ``cuda12`` and ``cuda12.4``, have one binary interface; an unknown one fits any."""
    return not left or not other or left.partition(".")[0] == other.partition(".")[0]


def _fits_variant(path: str, runtime: str) -> bool:
    """By the folders' names, as CSCS has ``cuda12`` next to ``cuda13``."""
    variants = {f"{kind}{major}" for kind, major in _VARIANT.findall(path)}
    return not variants or not runtime or runtime.partition(".")[0] in variants
