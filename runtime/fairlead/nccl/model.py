"""NCCL's and RCCL's network plugin as frozen values: what image and host have, what the site wants, what is planned.

Terms: a *network* is what NCCL calls a NET, by the name that its plugin reports (``Libfabric``); a *provider* is
libfabric's (``cxi``, ``efa``, ``tcp;ofi_rxm``); an *interface* is the number N of an exported ``ncclNetPlugin_vN``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.elf.facts import Elf
from fairlead.elf.facts import NcclLibrary as NcclLibrary
from fairlead.elf.facts import NetPlugin as NetPlugin

MOUNT = "/opt/fairlead/nccl"


@dataclass(frozen=True)
class HostNetwork:
    """A net plugin of the host with everything behind it.

    Attributes:
        closure: libfabric, hwloc and the like, as the host's loader finds them; without glibc.
        missing: ``(library, needed by)`` for each dependency that the host's loader does not find.
        providers: libfabric's, as far as its files show; empty: unknown.
        found_by: why it was considered, for ``explain``.
    """

    plugin: NetPlugin
    closure: tuple[Elf, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    providers: tuple[str, ...] = ()
    found_by: str = ""


@dataclass(frozen=True)
class NcclRules:
    """What a site wants of NCCL.

    Attributes:
        folders: where its plugins are on the host.
        libraries: folders of what they need: libfabric, hwloc, libcxi.
        networks: accepted names of ``Using network``; empty: any but Socket.
        providers: accepted providers of libfabric; empty: any.
        interfaces: prefixes of the network interfaces, for NCCL_SOCKET_IFNAME.
        env: variables for ranks.
        single_node: set NCCL_NET on one node too.
        source: where the rules come from, with a date, for ``explain``.
    """

    folders: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    single_node: bool = False
    source: str = ""


@dataclass(frozen=True)
class NcclPlan:
    """Which plugin serves which NCCL, and how ranks get it.

    Attributes:
        library: the NCCL or RCCL that ranks map.
        interface: the newest version of the net interface that both know.
        folder: the staged folder on the host, bound at ``mount``.
        env: the variables that select the plugin, as ranks get them.
        networks: accepted names of ``Using network``.
        providers: accepted providers of libfabric; empty: any.
        file: the plugin's path in the container.
        devices: the host's devices that the plugin opens: ``/dev/cxi0``.
    """

    library: NcclLibrary
    host: HostNetwork
    interface: int
    folder: str
    mount: str = MOUNT
    env: Mapping[str, str] = field(default_factory=dict)
    networks: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    file: str = ""
    devices: tuple[str, ...] = ()
