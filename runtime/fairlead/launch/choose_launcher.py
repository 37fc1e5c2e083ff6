"""Which launcher starts the ranks, and how it lets them find each other.

``--launcher`` names one by kind or by path; else the site's first that is here; else the ``mpiexec`` of
the MPI that will be mapped. Each kind connects the ranks of certain MPIs only; where it offers
several ways (PMI-2, PMIx), that of the MPI is taken.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.base.errors import ExitCode, fail
from fairlead.base.process import run_boxed
from fairlead.base.suggest import suggest
from fairlead.elf.facts import AbiFamily
from fairlead.launchers import registry, srun
from fairlead.launchers.model import Launcher
from fairlead.site.model import Site

# What a site profile calls a way to find each other, in Slurm's words.
_SLURMS = {"cray": "cray_shasta", "pmi2": "pmi2", "pmix": "pmix"}
# Ways that connect a family. PMI-1 comes with PMI-2 in Slurm; MPICH's and Intel's wheels have no PMIx.
_CONNECTS = {
    AbiFamily.MPICH: ("pmi2", "cray_shasta"),
    AbiFamily.OPENMPI: ("pmix",),
}
# Kinds that connect one family only, whatever they are told.
_OWN = {
    "hydra": AbiFamily.MPICH,
    "openmpi": AbiFamily.OPENMPI,
    "pals": AbiFamily.MPICH,
    "aprun": AbiFamily.MPICH,
    "jsrun": AbiFamily.OPENMPI,
}


def is_kind(name: str) -> bool:
    """Whether ``--launcher`` names a kind and not a program."""
    return name in registry.KINDS


def here(site: Site, environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """The site's first launcher that is on PATH, as kind and program; None for the MPI's own."""
    for kind in site.launcher.kinds:
        if kind == "mpiexec":
            return None
        if program := _program(kind, environ):
            return kind, program
    return None


def _program(kind: str, environ: Mapping[str, str]) -> str | None:
    found = (shutil.which(p, path=environ.get("PATH", "")) for p in registry.driver(kind).programs)
    return next(filter(None, found), None)


def of_kind(
    kind: str,
    speaks: AbiFamily,
    site: Site,
    environ: Mapping[str, str] = os.environ,
    program: str | None = None,
    pmi: str = "",
) -> Launcher:
    """A launcher of a kind, told how the ranks of an MPI find each other.

    Args:
        speaks: family of the MPI that will be mapped.
        program: its path; None to look on PATH.
        pmi: the user's own word for it.
    Raises:
        FairleadError: exit code 2; there is none on PATH.
    """
    program = program or _program(kind, environ)
    if program is None:
        names = " or ".join(registry.driver(kind).programs)
        raise fail(
            f"no {names} on PATH",
            where="--launcher",
            why=f"that is what a launcher of the kind `{kind}` is called",
            remedy="load the module that brings it, or name the program: --launcher PATH",
            check="launcher",
            code=ExitCode.USAGE,
        )
    options = tuple(site.launcher.options.get(kind, ()))
    if kind in ("hydra", "openmpi"):
        found = identify(Path(program))
        return Launcher(found.path, found.family, found.title, kind, "", options)
    family, folders = _OWN.get(kind, AbiFamily.UNKNOWN), tuple[str, ...]()
    if kind == "srun":
        pmi = pmi or slurm_pmi(speaks, srun.pmi_offered(program), site.launcher.pmi)
        family = connects(pmi, speaks) if pmi else speaks
        folders = srun.pmix_folders(program) if pmi.startswith("pmix") else ()
    elif kind == "flux":
        pmi = pmi or ("pmix" if speaks is AbiFamily.OPENMPI else "")
        family = speaks
    title = f"{Path(program).name}" + (f" --mpi={pmi}" if kind == "srun" and pmi else "")
    return Launcher(program, family, title, kind, pmi, options, folders)


def slurm_pmi(speaks: AbiFamily, offered: Sequence[str], preferred: tuple[str, ...] = ()) -> str:
    """The word for ``srun --mpi`` that connects ranks of a family; empty where none is offered.

    Args:
        offered: what ``srun --mpi=list`` names.
        preferred: the site's order, in a profile's words.
    """
    able = _CONNECTS.get(speaks, ())
    wanted = [_SLURMS[p] for p in preferred if p in _SLURMS and _SLURMS[p] in able]
    # Debian's Slurm offers Cray's way on every machine, so it is taken only where a profile says so.
    wanted += [way for way in able if way != "cray_shasta"]
    if preferred[:1] == ("cray",) and "cray_shasta" in able and "cray_shasta" not in offered:
        return ""  # Cray's own of before Slingshot is Slurm's default there, and has no name
    for way in wanted:
        if way in offered:
            return way
    for way in offered:
        if way.partition("_v")[0] in wanted:
            return way
    return ""


def connects(pmi: str, speaks: AbiFamily) -> AbiFamily:
    """The family whose ranks a way connects: ``speaks`` where it may be that, else another."""
    way = pmi.partition("_v")[0]
    if way in _CONNECTS.get(speaks, ()):
        return speaks
    for family, ways in _CONNECTS.items():
        if way in ways:
            return family
    return AbiFamily.UNKNOWN


def pmi_said(words: Sequence[str]) -> str:
    """What the user's own words for srun say of PMI, the last of them; empty when nothing.

    >>> pmi_said(("--mpi=pmi2", "-v", "--mpi", "none"))
    'none'
    """
    said = ""
    for position, word in enumerate(words):
        if word.startswith("--mpi="):
            said = word.partition("=")[2]
        elif word == "--mpi" and position + 1 < len(words):
            said = words[position + 1]
    return said


def named(
    name: str, speaks: AbiFamily, site: Site, environ: Mapping[str, str] = os.environ
) -> Launcher:
    """The launcher that ``--launcher`` names by its path.

    Raises:
        FairleadError: exit code 2; there is no such program.
    """
    path = Path(name)
    if not os.access(path, os.X_OK) or path.is_dir():
        kinds = registry.KINDS
        raise fail(
            f"no launcher at {name}",
            where="--launcher",
            why="there is no such program, or it may not be executed; "
            + ("" if "/" in name else f"nor is it a kind of launcher: {suggest(name, kinds)}"),
            remedy="leave it out to use the mpiexec of the chosen MPI",
            check="launcher",
            code=ExitCode.USAGE,
        )
    for kind in ("srun", "aprun", "jsrun", "flux", "ibrun"):
        if path.name == kind:
            return of_kind(kind, speaks, site, environ, str(path.absolute()))
    return identify(path.absolute())


def identify(program: Path, patience_s: float = 10.0) -> Launcher:
    """Which MPI's processes an ``mpiexec`` connects, from its own ``--version``."""
    ran = run_boxed((program, "--version"), timeout_s=patience_s)
    if known := launcher_of(str(program), ran.stdout + ran.stderr):
        return known
    if os.access(program, os.R_OK) and b"HYDRA build details" in program.read_bytes():
        # It does not run here (it may be of a newer distribution), but it is one all the same.
        return Launcher(str(program), AbiFamily.MPICH, "MPICH Hydra", "hydra")
    return Launcher(str(program), AbiFamily.UNKNOWN, program.name)


def launcher_of(path: str, said: str) -> Launcher | None:
    """Whose ``mpiexec`` says this for ``--version``; None for one that is not known."""
    if "HYDRA build details" in said:
        match = re.search(r"Version:\s*(\S+)", said)
        title = f"MPICH Hydra {match[1] if match else ''}".strip()
        return Launcher(path, AbiFamily.MPICH, title, "hydra")
    if "Intel(R) MPI Library" in said:
        match = re.search(r"Version (\S+)", said)
        title = f"Intel MPI Hydra {match[1] if match else ''}".strip()
        return Launcher(path, AbiFamily.MPICH, title, "hydra")
    if match := re.search(r"\(IBM (Spectrum MPI)\) (\d[\w.]*)", said):
        return Launcher(path, AbiFamily.OPENMPI, f"{match[1]} {match[2]}", "openmpi")
    if match := re.search(r"(?:Open MPI\)|OpenRTE\)|PRTE[^\d]*) ?v?(\d[\w.]*)", said):
        return Launcher(path, AbiFamily.OPENMPI, f"Open MPI {match[1]}", "openmpi")
    return None
