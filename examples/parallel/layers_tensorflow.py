"""A TensorFlow network by layers over ranks, each with its own; with -n 1, the same bits.

$ fairlead run -n 2 tensorflow -- python3 examples/parallel/layers_tensorflow.py 4
"""

import sys
from hashlib import sha256

import numpy as np
import tensorflow as tf

from fairlead import comm
from fairlead.comm.frameworks.tensorflow_stage import TapeStage
from fairlead.comm.pipeline import Pipeline

SIZES, MICROBATCHES = (8, 64, 64, 32, 1), int(sys.argv[1])
tf.config.threading.set_intra_op_parallelism_threads(1)  # adds in one order
links, normal = comm.init().point_to_point(), tf.random.stateless_normal
batch = tf.split(normal((64, SIZES[0]), (1, 2)), MICROBATCHES)
own = [int(n) for n in np.array_split(range(len(SIZES) - 1), links.size)[links.rank]]
weights = [tf.Variable(0.3 * normal((SIZES[n], SIZES[n + 1]), (n, 3))) for n in own]


def layers(at, x):
    y = batch[at] if links.rank == 0 else x
    for w in weights:
        y = tf.tanh(y @ w)
    last = links.rank == links.size - 1
    return tf.reduce_mean((y - tf.sin(batch[at][:, :1])) ** 2) / MICROBATCHES if last else y


stage = TapeStage(layers, weights)
pipeline = Pipeline(links, stage)
for _ in range(30):
    stage.reset()
    pipeline.step(MICROBATCHES)
    for w, g in zip(weights, stage.gradients, strict=True):
        w.assign_sub(0.1 * g)
if stages := comm.gather(b"".join(w.numpy().tobytes() for w in weights)):
    print("weights sha256", sha256(b"".join(stages)).hexdigest())
