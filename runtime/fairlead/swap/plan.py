"""The plan: which library replaces which in a container, why it may, and how that is brought about.

``plan()`` is a pure function of facts: it touches no disk, and equal facts give equal plans.
``checks.py`` says whether a plan will work, ``stage.py`` carries out its staging, ``launch.py``
starts its ranks, ``prove.py`` sees in each of them that it came true.

``layout.py`` holds the rules of what is staged under which names; of the rest: the user's own
LD_LIBRARY_PATH stays, behind the host's MPI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fairlead.base.errors import ExitCode, fail
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_symbols import family_of_soname
from fairlead.engines.model import Engine, Takes
from fairlead.launchers.model import Launcher, Shape
from fairlead.mpi.cross_abi import MPI4PY_MODULE, crossing
from fairlead.mpi.host import HostMpi, is_binding
from fairlead.site.model import Site
from fairlead.site.resolved_paths import NOTHING, Here
from fairlead.swap.layout import (
    ALIASES,
    MOUNT,
    ROOM,
    WITNESS,
    Line,
    Staging,
    module_paths,
    search_folders,
    search_path,
    stage_layout,
)
from fairlead.swap.remedies.glibc import (
    GLIBC_FOLDER,
    Glibc,
    GlibcWay,
    choose_glibc,
    host_glibc,
    loader_words,
    tied_to,
)
from fairlead.swap.site_rules import from_site


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


def choose_host(
    facts: ImageFacts, hosts: Sequence[HostMpi], request: Request, started: bool = False
) -> tuple[HostMpi | None, tuple[Line, ...]]:
    """The first host MPI of the image's family that has a launcher, and why not the others.

    Where there is none of that family, the first of another to which what runs can cross.

    Args:
        started: the site's own launcher starts the ranks of any of them.
    """
    wanted = image_family(facts, programs_of(request))
    near = [h for h in hosts if h.library.family is wanted and (started or h.launcher is not None)]
    chosen: HostMpi | None = None
    left: list[Line] = []
    for host in hosts:
        family = host.library.family
        over = crossing(facts, programs_of(request), family)
        if family is not wanted and (near or not over.allowed):
            why = f"its family is {family}, the image's is {wanted}"
            if not near and over.modules:
                why += f"; {over.why_not}"
        elif host.launcher is None and not started:
            why = "it has no mpiexec beside it that could start its ranks"
        elif chosen is not None:
            why = f"{chosen.library.title} comes first: {chosen.found_by}"
        else:
            chosen = host
            continue
        left.append(
            Line("left out", f"{host.library.title} in {host.prefix}", why, host.library.path)
        )
    return chosen, tuple(left)


def image_family(facts: ImageFacts, programs: Sequence[str] = ()) -> AbiFamily:
    """The family of the image's own MPI, or what most of its consumers ask for when it has none.

    A program that will run and is compiled for a family decides, since an image may have several
    MPIs. Where its MPI offers several, as MPICH 5 does with libmpi.so.12 and libmpi_abi.so.1, the one that
    most consumers ask for; the programs that come with an MPI do not count.
    """
    for elf in facts.consumers:
        names = (elf.path, PurePosixPath(elf.path).name)
        asked = [f for n in elf.needed if (f := family_of_soname(n)) is not AbiFamily.UNKNOWN]
        if elf.interpreter and asked and any(name in programs for name in names):
            return asked[0]
    with_mpi = {PurePosixPath(m.path).parents[1] / "bin" for m in facts.mpis}
    wanted = [
        f
        for e in facts.consumers
        if PurePosixPath(e.path).parent not in with_mpi
        for n in e.needed
        if (f := family_of_soname(n)) != "unknown"
    ]
    own = {m.family for m in facts.mpis}
    offered = [f for f in (AbiFamily.MPICH, AbiFamily.OPENMPI, AbiFamily.MPI5) if f in own]
    if offered:
        return max(offered, key=wanted.count)  # the first of equals
    return max(set(wanted), key=wanted.count) if wanted else AbiFamily.UNKNOWN


def plan(
    image: str,
    facts: ImageFacts,
    host: HostMpi | None,
    launcher: Launcher,
    site: Site,
    engine: Engine,
    request: Request,
    cache: Path,
    notes: tuple[Line, ...] = (),
    witness: str = "",
    isolate: bool = True,
    here: Here = NOTHING,
    opened: str = "",
) -> Plan:
    """How to run ``image`` on ``host``'s MPI, or on its own with ``request.mpi == "container"``.

    Args:
        image: path of the image.
        host: the MPI that is to replace the image's; required when ``request.mpi`` is ``host``.
        cache: fairlead's cache folder, where the staged folder will be.
        notes: lines on how the host MPI was chosen.
        witness: the host's file of the library that proves a launch from within.
        isolate: copies of the host's libraries can be given a DT_RPATH.
        opened: what the engine is given to open, where that is not the image itself.
        here: what of the profile's paths is on the machine.
    Raises:
        FairleadError: exit code 121; there is nothing that could be planned at all. What can be
            planned but will not work is found by :func:`fairlead.swap.checks.check`.
    """
    own_family = replaceable(image, facts, host, engine, request, notes)
    family, consumers = own_family, _relevant(facts, request, own_family)
    if host is not None and request.mpi == "host" and host.library.family is not own_family:
        over = crossing(facts, programs_of(request), host.library.family)
        if over.allowed:
            family, consumers = host.library.family, over.modules
    lines: list[Line] = []
    env: dict[str, str] = {}
    binds: list[Bind] = []
    staging: Staging | None = None
    glibc: Glibc | None = None
    bound: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    gpu: Elf | None = None
    own = own_mpi(facts, own_family)
    if request.mpi == "host":
        assert host is not None
        glibc = choose_glibc(host, facts, engine)
        gpu = gpu_transport(host, request) if request.gpu else None
        staging = stage_layout(
            host, facts, lines, glibc.pieces, isolate=isolate, extra=(gpu,) if gpu else ()
        )
        folder = cache / "stage" / staging.key
        binds.append(Bind(str(folder), MOUNT, read_only=True))
        lines.insert(0, _replaces(own, host, own_family))
        lines.append(
            Line(
                "bind",
                f"{folder} -> {MOUNT} (read-only)",
                "the staged host MPI, seen in the container",
            )
        )
        planned = f"{MOUNT}/lib/{host.library.soname}"
        title = host.library.title
        if engine.binds_files:
            bound = _bind_over(tied_to(facts, consumers), host, folder, binds, lines)
        folders = search_folders(staging, host, apart=bool(bound or _behind(request)))
        if glibc.way is GlibcWay.LOADER:
            wrapper = loader_words(glibc, (*folders, *_behind(request)), facts)
            lines.append(_by_loader(glibc, host))
        else:
            search_path((*folders, *_behind(request)), request.library_path, env, lines)
            _images_own("LD_LIBRARY_PATH", request.image_library_path, lines)
        if glibc.way is GlibcWay.BIND:
            _bind_glibc(glibc, host, facts, folder, binds, lines)
        module_paths(staging, host, env, lines)
    else:
        if own is None:
            raise fail(
                "the image has no MPI of its own",
                where=image,
                why="no file in it defines MPI_Init",
                remedy="run with the host's MPI: `--mpi host`",
                check="image-mpi",
                code=ExitCode.PREFLIGHT_REFUSED,
            )
        planned, title = own.path, own.title
        lines.append(
            Line("keep", f"{own.title} of the image", "--mpi container asks for it", own.path)
        )
        if request.library_path:
            env["LD_LIBRARY_PATH"] = path = ":".join(_behind(request))
            lines.append(Line("env", f"LD_LIBRARY_PATH={path}", "the user's own"))
            _images_own("LD_LIBRARY_PATH", request.image_library_path, lines)
    added = from_site(
        site,
        here,
        gpu=request.gpu,
        shell=request.shell,
        bound={b.target for b in request.binds},
    )
    binds += [Bind(path, path) for path in added.binds]
    env = {**added.env, **env}
    lines += added.lines
    _namespaces(engine, host if request.mpi == "host" else None, own, env, lines)
    _wire_up(launcher, host if request.mpi == "host" else None, own, env, binds, lines)
    _preload(witness, gpu, request, env, binds, lines)
    if not engine.binds_files:
        binds = _in_a_room(binds, cache, witness, lines)
    for name in request.shell_python:
        why = "set in this shell for its own Python; the image's would follow it (--env sets it there)"
        lines.append(Line("unset", name, why))
    if opened and opened != image:
        form = (
            "a bare squashfs: the image's"
            if engine.takes is Takes.SQUASHFS
            else "folders: the image"
        )
        why = f"{engine.kind} opens {form}, laid out once at its first launch, and kept"
        lines.append(Line("engine", opened, why))
    for option, why in engine.reasons:
        lines.append(Line("engine", option, why))
    for bind in request.binds:
        lines.append(Line("bind", f"{bind.source} -> {bind.target}", "the user's own"))
    lines.append(
        Line(
            "launch",
            f"{launcher.path}  ({launcher.title})",
            _why_launcher(launcher),
        )
    )
    return Plan(
        mode=request.mpi,
        image=image,
        facts=facts,
        site=site,
        engine=engine,
        launcher=launcher,
        host=host if request.mpi == "host" else None,
        request=request,
        planned_file=planned,
        planned_title=title,
        family=family,
        names=_names(consumers, family, own),
        consumers=consumers,
        staging=staging,
        binds=(*binds, *request.binds),
        env=env,
        glibc=glibc,
        bound=bound,
        wrapper=wrapper,
        witness=witness,
        unset=request.shell_python,
        devices=here.devices,
        opened=opened or image,
        lines=(*lines, *notes),
    )


def replaceable(
    image: str,
    facts: ImageFacts,
    host: HostMpi | None,
    engine: Engine,
    request: Request,
    notes: tuple[Line, ...] = (),
    machine: str = "",
) -> AbiFamily:
    """The family of the image's MPI, once it is sure that there is something to plan.

    Args:
        machine: the name of another machine that it is planned for.

    Raises:
        FairleadError: exit code 121; the image uses no MPI, or this host has none for it.
    """
    family = image_family(facts, programs_of(request))
    if family is AbiFamily.UNKNOWN:
        raise fail(
            "nothing in the image uses MPI",
            where=image,
            why="no file of it needs a library of a known MPI family, or defines MPI_Init",
            remedy=f"run it by the engine itself: `{engine.path} exec {image} …`; or build MPI into it",
            check="no-mpi",
            code=ExitCode.PREFLIGHT_REFUSED,
        )
    if request.mpi == "host" and host is None:
        raise _no_host(family, notes, machine)
    return family


def own_mpi(facts: ImageFacts, family: AbiFamily) -> MpiLibrary | None:
    """The image's own MPI: of its family, one outside every Python prefix first."""
    own = [m for m in facts.mpis if m.family is family]
    return min(own, key=lambda m: (bool(m.python_prefix), m.path), default=None)


def _no_host(family: AbiFamily, notes: tuple[Line, ...], machine: str) -> Exception:
    seen = "\n".join(f"{n.what}: {n.why}" for n in notes)
    remedy = "name one with `--mpi PREFIX`, or run on the image's own MPI with `--mpi container`"
    return fail(
        f"no MPI of {machine or 'this host'} can replace the image's ({family} family)",
        where=f"the MPIs of {machine or 'this machine'}",
        why=seen or "none was found",
        remedy=remedy if machine else f"fairlead doctor --fix host-mpi, {remedy}",
        check="host-mpi",
        code=ExitCode.PREFLIGHT_REFUSED,
    )


def _replaces(own: MpiLibrary | None, host: HostMpi, family: AbiFamily) -> Line:
    new = f"{host.library.title} of the host"
    what = f"{own.title} of the image -> {new}" if own else f"(no MPI in the image) -> {new}"
    why = f"both are of the {family} family: one binary interface, SONAME {host.library.soname}"
    if host.library.family is not family:
        why = (
            f"mpi4py has a module for each family, and takes that of the {host.library.family} family "
            f"when it finds {host.library.soname}; nothing else of the image can"
        )
    fact = f"{own.path if own else '-'} -> {host.library.path}; chosen: {host.found_by}"
    return Line("replace", what, why, fact)


def programs_of(request: Request) -> tuple[str, ...]:
    """The programs that will run, as far as they were named."""
    return request.apps or request.command[:1]


def _relevant(facts: ImageFacts, request: Request, family: AbiFamily) -> tuple[Elf, ...]:
    """The consumers that this request can run: its programs, and every library and extension."""
    programs = set(request.apps)
    if request.command and not programs:
        first = request.command[0]
        programs = {
            e.path
            for e in facts.consumers
            if e.interpreter
            and (e.path == first or ("/" not in first and PurePosixPath(e.path).name == first))
        }
    kept: list[Elf] = []
    homes = {PurePosixPath(mpi.path).parent for mpi in facts.mpis}
    asked = {name for elf in facts.consumers for name in elf.needed}
    for elf in facts.consumers:
        beside_mpi = PurePosixPath(elf.path).parent in homes and is_binding(elf.soname)
        if beside_mpi and elf.soname not in asked:
            continue  # Fortran's or C++'s interface, which nothing in the image uses
        is_program = bool(elf.interpreter) and not elf.soname
        if programs and is_program and elf.path not in programs:
            continue
        if MPI4PY_MODULE.match(elf.path) and family not in map(family_of_soname, elf.needed):
            continue  # mpi4py holds a module a family and picks at import
        kept.append(elf)
    return tuple(kept)


def _names(consumers: Sequence[Elf], family: AbiFamily, own: MpiLibrary | None) -> tuple[str, ...]:
    asked = {n for e in consumers for n in e.needed if family_of_soname(n) is family}
    if not asked:
        same = own is not None and own.family is family
        asked = {own.soname} if own and same else {ALIASES[family]["main"][1]}
    return tuple(sorted(asked))


def _behind(request: Request) -> tuple[str, ...]:
    """What is searched behind the host's MPI: the user's folders, then the image's own."""
    given = [p for p in request.library_path.split(":") if p]
    own = [p for p in request.image_library_path.split(":") if p and p not in given]
    return (*given, *own)


def _images_own(name: str, value: str, lines: list[Line]) -> None:
    if value:
        lines.append(
            Line("behind", f"{name}={value}", "the image sets it; the engine's takes its place")
        )


def _bind_over(
    tied: Sequence[MpiLibrary], host: HostMpi, folder: Path, binds: list[Bind], lines: list[Line]
) -> tuple[str, ...]:
    """The host's MPI over those files of the image's that would be taken in any case."""
    source = str(folder / "lib" / host.library.soname)
    bound = []
    for mpi in tied:
        if mpi.family is not host.library.family:
            continue
        why = "a program's DT_RPATH leads there, before any search path"
        if mpi.python_prefix:
            why = f"mpi4py looks into its Python prefix, {mpi.python_prefix}, first"
        binds.append(Bind(source, mpi.path, read_only=True))
        lines.append(Line("bind", f"{source} -> {mpi.path} (read-only)", why, mpi.path))
        bound.append(mpi.path)
    return tuple(bound)


def _bind_glibc(
    glibc: Glibc,
    host: HostMpi,
    facts: ImageFacts,
    folder: Path,
    binds: list[Bind],
    lines: list[Line],
) -> None:
    why = (
        f"the host's libraries need GLIBC_{glibc.need}, the image has {facts.glibc}: the host's glibc "
        f"{host_glibc(host)} takes its place, whole"
    )
    for piece in glibc.pieces:
        source, target = folder / GLIBC_FOLDER / piece.soname, facts.glibc_files[piece.soname]
        binds.append(Bind(str(source), target, read_only=True))
    place = PurePosixPath(facts.glibc_files["libc.so.6"]).parent
    what = f"{folder}/{GLIBC_FOLDER}/* -> {place}/* ({len(glibc.pieces)} files, read-only)"
    lines.append(Line("bind", what, why, glibc.by))


def room_folder(cache: Path, witness: str) -> Path:
    """What :data:`~fairlead.swap.layout.ROOM` is made of for an engine that shows folders only."""
    return cache / "room" / (PurePosixPath(witness).stem or "bare")


def _in_a_room(binds: list[Bind], cache: Path, witness: str, lines: list[Line]) -> list[Bind]:
    """The witness in a folder, with empty ones in it where the others are shown.

    Such an engine makes new folders at few places only: directly below /opt, not deeper.
    """
    room = str(room_folder(cache, witness))
    why = "this engine shows folders only: the witness is in one, with places for the others"
    lines.append(Line("bind", f"{room} -> {ROOM} (read-only)", why))
    return [Bind(room, ROOM, read_only=True), *(b for b in binds if b.target != WITNESS)]


def _by_loader(glibc: Glibc, host: HostMpi) -> Line:
    why = (
        f"the host's libraries need GLIBC_{glibc.need}, and this engine cannot show single files: the "
        f"loader of the host's glibc {host_glibc(host)} starts the program; what the program starts "
        "runs on the image's"
    )
    return Line("start", f"{MOUNT}/{GLIBC_FOLDER}, by its own loader", why, glibc.by)


def gpu_transport(host: HostMpi, request: Request) -> Elf | None:
    """The host's library for messages from GPU to GPU, of the kind whose GPUs the engine shows."""
    kind = (
        "hsa"
        if "--rocm" in request.engine_args
        else "cuda"
        if "--nv" in request.engine_args
        else ""
    )
    found = [e for e in host.gpu_transport if f"_gtl_{kind}" in PurePosixPath(e.path).name]
    return found[0] if found else None


def _preload(
    witness: str,
    transport: Elf | None,
    request: Request,
    env: dict[str, str],
    binds: list[Bind],
    lines: list[Line],
) -> None:
    """The witness stands before what the user preloads, so that a tracer's MPI_Init is seen too."""
    gpu = f"{MOUNT}/lib/{PurePosixPath(transport.path).name}" if transport else ""
    parts = (WITNESS if witness else "", gpu, request.preload, request.image_preload)
    preload = ":".join(filter(None, parts))
    if not preload or preload == request.image_preload:
        return
    env["LD_PRELOAD"] = preload
    why = "the user's own, kept"
    if witness:
        binds.append(Bind(witness, WITNESS, read_only=True))
        why = "sees the program's own MPI_Init and proves what it came to"
        lines.append(Line("bind", f"{witness} -> {WITNESS} (read-only)", why))
        why += "; the user's own follows" if request.preload else ""
    if transport:
        why += (
            "; the GPU transport library, which the MPI looks for when MPICH_GPU_SUPPORT_ENABLED=1"
        )
    lines.append(Line("env", f"LD_PRELOAD={preload}", why))
    _images_own("LD_PRELOAD", request.image_preload, lines)


def speaks(library: MpiLibrary | None, family: AbiFamily) -> AbiFamily:
    """The family whose launchers an MPI's ranks can be started by.

    The ABI of the MPI-5 standard says nothing of launchers, so there it is the vendor's.
    """
    if library is None or library.family is not AbiFamily.MPI5:
        return library.family if library else family
    return AbiFamily.OPENMPI if library.vendor == "Open MPI" else AbiFamily.MPICH


def _why_launcher(launcher: Launcher) -> str:
    if launcher.kind == "srun" and launcher.pmi:
        return (
            f"Slurm starts the ranks; they find each other by {launcher.pmi}, which the mapped MPI "
            "speaks and `srun --mpi=list` offers"
        )
    if launcher.kind in ("mpiexec", "hydra", "openmpi"):
        return "the launcher of the MPI that will be mapped; another family's would leave every rank alone"
    return "the launcher of this site"


def _wire_up(
    launcher: Launcher,
    host: HostMpi | None,
    own: MpiLibrary | None,
    env: dict[str, str],
    binds: list[Bind],
    lines: list[Line],
) -> None:
    """What ranks need to find each other under srun.

    Intel MPI takes PMI-1 unless it is told, and Slurm's plugin speaks PMI-2 only. PMIx has files.
    """
    for folder in launcher.folders:
        if PurePosixPath(folder).parts[:2] == ("/", "tmp"):
            continue  # every engine shows it
        binds.append(Bind(folder, folder))
        lines.append(
            Line("bind", f"{folder} -> {folder}", "Slurm's PMIx keeps files there that ranks read")
        )
    library = host.library if host else own
    intel = library is not None and library.vendor == "Intel MPI"
    if intel and launcher.kind == "srun" and launcher.pmi:
        env["I_MPI_PMI"] = launcher.pmi
        why = "Intel MPI must be told how srun lets ranks find each other"
        lines.append(Line("env", f"I_MPI_PMI={launcher.pmi}", why))


def _namespaces(
    engine: Engine,
    host: HostMpi | None,
    own: MpiLibrary | None,
    env: dict[str, str],
    lines: list[Line],
) -> None:
    """Ranks in user namespaces of their own may not read each other's memory or descriptors."""
    library = host.library if host else own
    if not engine.userns_per_rank or library is None:
        return
    why = "each rank has a user namespace of its own here, so cross-memory attach is refused"
    settings: dict[str, str] = {}
    if library.vendor in ("MPICH", "MVAPICH", "Cray MPICH", "unknown"):
        settings = {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "UCX_POSIX_USE_PROC_LINK": "n"}
    elif library.vendor == "Intel MPI":
        settings = {"I_MPI_SHM_CMA": "0"}
    elif library.vendor == "Open MPI":
        settings = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_smsc": "^cma"}
    for name, value in settings.items():
        env[name] = value
        lines.append(Line("env", f"{name}={value}", why))
