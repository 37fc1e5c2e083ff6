"""The mean of random walks, over ranks, from the seed in a file: the same bytes each time, which a record can show.

$ fairlead run -n 2 mpi-base -- python3 examples/record/mean_walk.py examples/record/seed.txt build/walk.npy
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
seed = int(Path(sys.argv[1]).read_text())
steps = np.random.default_rng([seed, world.rank]).standard_normal((1000, 200))
mean = world.reduce(np.cumsum(steps, axis=1).mean(axis=0))
if world.rank == 0:
    Path(sys.argv[2]).parent.mkdir(exist_ok=True)
    np.save(sys.argv[2], mean / world.size)
