"""A Keras model whose loss is infinite on rank 1 in one batch: with loss scaling, which expects it, and without."""

import sys

import keras
import numpy as np

from fairlead import comm
from fairlead.comm.keras import Broadcast, DistributedOptimizer, rank

x, y = np.ones((24, 3), "float32"), np.ones((24, 1), "float32")
if rank() == 1:
    y[8:16] = np.inf
for scaled in (True, False):
    optimizer = keras.optimizers.SGD(0.01)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="head")])
    model.compile(DistributedOptimizer(optimizer), loss="mse")
    print(f"rank {rank()}: {'scaled' if scaled else 'plain'}", file=sys.stderr, flush=True)
    comm.barrier()
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0, callbacks=[Broadcast()])
    comm.barrier()
comm.finalize()
