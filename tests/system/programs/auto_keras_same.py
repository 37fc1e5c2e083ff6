"""What a serial Keras script computes, however many processes share each batch, in a ``train_step`` of its own.

Argument 1 is the folder for what it saw, argument 2 how many they are: a step of all of them takes all samples.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np

torch = keras.backend.backend() == "torch"
tf = None if torch else importlib.import_module("tensorflow")
folder, processes = Path(sys.argv[1]), int(sys.argv[2])
count = 16
x = np.random.default_rng(5).normal(size=(count, 4)).astype("f")
y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "f") + 5


def net(units=1, kind=keras.Model):
    seeded = keras.initializers.GlorotUniform
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, "tanh", kernel_initializer=seeded(1))(inputs)
    return kind(inputs, keras.layers.Dense(units, kernel_initializer=seeded(2))(hidden))


def gradients(loss_of, weights):
    if torch:
        for weight in weights:
            weight.value.grad = None
        loss_of().backward()
        return [weight.value.grad for weight in weights]
    with tf.GradientTape() as tape:
        loss = loss_of()
    return tape.gradient(loss, weights)


class Clipping(keras.Model):
    def train_step(self, data):
        a, b = data
        own = gradients(lambda: keras.ops.mean((self(a) - b) ** 2), self.trainable_weights)
        clipped = [keras.ops.clip(gradient, -0.05, 0.05) for gradient in own]
        self.optimizer.apply(clipped, self.trainable_weights)
        return {"zero": keras.ops.zeros(())}


class ByHand(keras.Model):
    """It changes its weights by itself."""

    def train_step(self, data):
        a, b = data
        own = gradients(lambda: keras.ops.mean((self(a) - b) ** 2), self.trainable_weights)
        for weight, gradient in zip(self.trainable_weights, own, strict=True):
            weight.assign(weight - 0.01 * keras.ops.sign(gradient))
        return {"zero": keras.ops.zeros(())}


class Adversaries(keras.Model):
    """Neither of its optimizers is what ``compile`` of Keras gets."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = net(4), net()

    def compile(self, makers, judges):
        super().compile()
        self.makers, self.judges = makers, judges

    def train_step(self, data):
        judge, maker = self.judge.trainable_weights, self.maker.trainable_weights
        of_judge = gradients(
            lambda: keras.ops.mean(self.judge(data) - self.judge(self.maker(data))), judge
        )
        self.judges.apply(of_judge, judge)
        of_maker = gradients(lambda: keras.ops.mean(self.judge(self.maker(data)) ** 2), maker)
        self.makers.apply([keras.ops.clip(each, -0.01, 0.01) for each in of_maker], maker)
        return {"zero": keras.ops.zeros(())}


def trained(model, *data):
    model.fit(*data, batch_size=count // processes, epochs=4, verbose=0)
    return [float(value) for weight in model.get_weights() for value in weight.flatten()]


class Noisy(keras.Model):
    """It draws numbers in three ways."""

    def __init__(self):
        super().__init__()
        self.dense, self.drop = keras.layers.Dense(1), keras.layers.Dropout(0.5)
        self.drawn = [keras.Variable(0.0, trainable=False) for _ in range(3)]

    def call(self, inputs, training=False):
        return self.dense(self.drop(inputs, training=training))

    def train_step(self, data):
        result = super().train_step(data)
        dropped = self.drop(keras.ops.ones(64), training=True) * keras.ops.arange(64.0)
        numbers = (keras.random.uniform(()), drawn(), keras.ops.sum(dropped))
        for kept, number in zip(self.drawn, numbers, strict=True):
            kept.assign(number)
        return result


class Keeps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        own.append([float(keras.ops.convert_to_numpy(kept)) for kept in self.model.drawn])


def drawn():
    if torch:
        return importlib.import_module("torch").rand(())
    return tf.random.uniform(())


own = []
model = Noisy()
model.compile("sgd", "mse")
model.fit(x, y, batch_size=2, verbose=0, callbacks=[Keeps()])
again = [float(drawn()), float(keras.random.uniform(())), float(np.random.random())]
seen = {}
for kind in (Clipping, ByHand):
    model = net(kind=kind)
    model.compile(keras.optimizers.SGD(0.05))
    seen[kind.__name__] = trained(model, x, y)
model = Adversaries()
model.build((None, 4))
model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01))
seen["Adversaries"] = trained(model, x)
model = net()
model.compile(keras.optimizers.SGD(0.05, clipnorm=0.1), "mse")
seen["plain"] = trained(model, x, y)
model = net()
model.compile(keras.optimizers.SGD(0.001), keras.losses.MeanSquaredError(reduction="sum"))
trained(model, x[:15], y[:15])
(folder / f"seen.{os.getpid()}").write_text(json.dumps({"same": seen, "own": own, "again": again}))
