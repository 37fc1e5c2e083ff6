"""What can be seen of a machine: frozen facts, each with the place where it was seen.

Nothing here is inferred from a profile. What could not be learnt is no fact with a default value but an
entry of :attr:`SiteFacts.unknown`, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SystemFact:
    """The operating system.

    Attributes:
        name: as ``/etc/os-release`` has it.
        glibc: version; empty where unknown.
        inside: ``container: docker``, ``virtual machine``, or empty for a machine as it is.
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
        target: as archspec names it, e.g. ``zen3``; empty where unknown.
        model: as the processor calls itself.
        cores: those that this process may use.
        online: all that the system has; with SMT, hardware threads.
        memory_bytes: 0 where unknown.
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
    """Something that a kernel allows or has.

    Attributes:
        name: ``user namespaces``, ``fuse``, ``squashfs``, ``overlay``, ``cgroup``.
        value: ``yes``, ``no``, ``module``, or which one of several.
    """

    name: str
    value: str
    seen: str


@dataclass(frozen=True)
class SchedulerFact:
    """What gives nodes.

    Attributes:
        kind: ``slurm``, ``pbs``, ``lsf``, ``flux``, ``cobalt``, ``gridengine``.
        cluster: what it calls the machine; empty where unknown.
        job: the job that this process is in; empty outside of one.
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
        title: what it says that it is.
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
        kind: as profiles name it; ``docker`` too, which fairlead does not drive.
        setuid: whether it starts as root; None where that is no question of it, or not to be seen.
        settings: of its configuration, what decides whether and how containers run here.
        config: the file of those.
    """

    kind: str
    version: str
    path: str
    setuid: bool | None
    settings: Mapping[str, str]
    config: str
    seen: str


@dataclass(frozen=True)
class MpiFact:
    """An installed MPI, as its library itself says.

    Attributes:
        level: the MPI standard that its functions reach.
        launcher: path of the launcher that belongs to it; empty where there is none.
        launcher_title: what that says that it is; Open MPI's own version is told by it alone.
        missing: SONAMEs behind it that the loader would not find.
        closure: ``SONAME path`` of what is behind it.
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


@dataclass(frozen=True)
class FabricFact:
    """A network between nodes.

    Attributes:
        kind: ``slingshot``, ``aries``, ``infiniband``, ``roce``, ``omni-path``, ``efa``, ``ethernet``.
        device: its name, e.g. ``cxi0``.
        state: what the kernel says of it, e.g. ``ACTIVE, 200 Gb/sec (4X HDR)``; may be empty.
    """

    kind: str
    device: str
    state: str
    seen: str


@dataclass(frozen=True)
class TransportFact:
    """What a communication library of this machine can use.

    Attributes:
        library: ``libfabric`` or ``ucx``.
        names: its providers or transports.
        complete: they come from the library itself; else from its modules' files, which leave out
            those that are built in.
    """

    library: str
    version: str
    names: tuple[str, ...]
    complete: bool
    seen: str


@dataclass(frozen=True)
class GpuFact:
    """The GPUs of one maker.

    Attributes:
        vendor: ``nvidia``, ``amd``, ``intel``.
        model: empty where the kernel does not say.
        driver: version; empty where unknown.
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
        path: as it is, or a variable of the job as ``$SCRATCH``.
        kind: type of its file system; empty where unknown.
        free_bytes: None where it was not looked at: one that hangs would hang us too.
    """

    role: str
    path: str
    kind: str
    free_bytes: int | None
    seen: str


@dataclass(frozen=True)
class Unknown:
    """What could not be learnt, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class SiteFacts:
    """What was seen of a machine.

    Attributes:
        node: its host name.
        uid: who looked; some things are only root's to see.
        xpmem: ``/dev/xpmem`` where it is there.
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
    gpus: tuple[GpuFact, ...] = ()
    storage: tuple[StorageFact, ...] = ()
    unknown: tuple[Unknown, ...] = field(default_factory=tuple)

    @property
    def fast_fabrics(self) -> tuple[FabricFact, ...]:
        """Those that are more than Ethernet."""
        return tuple(f for f in self.fabrics if f.kind != "ethernet")
