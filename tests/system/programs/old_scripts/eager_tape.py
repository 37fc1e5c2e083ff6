"""TF 2, eager and in functions, by `dl_comm`, in each precision."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import dl_comm as cdl
import numpy as np
import tensorflow as tf

cdl.init_mpi()
rank, ranks = cdl.get_rank(), cdl.get_nranks()
cdl.init(2, 1, 5 * 1024 * 1024, "tensorflow")  # a constant that does not fit, as often seen
cdl.config_team(0, 16, 6, 6, 0, 0)
rng = np.random.RandomState(rank)


def losses(weights, x, y):
    return tf.reduce_mean((tf.linalg.matvec(x, weights[0]) + weights[1] - y) ** 2)


for name in ("float64", "float32", "float16", "bfloat16"):
    dtype = tf.as_dtype(name)
    weights = [tf.Variable(tf.cast(rng.normal(size=s), dtype)) for s in ((3,), ())]
    for variable, value in zip(weights, cdl.broadcast(weights, 0)):
        variable.assign(value)
    start = [w.numpy() for w in weights]

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = losses(weights, x, y) * 128  # loss-scaled
        gradients = cdl.gradients(tape.gradient(loss, weights), 0)
        assert [g.shape for g in gradients] == [w.shape for w in weights]
        for weight, gradient in zip(weights, gradients):
            weight.assign_sub(gradient * tf.cast(0.05 / 128, dtype))

    for way in (step, tf.function(step)):
        for _ in range(4):
            x = rng.normal(size=(8, 3))
            way(tf.cast(x, dtype), tf.cast(x.sum(1), dtype))
    held = [w.numpy() for w in weights]
    moved = any(np.any(a != b) for a, b in zip(start, held))
    print(f"rank {rank}: {name}: different: {cdl.check_buffers_match(held, 1)}, moved: {moved}")

array = np.array([rank, 1.0], np.float32)
cdl.average(array)
(none, mean) = cdl.gradients([None, np.full(2, rank, np.float32)], 0)
print(f"rank {rank}: average {array.tolist()}, {none}, {mean.tolist()}")
cdl.barrier()
cdl.finalize()
