"""SGD whose workers fall out of step by a number of steps at most; every fourth step of the last one is slow.

All ranks get the same bits; 0 gives those of -n 1.

$ fairlead run -n 2 mpi-base -- python3 examples/parallel/async_sgd.py 3
"""

import sys
import time

import numpy as np

from fairlead import comm
from fairlead.comm.stale import StaleSGD

ranks, truth = comm.init(), np.linspace(-1, 1, 16)
shards = range(ranks.rank, 2, ranks.size)


def gradient(weights, shard, step):
    x = np.random.default_rng((shard, step)).normal(size=(64, 16))
    return x.T @ (x @ (weights - truth)) / 64


links, start = ranks.point_to_point(), [np.zeros(16)]
sgd = StaleSGD(links, start, rate=0.1, momentum=0.5, bound=int(sys.argv[1]))
while sgd.steps < 200:
    if sgd.steps % 4 == 0 and ranks.rank == ranks.size - 1:
        time.sleep(0.005)
    own = [gradient(sgd.weights[0], shard, sgd.steps) for shard in shards]
    sgd.step([sum(own[1:], own[0]) / len(own)])
(weights,) = sgd.finish()
same = ranks.check_buffers_match([weights])
staleness = ranks.gather(sorted(sgd.staleness.items()))
if ranks.rank == 0:
    error = np.abs(weights - truth).max()
    print(f"error {error:.1e}, same bits on all ranks: {same.matches}, sha256 {same.digests[0]}")
    print("steps that were missing, and how often, by rank:", *map(dict, staleness))
