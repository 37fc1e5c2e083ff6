"""The format of ``sitecfg/NAME.toml``: what a profile may say, checked when it is read.

Every value says where it comes from: a section's ``source``, or ``sources.KEY`` for one key of it,
names an entry of the file's ``[sources]``. :mod:`fairlead.site.layers` lays a profile over what it
extends; what comes of that is a :class:`fairlead.site.model.Site`.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, StringConstraints
from pydantic_core import PydanticKnownError

from fairlead.base import comm_backend
from fairlead.base.toml import Strict
from fairlead.engines import registry as engines
from fairlead.launchers.registry import kinds_of_profiles
from fairlead.schedulers.registry import with_scripts

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Words = tuple[Text, ...]
Variables = dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str]
# A pattern of paths. It may begin with a variable, as $CRAY_MPICH_ROOTDIR/gtl/lib.
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


def _comm_backend_schema(schema: dict[str, Any]) -> None:
    schema["enum"] = ["", *comm_backend.REGISTRY.names()]


CommBackendName = Annotated[
    str, AfterValidator(_comm_backend), Field(json_schema_extra=_comm_backend_schema)
]
FabricKind = Literal["aries", "slingshot", "infiniband", "omni-path", "ethernet", "none"]

GUESS = "guess"  # the source that needs no entry


class About(Strict):
    name: Name = Field(description="the profile's name, that of its file")
    summary: Text = Field(description="one line for people")
    extends: Name | None = Field(
        None,
        description="the profile that it is laid over; its own name amends the one that it would hide",
    )
    family: bool = Field(False, description="it describes a kind of machine rather than one")
    operator: str = Field("", description="who runs it")
    since: datetime.date | None = Field(None, description="the profile holds from this day")
    until: datetime.date | None = Field(
        None, description="until this day; retired machines have one"
    )
    notes: Words = Field((), description="what a person should know")


class Source(Strict):
    """Where values come from."""

    text: Text = Field(description="who says so")
    status: Literal["run", "documented", "user", "guess"] = Field(
        description="how well it is known: seen to work, documented by the site or maker, from a user's "
        "script or issue, or said by nobody"
    )
    read: datetime.date | None = Field(None, description="when it was read")


class Section(Strict):
    source: Text | None = Field(
        None, description="the entry of [sources] that its values come from"
    )
    sources: dict[str, Text] = Field(
        default_factory=dict, description="the same for single keys of the section"
    )


class Detect(Section):
    environ: Variables = Field(
        default_factory=dict, description="variables of which one names the site"
    )
    hostnames: Words = Field((), description="host names of which one names the site; patterns")
    clusters: Words = Field(
        (), description="names of the cluster, as Slurm or Lmod say it, of which one names the site"
    )
    present_paths: Globs = Field((), description="what every such machine has; patterns")
    absent_programs: Words = Field((), description="programs that must not be on PATH")
    absent_paths: Globs = Field((), description="paths that must not exist; patterns")


class SchedulerSection(Section):
    kind: SchedulerKind = Field("none", description="what gives nodes")
    directives: Words = Field((), description="options that each of the site's job scripts needs")
    account: bool = Field(False, description="whether a job must name an account")
    nodes: dict[str, str] = Field(
        default_factory=dict, description="partitions, queues or constraints, and what they have"
    )


class LauncherSection(Section):
    kinds: tuple[LauncherKind, ...] = Field(
        ("mpiexec",), min_length=1, description="what starts ranks, the preferred first"
    )
    pmi: tuple[Pmi, ...] = Field((), description="how ranks find each other, the preferred first")
    options: dict[LauncherKind, Words] = Field(
        default_factory=dict, description="words for a launcher, by its kind"
    )


class EngineSection(Section):
    kinds: tuple[EngineKind, ...] = Field(
        ("apptainer",), min_length=1, description="container engines, the preferred first"
    )
    options: dict[EngineKind, Words] = Field(
        default_factory=dict, description="words for an engine, by its kind"
    )
    modules: Words = Field((), description="environment modules that bring it")


class FabricSection(Section):
    kind: FabricKind = Field("none", description="the network between nodes")
    accepts: Words = Field((), description="transports that a proof may find in use")
    interfaces: Words = Field((), description="its network interfaces; patterns")
    counters: Globs = Field((), description="files that count its traffic; patterns")


class MpiSection(Section):
    vendor: str = Field("", description="whose MPI the site offers, as `site detect` names it")
    family: Literal["mpich", "openmpi", "mpi5", ""] = Field("", description="its binary interface")
    search: Globs = Field((), description="folders of its library for foreign programs; patterns")
    variable: str = Field("", description="a variable that names its prefix")
    modules: Words = Field((), description="modules to load; -NAME to unload")
    replaces: Literal["mpi", "libfabric", "none"] = Field(
        "mpi", description="what of a container is exchanged here"
    )
    missing: Words = Field(
        (), description="libraries that others of its family have and it has not"
    )
    level: Literal["", "2.2", "3.0", "3.1", "4.0", "4.1", "5.0"] = Field(
        "", description="the edition of the MPI standard that it reaches"
    )
    glibc: Annotated[str, StringConstraints(pattern=r"^(2\.\d+)?$")] = Field(
        "", description="the version of glibc that it and its dependencies need"
    )


class DependenciesSection(Section):
    folders: Globs = Field((), description="searched for what its MPI needs; patterns")
    files: Globs = Field((), description="libraries that are opened by name; patterns")
    expected: Words = Field((), description="SONAMEs that its MPI is known to need")


class PathsSection(Section):
    paths: Globs = Field((), description="seen in the container where they exist; patterns")


class EnvironmentSection(Section):
    set: Variables = Field(
        default_factory=dict, description="variables that a container needs here"
    )
    keep: Words = Field((), description="variables of the launcher that a rank must see; patterns")


class GpuSection(Section):
    vendor: Literal["nvidia", "amd", "intel", "none"] = Field("none", description="whose GPUs")
    per_node: int = Field(0, ge=0, description="GPUs of a node, as a job sees them")
    transport: Glob | Literal[""] = Field(
        "", description="the library by which MPI sends from GPU to GPU; a pattern"
    )
    set: Variables = Field(default_factory=dict, description="variables for that")
    options: dict[EngineKind, Words] = Field(
        default_factory=dict, description="words for an engine, by its kind"
    )


class CommSection(Section):
    backend: CommBackendName = Field(
        "", description="what carries gradients here by preference; empty to leave it to fairlead"
    )
    plugin: Globs = Field((), description="folders of the site's own module dl_comm; patterns")


class StorageSection(Section):
    shared: str = Field("", description="the file system for a job's data")
    node_local: str = Field("", description="a disk of each node")
    memory: str = Field("/dev/shm", description="a file system in a node's memory")
    burst_buffer: Literal["datawarp", "none"] = Field("none", description="nodes that hold data")
    burst_buffer_options: Words = Field((), description="words of its directive")


class NodeSection(Section):
    processor: Words = Field((), description="processors, as archspec names them")
    cores: int = Field(0, ge=0, description="cores of a compute node")
    memory_gib: float = Field(0, ge=0, description="GiB of memory of a compute node")
    count: int = Field(0, ge=0, description="compute nodes")


class WatchdogSection(Section):
    start_s: float = Field(
        30, gt=0, le=3600, description="seconds until every rank must have reported"
    )


class ImagesSection(Section):
    require_signature: bool = Field(
        False, description="whether images must be signed with a trusted key"
    )
    compression: Literal["zstd", "gzip"] = Field(
        "zstd", description="of squashfs; gzip where a kernel knows no zstd"
    )


class ReferenceSection(Strict):
    """A number that a measurement can be held against."""

    what: Text = Field(description="what was measured")
    value: float = Field(gt=0, description="how much")
    unit: Text = Field(description="of what")
    better: Literal["higher", "lower"] = Field(description="which way is better")
    conditions: str = Field("", description="sizes, ranks, versions")
    source: Text = Field(description="the entry of [sources] that it comes from")


class SiteProfile(Strict):
    """One ``sitecfg/NAME.toml``. All but ``site`` may be left to what it extends."""

    site: About
    sources: dict[Name, Source] = Field(
        default_factory=dict, description="where values come from; `guess` needs no entry"
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
        (), description="what a measurement can be held against"
    )


# In the order in which they are shown.
SECTIONS: tuple[str, ...] = tuple(
    name
    for name, field in SiteProfile.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
)


def section_model(name: str) -> type[BaseModel]:
    """The format of ``[name]``."""
    model = SiteProfile.model_fields[name].annotation
    assert isinstance(model, type) and issubclass(model, BaseModel)
    return model
