"""Whose interface to Fortran a program gets.

The procedures of `mpi_f08` take arrays by descriptors, whose layout is a compiler's own (CFI_cdesc_t of ISO/IEC 1539-1 is
for C alone). Their names are the same for all compilers, so a library of another one is found, and crashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from fairlead.elf.facts import Elf, ImageFacts
from fairlead.elf.mpi_symbols import is_interface
from fairlead.mpi.host import HostMpi

_TAKES_ARRAYS = re.compile(r"p?mpi_\w+_f08ts\w*$")
# Their version counts: gfortran 8 has changed its descriptors, and libgfortran's with them.
_RUN_TIMES = re.compile(
    r"lib(gfortran|ifcore\w*|flang\w*|FortranRuntime|armflang|nvf|pgf90\w*)\.so"
)


def suited(host: HostMpi, facts: ImageFacts, consumers: Iterable[Elf]) -> HostMpi:
    """The host's MPI without interfaces to Fortran of another compiler than the image's, where programs give them arrays.

    The image's own then stays, over the host's MPI.

    Args:
        consumers: the files that a plan is about.
    """
    users = (e for e in consumers if not is_interface(e))
    if not any(_TAKES_ARRAYS.match(name) for e in users for name in e.mpi_imports):
        return host
    own = {_compiler(e) for e in facts.consumers if is_interface(e) and _has(e)}
    other = {e.path for e in host.companions if _has(e) and own and _compiler(e) not in own}
    companions = tuple(e for e in host.companions if e.path not in other)
    symbols = {path: names for path, names in host.symbols.items() if path not in other}
    return replace(host, companions=companions, symbols=symbols) if other else host


def _has(elf: Elf) -> bool:
    return any(map(_TAKES_ARRAYS.match, elf.mpi_exports))


def _compiler(elf: Elf) -> tuple[str, ...]:
    """By the run time that it needs; Intel's can be linked statically, and leaves no name."""
    return tuple(sorted(filter(_RUN_TIMES.match, elf.needed)))
