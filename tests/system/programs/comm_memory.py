"""What the core takes of a rank's memory: nodes, and kB of its own and of shared pages, after what MPI takes by itself.

A sum of 8 bytes and one of 4 MB; the array itself is there before.
"""

import ctypes
from pathlib import Path

import numpy as np
from comm_core import FLOAT32, MEAN, aggregate, call, layout, team

WORLD = 0x44000000  # MPI_COMM_WORLD of MPICH's binary interface


def held() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return sum(int(sizes[kind].split()[0]) for kind in ("RssAnon", "RssShmem"))


mpi = ctypes.CDLL("libmpi.so.12")
mpi.MPI_Init(None, None)
data = np.ones(1 << 20, np.float32)
mpi.MPI_Barrier(WORLD)
before = held()
call("init")
mine = team()
for size in (2, data.size):
    aggregate(mine, [(data[:size], None, FLOAT32)], MEAN)
print(layout().nodes, held() - before, flush=True)
mpi.MPI_Barrier(WORLD)
call("finalize")
mpi.MPI_Finalize()
