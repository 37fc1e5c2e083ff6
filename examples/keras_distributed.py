"""`keras_serial.py` on many ranks: five lines differ; docs/tutorials/training.md explains them.

Run it from the top of the checkout, on as many ranks as you like:

    $ fairlead run -n 2 tensorflow -- python3 examples/keras_distributed.py
"""

import keras
import numpy as np

from fairlead.comm.keras import AverageMetrics, Broadcast, DistributedOptimizer, rank, size

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(4096, 8)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")  # not linearly separable
x, y = x[rank() :: size()], y[rank() :: size()]

model = keras.Sequential(
    [
        keras.layers.Dense(64, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
optimizer = DistributedOptimizer(keras.optimizers.Adam(0.01))
model.compile(optimizer, loss="binary_crossentropy", metrics=["accuracy"])
callbacks = [Broadcast(), AverageMetrics()]
history = model.fit(x, y, batch_size=32, epochs=5, verbose=0, callbacks=callbacks)
print(f"accuracy {history.history['accuracy'][-1]:.3f}") if rank() == 0 else None
