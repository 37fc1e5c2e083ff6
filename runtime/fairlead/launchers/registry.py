"""The registry of launchers: one module each, and entry points of the group ``fairlead.launchers``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.base.errors import Finding
from fairlead.base.registry import Registry
from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot

LAUNCHERS: Registry[Driver] = Registry("fairlead.launchers", "LAUNCHER", ("identify", "pmi"))
MPIEXEC = "mpiexec"  # in profiles and options: that of the MPI itself, whichever it is


def kinds() -> tuple[str, ...]:
    """The names that ``--launcher`` accepts, in addition to a path."""
    return (MPIEXEC, *LAUNCHERS.names())


def kinds_of_profiles() -> tuple[str, ...]:
    """What a site profile may name."""
    return (MPIEXEC, *(driver.kind for driver in LAUNCHERS if driver.in_profiles))


def kinds_of_users() -> tuple[str, ...]:
    """What is offered to users: those of profiles, and the image's own launcher."""
    chosen = (driver.kind for driver in LAUNCHERS if driver.in_profiles or driver.in_image)
    return (MPIEXEC, *chosen)


def kind_of(launcher: Launcher) -> str:
    """Its driver; for an ``mpiexec`` of which only the family is known, that of the family. Empty if unknown."""
    if launcher.kind != MPIEXEC:
        return launcher.kind
    known = {AbiFamily.OPENMPI: "openmpi", AbiFamily.MPICH: "hydra"}
    return known.get(launcher.family, "")


def is_in_image(launcher: Launcher) -> bool:
    """Whether it is a program of the image, which starts ranks within one container."""
    return launcher.kind in LAUNCHERS and LAUNCHERS.get(launcher.kind).in_image


def places_given(launcher: Launcher) -> tuple[str, ...]:
    """The variables in which a launcher tells its ranks where its own MPI's files are."""
    kind = kind_of(launcher)
    return LAUNCHERS.get(kind).gives_places if kind in LAUNCHERS else ()


def connected_by(launcher: Launcher) -> tuple[str, ...]:
    """The variables of a launcher without any of which a rank finds no other; empty where they are not known."""
    kind = kind_of(launcher)
    return LAUNCHERS.get(kind).connects if kind in LAUNCHERS else ()


def words(launcher: Launcher, shape: Shape, inner: Sequence[str]) -> Words:
    """What starts ``inner`` as each rank of ``shape``.

    Raises:
        FairleadError: exit code 2; the launcher cannot express the shape.
    """
    if kind := kind_of(launcher):
        return LAUNCHERS.get(kind).words(launcher, shape, tuple(inner))
    if shape.each or shape.cores or shape.gpus or shape.bind or shape.hosts:
        raise cannot(
            launcher,
            "where ranks go",
            "fairlead does not know this launcher, and -n is all that every one of them takes",
            "give its own words, each by --launcher-arg, or name its kind: --launcher "
            + ", ".join(LAUNCHERS.names()),
        )
    return Words((launcher.path, *launcher.options, *shape.extra, "-n", str(shape.ranks), *inner))


def objection(
    launcher: Launcher, shape: Shape, uid: int, environ: Mapping[str, str]
) -> Finding | None:
    """Why ``launcher`` would refuse to start anything for the user ``uid``; None if nothing is known against it."""
    kind = kind_of(launcher)
    return LAUNCHERS.get(kind).objection(launcher, shape, uid, environ) if kind else None
