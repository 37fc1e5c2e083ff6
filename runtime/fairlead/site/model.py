"""What is known of a site, as frozen values: a plan, a launch, a check and an export read these.

Where each value comes from, and how well it is known, stands in :attr:`Site.origins`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Status(enum.StrEnum):
    """How well a value is known, the best first."""

    RUN = "run"  # seen to work, with real software
    DOCUMENTED = "documented"  # the site or the maker says so
    USER = "user"  # from a user's job script or issue
    GUESS = "guess"  # nobody has said so


NOBODY = "nobody has said so"  # the source of a value whose file says `guess`


@dataclass(frozen=True)
class Origin:
    """Where a value of a profile comes from.

    Attributes:
        source: who says so, in words.
        read: when that was read, as ``2026-06-01``; empty where it has no date.
        profile: name of the profile whose file holds it; a family's, for what is inherited.
    """

    status: Status
    source: str
    read: str
    profile: str


@dataclass(frozen=True)
class Clues:
    """What tells that a machine is of this site.

    Attributes:
        environ: variables of which one with this value is enough to name the site.
        hostnames: patterns (``*``, ``?``, ``[…]``) of which one is enough to name the site.
        clusters: values of $SLURM_CLUSTER_NAME, $LMOD_SYSTEM_NAME or Slurm's ClusterName, likewise.
        present_paths: what every machine of the family has; patterns.
        absent_programs, absent_paths: what none has.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    hostnames: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    present_paths: tuple[str, ...] = ()
    absent_programs: tuple[str, ...] = ()
    absent_paths: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        """Whether there is anything by which this one site could be told from its family."""
        return bool(self.environ or self.hostnames or self.clusters)


@dataclass(frozen=True)
class Scheduler:
    """What gives nodes.

    Attributes:
        kind: ``slurm``, ``pbs``, ``lsf``, ``flux``, ``cobalt``, or ``none``.
        directives: words that every job script of the site needs, e.g. ``-C haswell``.
        account: whether a job must name an account.
        nodes: names of partitions or queues that tell of kinds of node, by what they have.
    """

    kind: str = "none"
    directives: tuple[str, ...] = ()
    account: bool = False
    nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Starter:
    """What starts ranks.

    Attributes:
        kinds: ``mpiexec`` (of the MPI itself), ``srun``, ``pals``, ``aprun``, ``jsrun``, ``flux``,
            ``ibrun``; the preferred first.
        pmi: how ranks find each other, the preferred first: ``cray``, ``pmi2``, ``pmix``, ``pmi1``,
            ``hydra``.
        options: words for the launcher, by its kind.
    """

    kinds: tuple[str, ...] = ("mpiexec",)
    pmi: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Engines:
    """What runs images.

    Attributes:
        kinds: the preferred first.
        options: words for an engine, by its kind.
        modules: environment modules that bring it.
    """

    kinds: tuple[str, ...] = ("apptainer",)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fabric:
    """The network between nodes.

    Attributes:
        kind: ``aries``, ``slingshot``, ``infiniband``, ``omni-path``, ``ethernet``, or ``none``.
        accepts: transports that a proof may find in use.
        interfaces: network interfaces of the fabric, patterns.
        counters: files that count its traffic, patterns.
    """

    kind: str = "none"
    accepts: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()


@dataclass(frozen=True)
class MpiHere:
    """The site's own MPI, and how to find it.

    Attributes:
        vendor: as ``fairlead site detect`` names it, e.g. ``Cray MPICH``; empty when several are offered.
        family: ``mpich``, ``openmpi``, ``mpi5``; empty when several are offered.
        search: folders in which its library for foreign programs is, patterns; of several matches
            the one of the highest version. What is in them is identified from the file itself.
        variable: a variable that names its prefix once a module is loaded.
        modules: what to load, ``-NAME`` for what to unload.
        replaces: what a container's is exchanged for here: ``mpi``, ``libfabric`` under it, or
            ``none``: the site runs the image's own.
        missing: libraries that the site's MPI does not have though others of its family do.
        level: the edition of the MPI standard that it reaches, ``3.1``; empty where unknown.
        glibc: the version of glibc that it and its dependencies need; empty where unknown.
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
    """What the site's MPI needs and the loader would not find by itself.

    Attributes:
        folders: searched after the loader's own, patterns.
        files: single libraries that are opened by name, patterns.
        expected: SONAMEs that its closure is known to have; a check says which are not there.
    """

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment:
    """Variables.

    Attributes:
        set: what a container needs here.
        keep: patterns of those that the launcher sets and a rank must see.
    """

    set: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """The nodes' GPUs.

    Attributes:
        vendor: ``nvidia``, ``amd``, ``intel``, or ``none``.
        per_node: how many; 0 where unknown or none.
        transport: the library by which MPI sends from GPU to GPU, a pattern.
        set: variables for that.
        options: words for an engine, by its kind.
    """

    vendor: str = "none"
    per_node: int = 0
    transport: str = ""
    set: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradients:
    """What carries the gradients of :mod:`fairlead.comm` here.

    Attributes:
        backend: the one that the site prefers; empty to leave it to fairlead.
        plugin: folders that hold the site's own ``dl_comm``, patterns; of several the newest.
    """

    backend: str = ""
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class Storage:
    """Where data can lie near a node. Paths may hold variables of the job, as ``$SCRATCH``.

    Attributes:
        shared: the file system for a job's data.
        node_local: a disk of each node; empty where there is none.
        memory: a file system in a node's memory.
        burst_buffer: ``datawarp`` or ``none``.
        burst_buffer_options: words of its directive.
    """

    shared: str = ""
    node_local: str = ""
    memory: str = "/dev/shm"
    burst_buffer: str = "none"
    burst_buffer_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """A compute node; 0 and empty where unknown.

    Attributes:
        processor: names as archspec knows them.
        memory_gib: of memory.
    """

    processor: tuple[str, ...] = ()
    cores: int = 0
    memory_gib: float = 0.0
    count: int = 0


@dataclass(frozen=True)
class Reference:
    """A number that a measurement here can be held against.

    Attributes:
        what: e.g. ``pingpong latency``.
        value, unit: e.g. 1.3 and ``us``.
        higher_is_better: of bandwidths, not of latencies.
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
    """What images must be like here.

    Attributes:
        require_signature: signed with a trusted key.
        compression: of squashfs; ``gzip`` where a kernel knows no zstd.
    """

    require_signature: bool = False
    compression: str = "zstd"


@dataclass(frozen=True)
class Site:
    """A profile, with what it inherits.

    Attributes:
        lineage: the profiles it is made of, itself first, then what it extends.
        is_family: it describes a kind of machine rather than one.
        since, until: dates of validity as ``2021-05-27``; empty where open.
        notes: what a person should know.
        accepts: transports that a proof may find in use (``fabric.accepts``).
        start_s: seconds until every rank must have reported.
        require_signature: images must be signed with a trusted key.
        binds: folders and files that the container sees, where they exist; patterns.
        devices: device nodes, patterns.
        origins: of each value that a file sets, by ``section.key``.
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
        """How well a value is known; what no file sets is fairlead's own default, a guess."""
        origin = self.origins.get(key)
        return origin.status if origin else Status.GUESS

    @property
    def known(self) -> dict[Status, int]:
        """How many values are known how well; those that it inherits count as its own."""
        found = [o.status for key, o in self.origins.items() if key.count(".") == 1]
        return {status: found.count(status) for status in Status}
