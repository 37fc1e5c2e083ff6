import h5py
from mpi4py import MPI
from report import of_mpi4py  # type: ignore[import-not-found]

with h5py.File(
    f"/tmp/corpus-{MPI.COMM_WORLD.rank}.h5", "w", driver="mpio", comm=MPI.COMM_SELF
) as f:
    f.create_dataset("x", data=[1])
of_mpi4py(MPI)
