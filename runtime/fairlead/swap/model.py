"""The values of a swap: what is asked, what is planned, and what is staged for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.engines.model import Engine
from fairlead.launchers.model import Launcher, Shape
from fairlead.mpi.host import HostMpi
from fairlead.site.model import Site
from fairlead.site.resolved_paths import NOTHING, Here
from fairlead.swap.glibc import Glibc

ROOM = "/opt/fairlead"  # the folder of all that fairlead shows to a container
MOUNT = "/opt/fairlead/mpi"  # where the staged host MPI appears in every container
WITNESS = "/opt/fairlead/witness.so"  # and the library that proves a launch from within
RUN_MOUNT = "/opt/fairlead/run"  # the run's folder


@dataclass(frozen=True)
class Line:
    """One line of the plan in words: what, why, and the fact behind it."""

    kind: str
    what: str
    why: str
    fact: str = ""


@dataclass(frozen=True)
class Bind:
    """A folder or file of the host seen in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        mpi: ``host``, ``container``.
        apps: programs of the image that will run; empty means any of them may.
        library_path, preload: the user's own values for the container.
        image_library_path, image_preload: those that the image itself sets.
        image_env: all that it sets, for an engine that does not see the image's own record of it.
        gpu: messages are to go from GPU to GPU: MPICH_GPU_SUPPORT_ENABLED=1.
        engine_args: the user's own options for the engine.
        shell: names of variables that the user's shell sets, of those that a profile may set.
        shell_python: variables of the user's shell that steer a Python, e.g. ``PYTHONPATH``.
        mpi4py: variables by which mpi4py opens a library of its own choice, and that library.
        shape: where the ranks go.
        comm, comm_by: the backend of gradients that is asked for, and by what; "".
    """

    mpi: str = "host"
    ranks: int = 1
    command: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    library_path: str = ""
    preload: str = ""
    image_library_path: str = ""
    image_preload: str = ""
    image_env: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = False
    engine_args: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    shell_python: tuple[str, ...] = ()
    mpi4py: tuple[tuple[str, str], ...] = ()
    shape: Shape = field(default_factory=Shape)
    comm: str = ""
    comm_by: str = ""


@dataclass(frozen=True)
class StagedFile:
    """A file of the host, and its place below the staged folder.

    Attributes:
        rpath: the DT_RPATH that its copy gets; empty to leave what it has.
    """

    source: str
    target: str
    rpath: str = ""


@dataclass(frozen=True)
class Staging:
    """The folder that holds the host's MPI for a container.

    Attributes:
        key: identity of its content; the folder's name.
        aliases: ``(link, target)``, relative, in the target's own folder.
        folders: ``(folder of the host, place below the staged folder)``, copied whole.
    """

    key: str
    files: tuple[StagedFile, ...]
    aliases: tuple[tuple[str, str], ...]
    folders: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Inputs:
    """The facts that a plan is a function of.

    Attributes:
        image: path of the image.
        facts: of the image.
        host: the MPI that replaces the image's; required when ``request.mpi`` is ``host``.
        cache: fairlead's cache folder, which will hold the staged folder.
        notes: lines on how the host MPI was chosen.
        witness: the host's file of the library that proves a launch from within; empty for none.
        isolate: copies of the host's libraries can be given a DT_RPATH.
        paths: those of the profile's paths that exist on the machine.
        opened: what the engine opens, where that is not the image itself.
    """

    image: str
    facts: ImageFacts
    host: HostMpi | None
    launcher: Launcher
    site: Site
    engine: Engine
    request: Request
    cache: Path
    notes: tuple[Line, ...] = ()
    witness: str = ""
    isolate: bool = True
    paths: Here = NOTHING
    opened: str = ""

    @property
    def swapped_in(self) -> HostMpi | None:
        """The host MPI that ranks map; None where the image's own stays."""
        return self.host if self.request.mpi == "host" else None


@dataclass(frozen=True)
class Plan:
    """How to run an image here. ``lines`` explains every other field.

    Attributes:
        planned_file: the MPI library that every rank must map, as the container sees it.
        planned_title: its vendor and version.
        family: of the MPI that is mapped; the image's own unless it crosses to another.
        names: the names by which the image's programs ask for their MPI.
        consumers: the image's files that use MPI and matter for this request.
        glibc: how the host's libraries get the C library that they need; None without a swap.
        bound: files of the image over which the host's MPI is shown, because a program would take
            them whatever is searched first.
        wrapper: words that stand before the command in the container.
        witness: the host's file of the library that proves the launch from within it; empty when
            a job of its own has to.
        unset: variables of the user's shell that must not reach the container.
        devices: device nodes that the container needs.
        opened: what the engine is given to open: the image, or the folder of it.
    """

    mode: str
    image: str
    facts: ImageFacts
    site: Site
    engine: Engine
    launcher: Launcher
    host: HostMpi | None
    request: Request
    planned_file: str
    planned_title: str
    family: AbiFamily
    names: tuple[str, ...]
    consumers: tuple[Elf, ...]
    staging: Staging | None
    binds: tuple[Bind, ...]
    env: Mapping[str, str]
    glibc: Glibc | None = None
    bound: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    witness: str = ""
    unset: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    opened: str = ""
    lines: tuple[Line, ...] = field(default=())
