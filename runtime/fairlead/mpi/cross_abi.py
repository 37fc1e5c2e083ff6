"""An image of one MPI family on a host of another: what can go there, and why the rest cannot.

Nothing compiled crosses families. mpi4py does: its wheel holds one module for each family, and takes
the one whose MPI it finds when it is imported. So a Python program that reaches MPI through mpi4py
alone runs on any host, without a rebuild. Source: mpi4py 4.1, ``mpi4py/_mpiabi.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fairlead.base.text import some
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.elf.mpi_symbols import asked_by

MPI4PY_MODULE = re.compile(r"(.*/mpi4py)/MPI\.\w+\.[^/]*so$")
_PYTHON = re.compile(r"python(3(\.\d+)?)?$")


def is_python(name: str) -> bool:
    """Whether a program, by its name or path, is a Python."""
    return bool(_PYTHON.match(PurePosixPath(name).name))


@dataclass(frozen=True)
class Crossing:
    """Whether what is to run can go to another family.

    Attributes:
        modules: those of mpi4py that make it possible.
        why_not: empty when it can.
        instead: how to ask so that it can; empty when nothing helps.
    """

    modules: tuple[Elf, ...]
    why_not: str = ""
    instead: str = ""

    @property
    def allowed(self) -> bool:
        return not self.why_not


def crossing(facts: ImageFacts, programs: Sequence[str], target: AbiFamily) -> Crossing:
    """Whether ``programs`` of the image can run on an MPI of the family ``target``.

    Args:
        programs: the programs that will run, as names or paths in the image; empty if unknown.
    """
    modules = tuple(
        elf
        for elf in facts.consumers
        if MPI4PY_MODULE.match(elf.path) and target in asked_by(facts, elf).values()
    )
    # A library that is not an MPI is of the unknown family too.
    if not modules or target is AbiFamily.UNKNOWN:
        return Crossing((), f"no mpi4py in it has a module for the {target} family")
    if bound := _bound(facts, target):
        named = (
            f"if the program loads none of these, name mpi4py's module: `--app {modules[0].path}`"
        )
        return Crossing(
            modules,
            f"{some(bound)} {'is' if len(bound) == 1 else 'are'} compiled for the image's family, and "
            "a program that loads it would map two MPIs",
            named if programs and all(map(is_python, programs)) else "",
        )
    if not programs:
        return Crossing(
            modules,
            "only Python programs that reach MPI through mpi4py can cross, and the program to run was not named",
            "name the program: `-- python3 …`, or --app python3",
        )
    others = [name for name in programs if not is_python(name)]
    if others:
        return Crossing(
            modules,
            f"{some(others)} may be compiled for the image's family; only Python programs that reach "
            "MPI through mpi4py can cross",
            "if it is a Python script, start it by `python3`",
        )
    return Crossing(modules)


def _bound(facts: ImageFacts, target: AbiFamily) -> list[str]:
    """Libraries and extension modules that are tied to another family than ``target``, other than an MPI's own parts.

    A wheel may be compiled for ``target`` in an image whose own MPI is of another family.
    """
    homes = {PurePosixPath(mpi.path).parent for mpi in facts.mpis}
    return [
        elf.path
        for elf in facts.consumers
        if (elf.soname or not elf.interpreter)
        and not MPI4PY_MODULE.match(elf.path)
        and PurePosixPath(elf.path).parent not in homes
        and set(asked_by(facts, elf).values()) != {target}
    ]
