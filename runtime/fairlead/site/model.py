"""What fairlead knows about a site, as frozen values for plans, launches, checks and exports.

A section has the keys of its table in :mod:`fairlead.site.profile`, which says what they mean.
:attr:`Site.origins` records the source and the status of each value.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """How reliable a value is, the most reliable first."""

    RUN = "run"  # seen to work with real software
    DOCUMENTED = "documented"  # stated by the site or the vendor
    USER = "user"  # from a user's job script or issue
    GUESS = "guess"  # no source states it


_WORDS = {
    Status.RUN: "seen to work",
    Status.DOCUMENTED: "documented",
    Status.USER: "from a user",
    Status.GUESS: "a guess",
}

# Of several values.
COUNTED = {**_WORDS, Status.USER: "from users", Status.GUESS: "guessed"}

UNSOURCED = "no source states it"  # the source of a value whose file says `guess`


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
    """How to recognise that a machine belongs to this site. In patterns, ``*``, ``?`` and ``[…]`` are special."""

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
    """The scheduler that allocates nodes; its directives are e.g. ``-C haswell``."""

    kind: str = "none"
    directives: tuple[str, ...] = ()
    account: bool = False
    nodes: Mapping[str, str] = field(default_factory=dict)
    charge: Mapping[str, float] = field(default_factory=dict)
    charge_unit: str = "node hours"

    def hourly(self, nodes: int, partition: str) -> str:
        """What so many nodes cost an hour, in words; empty where the profile does not say it."""
        each = self.charge.get(partition, self.charge.get("default"))
        return f"{nodes * each:g} {self.charge_unit} an hour" if each is not None else ""


@dataclass(frozen=True)
class Starter:
    """The launchers that start ranks; ``mpiexec`` is that of the MPI."""

    kinds: tuple[str, ...] = ("mpiexec",)
    pmi: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Engines:
    """The container engines that run images."""

    kinds: tuple[str, ...] = ("apptainer",)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fabric:
    """The network between nodes."""

    kind: str = "none"
    accepts: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()


@dataclass(frozen=True)
class MpiHere:
    """The site's MPI, and how to find it.

    Attributes:
        vendor, family: empty if the site offers several.
        search: of several matches, the highest version. fairlead identifies the library from its file.
        variable: set once a module is loaded.
        replaces: ``mpi``, a library below it such as ``libfabric``, or ``none`` if images run their own MPI.
        level, glibc: empty if unknown.
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
        folders: searched after the loader's.
        expected: a check reports those that are missing from its closure.
    """

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment:
    """Variables."""

    set: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """The nodes' GPUs; ``per_node`` is 0 if unknown or none."""

    vendor: str = "none"
    per_node: int = 0
    transport: str = ""
    set: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradients:
    """The backend that carries the gradients of :mod:`fairlead.comm`; of several plugins, the newest counts."""

    backend: str = ""
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class NcclSite:
    """NCCL's or RCCL's network plugin of the site; all patterns are of the machine.

    Attributes:
        folders, libraries: patterns of folders with the plugin, and with libfabric and what else it needs.
        files: patterns of single libraries that it needs.
        plugins, versions: releases of the plugin and of NCCL that the site names.
        networks: names that NCCL may print; the first is that of NCCL_NET. Empty if not known.
        providers: libfabric's, that the plugin may choose; empty if not known.
        interfaces: prefixes, as NCCL_SOCKET_IFNAME has them.
        single_node: NCCL_NET is set for runs on a single node too.
        gdr: NCCL uses GPUDirect RDMA between nodes.
        env: variables to set.
        directives: options of the job without which ``env`` does not take effect.
        annotations: by which the site's engine brings the plugin.
        alternatives: variables that other sources set to other values, by the name of the source;
            their origins are :attr:`Site.origins` ``["nccl.alternatives.NAME"]``.
    """

    folders: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    single_node: bool = False
    gdr: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    directives: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    alternatives: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Storage:
    """Where data can be stored near a node. Paths may contain variables of the job, e.g. ``$SCRATCH``."""

    shared: str = ""
    node_local: str = ""
    memory: str = "/dev/shm"
    burst_buffer: str = "none"
    burst_buffer_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """A compute node; 0 or empty if unknown."""

    processor: tuple[str, ...] = ()
    cores: int = 0
    memory_gib: float = 0.0
    count: int = 0


@dataclass(frozen=True)
class Images:
    """Requirements on images."""

    require_signature: bool = False
    unpack: bool = False
    compression: str = "zstd"


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
class Site:
    """A profile with its inherited values.

    Attributes:
        lineage: the names of this profile and of those it extends, in that order.
        is_family: it describes a family of machines, not a single machine.
        since, until: dates of validity, e.g. ``2021-05-27``; empty: unlimited.
        notes: notes for users.
        accepts: transports that the proof accepts (``fabric.accepts``).
        start_s: seconds within which every rank must report.
        require_signature: that of ``images``.
        binds: patterns of folders and files to bind into the container if they exist.
        devices: patterns of device nodes.
        origins: origin of each value that a file sets, by ``section.key``.
        strange: a file of it is neither fairlead's, the system's nor in the user's own folder of profiles.
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
    nccl: NcclSite = field(default_factory=NcclSite)
    storage: Storage = field(default_factory=Storage)
    node: Node = field(default_factory=Node)
    images: Images = field(default_factory=Images)
    performance: tuple[Reference, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)
    strange: bool = False

    def value(self, key: str) -> Any:
        """The value of ``section.key``."""
        section, _, name = key.partition(".")
        flat = {"watchdog": self.start_s, "binds": self.binds, "devices": self.devices}
        return flat[section] if section in flat else getattr(getattr(self, section), name)

    def status(self, key: str) -> Status:
        """How reliable a value is; a value that no file sets is fairlead's default, a guess."""
        origin = self.origins.get(key)
        return origin.status if origin else Status.GUESS

    @property
    def known(self) -> dict[Status, int]:
        """The number of values by status, inherited values included."""
        statuses = [o.status for key, o in self.origins.items() if key.count(".") == 1]
        return {status: statuses.count(status) for status in Status}

    def known_by(self, key: str) -> str:
        """How well a value is known, and its source, as ``documented: …``; for messages and ``explain``."""
        origin = self._origin(key)
        return f"{_WORDS[origin.status]}: {origin.source}" if origin else "fairlead's default"

    def says(self, key: str) -> str:
        """Which profile sets a value, and how well that is known."""
        origin = self._origin(key)
        profile = origin.profile if origin else self.name
        return f"the profile {profile} says so ({self.known_by(key)})"

    def _origin(self, key: str) -> Origin | None:
        return self.origins.get(key) or self.origins.get(key.rpartition(".")[0])
