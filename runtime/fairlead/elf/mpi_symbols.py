"""Identifies an MPI library: family, vendor, version and level, from the file alone.

Symbols decide and names only confirm: distributions rename libraries, and wheels strip the version from
their names. What cannot be determined stays unknown.
"""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.elf import reader as elf_file
from fairlead.elf.facts import AbiFamily, Elf, MpiLibrary

# Pieces of glibc. Injecting one of them by search path breaks every program that is started
# (`undefined symbol: __tunable_is_initialized, version GLIBC_PRIVATE`): they come as a set or not.
GLIBC_PIECES = re.compile(
    r"(ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libnss_\w+|libnsl(?!\.so\.2)|libutil|libanl|"
    r"libmvec|libthread_db|libBrokenLocale)\.so(\.\d+)*$"
)
_ABI_SONAME = re.compile(r"libmpi_abi\b.*\.so")
_MPICH_SONAME = re.compile(r"lib(mpi|mpich)(_\w+)?\.so\.12$")
_LEVELS = (
    ("5.0", "MPI_Abi_get_version"),
    ("4.0", "MPI_Session_init"),
    ("3.1", "MPI_Aint_add"),
    ("3.0", "MPI_Iallreduce"),
)
# Vendor, what its file says, where its version stands.
_VENDORS = (
    ("Cray MPICH", rb"CRAY MPICH version", rb"CRAY MPICH version (\d+\.\d+[\w.]*)"),
    ("MVAPICH", rb"MVAPICH2? Version", rb"\0([234]\.\d+(?:\.\d+)?\w*)\0"),
    ("MPICH", rb"MPICH Version", rb"\0([345]\.\d+(?:\.\d+)?(?:[abrc]+\d+)?)\0"),
)
_INTEL_VERSION = rb"\0(20\d\d\.\d+\.\d+)\0"
_INTEL_LOOSE = rb"(20\d\d\.\d{1,2}\.\d{1,2})"


def is_mpi_library(elf: Elf) -> bool:
    """A shared library that *is* an MPI, not a profiler that wraps one (those import ``PMPI_Init``)."""
    defines_mpi = {"MPI_Init", "MPI_Comm_rank"} <= set(elf.mpi_exports)
    return bool(elf.soname) and defines_mpi and "PMPI_Init" not in elf.mpi_imports


def family_of_soname(soname: str) -> AbiFamily:
    """The family that a NEEDED entry asks for; UNKNOWN for libraries that are no MPI.

    >>> family_of_soname("libmpich.so.12"), family_of_soname("libmpi.so.40")
    (<AbiFamily.MPICH: 'mpich'>, <AbiFamily.OPENMPI: 'openmpi'>)
    """
    if _ABI_SONAME.match(soname):
        return AbiFamily.MPI5
    if _MPICH_SONAME.match(soname):
        return AbiFamily.MPICH
    if re.match(r"libmpi\.so\.(20|40)$", soname):
        return AbiFamily.OPENMPI
    return AbiFamily.UNKNOWN


def identify(
    path: Path, elf: Elf, names: tuple[str, ...] = (), python_prefix: str = ""
) -> MpiLibrary:
    """What the MPI library at ``path``, whose facts are ``elf``, is.

    Args:
        path: the real file, readable here.
        names: every name in its folder that leads to it.
        python_prefix: see :class:`MpiLibrary`.
    """
    exports = set(elf.mpi_exports)
    if _ABI_SONAME.match(elf.soname):
        family = AbiFamily.MPI5
    elif "ompi_mpi_comm_world" in exports:
        family = AbiFamily.OPENMPI
    elif _MPICH_SONAME.match(elf.soname):
        family = AbiFamily.MPICH
    else:
        family = AbiFamily.UNKNOWN
    vendor, version = _vendor(path, exports)
    level = next((level for level, symbol in _LEVELS if symbol in exports), "2.2")
    return MpiLibrary(elf, family, vendor, version, level, names, python_prefix)


def _vendor(path: Path, exports: set[str]) -> tuple[str, str]:
    if "ompi_mpi_comm_world" in exports:
        # No Open MPI release keeps its version as a plain string; the proof asks the library itself.
        return "Open MPI", ""
    data = path.read_bytes()
    if "I_MPI_Check_image_status" in exports or b"Intel(R) MPI Library" in data:
        found = re.search(_INTEL_VERSION, data) or re.search(_INTEL_LOOSE, data)
        return "Intel MPI", found[1].decode() if found else ""
    for vendor, sign, pattern in _VENDORS:
        if re.search(sign, data):
            found = re.search(pattern, data)
            return vendor, found[1].decode() if found else ""
    return "unknown", ""


def read_mpi(path: Path) -> MpiLibrary:
    """The MPI library at ``path`` of this machine, with its names in its folder.

    Raises:
        ValueError: it is not an MPI library (NotElf when it is no ELF file at all).
    """
    real = path.resolve()
    facts = elf_file.read(real)
    if not is_mpi_library(facts):
        raise ValueError(f"{path} does not define MPI_Init: it is not an MPI library")
    names = sorted(p.name for p in real.parent.iterdir() if ".so" in p.name and p.resolve() == real)
    return identify(real, facts, tuple(names))
