"""The data types of a swap: the request, the plan, and the files staged for it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.base.python_imports import Imports
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.engines.model import Engine
from fairlead.launchers.model import Launcher, Shape
from fairlead.mpi.below import HostLibrary
from fairlead.mpi.host import HostMpi
from fairlead.nccl import model as nccl_model
from fairlead.nccl.decide import Decision
from fairlead.nccl.model import Ask, NcclPlan
from fairlead.site.model import Site
from fairlead.site.resolved_paths import NOTHING, Here
from fairlead.swap.glibc import Glibc

ROOM = "/opt/fairlead"  # every path that fairlead adds to a container is below this folder
MOUNT = "/opt/fairlead/mpi"  # where the staged host MPI appears in every container
NCCL_MOUNT = nccl_model.MOUNT
CARRIED_MOUNT = "/opt/fairlead/carried"  # the host's libraries below the image's own MPI
WITNESS = "/opt/fairlead/witness.so"  # the library that proves a launch from inside its ranks
RUN_MOUNT = "/opt/fairlead/run"  # where the run's folder appears
OUTPUT_MOUNT = "/opt/fairlead/output"  # where the folder of the ranks' logs appears


@dataclass(frozen=True)
class Line:
    """One line of the plan for people: what it does, why, and the fact it rests on."""

    kind: str
    what: str
    why: str
    fact: str = ""


@dataclass(frozen=True)
class Bind:
    """A folder or file of the host that appears in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Request:
    """What the user asks for on the command line and through the environment.

    Attributes:
        mpi: ``host`` or ``container``.
        apps: programs of the image that will run; empty: any of them may.
        family: of the host's MPI, once it is chosen.
        library_path, preload: the user's LD_LIBRARY_PATH and LD_PRELOAD for the container.
        image_library_path, image_preload: the same variables as the image sets them.
        image_env: every variable that the image sets, for engines that do not read the image's record.
        searched: PATH, what Apptainer puts around it (PREPEND_PATH, APPEND_PATH) and PYTHONPATH, where the user sets them for the
            container.
        workdir: folder in the container where the command starts, if the user names it.
        gpu: send messages from GPU to GPU (MPICH_GPU_SUPPORT_ENABLED=1).
        engine_args: the user's options for the engine.
        shell: names of the variables set in the user's shell that a profile may also set.
        shell_python: variables in the user's shell that would lead the image's Python astray, e.g. ``PYTHONPATH``.
        python_env: those that the container gets, with their values.
        shell_mpi: variables in the user's shell in which an MPI of this machine names its own files: ``OPAL_PREFIX``.
        folders: variables in the user's shell that name folders which no container shows by itself: ``XDG_CACHE_HOME``.
        mpi4py: variables that make mpi4py open a given library, with that library.
        shape: where the ranks run.
        outside: facts of the named programs that are files of this machine, by the name given.
        texts: shell scripts of this machine that the command names, by the name given.
        python: what Python files of this machine that the command names import, with those next to them, by the name given.
        python_modules: names of modules that a container's Python finds on this machine, by PYTHONPATH or in the user's own
            packages, and where.
        output_dir: folder for one log per rank; empty: output goes to the launcher.
        label: the rank stands before each line of its output.
        rendezvous: whose variables the ranks get, as :func:`fairlead.rendezvous.choose.frameworks` takes it.
        comm, comm_by: the requested gradient backend and the option or variable that requests it; may be "".
        nccl: whose network plugin NCCL uses: ``auto``, ``host``, ``image``, or the path of one.
        nccl_env: the user's variables of NCCL, RCCL and libfabric.
        carry: libraries of the host below the image's own MPI, by name; ``none`` for not even the site's.
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
    searched: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    gpu: bool = False
    engine_args: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    shell_python: tuple[str, ...] = ()
    python_env: tuple[tuple[str, str], ...] = ()
    shell_mpi: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    mpi4py: tuple[tuple[str, str], ...] = ()
    shape: Shape = field(default_factory=Shape)
    outside: Mapping[str, Elf] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    python: Mapping[str, Imports] = field(default_factory=dict)
    python_modules: Mapping[str, str] = field(default_factory=dict)
    comm: str = ""
    comm_by: str = ""
    output_dir: str = ""
    label: bool = False
    rendezvous: str = "none"
    family: AbiFamily | None = None
    nccl: str = "auto"
    nccl_env: Mapping[str, str] = field(default_factory=dict)
    carry: tuple[str, ...] = ()

    def placed(self, word: str) -> str:
        """A relative path in the command as an absolute one, if it is known where the command starts."""
        relative = "/" in word and not word.startswith("/")
        if not relative or not self.workdir.startswith("/"):
            return word
        return posixpath.normpath(posixpath.join(self.workdir, word))


@dataclass(frozen=True)
class StagedFile:
    """A file of the host, and its path below the staged folder.

    Attributes:
        rpath: the DT_RPATH to set in the copy; empty: unchanged.
    """

    source: str
    target: str
    rpath: str = ""


@dataclass(frozen=True)
class Stub:
    """A library that fairlead makes, with nothing in it but the need for another; see :mod:`fairlead.elf.stub`.

    Attributes:
        target: its path below the staged folder.
        needed: the name of the library that it leads to.
        machine: as :class:`~fairlead.elf.facts.Elf` has it.
        rpath: its DT_RPATH; empty: none.
    """

    target: str
    needed: str
    machine: str
    rpath: str = ""


@dataclass(frozen=True)
class Staging:
    """A folder that holds libraries of the host for a container: its MPI, or NCCL's network plugin.

    Attributes:
        key: hash of the content; the folder's name.
        aliases: ``(link, target)``, relative, in the target's folder.
        folders: ``(folder of the host, path below the staged folder)``, copied recursively.
    """

    key: str
    files: tuple[StagedFile, ...]
    aliases: tuple[tuple[str, str], ...]
    folders: tuple[tuple[str, str], ...] = ()
    stubs: tuple[Stub, ...] = ()

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Of some libraries' names, those that lead to nothing in its ``lib``."""
        there = {f.target for f in self.files} | {link for link, _ in self.aliases}
        return [name for name in names if f"lib/{name}" not in there]


@dataclass(frozen=True)
class Inputs:
    """The facts that determine a plan.

    Attributes:
        image: path of the image.
        facts: what a scan found in the image.
        host: the MPI that replaces the image's; required when ``request.mpi`` is ``host``.
        cache: fairlead's cache folder, which will contain the staged folder.
        notes: plan lines on the choice of the host MPI.
        witness: path on the host of the library that proves a launch from inside its ranks; may be empty.
        isolate: patchelf can set a DT_RPATH in copies of the host's libraries.
        alone: each copy must find its neighbours without LD_LIBRARY_PATH, if patchelf can do that.
        paths: the profile's paths that exist on the machine.
        opened: what the engine opens, if not the image itself.
        nccl: what is wanted of NCCL.
        carried: libraries of the host below the image's own MPI.
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
    alone: bool = True
    paths: Here = NOTHING
    opened: str = ""
    nccl: Ask = field(default_factory=Ask)
    carried: tuple[HostLibrary, ...] = ()

    @property
    def swapped_in(self) -> HostMpi | None:
        """The host MPI that ranks map; None if they keep the image's MPI."""
        return self.host if self.request.mpi == "host" else None


@dataclass(frozen=True)
class Plan:
    """How to run an image on this machine. ``lines`` explains every other field.

    Attributes:
        planned_file: path in the container of the MPI library that every rank must map.
        planned_title: its vendor and version.
        family: ABI family of the mapped MPI; differs from the image's only if mpi4py crosses families.
        names: SONAMEs by which the image's programs request their MPI.
        consumers: the image's files that use MPI and that this request can run.
        glibc: how the host's libraries get the C library they need; None without a swap.
        bound: files of the image that the host's MPI is bound over, because programs find them
            before any search path.
        wrapper: words before the command in the container.
        witness: path on the host of the library that proves the launch from inside its ranks; empty if
            a separate probe job has to.
        unset: variables of the user's shell that must not reach the container.
        withheld: variables that the launcher needs or sets, and that must not reach the container either.
        devices: device nodes that the container needs.
        opened: what the engine opens: the image, or the folder it was unpacked to.
        nccl: the network plugin that the host gives to the image's NCCL; None if it gives none.
        nccl_staging: the folder for it.
        apart: further variables for ranks that each have a container, where ``engine`` joins those of a node in one.
        carried, carried_staging: libraries of the host below the image's own MPI, and the folder for them.
        nccl_ask, nccl_decision: what was wanted of NCCL, and what was decided; None in plans of older versions.
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
    withheld: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    opened: str = ""
    lines: tuple[Line, ...] = field(default=())
    nccl: NcclPlan | None = None
    nccl_staging: Staging | None = None
    nccl_ask: Ask = field(default_factory=Ask)
    nccl_decision: Decision | None = None
    carried: tuple[HostLibrary, ...] = ()
    carried_staging: Staging | None = None
    apart: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_launcher(self) -> str:
        """The ``mpiexec`` of the host's MPI, or a word for one, to be named in place of another."""
        own = self.host.launcher if self.host else None
        return own.path if own and own.path != self.launcher.path else "PATH"

    @property
    def unknown_mpi(self) -> bool:
        """The image's own MPI runs, and is of no family that fairlead knows: nobody here knows its handles."""
        return self.host is None and self.family is AbiFamily.UNKNOWN
