from mpi4py import MPI
from petsc4py import PETSc  # type: ignore[import-not-found]
from report import of_mpi4py  # type: ignore[import-not-found]

assert PETSc.COMM_WORLD.getSize() >= 1
of_mpi4py(MPI)
