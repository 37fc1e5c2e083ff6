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
from fairlead.mpi.host import Plugins
from fairlead.site.nccl import NcclRules as NcclRules

MOUNT = "/opt/fairlead/nccl"  # where the staged plugin appears in every container


@dataclass(frozen=True)
class HostNetwork:
    """A net plugin of the host with everything behind it.

    Attributes:
        closure: libfabric, hwloc and the like, as the host's loader finds them; without glibc.
        missing: ``(library, needed by)`` for each dependency that the host's loader does not find.
        providers: libfabric's, as far as its files show; empty: unknown.
        found_by: why it was considered, for ``explain``.
        modules: what its libfabric or UCX opens at run time.
        names: every name in its folder that leads to it.
        named: the value of the shell's NCCL_NET_PLUGIN, as a module sets it, if that is a path of this plugin.
        tuner: the plugin by which NCCL chooses algorithms for this network: a file next to it, or itself.
    """

    plugin: NetPlugin
    closure: tuple[Elf, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    providers: tuple[str, ...] = ()
    found_by: str = ""
    modules: tuple[Plugins, ...] = ()
    names: tuple[str, ...] = ()
    named: str = ""
    tuner: NetPlugin | None = None

    @property
    def parts(self) -> tuple[Elf, ...]:
        """Every ELF file of it, without modules."""
        own = (self.tuner.elf,) if self.tuner and self.tuner.path != self.plugin.path else ()
        return (self.plugin.elf, *own, *self.closure)


@dataclass(frozen=True)
class HostNccl:
    """What a machine has for NCCL.

    Attributes:
        networks: in order of preference.
        damaged: ``(file, why)`` for plugins by name that cannot be read.
        gone: patterns of the profile's folders that fit nothing here.
        devices: that network plugins open: ``/dev/cxi0``.
        gpu: vendor of the GPUs; empty: none, or unknown.
        gpu_model, driver: as the kernel has them; empty if unknown.
        user_conf: what ``~/.nccl.conf`` or ``$NCCL_CONF_FILE`` sets.
        drivers: libraries of GPU drivers, and what those need, which engines bring into a container.
    """

    networks: tuple[HostNetwork, ...] = ()
    damaged: tuple[tuple[str, str], ...] = ()
    gone: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    gpu: str = ""
    gpu_model: str = ""
    driver: str = ""
    user_conf: Mapping[str, str] = field(default_factory=dict)
    drivers: tuple[Elf, ...] = ()


@dataclass(frozen=True)
class Ask:
    """What a launch wants of NCCL, and what is known of where it runs.

    Attributes:
        want: ``auto``, ``host``, ``image``, or the path of a plugin: that of ``--nccl``.
        gpus: ranks get GPUs.
        nodes: 0 if only the launcher knows.
        host: None if nothing is known of the machine.
        user: variables of NCCL and libfabric that the user sets: by the shell, ``--env``, or a file of NCCL's.
        image: variables that the image sets.
        fabric: the kind of the network between nodes, as profiles name it; ``none`` if there is none.
        job: network options of the job and of the launcher.
        gpu_mpi: MPI sends from GPU to GPU.
        injects: the engine is asked to bring the host's GPU libraries into the container: ``--nv``, ``--rocm``.
        mpi_providers: those of the libfabric that the host's MPI brings; empty if it brings none, or unknown.
    """

    want: str = "auto"
    gpus: bool = False
    nodes: int = 0
    host: HostNccl | None = None
    rules: NcclRules = field(default_factory=NcclRules)
    user: Mapping[str, str] = field(default_factory=dict)
    image: Mapping[str, str] = field(default_factory=dict)
    fabric: str = "none"
    job: tuple[str, ...] = ()
    gpu_mpi: bool = False
    injects: bool = False
    mpi_providers: tuple[str, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether the host's plugin is to be brought, where there is one."""
        return self.want not in ("auto", "image") or (self.want == "auto" and self.gpus)


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
        gdr: the site has GPUDirect RDMA between nodes, and NCCL's log must not say otherwise.
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
    gdr: bool = False
