"""Sums over a batch that a ``train_step`` makes itself, and means, which are not reported.

Argument 1 is what it does: ``sum``, ``half``, ``loss`` (an object of Keras'), ``part`` (next to a mean), or ``mean``.
"""

import importlib
import sys

import keras
import numpy as np

torch = keras.backend.backend() == "torch"
way = sys.argv[1]
x = np.random.default_rng(5).normal(size=(32, 4)).astype("f")
y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "f")
ops = keras.ops


def loss_of(model, a, b):
    error = (model(a) - b) ** 2
    few = ops.sum(error, axis=1)  # over what one sample has
    weights = 1e-3 * sum(ops.sum(weight**2) for weight in model.trainable_weights)
    if way == "sum":
        return ops.sum(few)
    if way == "half":
        return -0.5 * -ops.sum(few)
    if way == "loss":
        return keras.losses.MeanSquaredError(reduction="sum")(b, model(a))
    if way == "part":
        return ops.mean(few) + ops.sum(few) + weights
    return (
        ops.mean(few)
        + 2.0 * (ops.sum(few) / 16.0)
        + ops.sum(few) / ops.cast(ops.shape(few)[0], "float32")
        + weights
    )


class Own(keras.Model):
    def train_step(self, data):
        a, b = data
        weights = self.trainable_weights
        if torch:
            self.zero_grad()
            loss_of(self, a, b).backward()
            gradients = [weight.value.grad for weight in weights]
        else:
            with importlib.import_module("tensorflow").GradientTape() as tape:
                loss = loss_of(self, a, b)
            gradients = tape.gradient(loss, weights)
        self.optimizer.apply(gradients, weights)
        return {"zero": ops.zeros(())}


inputs = keras.Input((4,))
model = Own(inputs, keras.layers.Dense(1)(inputs))
model.compile(keras.optimizers.SGD(1e-4))
model.fit(x, y, batch_size=8, epochs=2, verbose=0)
