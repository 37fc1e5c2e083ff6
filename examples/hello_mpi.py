"""Each rank says who it is and which MPI it runs on; together they add up a number.

Run it from the top of the checkout, on the host's MPI, then on the image's own:

    $ fairlead run -n 2 mpi-base -- python3 examples/hello_mpi.py
    $ fairlead run -n 2 --mpi container mpi-base -- python3 examples/hello_mpi.py
"""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
version = " ".join(MPI.Get_library_version().splitlines()[0].split())
lines = world.gather(f"rank {world.rank} of {world.size}: {version}")

# Every rank gives rank + 1 in each of 1,000 places; every rank gets the sums.
given = np.full(1000, world.rank + 1, dtype=np.float64)
summed = np.empty_like(given)
world.Allreduce(given, summed, op=MPI.SUM)

expected = world.size * (world.size + 1) / 2
assert (summed == expected).all(), summed[:5]
if world.rank == 0:  # lines of several ranks would run into each other
    print(*lines, sep="\n")
    print(f"allreduce over {world.size} ranks: {summed[0]:g}, as expected")
