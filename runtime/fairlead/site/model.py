"""What fairlead knows about a site, as frozen values for plans, launches, checks and exports.

:attr:`Site.origins` records the source and the status of each value.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Status(enum.StrEnum):
    """How reliable a value is, the most reliable first."""

    RUN = "run"  # seen to work with real software
    DOCUMENTED = "documented"  # stated by the site or the vendor
    USER = "user"  # from a user's job script or issue
    GUESS = "guess"  # no source states it


NOBODY = "no source states it"  # the source of a value whose file says `guess`


@dataclass(frozen=True)
class Origin:
    """Where a value of a profile comes from.

    Attributes:
        source: the source, in words.
        read: the date on which it was read, e.g. ``2026-06-01``; empty if unknown.
        profile: name of the profile whose file sets the value; a family's for inherited values.
    """

    status: Status
    source: str
    read: str
    profile: str


@dataclass(frozen=True)
class Clues:
    """How to recognise that a machine belongs to this site.

    Attributes:
        environ: variables with patterns of their values; one match identifies the site.
        hostnames: patterns (``*``, ``?``, ``[…]``) of host names; one match identifies the site.
        clusters: values of $SLURM_CLUSTER_NAME, $LMOD_SYSTEM_NAME or Slurm's ClusterName, likewise.
        present_paths: patterns of paths that exist on every machine of the family.
        absent_programs, absent_paths: what no machine of the family has.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    hostnames: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    present_paths: tuple[str, ...] = ()
    absent_programs: tuple[str, ...] = ()
    absent_paths: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        """Whether any clue distinguishes this site from the others of its family."""
        return bool(self.environ or self.hostnames or self.clusters)


@dataclass(frozen=True)
class Scheduler:
    """The scheduler that allocates nodes.

    Attributes:
        kind: ``slurm``, ``pbs``, ``lsf``, ``flux``, ``cobalt``, or ``none``.
        directives: options that every job script of the site needs, e.g. ``-C haswell``.
        account: whether a job must name an account.
        nodes: names of partitions, queues or constraints, with the hardware of their nodes.
    """

    kind: str = "none"
    directives: tuple[str, ...] = ()
    account: bool = False
    nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Starter:
    """The launchers that start ranks.

    Attributes:
        kinds: ``mpiexec`` (that of the MPI), ``srun``, ``pals``, ``aprun``, ``jsrun``, ``flux`` or
            ``ibrun``, in order of preference.
        pmi: how ranks find each other, in order of preference: ``cray``, ``pmi2``, ``pmix``, ``pmi1``,
            ``hydra``.
        options: arguments for a launcher, by its kind.
    """

    kinds: tuple[str, ...] = ("mpiexec",)
    pmi: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Engines:
    """The container engines that run images.

    Attributes:
        kinds: in order of preference.
        options: arguments for an engine, by its kind.
        modules: environment modules that provide it.
    """

    kinds: tuple[str, ...] = ("apptainer",)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fabric:
    """The network between nodes.

    Attributes:
        kind: ``aries``, ``slingshot``, ``infiniband``, ``omni-path``, ``ethernet``, or ``none``.
        accepts: transports that the proof accepts.
        interfaces: patterns of the fabric's network interfaces.
        counters: patterns of files that count its traffic.
    """

    kind: str = "none"
    accepts: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()


@dataclass(frozen=True)
class MpiHere:
    """The site's MPI, and how to find it.

    Attributes:
        vendor: as ``fairlead site detect`` names it, e.g. ``Cray MPICH``; empty if the site offers several.
        family: ``mpich``, ``openmpi``, ``mpi5``; empty if the site offers several.
        search: patterns of folders with its library for programs built against another MPI of the family;
            of several matches, the highest version. fairlead identifies the library from its file.
        variable: the variable that holds its prefix once a module is loaded.
        modules: modules to load; ``-NAME`` unloads a module.
        replaces: which library of a container the site replaces: ``mpi``, ``libfabric`` below it, or
            ``none`` if images run their own MPI.
        missing: libraries that the site's MPI lacks although other MPIs of its family have them.
        level: the version of the MPI standard that it implements, e.g. ``3.1``; empty if unknown.
        glibc: the version of glibc that it and its dependencies need; empty if unknown.
    """

    vendor: str = ""
    family: str = ""
    search: tuple[str, ...] = ()
    variable: str = ""
    modules: tuple[str, ...] = ()
    replaces: str = "mpi"
    missing: tuple[str, ...] = ()
    level: str = ""
    glibc: str = ""


@dataclass(frozen=True)
class Dependencies:
    """What the site's MPI needs and the loader does not find on its own.

    Attributes:
        folders: patterns of folders to search after the loader's.
        files: patterns of libraries that the MPI opens by name.
        expected: SONAMEs that belong to its closure; a check reports those that are missing.
    """

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment:
    """Variables.

    Attributes:
        set: variables to set in containers on this machine.
        keep: patterns of launcher variables that a rank must see.
    """

    set: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """The nodes' GPUs.

    Attributes:
        vendor: ``nvidia``, ``amd``, ``intel``, or ``none``.
        per_node: GPUs per node; 0 if unknown or none.
        transport: a pattern of the library by which MPI sends from GPU to GPU.
        set: variables to set for GPU support.
        options: arguments for an engine, by its kind.
    """

    vendor: str = "none"
    per_node: int = 0
    transport: str = ""
    set: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradients:
    """The backend that carries the gradients of :mod:`fairlead.comm`.

    Attributes:
        backend: the site's preference; empty: fairlead chooses.
        plugin: patterns of folders with the site's ``dl_comm``; of several matches, the newest.
    """

    backend: str = ""
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class Storage:
    """Where data can be stored near a node. Paths may contain variables of the job, e.g. ``$SCRATCH``.

    Attributes:
        shared: the file system for a job's data.
        node_local: a disk local to each node; empty if there is none.
        memory: a file system in a node's memory.
        burst_buffer: ``datawarp`` or ``none``.
        burst_buffer_options: arguments of its directive.
    """

    shared: str = ""
    node_local: str = ""
    memory: str = "/dev/shm"
    burst_buffer: str = "none"
    burst_buffer_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """A compute node; 0 or empty if unknown.

    Attributes:
        processor: archspec names.
        memory_gib: GiB of memory.
        count: number of nodes.
    """

    processor: tuple[str, ...] = ()
    cores: int = 0
    memory_gib: float = 0.0
    count: int = 0


@dataclass(frozen=True)
class Reference:
    """A reference value to compare a measurement on this machine with.

    Attributes:
        what: e.g. ``pingpong latency``.
        value, unit: e.g. 1.3 and ``us``.
        higher_is_better: true for bandwidths, false for latencies.
        conditions: sizes, ranks, versions.
    """

    what: str
    value: float
    unit: str
    higher_is_better: bool
    conditions: str
    origin: Origin


@dataclass(frozen=True)
class Images:
    """Requirements on images.

    Attributes:
        require_signature: images must be signed with a trusted key.
        compression: of squashfs; ``gzip`` for kernels without zstd.
    """

    require_signature: bool = False
    compression: str = "zstd"


@dataclass(frozen=True)
class Site:
    """A profile with its inherited values.

    Attributes:
        lineage: the names of this profile and of those it extends, in that order.
        is_family: it describes a family of machines, not a single machine.
        since, until: dates of validity, e.g. ``2021-05-27``; empty: unlimited.
        notes: notes for users.
        accepts: transports that the proof accepts (``fabric.accepts``).
        start_s: seconds within which every rank must report.
        require_signature: images must be signed with a trusted key.
        binds: patterns of folders and files to bind into the container if they exist.
        devices: patterns of device nodes.
        origins: origin of each value that a file sets, by ``section.key``.
    """

    name: str
    summary: str
    accepts: tuple[str, ...]
    start_s: float
    require_signature: bool = False
    lineage: tuple[str, ...] = ()
    is_family: bool = False
    operator: str = ""
    since: str = ""
    until: str = ""
    notes: tuple[str, ...] = ()
    detect: Clues = field(default_factory=Clues)
    scheduler: Scheduler = field(default_factory=Scheduler)
    launcher: Starter = field(default_factory=Starter)
    engine: Engines = field(default_factory=Engines)
    fabric: Fabric = field(default_factory=Fabric)
    mpi: MpiHere = field(default_factory=MpiHere)
    dependencies: Dependencies = field(default_factory=Dependencies)
    binds: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    environment: Environment = field(default_factory=Environment)
    gpu: Gpu = field(default_factory=Gpu)
    comm: Gradients = field(default_factory=Gradients)
    storage: Storage = field(default_factory=Storage)
    node: Node = field(default_factory=Node)
    images: Images = field(default_factory=Images)
    performance: tuple[Reference, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def status(self, key: str) -> Status:
        """How reliable a value is; a value that no file sets is fairlead's default, a guess."""
        origin = self.origins.get(key)
        return origin.status if origin else Status.GUESS

    @property
    def known(self) -> dict[Status, int]:
        """The number of values by status, inherited values included."""
        found = [o.status for key, o in self.origins.items() if key.count(".") == 1]
        return {status: found.count(status) for status in Status}
