"""Gradients that move while the next step computes: linear regression, synchronous first, then delayed.

$ fairlead run -n 2 mpi-base -- python3 examples/delayed_gradients.py
"""

import numpy as np

from fairlead import comm
from fairlead.comm.delayed import Delayed, Schedule

STEPS, MOMENTUM, RATE = 400, 0.5, 0.4

ranks = comm.init()
random = np.random.default_rng(ranks.rank)  # each rank has data of its own
truth = np.linspace(-1, 1, 8)
weights, velocity = np.zeros(8), np.zeros(8)


def update(gradient: np.ndarray, scale: float) -> None:
    global weights, velocity
    velocity = MOMENTUM * velocity + gradient
    weights = weights - RATE * scale * velocity


delayed = Delayed(ranks, Schedule.fractions(STEPS, warmup=0.1), momentum=MOMENTUM)
for _ in range(STEPS):
    inputs = random.normal(size=(32, 8))
    wrong = inputs @ (weights - truth)
    gradient = inputs.T @ wrong / len(inputs)
    # Returns at once; what it gives is the mean over ranks of the step before.
    for (mean,) in delayed.step([gradient], loss=float(np.mean(wrong**2))):
        update(mean, delayed.scale)
for (mean,) in delayed.flush():
    update(mean, delayed.scale)

same = comm.check_buffers_match([weights]).matches
if ranks.rank == 0:
    error = float(np.abs(weights - truth).max())
    print(f"largest error {error:.1e}; the same weights on all ranks: {same}; by {ranks.backend}")
comm.finalize()
