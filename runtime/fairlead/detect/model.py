"""Facts about a machine: frozen values, each with the place where it was found.

Nothing is inferred from a profile. What could not be determined gets no default value but an
entry in :attr:`SiteFacts.unknown`, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.site.fabrics import FabricFact


@dataclass(frozen=True)
class SystemFact:
    """The operating system.

    Attributes:
        name: as ``/etc/os-release`` has it.
        glibc: version; empty where unknown.
        inside: ``container: docker``, ``virtual machine``, or empty on bare metal.
    """

    name: str
    kernel: str
    machine: str
    glibc: str
    inside: str
    seen: str


@dataclass(frozen=True)
class ProcessorFact:
    """The processors of this node.

    Attributes:
        target: the archspec name, e.g. ``zen3``; empty if unknown.
        model: the name that the processor reports.
        cores: cores that this process may use.
        online: all cores of the system; with SMT, hardware threads.
        memory_bytes: 0 if unknown.
    """

    target: str
    model: str
    cores: int
    online: int
    sockets: int
    memory_bytes: int
    seen: str


@dataclass(frozen=True)
class AbilityFact:
    """A feature of the kernel.

    Attributes:
        name: ``user namespaces``, ``fuse``, ``squashfs``, ``overlay``, ``cgroup``.
        value: ``yes``, ``no``, ``module``, or which one of several.
    """

    name: str
    value: str
    seen: str


@dataclass(frozen=True)
class SchedulerFact:
    """The scheduler that allocates nodes.

    Attributes:
        kind: ``slurm``, ``pbs``, ``lsf``, ``flux``, ``cobalt``, ``gridengine``.
        cluster: its name for the machine; empty if unknown.
        job: the job of this process; empty outside a job.
    """

    kind: str
    version: str
    cluster: str
    job: str
    seen: str


@dataclass(frozen=True)
class LauncherFact:
    """A program that starts ranks.

    Attributes:
        kind: as profiles name it: ``mpiexec``, ``srun``, ``pals``, ``aprun``, ``jsrun``, ``flux``, ``ibrun``.
        title: product and version that it reports.
    """

    kind: str
    path: str
    title: str
    seen: str


@dataclass(frozen=True)
class PmiFact:
    """A way for ranks to find each other: ``cray``, ``pmi2``, ``pmix``, ``pmi1``, ``hydra``.

    Attributes:
        detail: versions or names that say more, e.g. ``pmix_v4``.
    """

    flavour: str
    detail: str
    seen: str


@dataclass(frozen=True)
class EngineFact:
    """A container engine.

    Attributes:
        kind: as profiles name it; also ``docker``, which fairlead does not run.
        setuid: whether it starts as root; None if that does not apply or cannot be determined.
        settings: the settings that affect whether and how containers run on this machine.
        config: the file with these settings.
    """

    kind: str
    version: str
    path: str
    setuid: bool | None
    settings: Mapping[str, str]
    config: str
    seen: str

    @property
    def title(self) -> str:
        return f"{self.kind} {self.version}".strip()


@dataclass(frozen=True)
class MpiFact:
    """An installed MPI, as identified from its library.

    Attributes:
        level: the version of the MPI standard that its functions cover.
        launcher: path of its launcher; empty if there is none.
        launcher_title: product and version that the launcher reports, the only source of Open MPI's version.
        missing: SONAMEs of its dependencies that the loader does not find.
        closure: ``SONAME path`` of its dependencies.
    """

    vendor: str
    version: str
    family: str
    level: str
    soname: str
    prefix: str
    path: str
    launcher: str
    launcher_title: str
    missing: tuple[str, ...]
    closure: Mapping[str, str]
    seen: str

    @property
    def title(self) -> str:
        return f"{self.vendor} {self.version}".strip()


@dataclass(frozen=True)
class TransportFact:
    """The providers or transports of a communication library on this machine.

    Attributes:
        library: ``libfabric`` or ``ucx``.
        names: its providers or transports.
        complete: they come from the library itself; otherwise from its module files, which lack
            the built-in ones.
    """

    library: str
    version: str
    names: tuple[str, ...]
    complete: bool
    seen: str


@dataclass(frozen=True)
class NetPluginFact:
    """A network plugin of NCCL or RCCL, as its file shows it.

    Attributes:
        title: ``aws-ofi-nccl 1.18.0``, or the name of its file.
        network: what it calls its network; empty if unknown.
        interfaces, tuner: versions of the net and of the tuner interface that it exports.
        runtime: the CUDA or ROCm that it is built for; empty: any, or unknown.
        libfabric: the file under it; empty if it has none.
        providers: those of its libfabric, as far as the files show them.
        missing: SONAMEs of its dependencies that the loader does not find.
    """

    title: str
    path: str
    network: str
    interfaces: tuple[int, ...]
    tuner: tuple[int, ...]
    runtime: str
    libfabric: str
    providers: tuple[str, ...]
    missing: tuple[str, ...]
    seen: str


@dataclass(frozen=True)
class GpuFact:
    """The GPUs of one vendor.

    Attributes:
        vendor: ``nvidia``, ``amd``, ``intel``.
        model: empty if the kernel does not report it.
        driver: version; empty if unknown.
    """

    vendor: str
    count: int
    model: str
    driver: str
    seen: str


@dataclass(frozen=True)
class StorageFact:
    """A place for data.

    Attributes:
        role: ``memory``, ``temporary``, ``node-local``, ``shared``, ``burst buffer``.
        path: a path, or a variable of the job such as ``$SCRATCH``.
        kind: type of its file system; empty if unknown.
        free_bytes: None if it was not queried, since a hanging file system would hang the probe.
    """

    role: str
    path: str
    kind: str
    free_bytes: int | None
    seen: str


@dataclass(frozen=True)
class Unknown:
    """What could not be determined, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class SiteFacts:
    """The facts found on a machine.

    Attributes:
        node: its host name.
        uid: user ID of the probing process; some facts are visible only to root.
        xpmem: ``/dev/xpmem`` if it exists.
        plugins: NCCL's network plugins, the preferred first; ``gdrcopy``: ``/dev/gdrdrv`` if it exists.
    """

    node: str
    uid: int
    system: SystemFact | None = None
    processor: ProcessorFact | None = None
    abilities: tuple[AbilityFact, ...] = ()
    schedulers: tuple[SchedulerFact, ...] = ()
    launchers: tuple[LauncherFact, ...] = ()
    pmi: tuple[PmiFact, ...] = ()
    engines: tuple[EngineFact, ...] = ()
    mpis: tuple[MpiFact, ...] = ()
    fabrics: tuple[FabricFact, ...] = ()
    xpmem: str = ""
    transports: tuple[TransportFact, ...] = ()
    plugins: tuple[NetPluginFact, ...] = ()
    gdrcopy: str = ""
    gpus: tuple[GpuFact, ...] = ()
    storage: tuple[StorageFact, ...] = ()
    unknown: tuple[Unknown, ...] = field(default_factory=tuple)

    @property
    def compute(self) -> bool:
        """Whether ranks run on this node: it is in a job, or there is no scheduler."""
        return not self.schedulers or any(s.job for s in self.schedulers)

    @property
    def fast_fabrics(self) -> tuple[FabricFact, ...]:
        """The fabrics other than Ethernet."""
        return tuple(f for f in self.fabrics if f.kind != "ethernet")
