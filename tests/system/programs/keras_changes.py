"""Evaluates the lines of the JSON list in argument 1, each with what an old script has around it; prints what came of each."""

import json
import os
import sys
import tempfile

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_HOME": os.devnull}
import numpy as np
import tensorflow as tf
from tensorflow import keras

x, y = np.ones((8, 4), "f4"), np.ones((8, 3), "f4")
batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
found = []
os.chdir(tempfile.mkdtemp())
keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).export("m", verbose=False)
for line in json.loads(sys.argv[1]):
    opt = keras.optimizers.SGD(0.1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(opt, "mse")
    v = model.trainable_variables
    g = [tf.ones(variable.shape) for variable in v]
    with tf.GradientTape(persistent=True) as tape:
        kept = tf.reduce_mean(model(x) ** 2)
    loss = lambda kept=kept: kept  # noqa: E731
    try:
        eval(line)
        found.append("")
    except Exception as exc:
        found.append(type(exc).__name__)
print(json.dumps(found))
