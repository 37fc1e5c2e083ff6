"""Steps in float16 on two ranks, of which one overflows in the second step: prints what became of them as JSON.

``loss_scale.py BACKEND``. The network is one layer, so that the overflow can be made: large inputs times the scale.
"""

import json
import os
import sys
from dataclasses import replace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = sys.argv[1]

import keras
import numpy as np

from fairlead import comm
from fairlead.ml import registry
from fairlead.ml.task import Course
from fairlead.ml.train import steps
from fairlead.ml.train.steps import make_steps

RATE = 0.125


def build(dropout, sample, outputs):
    inputs = keras.Input(sample)
    hidden = keras.layers.Dense(8)(inputs)
    return keras.Model(inputs, keras.layers.Dense(outputs, dtype="float32")(hidden))


def main():
    ranks = comm.init()
    keras.mixed_precision.set_global_policy("mixed_float16")
    keras.utils.set_random_seed(ranks.rank)
    task = replace(registry.find("hepcnn"), build=build, prepare=lambda x: x)
    course = Course(8, 4, 4, ranks.size)
    network = make_steps(task, task.quick, course, (4,), 2)
    network.broadcast(ranks)
    source = np.random.default_rng(ranks.rank)
    output = []
    for step in range(4):
        x = source.standard_normal((4, 4)).astype("f4")
        x *= 2000 if (step, ranks.rank) == (1, 1) else 1
        loss, norm, gradients = network.gradients(x, np.array([0, 1, 0, 1], "i4"))
        means, shared = network.mean(gradients, np.array([loss, norm, 0, 0], "f4"))
        network.optimizer.learning_rate = RATE
        before = network.weights()
        made = network.apply(means)
        moved = any(np.any(a != b) for a, b in zip(before, network.weights(), strict=True))
        scale = float(keras.ops.convert_to_numpy(network.optimizer.dynamic_scale))
        rate = float(keras.ops.convert_to_numpy(network.optimizer.inner_optimizer.learning_rate))
        same = ranks.check_buffers_match(steps.arrays(network.shared())).matches
        finite = bool(np.isfinite(norm)), bool(np.isfinite(shared[1])), bool(np.isfinite(loss))
        output.append(
            {"made": made, "moved": moved, "scale": scale, "rate": rate, "same": same, "finite": finite, "norm": norm}
        )  # fmt: skip
    everyone = ranks.gather(output)
    if ranks.rank == 0:
        print("FOUND", json.dumps(everyone))
    comm.finalize()


main()
