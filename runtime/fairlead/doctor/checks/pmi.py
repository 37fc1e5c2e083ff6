"""Can ranks that srun starts find each other? compares Slurm's PMI with what the MPIs of this machine support."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.base.errors import Severity
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.site_expectations import says, severity
from fairlead.doctor.world import World
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.pmi import slurm_pmi
from fairlead.launchers.srun import pmi_listed
from fairlead.mpi.host import HostMpi

# A profile's word, and the plugins of Slurm that speak it (`srun --mpi=list`).
_PLUGINS = {
    "cray": re.compile(r"cray_\w+"),
    "pmi2": re.compile(r"pmi2"),
    "pmix": re.compile(r"pmix(_v\d+)?"),
    "pmi1": re.compile(r"none"),  # Slurm speaks PMI-1 without a plugin
}
_TAKES = {
    AbiFamily.MPICH: "pmi2, or Cray's own where the profile says so",
    AbiFamily.OPENMPI: "pmix",
}
_FOLDERS = (
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/*-linux-gnu*",
    "/usr/lib64/slurm*",
    "/usr/lib/*/slurm*",
    "/opt/cray/pe/pmi/default/lib",
    "/opt/slurm/lib*",
)


def examine(world: World) -> Iterator[Diagnosis]:
    if world.which("srun") is None:
        yield well("no Slurm on this machine: an MPI's own launcher connects its ranks")
        return
    ran = world.run(("srun", "--mpi=list"))
    types = pmi_listed(f"{ran.stdout}\n{ran.stderr}") if ran.returncode == 0 else ()
    if not types:
        yield ill("pmi-unknown", ran=ran, output=ran.tail)
        return
    libraries = _libraries(world)
    problems = [*_against_profile(world, types), *_against_mpis(world, types, libraries)]
    spoken = f"srun speaks {', '.join(types)}; {', '.join(libraries) or 'no libpmi'}"
    yield from problems or [well(spoken, "srun --mpi=list")]


def speaks(kind: str, types: tuple[str, ...]) -> bool:
    """Whether Slurm has a plugin for a profile's word."""
    plugin = _PLUGINS.get(kind)
    return plugin is None or any(plugin.fullmatch(name) for name in types)


def _against_profile(world: World, types: tuple[str, ...]) -> Iterator[Diagnosis]:
    site = world.profile().site
    if site is None or not site.launcher.pmi or "srun" not in site.launcher.kinds:
        return
    if any(speaks(kind, types) for kind in site.launcher.pmi):
        return
    wanted, spoken = ", ".join(site.launcher.pmi), [k for k in _PLUGINS if speaks(k, types)]
    yield ill(
        "pmi-none-accepted-profile" if spoken else "pmi-none-accepted-plugin",
        wanted=wanted,
        types=", ".join(types),
        says=says(site, "launcher.pmi", wanted),
        spoken=spoken,
        severity=severity(site, "launcher.pmi"),
    )


def _against_mpis(
    world: World, types: tuple[str, ...], libraries: tuple[str, ...]
) -> Iterator[Diagnosis]:
    site = world.profile().site
    preferred = site.launcher.pmi if site else ()
    for place, mpi in enumerate(_of_families(world.host_mpis())):
        # The first is the one that `run` takes; the others may never be meant.
        severe = Severity.INFO if place else Severity.WARNING
        library = mpi.library
        if not slurm_pmi(library.family, types, preferred):
            yield ill(
                "pmi-mismatch",
                library=library,
                takes=_TAKES[library.family],
                types=", ".join(types),
                mpiexec=mpi.launcher.path if mpi.launcher else "mpiexec",
                severity=severe,
            )
        elif library.vendor == "Intel MPI" and not _intel_knows(world, libraries):
            yield ill("pmi-no-libpmi2", library=library, severity=severe)


def _of_families(mpis: tuple[HostMpi, ...]) -> list[HostMpi]:
    """The preferred one of each family."""
    by_family: dict[AbiFamily, HostMpi] = {}
    for mpi in mpis:
        if mpi.library.family in (AbiFamily.MPICH, AbiFamily.OPENMPI):
            by_family.setdefault(mpi.library.family, mpi)
    return list(by_family.values())


def _intel_knows(world: World, libraries: tuple[str, ...]) -> bool:
    named = world.environ.get("I_MPI_PMI_LIBRARY", "")
    return bool(named) or any("libpmi2" in path for path in libraries)


def _libraries(world: World) -> tuple[str, ...]:
    names = ("libpmi2.so.0", "libpmi.so.0", "libpmix.so.2")
    libraries = [
        path for folder in _FOLDERS for name in names for path in world.matching(f"{folder}/{name}")
    ]
    return tuple(dict.fromkeys(libraries))


CHECK = Check("pmi", "how srun connects ranks", examine, Topic.NETWORK, order=10)
