"""What ``allreduce.c`` does, by mpi4py: sums in four sizes, and a hash of each result's bits."""

import hashlib

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
bits = []
for count in (1, 1000, 131072, 2097152):
    index = numpy.arange(count)
    given = 1.0 / (3.0 + index % 977) * (world.rank + 1) + 1e-9 * (index % 31)
    summed = numpy.empty_like(given)
    world.Allreduce(given, summed)
    bits.append(hashlib.sha256(summed.tobytes()).hexdigest()[:16])
version = MPI.Get_library_version().split("\n")[0].strip(chr(0))
print(f"rank {world.rank} of {world.size} on {version}: {' '.join(bits)}\n", end="", flush=True)
