"""The MPIs that are installed, as their libraries say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.detect.machine import MpiMachine
from fairlead.detect.model import MpiFact, Unknown
from fairlead.mpi.host import HostMpi

# Variables by which modules name a prefix, and folders in which Cray keeps libraries for foreign programs.
VARIABLES = ("CRAY_MPICH_DIR", "MPICH_DIR", "I_MPI_ROOT", "MPI_ROOT", "MPI_HOME", "MPI_DIR", "OPENMPI_DIR")  # fmt: skip
PLACES = (
    "/opt/cray/pe/mpich/default/ofi/gnu/*/lib-abi-mpich",
    "/opt/cray/pe/mpich/*/ofi/gnu/*/lib-abi-mpich",
    "/opt/cray/pe/mpt/default/gni/mpich-gnu-abi/*/lib",
    "/opt/cray/pe/mpt/*/gni/mpich-gnu-abi/*/lib",
    "/usr/lib/shifter/mpich-*",
    "/opt/intel/oneapi/mpi/latest",
    "/opt/ibm/spectrum_mpi",
)


def probe(world: MpiMachine) -> dict[str, Any]:
    by_path: dict[str, HostMpi] = {}
    for mpi in world.host_mpis():
        by_path.setdefault(mpi.library.path, mpi)
    for folder, reason in _named(world):
        for mpi in world.mpis_below(folder, reason):
            by_path.setdefault(mpi.library.path, mpi)
    unknown = tuple(
        Unknown(f"which MPI {mpi.launcher.path} is of", "its `--version` does not say")
        for mpi in by_path.values()
        if mpi.launcher and mpi.launcher.family.value == "unknown"
    )
    return {"mpis": tuple(map(fact, by_path.values())), "unknown": unknown}


def _named(world: MpiMachine) -> Iterator[tuple[str, str]]:
    for variable in VARIABLES:
        if (value := world.environ.get(variable, "")) and value.startswith("/"):
            yield value, f"named by ${variable}"
    for pattern in PLACES:
        for folder in world.matching(pattern):
            yield folder, "where its maker installs it"


def fact(mpi: HostMpi) -> MpiFact:
    """What of an MPI is a fact for people and profiles."""
    library = mpi.library
    return MpiFact(
        vendor=library.vendor,
        version=library.version,
        family=library.family.value,
        level=library.level,
        soname=library.soname,
        prefix=mpi.prefix,
        path=library.path,
        launcher=mpi.launcher.path if mpi.launcher else "",
        launcher_title=mpi.launcher.title if mpi.launcher else "",
        missing=tuple(sorted({name for name, _ in mpi.missing})),
        closure={e.soname or e.path.rpartition("/")[2]: e.path for e in mpi.closure},
        seen=f"{library.path}, {mpi.found_by}",
    )
