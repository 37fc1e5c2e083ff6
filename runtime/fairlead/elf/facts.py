"""What is known of images and hosts, as frozen values: the input of the plan.

Everything here comes from ELF files, never from file names or distribution versions. :mod:`fairlead.image.scan`
fills these for a folder, :mod:`fairlead.image.open` for an image, :mod:`fairlead.mpi.host` for a host's MPI.
"""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

from fairlead.base.python_imports import Imports


class AbiFamily(enum.StrEnum):
    """Who can replace whom. No compiled C program crosses these lines."""

    MPICH = "mpich"  # libmpi.so.12: MPICH, Intel MPI, Cray MPICH's ABI build, MVAPICH
    OPENMPI = "openmpi"  # libmpi.so.40: Open MPI, Spectrum MPI
    MPI5 = "mpi-abi"  # libmpi_abi.so.1: the MPI-5 standard's own ABI
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Elf:
    """One ELF file's facts.

    Attributes:
        path: inside its root, absolute.
        build_id: hex of the GNU build id, empty when it has none.
        rpath: DT_RPATH entries: searched *before* LD_LIBRARY_PATH, unless there is a RUNPATH.
        runpath: DT_RUNPATH entries: searched after LD_LIBRARY_PATH.
        needs: highest symbol version needed, by prefix: ``{"GLIBC": "2.34", "GLIBCXX": "3.4.30"}``.
        offers: highest symbol version defined, by prefix; filled for libraries.
        mpi_imports: undefined strong ``MPI_*`` and ``PMPI_*`` symbols, and Fortran's: ``mpi_*``, with underscores or not.
        mpi_exports: defined ones; a static program with some contains an MPI.
        holds: family of the MPI whose code is in the file, found by symbols, or by the texts of MPI_Init in a
            stripped one; ``unknown`` for one of no known family; empty: none was found. See :func:`~fairlead.elf.mpi_symbols.contains_mpi`.
        can_start: it is a program: by its interpreter, its type, or its flags (static-pie).
        opens, starts: it can open libraries (dlopen); a program can start others (exec, posix_spawn). By its symbols;
            a static program without symbols may start others.
        imports, calls: other strong symbols that it needs of the MPI in its image, by the real path of the library
            that defines them: those that must be there when it is loaded, and those that are looked up at the first
            call. Libraries with symbol versions are left out, for they keep what they once had.
        tied: MPIs of the image that its loading finds by a DT_RPATH, its own or that of what loads.
        nccl_exports: what it defines of NCCL's interface to programs and to plugins, as far as that identifies one.
    """

    path: str
    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    offers: Mapping[str, str] = field(default_factory=dict)
    mpi_imports: tuple[str, ...] = ()
    mpi_exports: tuple[str, ...] = ()
    interpreter: str = ""
    build_id: str = ""
    holds: str = ""
    can_start: bool = False
    opens: bool = False
    starts: bool = False
    tied: tuple[str, ...] = ()
    imports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nccl_exports: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its SONAME, or the name of its file."""
        return self.soname or posixpath.basename(self.path)

    @property
    def rpath_folders(self) -> tuple[str, ...]:
        """DT_RPATH as folders; empty when a RUNPATH makes the loader ignore it (ld.so(8))."""
        return () if self.runpath else expanded(self.rpath, posixpath.dirname(self.path))

    @property
    def runpath_folders(self) -> tuple[str, ...]:
        """DT_RUNPATH as folders."""
        return expanded(self.runpath, posixpath.dirname(self.path))


# What loaders put for $LIB: Debian's, Fedora's, and those of 32 bits or of one architecture.
LIB = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib")
_PLATFORM = ("haswell", "xeon_phi", "x86_64", "aarch64")
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")


def expanded(entries: Iterable[str], origin: str) -> tuple[str, ...]:
    """Search paths of a file in the folder ``origin``, with ``$ORIGIN``, ``$LIB`` and ``$PLATFORM`` replaced (ld.so(8)).

    The last two are constants of a loader and of a processor: all of their usual values.
    """
    paths = []
    for entry in entries:
        for lib, platform in product(LIB, _PLATFORM):
            values = {"ORIGIN": origin, "LIB": lib, "PLATFORM": platform}
            path = _TOKEN.sub(lambda token: values[token[1] or token[2]], entry)  # noqa: B023
            paths.append(posixpath.normpath(path))
    return tuple(dict.fromkeys(paths))


@dataclass(frozen=True)
class MpiLibrary:
    """An MPI library, identified from its file.

    Attributes:
        path: the real file, symlinks resolved, absolute in its root.
        names: every name in its own folder that leads to it, sorted.
        vendor: ``MPICH``, ``Intel MPI``, ``Cray MPICH``, ``MVAPICH``, ``Open MPI``, or ``unknown``.
        version: as found in the file, empty if the file does not contain it (Open MPI).
        level: MPI standard reached, from exported symbols: ``3.1``, ``4.0``, ``5.0``.
        python_prefix: the Python prefix whose ``lib`` it sits in, else empty. mpi4py loads such a
            library before any other, so it can never be swapped by search path.
        pmi: how its ranks find each other, ``pmi`` or ``pmix``, as far as its file says so; looked for only where its
            family is unknown.
    """

    elf: Elf
    family: AbiFamily
    vendor: str
    version: str
    level: str
    names: tuple[str, ...] = ()
    python_prefix: str = ""
    pmi: str = ""

    @property
    def path(self) -> str:
        return self.elf.path

    @property
    def soname(self) -> str:
        return self.elf.soname

    @property
    def title(self) -> str:
        """``MPICH 3.4.3``; for messages."""
        if self.family is AbiFamily.UNKNOWN:
            return f"an unknown MPI ({self.soname})"
        return f"{self.vendor} {self.version}".strip()


@dataclass(frozen=True)
class NcclLibrary:
    """A libnccl or librccl, identified from its file.

    Attributes:
        path: the real file, absolute in its root.
        kind: ``nccl`` or ``rccl``.
        version: ``2.27.5``; empty if the file does not contain it.
        runtime: what it was built for: ``cuda12.4``, ``rocm6.2``; empty if unknown.
        asks: versions of each interface that it asks plugins for, by kind, ascending; empty if unknown.
    """

    path: str
    soname: str
    kind: str
    version: str
    runtime: str
    elf: Elf
    asks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """``NCCL 2.27.5``; for messages."""
        return f"{self.kind.upper()} {self.version}".strip()


@dataclass(frozen=True)
class NetPlugin:
    """A plugin of NCCL or RCCL, identified from its file.

    Attributes:
        path: the real file, absolute in its root.
        interfaces: versions of each interface that it exports, by kind: ``net``, ``collnet``, ``tuner``,
            ``profiler``, ``gin``; ascending.
        name: of the network that it reports, ``Libfabric``; empty if unknown.
        release: of aws-ofi-nccl, ``1.18.0``; empty if unknown.
        runtime: what it was built for: ``cuda12``, ``rocm6``; empty if unknown.
        opens: names that it passes to dlopen: ``libcuda.so``.
    """

    path: str
    soname: str
    interfaces: Mapping[str, tuple[int, ...]]
    name: str
    release: str
    runtime: str
    opens: tuple[str, ...]
    elf: Elf

    @property
    def title(self) -> str:
        """``aws-ofi-nccl 1.18.0``, or the name of its file; for messages."""
        return f"aws-ofi-nccl {self.release}" if self.release else posixpath.basename(self.path)


@dataclass(frozen=True)
class ImageFacts:
    """What the plan must know of an image's tree.

    Attributes:
        glibc: version of the image's libc, e.g. ``2.36``.
        libstdcxx: highest ``GLIBCXX_`` its libstdc++ defines, empty without one.
        libgfortran: highest ``GFORTRAN_`` its libgfortran.so.5 defines, empty without one.
        mpis: every MPI library in it.
        consumers: every ELF file that needs an MPI itself, or contains one.
        glibc_floor: highest ``GLIBC_`` that any file of the image needs.
        glibc_files: where the pieces of its glibc are, real paths by SONAME.
        runtime: SONAMEs of all pieces of glibc and of compilers' run time in it, wherever they are. Empty in facts of older
            versions.
        leads: of every file behind which is an MPI, what it needs on the way: real paths by NEEDED name.
        parts: of consumers and of the MPIs' own libraries without symbol versions: which of the latter each needs, as
            in ``leads``.
        programs: what can be started, by path: "" for a program, with ``opens`` (libraries, itself or by what it
            links), ``python`` (it contains the interpreter), ``starts`` (programs) and ``static``; ``#!`` and its words
            for a script; ``-> PATH`` for a symlink, also of a folder or an MPI. Empty in facts of older versions: nothing is
            known of programs.
        named: of a script, or a program that opens libraries, the programs with an MPI and the MPIs that its text names.
        commands: of a shell script, the commands that it starts, where its text names them all.
        launchers: of a script, the MPI launcher that its text names.
        capable: programs with an MPI that have file capabilities.
        set_ids: those that change to another user or group than root's, and what their loader does not find of what
            they need: it ignores LD_LIBRARY_PATH for them.
        nccl: every libnccl and librccl in it.
        net_plugins: every plugin of theirs.
        nccl_conf: what /etc/nccl.conf or /etc/rccl.conf sets.
        nccl_mapped: of files that need an NCCL, the real path of what their loader finds; empty: nothing.
        drivers: paths of GPU driver libraries in it, as CUDA's compatibility package brings one.
        gpu_libraries: paths of the run times of CUDA and ROCm in it, by SONAME.
        lacking: of programs and Python modules with an MPI, the libraries that they need, themselves or by others, and that
            the image has nowhere; each with the file that needs it.
        preloaded: real paths of what /etc/ld.so.preload names.
        python_imports: where several Python packages lead to an MPI: what these, the packages that import them, and all
            Python files outside of packages import of each other, by path. See :mod:`fairlead.image.python_modules`. Empty
            otherwise, and in facts of older versions.
        unpacks: of programs that unpack an MPI when they start, and are linked to it: its names.
    """

    arch: str
    glibc: str
    libstdcxx: str
    os: str
    python: str
    mpis: tuple[MpiLibrary, ...]
    consumers: tuple[Elf, ...]
    glibc_floor: str = ""
    files: int = 0
    glibc_files: Mapping[str, str] = field(default_factory=dict)
    runtime: tuple[str, ...] = ()
    libgfortran: str = ""
    leads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    commands: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    capable: tuple[str, ...] = ()
    set_ids: Mapping[str, str] = field(default_factory=dict)
    nccl: tuple[NcclLibrary, ...] = ()
    net_plugins: tuple[NetPlugin, ...] = ()
    nccl_conf: Mapping[str, str] = field(default_factory=dict)
    nccl_mapped: Mapping[str, str] = field(default_factory=dict)
    drivers: tuple[str, ...] = ()
    gpu_libraries: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    preloaded: tuple[str, ...] = ()
    python_imports: Mapping[str, Imports] = field(default_factory=dict)
    unpacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    launchers: Mapping[str, str] = field(default_factory=dict)
