"""Data-parallel training in 20 lines: linear regression, each rank on its own samples.

`fairlead.comm` gives all ranks the same start and the mean of their gradients. Run it from the top
of the checkout, on as many ranks as you like:

    $ fairlead run -n 2 mpi-base -- python3 examples/average_gradients.py
"""

import numpy as np

from fairlead import comm

comm.init()
rng = np.random.default_rng(comm.rank())  # other samples, and another start, on each rank
truth = np.array([1.0, -2.0, 0.5])
samples = rng.normal(size=(256, 3))
targets = samples @ truth

weights = comm.broadcast([rng.normal(size=3)])[0]  # from rank 0, the same bits everywhere
for _ in range(200):
    gradient = samples.T @ (samples @ weights - targets) / len(samples)
    weights -= 0.1 * comm.aggregate([gradient])[0]  # the mean over ranks, in one buffer

match = comm.check_buffers_match([weights])
assert match.matches, f"rank {match.ranks} differs"
assert np.allclose(weights, truth, atol=1e-3), weights
if comm.rank() == 0:
    print(f"weights {np.round(weights, 3)}: the same bits on {comm.size()} rank(s)")
comm.finalize()
