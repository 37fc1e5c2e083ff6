"""The launchers that fairlead knows.

A driver's module is loaded when it is asked for: a launch needs one of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from fairlead.elf.facts import AbiFamily
from fairlead.launchers.model import Driver, Launcher, Shape, Words, cannot

# Kind of launcher: its module, which holds a `DRIVER`.
_MODULES = {
    kind: f"fairlead.launchers.{kind}"
    for kind in ("hydra", "openmpi", "srun", "pals", "aprun", "jsrun", "flux", "ibrun")
}
# `mpiexec` is that of the MPI itself, whichever it is.
KINDS = ("mpiexec", *_MODULES)


def driver(kind: str) -> Driver:
    """The driver of a kind of launcher."""
    found: Driver = importlib.import_module(_MODULES[kind]).DRIVER
    return found


def kind_of(launcher: Launcher) -> str:
    """Its driver; for an ``mpiexec`` of which only the family is known, that of the family."""
    if launcher.kind != "mpiexec":
        return launcher.kind
    known = {AbiFamily.OPENMPI: "openmpi", AbiFamily.MPICH: "hydra"}
    return known.get(launcher.family, "")


def words(launcher: Launcher, shape: Shape, inner: Sequence[str]) -> Words:
    """What starts ``inner`` as each rank of ``shape``.

    Raises:
        FairleadError: exit code 2; the launcher cannot express the shape.
    """
    if kind := kind_of(launcher):
        return driver(kind).words(launcher, shape, tuple(inner))
    if shape.each or shape.cores or shape.gpus or shape.bind or shape.hosts:
        raise cannot(
            launcher,
            "where ranks go",
            "fairlead does not know this launcher, and -n is all that every one of them takes",
            "give its own words, each by --launcher-arg, or name its kind: --launcher "
            + ", ".join(KINDS[1:]),
        )
    return Words((launcher.path, *launcher.options, *shape.extra, "-n", str(shape.ranks), *inner))
