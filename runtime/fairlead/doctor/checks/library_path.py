"""Do LD_LIBRARY_PATH and LD_PRELOAD add an unintended MPI or C library?"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from fairlead.doctor.checks.launcher_match import loaded
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World
from fairlead.elf.facts import AbiFamily

_NAMES = (
    (re.compile(r"lib(mpi|mpich)(_\w+)?\.so\.12(\.|$)"), AbiFamily.MPICH),
    (re.compile(r"libmpi\.so\.(40|20)(\.|$)"), AbiFamily.OPENMPI),
)
_ANY_MPI = re.compile(r"lib(mpi|mpich|mpi_abi|mpi_cray|mpi_gnu)[\w.]*\.so")
_TITLES = {AbiFamily.MPICH: "MPICH's family", AbiFamily.OPENMPI: "Open MPI's family"}
_PRELOADS = ("LD_PRELOAD", "APPTAINERENV_LD_PRELOAD", "SINGULARITYENV_LD_PRELOAD")
_PATHS = ("LD_LIBRARY_PATH", "APPTAINERENV_LD_LIBRARY_PATH", "SINGULARITYENV_LD_LIBRARY_PATH")


def examine(world: World) -> Iterator[Diagnosis]:
    problems = [*_preloads(world)]
    for variable in _PATHS:
        problems += _folders(world, variable)
    given = " and ".join(name for name in (*_PRELOADS, *_PATHS) if world.environ.get(name))
    unset = "neither LD_LIBRARY_PATH nor LD_PRELOAD is set"
    yield from problems or [well(f"{given} bring no foreign MPI" if given else unset)]


def _preloads(world: World) -> Iterator[Diagnosis]:
    for variable in _PRELOADS:
        for path in re.split(r"[:\s]+", world.environ.get(variable, "")):
            name = path.rpartition("/")[2]
            if _ANY_MPI.match(name) and not name.startswith("libmpi_gtl"):
                yield ill("library-path-preloads-mpi", variable=variable, path=path)
            elif (
                variable == "LD_PRELOAD"
                and path.startswith("/")
                and not world.access(path, os.F_OK)
            ):
                yield ill("library-path-preload-missing", variable=variable, path=path)


def _folders(world: World, variable: str) -> Iterator[Diagnosis]:
    value = world.environ.get(variable, "")
    if not value:
        return
    meant = _meant(world)
    entries = value.split(":")
    for folder in dict.fromkeys(entries):
        if not folder:
            continue
        here = world.matching(f"{glob.escape(folder)}/libmpi*.so*")
        names = [path.rpartition("/")[2] for path in here]
        families = {family for p, family in _NAMES if any(p.match(name) for name in names)}
        foreign = families - meant
        if meant and foreign and not families & meant:
            yield ill(
                "library-path-other-mpi",
                variable=variable,
                titles=_TITLES[min(foreign)],
                folder=folder,
                names=", ".join(sorted(names)[:3]),
            )
        if world.access(f"{folder}/libc.so.6", os.F_OK) and not folder.startswith(
            ("/lib", "/usr/lib")
        ):
            yield ill("library-path-libc", variable=variable, folder=folder)
    if "" in entries:
        yield note(
            "library-path-empty-entry",
            variable=variable,
            value=value,
            entries=":".join(e for e in entries if e),
        )


def _meant(world: World) -> set[AbiFamily]:
    """The family that the user's modules say, else that of the MPI fairlead would take."""
    modules = set(loaded(world).values())
    if modules:
        return modules
    usable = [m for m in world.host_mpis() if m.launcher]
    return {usable[0].library.family} if usable else set()


CHECK = Check("library-path", "LD_LIBRARY_PATH and LD_PRELOAD", examine, Topic.MPI, order=50)
