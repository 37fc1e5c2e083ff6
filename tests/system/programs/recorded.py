"""A small computation of NumPy over MPI, whose result is the same each time, for records and their repetition."""

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

how = sys.argv[1] if len(sys.argv) > 1 else "same"
world = MPI.COMM_WORLD
seed = int.from_bytes(hashlib.sha256(Path("in.txt").read_bytes()).digest()[:4], "big")
mine = np.random.default_rng(seed + world.rank).standard_normal(1000)
total = world.allreduce(mine)
if how == "fails":
    sys.exit(5 * world.rank)
if how == "waits":
    Path("waiting").touch()
    time.sleep(60)
if world.rank == 0:
    if how == "differs":
        total[0] = time.time()
    Path("out").mkdir(exist_ok=how != "new")
    np.save("out/sum.npy", total)
    Path("sum.txt").write_text(f"{total.sum()!r} {os.environ.get('OMP_NUM_THREADS', '')}\n")
