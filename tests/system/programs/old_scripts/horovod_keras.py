"""Keras 3 trained by `fit`, and TF 2 by a tape, as scripts for Horovod were written."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import horovod.keras as hvd
import horovod.tensorflow as hvd_tf
import keras
import numpy as np
import tensorflow as tf

hvd.init()
rank, size = hvd.rank(), hvd.size()
keras.utils.set_random_seed(rank)
rng = np.random.default_rng(rank)
x = rng.normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def network():
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )


def same(variables):
    digests = [keras.ops.convert_to_numpy(v.value).tobytes() for v in variables]
    return len(set(hvd.allgather_object(b"".join(digests)))) == 1


model = network()
scaled = 0.01 * size
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(scaled))
model.compile(optimizer, loss="mse", metrics=["mae"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled, warmup_epochs=1, verbose=0),
]
seen = model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=callbacks).history
equal = len(set(hvd.allgather_object(seen["mae"][-1]))) == 1
print(
    f"rank {rank}: fit: same: {same([*model.weights, *model.optimizer.variables])}, metrics {equal},"
    f" rate {float(model.optimizer.learning_rate) == np.float32(scaled)}"
)

model, plain = network(), keras.optimizers.Adam(0.01)


@tf.function
def step(x, y, first):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=False) - y) ** 2)
    tape = hvd_tf.DistributedGradientTape(tape, compression=hvd_tf.Compression.fp16)
    plain.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    )
    if first:
        hvd_tf.broadcast_variables(model.variables, root_rank=0)
        hvd_tf.broadcast_variables(plain.variables, root_rank=0)


for n in range(4):
    step(x[16 * n : 16 * n + 16], y[16 * n : 16 * n + 16], n == 0)
print(f"rank {rank}: tape: same: {same([*model.weights, *plain.variables])}")
mean = hvd_tf.allreduce(tf.constant([rank, 1.0]))
total = hvd_tf.allreduce(tf.constant([rank, 2]), op=hvd_tf.Sum)
rows = hvd_tf.allgather(tf.fill([rank + 1, 2], rank))
named = hvd.broadcast_object({"from": rank}, root_rank=1)
print(
    f"rank {rank}: {mean.numpy().tolist()} {total.numpy().tolist()} {rows.shape.as_list()} {named}"
    f" {hvd.local_rank()} of {hvd.local_size()}, node {hvd.cross_rank()} of {hvd.cross_size()}"
)
hvd.shutdown()
