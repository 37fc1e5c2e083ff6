"""Variables in which an MPI of this machine, or its launcher, names its own files: containers do not get them.

In a container an MPI's files are where the image has them, or the plan, which sets the variables of those that it
brings. An Open MPI of the image that OPAL_PREFIX leads elsewhere finds no components, and ends in MPI_Init.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from fairlead.launchers.registry import places_given
from fairlead.mpi.host import MODULE_VARIABLES
from fairlead.swap.model import Inputs

WHY = "names files of an MPI of this machine"
# The folders that Open MPI, PMIx and PRRTE can be moved by (their `installdirs` components), and PMIx's other name.
_FOLDERS = (
    "PREFIX", "EXEC_PREFIX", "BINDIR", "SBINDIR", "LIBEXECDIR", "DATAROOTDIR", "DATADIR", "SYSCONFDIR", "SHAREDSTATEDIR",
    "LOCALSTATEDIR", "LIBDIR", "INCLUDEDIR", "INFODIR", "MANDIR", "PKGDATADIR", "PKGLIBDIR", "PKGINCLUDEDIR",
)  # fmt: skip
_INSTALLED = {f"{of}_{folder}" for of, folder in product(("OPAL", "PMIX", "PRTE"), _FOLDERS)}
# Of Intel's MPI, and of Spectrum MPI. MPICH, Cray's and MVAPICH look into no folder of their own.
_ROOTS = {"PMIX_INSTALL_PREFIX", "I_MPI_ROOT", "MPI_ROOT"}
PLACES = frozenset({*_INSTALLED, *_ROOTS, *MODULE_VARIABLES})


def places(environ: Iterable[str]) -> tuple[str, ...]:
    """Those of the names of a shell's variables.

    >>> places({"OPAL_PREFIX": "/opt/openmpi", "OMPI_MCA_btl": "self,sm"})
    ('OPAL_PREFIX',)
    """
    return tuple(sorted(PLACES.intersection(environ)))


def withheld(inputs: Inputs) -> tuple[str, ...]:
    """The variables that stay outside of a plan's containers: the shell's, and what the launcher gives its ranks."""
    return tuple(sorted({*inputs.request.shell_mpi, *places_given(inputs.launcher)}))
