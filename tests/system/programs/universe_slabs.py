"""The universe of `examples/universe` on these ranks: its transform against NumPy's, its growth, and one simulation's sums."""

import json
import sys

import numpy as np
from mpi4py import MPI

sys.path.insert(0, sys.argv[1])
import cosmos
from slabs import Slabs

world = MPI.COMM_WORLD
slabs = Slabs(world, 12)
field = np.random.default_rng(0).normal(size=(12, 12, 12))
spectrum = slabs.forward(field[slabs.low : slabs.high])
ours = np.fft.rfftn(field).transpose(1, 0, 2)[slabs.low : slabs.high]
transform = world.allreduce(float(abs(spectrum - ours).max()), MPI.MAX)
back = world.allreduce(
    float(abs(slabs.backward(spectrum) - field[slabs.low : slabs.high]).max()), MPI.MAX
)

universe = cosmos.Cosmology(0.3, 0.8)
start = cosmos.linear(slabs, universe, 24.0, 5)
end = cosmos.simulate(slabs, universe, start, 6)
weights = np.arange(1, 12**3 * 3 + 1).reshape(12, 12, 12, 3)[slabs.low : slabs.high]
power = cosmos.spectra(slabs, cosmos.density(slabs, start), cosmos.density(slabs, end))

# In linear theory displacements only grow: of small ones, the largest waves do so here too.
growth = 1.0
if world.size == 1:
    finer = Slabs(world, 24)
    faint = cosmos.linear(finer, cosmos.Cosmology(0.3, 0.02), 600.0, 5)
    grown = cosmos.simulate(finer, cosmos.Cosmology(0.3, 0.02), faint, 20)
    one, _, cross = cosmos.spectra(
        finer, np.ascontiguousarray(faint[..., 0]), np.ascontiguousarray(grown[..., 0])
    )
    growth = float(cross[0] / one[0])
numbers = [world.allreduce(float((weights * part).sum())) for part in (start, end)]
if world.rank == 0:
    result = {
        "transform": max(transform, back),
        "growth": growth,
        "numbers": [*numbers, *map(float, np.concatenate(power))],
    }
    print(json.dumps(result))
