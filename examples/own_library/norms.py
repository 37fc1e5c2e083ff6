"""A C function on the ranks of `fairlead bridge`: its library, in one file.

$ mpicc -shared -fPIC -O2 -o norms.so norms.c -lm
$ fairlead bridge serve -n 2 --bind $PWD --env PYTHONPATH=$PWD bridge
"""

import ctypes
from pathlib import Path

import numpy as np
from mpi4py import MPI

from fairlead.bridge.library import Block, Library, Whole

LIBRARY = Library("norms", "Column norms by an MPI code in C")
Comm = ctypes.c_int if MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p


@LIBRARY.function
def columns(a: Block) -> dict:
    """The Euclidean norm of each column."""
    code = ctypes.CDLL(str(Path(__file__).with_name("norms.so")))
    rows, norms = np.ascontiguousarray(a.local, np.float64), np.empty(a.shape[1])
    sizes = [ctypes.c_long(n) for n in rows.shape]
    data = [array.ctypes.data_as(ctypes.c_void_p) for array in (rows, norms)]
    if code.column_norms(Comm.from_address(MPI._addressof(a.comm.mpi)), data[0], *sizes, data[1]):
        raise RuntimeError("column_norms failed")
    return {"norms": Whole(norms)}
