"""A serial script that imports TensorFlow before Keras, and updates a model in every way but `fit` first.

Each of those is tried; argument 1 is the folder for what came of it.
"""

import json
import os
import sys
from pathlib import Path

import tensorflow as tf
from tensorflow import keras

folder = Path(sys.argv[1])
x = tf.reshape(tf.range(256.0) / 256, (64, 4))
y = tf.reduce_sum(x, axis=1, keepdims=True)
v1 = tf.compat.v1


def model():
    made = tf.keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.05), loss="mse")
    return made


def gradients_of(net):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(x) - y) ** 2)
    return tape.gradient(loss, net.trainable_variables)


def eager(net):
    net.optimizer.apply_gradients(zip(gradients_of(net), net.trainable_variables, strict=True))


def compiled(net):
    tf.function(eager)(net)


def by_hand(net):
    for variable, gradient in zip(net.trainable_variables, gradients_of(net), strict=True):
        variable.assign(variable - 0.05 * gradient)


def updates(net):
    net.optimizer.apply(
        [tf.ones(v.shape) for v in net.trainable_variables], net.trainable_variables
    )


def on_batch(net):
    net.train_on_batch(x, y)


def graph(net):
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=tf.ones([4, 1]))
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(x.numpy() @ weight))


seen = {}
for way in (eager, compiled, by_hand, updates, on_batch, graph):
    net = model()
    begun = net.get_weights()
    try:
        way(net)
        seen[way.__name__] = "trained"
    except Exception as exc:
        seen[way.__name__] = str(exc)
    assert all((a == b).all() for a, b in zip(begun, net.get_weights(), strict=True)), way
# What is not a training stays allowed.
with tf.GradientTape() as tape:
    tape.watch(x)
    out = tf.reduce_sum(net(x))
seen["of inputs"] = tape.gradient(out, x).shape[1]

net = model()
losses = net.fit(x.numpy(), y.numpy(), batch_size=8, epochs=3, verbose=0).history["loss"]
seen["fit"] = [[float(abs(w).sum()) for w in net.get_weights()], losses]
(folder / f"seen.{os.getpid()}").write_text(json.dumps(seen))
sys.exit(0)
