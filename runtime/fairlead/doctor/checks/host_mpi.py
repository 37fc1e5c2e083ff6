"""Is there a host MPI that can replace an image's, and a launcher for it?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Severity
from fairlead.doctor.diagnosis import Check, Diagnosis, OwnFix, Topic, ill, note, well
from fairlead.doctor.install.host_mpi import install_wheel_mpi
from fairlead.doctor.site_expectations import FABRICS, says, severity
from fairlead.doctor.world import World
from fairlead.elf.facts import AbiFamily
from fairlead.mpi.host import HostMpi
from fairlead.mpi.wheels import RETRY, known_wheels
from fairlead.site import Site

NAME = "host-mpi"
_FAMILIES = {"mpich": AbiFamily.MPICH, "openmpi": AbiFamily.OPENMPI, "mpi5": AbiFamily.MPI5}


def examine(world: World) -> Iterator[Diagnosis]:
    mpis = world.host_mpis()
    site = world.profile().site
    wanted = _FAMILIES.get(site.mpi.family, AbiFamily.MPICH) if site else AbiFamily.MPICH
    # Where a scheduler starts ranks, an MPI need not bring a launcher.
    started = site is not None and "mpiexec" not in site.launcher.kinds
    usable = [m for m in mpis if m.library.family is wanted and (m.launcher or started)]
    if usable:
        chosen = usable[0]
        where = f"{chosen.library.path}, {chosen.found_by}"
        fits = well(f"host MPI: {chosen.library.title}", where)
        yield _other_than_the_sites(site, chosen) or fits
    elif site and site.mpi.replaces != "mpi":
        yield note("host-mpi-not-swapped", says=says(site, "mpi.replaces", site.mpi.replaces))
    elif site and site.fabric.kind in FABRICS:
        yield _absent_at(site, mpis)
    else:
        yield _absent(world, mpis)


def _other_than_the_sites(site: Site | None, chosen: HostMpi) -> Diagnosis | None:
    """The site's own is the one that knows its network."""
    if site is None or not site.mpi.vendor or site.mpi.vendor == chosen.library.vendor:
        return None
    vendor = says(site, "mpi.vendor", site.mpi.vendor)
    return ill("host-mpi-not-the-sites", site=site, chosen=chosen, says=vendor, load=_load(site))


def _absent_at(site: Site, mpis: tuple[HostMpi, ...]) -> Diagnosis:
    """One from a wheel would not know the network, so none is offered."""
    search = ", ".join(site.mpi.search)
    others = ", ".join(m.library.title for m in mpis)
    load = _load(site)
    if not search:
        return ill("host-mpi-site-has-no-folder", site=site, others=others, load=load)
    return ill(
        "host-mpi-site-not-found",
        search=search,
        says=says(site, "mpi.search", search),
        others=others,
        load=load,
        severity=severity(site, "mpi.search"),
    )


def _load(site: Site) -> str:
    words = " ".join(site.mpi.modules)  # -NAME unloads, for module as for a profile
    load = f"module load {words}, then `fairlead doctor {NAME}`; " if words else ""
    return f"{load}or set FAIRLEAD_MPI to its prefix; `fairlead site show {site.name}` lists what is known"


def _absent(world: World, mpis: tuple[HostMpi, ...]) -> Diagnosis:
    default = known_wheels().default
    name, _, version = default.partition("==")
    others = ", ".join(
        m.library.title + ("" if m.launcher else " without a launcher") for m in mpis
    )
    # Open MPI's jobs can still be run, so a machine that has it is only lacking.
    severe = Severity.WARNING if mpis else Severity.ERROR
    fix = OwnFix(
        f"installs {default}",
        lambda progress: install_wheel_mpi(name, version, progress, world.environ),
    )
    return ill("host-mpi-none", others=others, retry=RETRY, severity=severe, fix=fix)


CHECK = Check(NAME, "the host MPI and its launcher", examine, Topic.MPI, order=10)
