"""A serial Keras script that splits data, keeps its best model, and goes on with it; it knows nothing of ranks."""

import json
import os
import sys
from pathlib import Path

import numpy as np

np.random.seed(5)  # the script's own, before Keras comes
import keras  # noqa: E402

folder = Path(sys.argv[1])
drawn = float(np.random.rand())
x = np.arange(400, dtype=np.float32)[:, None] / 400
order = np.random.default_rng().permutation(400)
train, held = x[order[:320]], x[order[320:]]
model = keras.Sequential(
    [keras.layers.Input((1,)), keras.layers.Dense(1024, "relu"), keras.layers.Dense(1)]
)
model.compile("adam", "mse")
best = folder / "best.keras"
model.fit(
    train, 3 * train, epochs=2, verbose=0, validation_data=(held, 3 * held),
    callbacks=[keras.callbacks.ModelCheckpoint(best)],
)  # fmt: skip
again = keras.models.load_model(best)
again.save(folder / "last.keras")
last = keras.saving.load_model(folder / "last.keras")
loss = last.fit(train, 3 * train, epochs=2, verbose=0).history["loss"]
last.save_weights(folder / "last.weights.h5")
last.load_weights(folder / "last.weights.h5")
report = {"loss": loss, "drawn": drawn, "held": held[:, 0].tolist()}
(folder / f"seen.{os.getpid()}").write_text(json.dumps(report))
