"""A serial Keras script with every kind of data that `fit` takes; it knows nothing of ranks.

What it does is written down by process, for the test to compare: argument 1 is the folder.
"""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

folder = Path(sys.argv[1])
seen = {}
x = np.arange(203 * 4, dtype=np.float32).reshape(203, 4) / 812
y = x.sum(axis=1, keepdims=True)


def model(rate=0.05):
    made = keras.Sequential(
        [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    made.compile(keras.optimizers.SGD(rate, momentum=0.5), loss="mse")
    return made


def digest(trained):
    return float(sum(float(np.abs(w).sum()) for w in trained.get_weights()))


class Batches(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.read, self.epochs = [], []

    def __len__(self):
        return 9

    def __getitem__(self, index):
        self.read.append(index)
        return x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]

    def on_epoch_begin(self):
        self.epochs.append("begin")

    def on_epoch_end(self):
        self.epochs.append("end")


one = model()
history = one.fit(
    x, y, batch_size=8, epochs=3, validation_split=0.2, verbose=0,
    callbacks=[keras.callbacks.ModelCheckpoint(folder / "kept-{epoch}.keras")],
)  # fmt: skip
seen["arrays"] = [digest(one), history.history["loss"], history.history["val_loss"]]
one.save(folder / "last.keras")

two = model(keras.optimizers.schedules.CosineDecay(0.05, 1000))
rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(203).batch(8)
two.fit(rows, epochs=2, verbose=0)
three = model()
three.fit(rows.repeat(), epochs=2, steps_per_epoch=20, verbose=0)
seen["datasets"] = [
    digest(two),
    digest(three),
    int(two.optimizer.iterations),
    int(three.optimizer.iterations),
]

batches = Batches()
four = model()
four.fit(batches, epochs=2, verbose=0, shuffle=False)
seen["batches"] = [digest(four), sorted(set(batches.read)), batches.epochs]

some = [model(), model()]
some[0].fit(x, y, batch_size=8, epochs=2, steps_per_epoch=10, verbose=0)
some[1].fit(Batches(), epochs=2, steps_per_epoch=4, verbose=0)
seen["steps"] = [int(each.optimizer.iterations) for each in some]

five = model()
five.compile(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9), loss="mse")
evaluated = []
swaps = keras.callbacks.SwapEMAWeights()
notes = keras.callbacks.LambdaCallback(on_test_begin=lambda logs: evaluated.append(digest(five)))
kept = five.fit(x, y, validation_data=(x, y), epochs=1, verbose=0, callbacks=[swaps, notes])
swaps.on_test_begin()
seen["averaged"] = [evaluated[-1], digest(five), kept.history["val_loss"]]
swaps.on_test_end()

stateful = keras.Sequential(
    [keras.Input((4, 1), batch_size=8), keras.layers.GRU(2, stateful=True), keras.layers.Dense(1)]
)
stateful.compile("sgd", "mse")
apart = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(203, seed=os.getpid()).batch(8)
for name, data in (
    ("stateful", (x[:160, :, None], y[:160])),
    ("shuffled apart", apart),
    ("generator", iter([(x[:8], y[:8])] * 40)),
    ("unknown", rows.filter(lambda a, b: True)),
):
    try:
        if name == "stateful":
            stateful.fit(*data, batch_size=8, verbose=0)
        else:
            model().fit(data, epochs=1, verbose=0)
        seen[name] = "trained"
    except Exception as exc:
        seen[name] = str(exc)

print("the script has come to its end with", " ".join(sys.argv[2:]))
(folder / f"seen.{os.getpid()}").write_text(json.dumps(seen))
