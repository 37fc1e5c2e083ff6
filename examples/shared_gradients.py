"""Gradients in memory that the ranks of a node share: the same means, without copies.

$ fairlead run -n 2 mpi-base -- python3 examples/shared_gradients.py
"""

import time

import numpy as np

from fairlead import comm

ranks = comm.init()
ours = np.full(5_000_000, ranks.rank, np.float32)  # anywhere: copied through a shared segment
shared = comm.zeros(5_000_000)  # float32; collective
seconds = {}
for name, gradients in {"copied": ours, "in place": shared}.items():
    each = []
    for _ in range(40):  # the first calls try chunk sizes and kinds of stores
        gradients[:] = ranks.rank
        comm.barrier()
        begun = time.perf_counter()
        comm.aggregate([gradients], out=[gradients])
        each.append(time.perf_counter() - begun)
    assert (gradients == (ranks.size - 1) / 2).all()
    seconds[name] = min(each)
if ranks.rank == 0:
    for name, fastest in seconds.items():
        print(f"{name}: 20 MB in {1e3 * fastest:.2f} ms")
    print(ranks.explain(), end="")
comm.finalize()
