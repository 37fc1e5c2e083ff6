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
from fairlead.base.toml import Strict
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
else:
    SchedulerKind = Literal[(*with_scripts(), "none")]
    LauncherKind = Literal[kinds_of_profiles()]
    EngineKind = Literal[engines.kinds()]
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
FabricKind = Literal["aries", "slingshot", "infiniband", "omni-path", "ethernet", "none"]

GUESS = "guess"  # the source that needs no entry


class About(Strict):
    name: Name = Field(description="the profile's name, equal to its file name")
    summary: Text = Field(description="a one-line description")
    extends: Name | None = Field(
        None,
        description="the profile that this one extends; its own name: the profile that it would otherwise hide",
    )
    family: bool = Field(
        False, description="it describes a family of machines, not a single machine"
    )
    operator: str = Field("", description="the organisation that operates the machine")
    since: datetime.date | None = Field(
        None, description="the first day on which the profile is valid"
    )
    until: datetime.date | None = Field(
        None, description="the last day on which the profile is valid; set for retired machines"
    )
    notes: Words = Field((), description="notes for users")


class Source(Strict):
    """Where values come from."""

    text: Text = Field(description="the document, script or person that states the values")
    status: Literal["run", "documented", "user", "guess"] = Field(
        description="how reliable it is: seen to work, documented by the site or vendor, from a user's "
        "script or issue, or a guess"
    )
    read: datetime.date | None = Field(None, description="the date on which it was read")


class Section(Strict):
    source: Text | None = Field(None, description="the entry of [sources] for the section's values")
    sources: dict[str, Text] = Field(
        default_factory=dict, description="the entry of [sources] for single keys of the section"
    )


class Detect(Section):
    environ: Variables = Field(
        default_factory=dict,
        description="variables with patterns of their values; one match identifies the site",
    )
    hostnames: Words = Field(
        (), description="patterns of host names; one match identifies the site"
    )
    clusters: Words = Field(
        (), description="cluster names as Slurm or Lmod report them; one match identifies the site"
    )
    present_paths: Globs = Field(
        (), description="patterns of paths that exist on every such machine"
    )
    absent_programs: Words = Field((), description="programs that must not be on PATH")
    absent_paths: Globs = Field((), description="patterns of paths that must not exist")


class SchedulerSection(Section):
    kind: SchedulerKind = Field("none", description="the scheduler that allocates nodes")
    directives: Words = Field((), description="options that every job script of the site needs")
    account: bool = Field(False, description="whether a job must name an account")
    nodes: dict[str, str] = Field(
        default_factory=dict,
        description="partitions, queues or constraints, with the hardware of their nodes",
    )


class LauncherSection(Section):
    kinds: tuple[LauncherKind, ...] = Field(
        ("mpiexec",), min_length=1, description="launchers that start ranks, in order of preference"
    )
    pmi: tuple[Pmi, ...] = Field(
        (), description="PMI flavours by which ranks find each other, in order of preference"
    )
    options: dict[LauncherKind, Words] = Field(
        default_factory=dict, description="arguments for a launcher, by its kind"
    )


class EngineSection(Section):
    kinds: tuple[EngineKind, ...] = Field(
        ("apptainer",), min_length=1, description="container engines, in order of preference"
    )
    options: dict[EngineKind, Words] = Field(
        default_factory=dict, description="arguments for an engine, by its kind"
    )
    modules: Words = Field((), description="environment modules that provide it")


class FabricSection(Section):
    kind: FabricKind = Field("none", description="the network between nodes")
    accepts: Words = Field((), description="transports that the proof accepts")
    interfaces: Words = Field((), description="patterns of its network interfaces")
    counters: Globs = Field((), description="patterns of files that count its traffic")


class MpiSection(Section):
    vendor: str = Field("", description="the vendor of the site's MPI, as `site detect` names it")
    family: Literal["mpich", "openmpi", "mpi5", ""] = Field(
        "", description="the family of its binary interface"
    )
    search: Globs = Field(
        (),
        description="patterns of folders with its library for programs built against another MPI of the family",
    )
    variable: str = Field("", description="the variable that holds its prefix")
    modules: Words = Field((), description="modules to load; -NAME unloads a module")
    replaces: Literal["mpi", "libfabric", "none"] = Field(
        "mpi", description="which library of a container the site replaces"
    )
    missing: Words = Field(
        (), description="libraries that it lacks although other MPIs of its family have them"
    )
    level: Literal["", "2.2", "3.0", "3.1", "4.0", "4.1", "5.0"] = Field(
        "", description="the version of the MPI standard that it implements"
    )
    glibc: Annotated[str, StringConstraints(pattern=r"^(2\.\d+)?$")] = Field(
        "", description="the version of glibc that it and its dependencies need"
    )


class DependenciesSection(Section):
    folders: Globs = Field(
        (), description="patterns of folders to search for libraries that its MPI needs"
    )
    files: Globs = Field((), description="patterns of libraries that it opens by name")
    expected: Words = Field((), description="SONAMEs that its MPI needs")


class PathsSection(Section):
    paths: Globs = Field(
        (), description="patterns of paths to bind into the container if they exist"
    )


class EnvironmentSection(Section):
    set: Variables = Field(
        default_factory=dict, description="variables to set in containers on this machine"
    )
    keep: Words = Field((), description="patterns of launcher variables that a rank must see")


class GpuSection(Section):
    vendor: Literal["nvidia", "amd", "intel", "none"] = Field(
        "none", description="the vendor of the GPUs"
    )
    per_node: int = Field(0, ge=0, description="GPUs per node that a job sees")
    transport: Glob | Literal[""] = Field(
        "", description="a pattern of the library by which MPI sends from GPU to GPU"
    )
    set: Variables = Field(default_factory=dict, description="variables to set for GPU support")
    options: dict[EngineKind, Words] = Field(
        default_factory=dict, description="arguments for an engine, by its kind"
    )


class CommSection(Section):
    backend: CommBackendName = Field(
        "", description="the preferred backend for gradients; empty: fairlead chooses"
    )
    plugin: Globs = Field((), description="patterns of folders with the site's module dl_comm")


class StorageSection(Section):
    shared: str = Field("", description="the file system for a job's data")
    node_local: str = Field("", description="a disk local to each node")
    memory: str = Field("/dev/shm", description="a file system in a node's memory")
    burst_buffer: Literal["datawarp", "none"] = Field("none", description="the burst-buffer system")
    burst_buffer_options: Words = Field((), description="arguments of its directive")


class NodeSection(Section):
    processor: Words = Field((), description="processor targets, as archspec names them")
    cores: int = Field(0, ge=0, description="cores per compute node")
    memory_gib: float = Field(0, ge=0, description="GiB of memory per compute node")
    count: int = Field(0, ge=0, description="the number of compute nodes")


class WatchdogSection(Section):
    start_s: float = Field(
        30, gt=0, le=3600, description="seconds within which every rank must report"
    )


class ImagesSection(Section):
    require_signature: bool = Field(
        False, description="whether images must be signed with a trusted key"
    )
    compression: Literal["zstd", "gzip"] = Field(
        "zstd", description="the compression of squashfs images; gzip for kernels without zstd"
    )


class ReferenceSection(Strict):
    """A reference value to compare a measurement with."""

    what: Text = Field(description="the measured quantity")
    value: float = Field(gt=0, description="the measured value")
    unit: Text = Field(description="its unit")
    better: Literal["higher", "lower"] = Field(
        description="whether a higher or a lower value is better"
    )
    conditions: str = Field("", description="sizes, ranks, versions")
    source: Text = Field(description="the entry of [sources] for the value")


class SiteProfile(Strict):
    """One ``sitecfg/NAME.toml``. Every table except ``site`` may be inherited from the profile it extends."""

    site: About
    sources: dict[Name, Source] = Field(
        default_factory=dict, description="the sources of values; `guess` needs no entry"
    )
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
    storage: StorageSection = Field(default_factory=StorageSection)
    node: NodeSection = Field(default_factory=NodeSection)
    watchdog: WatchdogSection = Field(default_factory=WatchdogSection)
    images: ImagesSection = Field(default_factory=ImagesSection)
    performance: tuple[ReferenceSection, ...] = Field(
        (), description="reference values to compare measurements with"
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
