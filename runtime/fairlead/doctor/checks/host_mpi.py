"""Is there a host MPI that can stand in for an image's, and a launcher of the same family?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.diagnosis import Diagnosis, OwnFix, ill, well
from fairlead.doctor.hostmpi_install import RETRY, install_wheel_mpi, known_wheels
from fairlead.doctor.world import World
from fairlead.facts import AbiFamily
from fairlead.findings import Finding, Severity
from fairlead.hostmpi import HostMpi

NAME = "host-mpi"


def examine(world: World) -> Iterator[Diagnosis]:
    mpis = world.host_mpis()
    usable = [m for m in mpis if m.library.family is AbiFamily.MPICH and m.launcher]
    if not usable:
        yield _absent(world, mpis)
        return
    chosen = usable[0]
    yield well(NAME, f"host MPI: {_title(chosen)}", f"{chosen.library.path}, {chosen.found_by}")
    yield from _launcher(world, chosen, mpis)


def _launcher(world: World, chosen: HostMpi, mpis: tuple[HostMpi, ...]) -> Iterator[Diagnosis]:
    """Another family's ``mpiexec`` connects no ranks: each runs alone, and ends with code 0."""
    on_path = world.which("mpiexec")
    other = next(
        (m for m in mpis if m.launcher and on_path and m.launcher.path.startswith(on_path)), None
    )
    launcher = chosen.launcher
    if other and other.launcher and launcher and other.launcher.family is not launcher.family:
        yield Diagnosis(
            Finding(
                Severity.INFO,
                f"`mpiexec` on PATH is {other.launcher.title}, of another family than the host MPI",
                where=on_path or "",
                why=f"fairlead starts ranks by the host MPI's own launcher, {launcher.path}, so "
                "nothing is to be done",
                check=NAME,
            )
        )


def _absent(world: World, mpis: tuple[HostMpi, ...]) -> Diagnosis:
    default = known_wheels().default
    name, _, version = default.partition("==")
    others = ", ".join(_title(m) + ("" if m.launcher else " without a launcher") for m in mpis)
    return ill(
        NAME,
        "there is no host MPI of the MPICH ABI with its launcher",
        where="$FAIRLEAD_MPI, fairlead's own prefixes, PATH, the system's library folders",
        why=f"images carry an MPICH, which only its kin can replace; found: {others or 'none'}",
        remedy=f"{RETRY}, or set FAIRLEAD_MPI to the prefix of an MPICH, Intel MPI or Cray MPICH",
        # Open MPI's jobs can still be run, so a machine that has it is only lacking.
        severity=Severity.WARNING if mpis else Severity.ERROR,
        fix=OwnFix(
            f"installs {default}",
            lambda progress: install_wheel_mpi(name, version, progress, world.environ),
        ),
    )


def _title(mpi: HostMpi) -> str:
    return f"{mpi.library.vendor} {mpi.library.version}".strip()
