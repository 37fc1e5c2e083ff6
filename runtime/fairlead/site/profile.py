"""The format of ``sitecfg/NAME.toml``, validated when the file is read.

Every value has a source: a section's ``source``, or ``sources.KEY`` for a single key, names an entry of
the file's ``[sources]``. :mod:`fairlead.site.layers` merges a profile with the profiles that it extends
into a :class:`fairlead.site.model.Site`.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticKnownError

from fairlead.base import comm_backend, json_schema
from fairlead.base.toml import Strict, key
from fairlead.elf.carried.registry import LIBRARIES as CARRIED
from fairlead.engines import registry as engines
from fairlead.launchers.registry import kinds_of_profiles
from fairlead.schedulers.registry import with_scripts

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Words = tuple[Text, ...]
Variables = dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str]
# A glob pattern of paths. It may begin with a variable, as in $CRAY_MPICH_ROOTDIR/gtl/lib.
Glob = Annotated[str, StringConstraints(pattern=r"^(/|\$[A-Z_]+/)")]
Globs = tuple[Glob, ...]

if TYPE_CHECKING:
    SchedulerKind = str
    LauncherKind = str
    EngineKind = str
    Replaced = str
else:
    SchedulerKind = Literal[(*with_scripts(), "none")]
    LauncherKind = Literal[kinds_of_profiles()]
    EngineKind = Literal[engines.kinds()]
    Replaced = Literal[("mpi", *CARRIED.names(), "none")]
Pmi = Literal["cray", "pmi2", "pmix", "pmi1", "hydra"]


def _comm_backend(name: str) -> str:
    if name and comm_backend.REGISTRY.find(name) is None:
        names = ("", *comm_backend.REGISTRY.names())
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, names))})
    return name


CommBackendName = Annotated[
    str,
    AfterValidator(_comm_backend),
    Field(json_schema_extra=lambda s: s.update(enum=["", *comm_backend.REGISTRY.names()])),
]
# A pattern would be taken for a name by NCCL, which compares whole words without regard to case.
NetworkName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}$")]
ProviderName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_;-]{0,63}$")]
Release = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+){1,3}([+-][A-Za-z0-9.]+)?$")]
NcclVariables = dict[
    Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")],
    Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=1024)],
]
Annotations = dict[
    Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,252}$")], Text
]
FabricKind = Literal["aries", "slingshot", "infiniband", "omni-path", "efa", "ethernet", "none"]

GUESS = "guess"  # the source that needs no entry


class About(Strict):
    name: Name = key("the profile's name, equal to its file name")
    summary: Text = key("a one-line description")
    extends: Name | None = key(
        "the profile that this one extends; its own name: the profile that it would otherwise hide",
        None,
    )
    family: bool = key("it describes a family of machines, not a single machine", False)
    operator: str = key("the organisation that operates the machine", "")
    since: datetime.date | None = key("the first day on which the profile is valid", None)
    until: datetime.date | None = key(
        "the last day on which the profile is valid; set for retired machines", None
    )
    notes: Words = key("notes for users", ())


class Source(Strict):
    """Where values come from."""

    text: Text = key("the document, script or person that states the values")
    status: Literal["run", "documented", "user", "guess"] = key(
        "how reliable it is: seen to work, documented by the site or vendor, from a user's "
        "script or issue, or a guess"
    )
    read: datetime.date | None = key("the date on which it was read", None)


class Section(Strict):
    source: Text | None = key("the entry of [sources] for the section's values", None)
    sources: dict[str, Text] = key("the entry of [sources] for single keys of the section", dict)


class Detect(Section):
    environ: Variables = key(
        "variables with patterns of their values; one match identifies the site", dict
    )
    hostnames: Words = key("patterns of host names; one match identifies the site", ())
    clusters: Words = key(
        "cluster names as Slurm or Lmod report them; one match identifies the site", ()
    )
    present_paths: Globs = key("patterns of paths that exist on every such machine", ())
    absent_programs: Words = key(
        "programs that must not be on PATH; those of a scheduler count where that is configured", ()
    )
    absent_paths: Globs = key("patterns of paths that must not exist", ())


class SchedulerSection(Section):
    kind: SchedulerKind = key("the scheduler that allocates nodes", "none")
    directives: Words = key("options that every job script of the site needs", ())
    account: bool = key("whether a job must name an account", False)
    nodes: dict[str, str] = key(
        "partitions, queues or constraints, with the hardware of their nodes", dict
    )
    charge: dict[str, float] = key(
        "what a node costs an hour, by partition or queue; `default` for the others", dict
    )
    charge_unit: Text = key("the unit of `charge`", "node hours")


class LauncherSection(Section):
    kinds: tuple[LauncherKind, ...] = key(
        "launchers that start ranks, in order of preference", ("mpiexec",), min_length=1
    )
    pmi: tuple[Pmi, ...] = key(
        "PMI flavours by which ranks find each other, in order of preference", ()
    )
    options: dict[LauncherKind, Words] = key("arguments for a launcher, by its kind", dict)


class EngineSection(Section):
    kinds: tuple[EngineKind, ...] = key(
        "container engines, in order of preference", ("apptainer",), min_length=1
    )
    options: dict[EngineKind, Words] = key("arguments for an engine, by its kind", dict)
    modules: Words = key("environment modules that provide it", ())


class FabricSection(Section):
    kind: FabricKind = key(
        "the network between nodes; where it is stated, its devices speak for the profile, and others against it",
        "none",
    )
    accepts: Words = key("transports that the proof accepts", ())
    interfaces: Words = key("patterns of its network interfaces", ())
    counters: Globs = key("patterns of files that count its traffic", ())


class MpiSection(Section):
    vendor: str = key("the vendor of the site's MPI, as `site detect` names it", "")
    family: Literal["mpich", "openmpi", "mpi5", ""] = key("the family of its binary interface", "")
    search: Globs = key(
        "patterns of folders with its library for programs built against another MPI of the family",
        (),
    )
    variable: str = key("the variable that holds its prefix", "")
    modules: Words = key("modules to load; -NAME unloads a module", ())
    replaces: Replaced = key("which library of a container the site replaces", "mpi")
    missing: Words = key("libraries that it lacks although other MPIs of its family have them", ())
    level: Literal["", "2.2", "3.0", "3.1", "4.0", "4.1", "5.0"] = key(
        "the version of the MPI standard that it implements", ""
    )
    glibc: Annotated[str, StringConstraints(pattern=r"^(2\.\d+)?$")] = key(
        "the version of glibc that it and its dependencies need", ""
    )


class DependenciesSection(Section):
    folders: Globs = key("patterns of folders to search for libraries that its MPI needs", ())
    files: Globs = key("patterns of libraries that it opens by name", ())
    expected: Words = key("SONAMEs that its MPI needs", ())


class PathsSection(Section):
    paths: Globs = key("patterns of paths to bind into the container if they exist", ())


class EnvironmentSection(Section):
    set: Variables = key("variables to set in containers on this machine", dict)
    keep: Words = key("patterns of launcher variables that a rank must see", ())


class GpuSection(Section):
    vendor: Literal["nvidia", "amd", "intel", "none"] = key("the vendor of the GPUs", "none")
    per_node: int = key("GPUs per node that a job sees", 0, ge=0)
    transport: Glob | Literal[""] = key(
        "a pattern of the library by which MPI sends from GPU to GPU", ""
    )
    set: Variables = key("variables to set for GPU support", dict)
    options: dict[EngineKind, Words] = key("arguments for an engine, by its kind", dict)


class CommSection(Section):
    backend: CommBackendName = key(
        "the preferred backend for gradients; empty: fairlead chooses", ""
    )
    plugin: Globs = key("patterns of folders with the site's module dl_comm", ())


class NcclSection(Section):
    """NCCL's or RCCL's network plugin of the site."""

    folders: Globs = key(
        "patterns of folders with its plugin, libnccl-net*.so or librccl-net*.so", ()
    )
    libraries: Globs = key("patterns of folders with libfabric and what else the plugin needs", ())
    files: Globs = key(
        "patterns of single libraries that the plugin needs, of folders that no container may see as a whole",
        (),
    )
    modules: Words = key("modules that bring the plugin", ())
    plugins: tuple[Release, ...] = key("releases of the plugin that the site names", ())
    versions: tuple[Release, ...] = key("versions of NCCL that the site names", ())
    networks: tuple[NetworkName, ...] = key(
        "names of networks that a run may use, as NCCL prints them; the first is asked for", ()
    )
    providers: tuple[ProviderName, ...] = key(
        "libfabric providers that the plugin may choose; `tcp` is one only where TCP is the network",
        (),
    )
    interfaces: Words = key("prefixes of the interfaces that NCCL starts on", ())
    single_node: bool = key("whether NCCL_NET is set for runs on a single node too", False)
    gdr: bool = key(
        "whether NCCL reaches the GPUs' memory by GPUDirect RDMA between nodes; a run where its log says otherwise ends",
        False,
    )
    env: NcclVariables = key("variables to set for NCCL and the libfabric under its plugin", dict)
    directives: Words = key("options of a job that the variables need to take effect", ())
    annotations: Annotations = key("annotations by which the site's engine brings the plugin", dict)
    alternatives: dict[Name, NcclVariables] = key(
        "what other sources set instead: variables by the entry of [sources] that states them", dict
    )


class StorageSection(Section):
    shared: str = key("the file system for a job's data", "")
    node_local: str = key("a disk local to each node", "")
    memory: str = key("a file system in a node's memory", "/dev/shm")
    burst_buffer: Literal["datawarp", "none"] = key("the burst-buffer system", "none")
    burst_buffer_options: Words = key("arguments of its directive", ())


class NodeSection(Section):
    processor: Words = key("processor targets, as archspec names them", ())
    cores: int = key("cores per compute node", 0, ge=0)
    memory_gib: float = key("GiB of memory per compute node", 0, ge=0)
    count: int = key("the number of compute nodes", 0, ge=0)


class WatchdogSection(Section):
    start_s: float = key("seconds within which every rank must report", 30, gt=0, le=3600)


class ImagesSection(Section):
    require_signature: bool = key("whether images must be signed with a trusted key", False)
    unpack: bool = key("whether images run from a folder that they are unpacked to once", False)
    compression: Literal["zstd", "gzip"] = key(
        "the compression of squashfs images; gzip for kernels without zstd", "zstd"
    )


class ReferenceSection(Strict):
    """A reference value to compare a measurement with."""

    what: Text = key("the measured quantity")
    value: float = key("the measured value", gt=0)
    unit: Text = key("its unit")
    better: Literal["higher", "lower"] = key("whether a higher or a lower value is better")
    conditions: str = key("sizes, ranks, versions", "")
    source: Text = key("the entry of [sources] for the value")


class SiteProfile(Strict):
    """One ``sitecfg/NAME.toml``. Every table except ``site`` may be inherited from the profile it extends."""

    site: About
    sources: dict[Name, Source] = key("the sources of values; `guess` needs no entry", dict)
    detect: Detect = Field(default_factory=Detect)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    launcher: LauncherSection = Field(default_factory=LauncherSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    fabric: FabricSection = Field(default_factory=FabricSection)
    mpi: MpiSection = Field(default_factory=MpiSection)
    dependencies: DependenciesSection = Field(default_factory=DependenciesSection)
    binds: PathsSection = Field(default_factory=PathsSection)
    devices: PathsSection = Field(default_factory=PathsSection)
    environment: EnvironmentSection = Field(default_factory=EnvironmentSection)
    gpu: GpuSection = Field(default_factory=GpuSection)
    comm: CommSection = Field(default_factory=CommSection)
    nccl: NcclSection = Field(default_factory=NcclSection)
    storage: StorageSection = Field(default_factory=StorageSection)
    node: NodeSection = Field(default_factory=NodeSection)
    watchdog: WatchdogSection = Field(default_factory=WatchdogSection)
    images: ImagesSection = Field(default_factory=ImagesSection)
    performance: tuple[ReferenceSection, ...] = key(
        "reference values to compare measurements with", ()
    )


# In display order.
SECTIONS: tuple[str, ...] = tuple(
    name
    for name, field in SiteProfile.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
)


def schema() -> dict[str, Any]:
    """The JSON Schema of a profile, for editors: its shape, without sources and inheritance (see :mod:`fairlead.site.layers`)."""
    return json_schema.schema_of(SiteProfile)


def schema_text() -> str:
    """The schema as it is published."""
    return json_schema.schema_text(schema())
