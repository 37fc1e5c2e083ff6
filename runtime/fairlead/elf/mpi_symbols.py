"""Identifies an MPI library: family, vendor, version and level, from the file alone.

Symbols decide and names only confirm: distributions rename libraries, and wheels strip the version from
their names. What cannot be determined stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from fairlead.base.regular import open_regular
from fairlead.elf import reader as elf_file
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts, MpiLibrary
from fairlead.elf.mpi_standard import FORTRAN_RANKS, FORTRAN_STARTS, fortran_names

_MOST_SEARCHED_BYTES = 1 << 30  # MPIs have up to 60 MB
# Pieces of glibc. Injecting one of them by search path breaks every program that is started
# (`undefined symbol: __tunable_is_initialized, version GLIBC_PRIVATE`): they come as a set or not.
GLIBC_PIECES = re.compile(
    r"(ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libnss_\w+|libnsl(?!\.so\.2)|libutil|libanl|"
    r"libmvec|libthread_db|libBrokenLocale)\.so(\.\d+)*$"
)
# Compiler runtime libraries: a process has one of each, and the newer of host and image wins.
RUNTIME_PIECES = frozenset(
    {"libstdc++.so.6", "libgcc_s.so.1", "libgfortran.so.5", "libquadmath.so.0"}
)
# What a NEEDED entry asks for, where nothing of that name is there to be looked at.
_REQUEST = re.compile(r"lib(p?mpi|p?mpich)(_\w+)?\.so(\.\d+)*$")
_REQUESTS = (
    (AbiFamily.MPI5, re.compile(r"libp?mpi_abi\b.*\.so")),
    (AbiFamily.MPICH, re.compile(r"libp?(mpi|mpich)(_\w+)?\.so\.12$")),
    (AbiFamily.OPENMPI, re.compile(r"libmpi\.so\.(20|40)$|libmpi_ibm\.so\.\d+$")),
)
_BINDING = re.compile(
    r"lib(mpi(ch)?(fort|cxx|f90)|mpi_(mpifh|usempi\w*|cxx|f77|f90|java)|oshmem)\.so(\.\d+)*$"
)
# Open MPI's ABI-independent part, a library of its own since release 6; programs need it by name.
_CORES = re.compile(r"libopen_mpi\.so(\.\d+)*$")
# Functions of an MPI. MPI 2.2 without its files has about 250; three calls bring 123 of MPICH 4.0.2's static library.
_WHOLE = 240
_STARTS = {"MPI_Init", "MPI_Init_thread"}
_PROFILED = {"PMPI_Init", *fortran_names("PMPI_Init"), *fortran_names("PMPI_Init_thread")}
_SMALLEST = {"MPI_Init", "MPI_Comm_rank"}  # MUMPS's serial one has no MPI_Comm_size for C
_LEVELS = (
    ("5.0", "MPI_Abi_get_version"),
    ("4.0", "MPI_Session_init"),
    ("3.1", "MPI_Aint_add"),
    ("3.1", "MPI_File_iread_at_all"),  # the other is a macro of Open MPI's
    ("3.0", "MPI_Iallreduce"),
)
# Vendor, what its file says, where its version stands.
_VENDORS = (
    ("Cray MPICH", rb"CRAY MPICH version", rb"CRAY MPICH version (\d+\.\d+[\w.]*)"),
    ("MVAPICH", rb"MVAPICH2? Version", rb"\0([234]\.\d+(?:\.\d+)?\w*)\0"),
    ("MPICH", rb"MPICH Version", rb"\0([345]\.\d+(?:\.\d+)?(?:[abrc]+\d+)?)\0"),
)
_OF_MPICH = ("MPICH", "Intel MPI", "Cray MPICH", "MVAPICH")
# By what a library finds its neighbours: the variables that it reads, and functions of the interface's library.
_PMI = (
    ("pmi", rb"PMI_FD|PMI_PORT|PMI_RANK|PMI2?_Init"),
    ("pmix", rb"PMIX_NAMESPACE|PMIX_RANK|PMIx_Init"),
)
_PMI_LIBRARY = re.compile(r"lib(pmix|pmi)2?\.so")
_INTEL_VERSION = rb"\0(20\d\d\.\d+\.\d+)\0"
_INTEL_LOOSE = rb"(20\d\d\.\d{1,2}\.\d{1,2})"


def is_mpi_library(elf: Elf) -> bool:
    """A shared library that *is* an MPI.

    A profiler wraps one, and imports ``PMPI_Init``. A library into which a static MPI was linked has, if it exports
    them, only the functions that it uses and what those use; under another name than an MPI's, only the whole counts.
    """
    exports = set(elf.mpi_exports)
    if not elf.soname or not {"MPI_Init", "MPI_Comm_rank"} <= exports or _wraps(elf):
        return False
    return is_request(elf.soname) or sum(name.startswith("MPI_") for name in exports) >= _WHOLE


def homemade(elves: Mapping[str, Elf], behind: Callable[[str], Iterable[Elf]]) -> set[str]:
    """Paths of the libraries that are MPIs by their use alone: too few functions for a whole one, or no MPI's name.

    What starts MPI, in C or in Fortran, gets that from such a library, or from its interface to Fortran, and has no other
    MPI. A library that contains one of a known family is something else.

    Args:
        elves: the files of a tree by path.
        behind: the libraries behind a path, in the order in which the loader looks for symbols.
    """
    paths = set()
    for elf in elves.values():
        if starts := (_STARTS | FORTRAN_STARTS).intersection(elf.mpi_imports):
            libraries = list(behind(elf.path))
            first = next((e for e in libraries if starts.intersection(e.mpi_exports)), None)
            if first and not _has_known(elf, libraries):
                paths |= _implementing([first, *behind(first.path)]) or _implementing(libraries)
    return paths


def _has_known(elf: Elf, libraries: Sequence[Elf]) -> bool:
    """Among the libraries behind a file is an MPI by its name or its size, or one is missing."""
    missing = {n for e in (elf, *libraries) for n in e.needed} - {e.name for e in libraries}
    return any(map(is_mpi_library, libraries)) or any(map(is_request, missing))


def _implementing(libraries: Iterable[Elf]) -> set[str]:
    """The path of the first that can be an MPI: one for C, which Fortran's interface needs too, else one for Fortran."""
    able = [
        e for e in libraries if e.soname and e.holds in ("", AbiFamily.UNKNOWN) and not _wraps(e)
    ]
    for_c = (e.path for e in able if _SMALLEST.issubset(e.mpi_exports))
    own = (e for e in able if _is_fortrans(e) and not _STARTS.intersection(e.mpi_imports))
    for_fortran = (e.path for e in own if FORTRAN_RANKS.intersection(e.mpi_exports))
    path = next(for_c, None) or next(for_fortran, None)
    return {path} if path else set()


def _is_fortrans(elf: Elf) -> bool:
    """It has MPI's functions for Fortran, and not those for C."""
    exports = set(elf.mpi_exports)
    return bool(FORTRAN_STARTS & exports) and not _STARTS & exports


def contains_mpi(elf: Elf) -> bool:
    """A program, a library or an extension module has an MPI inside.

    An MPI itself and its parts do not count, nor does a tracer, which wraps one. Libraries such as ParMETIS, which
    neither need nor contain one, rely on the program that loads them.
    """
    if _wraps(elf) or is_mpi_library(elf):
        return False
    if is_request(elf.soname) or is_binding(elf.soname):
        return False  # libpmpi.so.12, libopen_mpi.so.40
    return bool(elf.holds) or ("MPI_Init" in elf.mpi_exports and not elf.soname)


def _wraps(elf: Elf) -> bool:
    return bool(_PROFILED.intersection(elf.mpi_imports))


def is_binding(soname: str) -> bool:
    """Whether a library is an MPI's interface for another language, or to its core."""
    return bool(_BINDING.match(soname) or _CORES.match(soname))


def is_interface(elf: Elf) -> bool:
    """As :func:`is_binding`, also under a name of its own: it has MPI's functions for Fortran alone."""
    return is_binding(elf.soname) or (bool(elf.soname) and _is_fortrans(elf))


def is_core(soname: str) -> bool:
    """Whether a library is the part of an MPI that its own front and programs share."""
    return bool(_CORES.match(soname))


def is_request(soname: str) -> bool:
    """Whether a NEEDED entry asks for an MPI, even one of an unknown family.

    >>> is_request("libmpi_ibm.so.3"), is_request("libmpi.so.1"), is_request("libmpifort.so.12")
    (True, True, False)
    """
    return bool(_REQUEST.match(soname)) and not is_binding(soname)


def family_of_soname(soname: str) -> AbiFamily:
    """The family that a NEEDED entry asks for, by its name alone; UNKNOWN for libraries that are not MPI.

    >>> family_of_soname("libmpich.so.12"), family_of_soname("libmpi.so.40")
    (<AbiFamily.MPICH: 'mpich'>, <AbiFamily.OPENMPI: 'openmpi'>)
    """
    if not is_request(soname):
        return AbiFamily.UNKNOWN
    return next((f for f, pattern in _REQUESTS if pattern.match(soname)), AbiFamily.UNKNOWN)


def asked_by(facts: ImageFacts, elf: Elf) -> dict[str, AbiFamily]:
    """The names by which a file of an image needs MPIs, and the family of each: that of the file behind the name.

    Where the image has no such file, the name decides.
    """
    families = {mpi.path: mpi.family for mpi in facts.mpis}
    families_of = {n: families.get(p) for n, p in facts.leads.get(elf.path, {}).items()}
    asked = {name: families_of.get(name) or family_of_soname(name) for name in elf.needed}
    return {name: family for name, family in asked.items() if family is not AbiFamily.UNKNOWN}


def own_functions(facts: ImageFacts) -> frozenset[str]:
    """What the MPIs of an image and their interfaces define."""
    parts = (*(mpi.elf for mpi in facts.mpis), *filter(is_interface, facts.consumers))
    return frozenset(name for elf in parts for name in elf.mpi_exports)


def called(elf: Elf, own: Collection[str]) -> tuple[str, ...]:
    """The functions of MPI that a file calls.

    Args:
        own: what the image's MPIs define. Lower-case names that they do not have are somebody else's Fortran.
    """
    return tuple(name for name in elf.mpi_imports if "MPI_" in name[:5] or name in own)


def identify(
    path: Path,
    elf: Elf,
    names: tuple[str, ...] = (),
    python_prefix: str = "",
    behind: Iterable[Elf] = (),
) -> MpiLibrary:
    """What the MPI library at ``path``, whose facts are ``elf``, is.

    Args:
        path: the real file, readable here.
        names: every name in its folder that leads to it.
        python_prefix: see :class:`MpiLibrary`.
        behind: the libraries that it needs. Open MPI 6 is in one of them, and what programs link is a front of it.
    """
    exports, behind = set(elf.mpi_exports), tuple(behind)
    is_open = any("ompi_mpi_comm_world" in e.mpi_exports for e in (elf, *behind))
    vendor, version = ("Open MPI", "") if is_open else _vendor(path, exports)
    if _is_abi(elf, vendor):
        family = AbiFamily.MPI5
    elif is_open:
        # No Open MPI release keeps its version as a plain string; the proof asks the library itself.
        family = AbiFamily.OPENMPI
    elif family_of_soname(elf.soname) is AbiFamily.MPICH or vendor in _OF_MPICH:
        family = AbiFamily.MPICH
    else:
        family = AbiFamily.UNKNOWN
    level = next((level for level, symbol in _LEVELS if symbol in exports), "2.2")
    pmi = _pmi(path, (elf, *behind)) if family is AbiFamily.UNKNOWN else ""
    return MpiLibrary(elf, family, vendor, version, level, names, python_prefix, pmi)


def _pmi(path: Path, parts: Iterable[Elf]) -> str:
    """How the ranks of an unknown MPI find each other; empty where neither it nor what it needs says so."""
    needed = (_PMI_LIBRARY.match(name) for part in parts for name in part.needed)
    if soname := next(filter(None, needed), None):
        return soname[1]
    with open_regular(path, follow=True) as stream:
        data = stream.read(_MOST_SEARCHED_BYTES)
    return next((pmi for pmi, sign in _PMI if re.search(sign, data)), "")


def _is_abi(elf: Elf, vendor: str) -> bool:
    """The MPI-5 ABI, by name; under another name, by what it has (its version) and lacks (conversions of handles).

    MPICH 5's libmpi.so.12 has both. Intel's has neither conversions of its own nor the ABI.
    """
    if family_of_soname(elf.soname) is not AbiFamily.UNKNOWN:
        return family_of_soname(elf.soname) is AbiFamily.MPI5
    exports = set(elf.mpi_exports)
    has = "MPI_Abi_get_version" in exports and "MPI_Comm_c2f" not in exports
    return has and vendor != "Intel MPI"


def _vendor(path: Path, exports: set[str]) -> tuple[str, str]:
    with open_regular(path, follow=True) as stream:
        data = stream.read(_MOST_SEARCHED_BYTES)
    if "I_MPI_Check_image_status" in exports or b"Intel(R) MPI Library" in data:
        match = re.search(_INTEL_VERSION, data) or re.search(_INTEL_LOOSE, data)
        return "Intel MPI", match[1].decode() if match else ""
    for vendor, sign, pattern in _VENDORS:
        if re.search(sign, data):
            match = re.search(pattern, data)
            return vendor, match[1].decode() if match else ""
    return "unknown", ""


def read_mpi(path: Path) -> MpiLibrary:
    """The MPI library at ``path`` of this machine, with its names in its folder.

    Raises:
        ValueError: it is not an MPI library (NotElf when it is not an ELF file at all).
    """
    real = path.resolve()
    facts = elf_file.read(real)
    if not is_mpi_library(facts):
        raise ValueError(f"{path} does not define MPI_Init: it is not an MPI library")
    names = sorted(p.name for p in real.parent.iterdir() if ".so" in p.name and p.resolve() == real)
    near = [real.with_name(name) for name in facts.needed if is_binding(name)]
    behind = [elf_file.read(path) for path in near if path.is_file()]
    return identify(real, facts, tuple(names), behind=behind)
