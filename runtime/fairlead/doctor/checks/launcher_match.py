"""Are the launcher on PATH and the loaded MPI of the same family?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fairlead.doctor import slurm
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.site_expectations import says, severity
from fairlead.doctor.world import World
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.identify import launcher_of
from fairlead.launchers.model import Launcher

# By family: variables that a loaded module of an MPI sets, and names of modules up to their first slash.
_VARIABLES = {
    AbiFamily.MPICH: ("CRAY_MPICH_DIR", "MPICH_DIR", "I_MPI_ROOT", "MVAPICH2_HOME"),
    AbiFamily.OPENMPI: ("OPAL_PREFIX", "OMPI_DIR", "OPENMPI_HOME"),
}
_MODULES = {
    AbiFamily.MPICH: ("cray-mpich", "cray-mpich-abi", "mpich", "mvapich", "mvapich2", "impi",
                      "intel-mpi", "intelmpi"),
    AbiFamily.OPENMPI: ("openmpi", "hpcx", "spectrum-mpi"),
}  # fmt: skip
_TITLES = {AbiFamily.MPICH: "MPICH", AbiFamily.OPENMPI: "Open MPI"}


def examine(world: World) -> Iterator[Diagnosis]:
    program = world.which("mpiexec")
    launcher = _identified(world, program) if program else None
    modules = loaded(world)
    problems: list[Diagnosis] = []
    if program and launcher and launcher.family in _TITLES:
        problems += _against_modules(launcher, modules)
        if not problems:
            problems += _against_host(world, launcher)
    problems += [*_sites_own(world), *_slurm(world, modules)]
    title, names = launcher.title if launcher else "none", ", ".join(modules) or "none"
    fine = well(f"`mpiexec` on PATH: {title}; MPI modules: {names}", program or "")
    yield from problems or [fine]


def loaded(world: World) -> dict[str, AbiFamily]:
    """The MPIs that the user's modules have chosen, by the evidence."""
    families: dict[str, AbiFamily] = {}
    for module in world.environ.get("LOADEDMODULES", "").split(":"):
        name = module.partition("/")[0].lower()
        families |= {f"module {module}": f for f, names in _MODULES.items() if name in names}
    for family, variables in _VARIABLES.items():
        families |= {name: family for name in variables if world.environ.get(name)}
    return families


def _identified(world: World, program: str) -> Launcher:
    """By its own output, as for launchers that fairlead finds next to an MPI."""
    real = world.real(program)
    if "/pals/" in real:
        return Launcher(program, AbiFamily.UNKNOWN, "PALS")
    ran = world.run((program, "--version"))
    known = launcher_of(program, ran.stdout + ran.stderr)
    return known or Launcher(program, AbiFamily.UNKNOWN, Path(real).name)


def _against_modules(launcher: Launcher, modules: dict[str, AbiFamily]) -> Iterator[Diagnosis]:
    others = [how for how, family in modules.items() if family is not launcher.family]
    if others and launcher.family not in modules.values():
        yield ill("launcher-match-other-family", launcher=launcher, others=", ".join(others))


def _against_host(world: World, launcher: Launcher) -> Iterator[Diagnosis]:
    own = [m.launcher for m in world.host_mpis() if m.library.family is AbiFamily.MPICH]
    chosen = next(filter(None, own), None)
    site = world.profile().site
    by_others = site is not None and "mpiexec" not in site.launcher.kinds
    if chosen and not by_others and chosen.family is not launcher.family:
        yield note("launcher-match-other-family-unused", launcher=launcher, chosen=chosen)


# The program of a profile's kind of launcher; `mpiexec` may be the MPI's own, off PATH.
_PROGRAMS = {
    "srun": "srun",
    "aprun": "aprun",
    "jsrun": "jsrun",
    "ibrun": "ibrun",
    "flux": "flux",
    "pals": "mpiexec",
}


def _sites_own(world: World) -> Iterator[Diagnosis]:
    """What starts ranks at this site, as its profile has it."""
    site = world.profile().site
    if site is None or "mpiexec" in site.launcher.kinds:
        return
    programs = list(dict.fromkeys(_PROGRAMS.get(kind, kind) for kind in site.launcher.kinds))
    if not any(world.which(program) for program in programs):
        yield ill(
            "launcher-match-site-launcher-missing",
            programs=", ".join(programs),
            says=says(site, "launcher.kinds", ", ".join(site.launcher.kinds)),
            severity=severity(site, "launcher.kinds"),
        )


def _slurm(world: World, modules: dict[str, AbiFamily]) -> Iterator[Diagnosis]:
    """What `srun` does where no --mpi is given."""
    if world.which("srun") is None:
        return
    values = slurm.settings(world)
    # Slurm's own default, where slurm.conf was read and does not say.
    configured = values.get("mpidefault", "none" if values else "")
    default = world.environ.get("SLURM_MPI_TYPE") or configured
    where = "SLURM_MPI_TYPE" if world.environ.get("SLURM_MPI_TYPE") else "MpiDefault of slurm.conf"
    families = set(modules.values()) or {
        m.library.family for m in world.host_mpis() if m.library.family in _TITLES
    }
    if default in ("none", "(null)"):
        yield note("launcher-match-srun-no-default", where=where, default=default)
        return
    mpi, right = "", ""
    if default.startswith("pmi2") and families == {AbiFamily.OPENMPI}:
        mpi, right = "Open MPI", "pmix"
    elif default.startswith("pmix") and families == {AbiFamily.MPICH}:
        behind = {e.soname for m in world.host_mpis() for e in m.closure}
        if not any(name.startswith("libpmix.so") for name in behind):
            mpi, right = "MPICH", "pmi2"
    if mpi:
        yield ill("launcher-match-srun-default", default=default, mpi=mpi, where=where, right=right)


CHECK = Check(
    "launcher-match", "whether launcher and MPI are of one family", examine, Topic.MPI, order=30
)
