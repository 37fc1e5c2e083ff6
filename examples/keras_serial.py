"""A Keras script as anybody writes it; `keras_distributed.py` is the same on many ranks.

Run it from the top of the checkout:

    $ fairlead run -n 1 tensorflow -- python3 examples/keras_serial.py
"""

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(4096, 8)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")  # not linearly separable

model = keras.Sequential(
    [
        keras.layers.Dense(64, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
optimizer = keras.optimizers.Adam(0.01)
model.compile(optimizer, loss="binary_crossentropy", metrics=["accuracy"])
callbacks = []
history = model.fit(x, y, batch_size=32, epochs=5, verbose=0, callbacks=callbacks)
print(f"accuracy {history.history['accuracy'][-1]:.3f}")
