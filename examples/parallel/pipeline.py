"""Layers over ranks, and microbatches that follow each other through them; with -n 1, the same bits.

$ fairlead run -n 2 mpi-base -- python3 examples/parallel/pipeline.py 1f1b
"""

import sys
from hashlib import sha256

import numpy as np

from fairlead import comm
from fairlead.comm.pipeline import SCHEDULES, Pipeline

random, links, kept = np.random.default_rng(9), comm.init().point_to_point(), {}
batch, targets = random.uniform(-1, 1, (2, 8, 32, 64))  # of 8 microbatches
weights = np.array_split(random.normal(0, 0.1, (4, 64, 64)), links.size)[links.rank]


class Stage:  # dense layers with tanh
    def forward(self, at, x):
        kept[at] = [batch[at] if x is None else x]
        kept[at].extend(np.tanh(kept[at][-1] @ w) for w in weights)
        return kept[at][-1]

    def backward(self, at, back):
        xs = kept.pop(at)
        back = (xs[-1] - targets[at]) / targets.size if back is None else back
        for n in reversed(range(len(weights))):
            back = back * (1 - xs[n + 1] ** 2)
            gradients[n], back = gradients[n] + xs[n].T @ back, back @ weights[n].T
        return back


pipeline = Pipeline(links, Stage(), SCHEDULES[sys.argv[1]])
for _ in range(20):
    gradients = [0.0] * len(weights)
    pipeline.step(len(batch))
    weights = [w - 10 * g for w, g in zip(weights, gradients, strict=True)]
if stages := comm.gather(b"".join(w.tobytes() for w in weights)):
    print("weights sha256", sha256(b"".join(stages)).hexdigest())
