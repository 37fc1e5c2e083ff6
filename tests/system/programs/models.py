"""Every bundled network, built by the Keras of this image: ``models.py`` prints its counts as JSON.

One step of training of the small ones shows that they can be trained by this backend.
"""

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from fairlead.ml.models import cosmoflow, hepcnn, resnet50
from fairlead.ml.network import parameters
from fairlead.ml.optimizers import AdamLarc, Lars
from fairlead.ml.train.steps import decays

BUILT = {
    "hepcnn 64": lambda: hepcnn.build(hepcnn.NETWORK, 0.5),
    "hepcnn 224": lambda: hepcnn.build(hepcnn.network_224(), 0.5),
    "hepcnn 224 of 64": lambda: hepcnn.build(hepcnn.network_224(64), 0.5),
    "resnet50 v1 1000": lambda: resnet50.build(1, classes=1000),
    "resnet50 v1 1001": lambda: resnet50.build(1),
    "resnet50 v2 1000": lambda: resnet50.build(2, classes=1000),
    "resnet50 v2 1001": lambda: resnet50.build(2),
    "resnet50 v2 10": lambda: resnet50.build(2, 64, 10),
    "cosmoflow sc18 3": lambda: cosmoflow.build_sc18(3),
    "cosmoflow sc18 2": lambda: cosmoflow.build_sc18(2),
    "cosmoflow mlperf": cosmoflow.build_mlperf,
    "cosmoflow mlperf k2": lambda: cosmoflow.build_mlperf(kernel=2),
    "cosmoflow mlperf 32": lambda: cosmoflow.build_mlperf(32, 1, 3),
}


def moved(model, optimizer):
    """How many of the weights a step moves; biases start from 0."""
    loss = (
        "mse"
        if model.output_shape[-1] == 3
        else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.compile(optimizer, loss=loss)
    source = np.random.default_rng(1)
    x = source.standard_normal((2, *model.input_shape[1:])).astype("f4")
    y = source.uniform(-1, 1, (2, 3)) if loss == "mse" else source.integers(0, 2, 2)
    before = [np.copy(v) for v in model.get_weights()]
    value = float(model.train_on_batch(x, y))
    assert np.isfinite(value)
    trainable = {id(v) for v in model.trainable_variables}
    pairs = zip(model.weights, before, strict=True)
    changed = [
        bool(np.any(keras.ops.convert_to_numpy(v) != b)) for v, b in pairs if id(v) in trainable
    ]
    return sum(changed), len(changed)


def undecayed(model):
    """Whether what no weight decay touches is all of BatchNorm's, and nothing else; and how many weights have it."""
    normal = [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]
    theirs = {id(v) for layer in normal for v in layer.trainable_variables}
    left = {id(v) for v in model.trainable_variables if not decays(v)}
    return left == theirs, len(model.trainable_variables) - len(left)


def main():
    found, decay = {}, {}
    for name, build in BUILT.items():
        model = build()
        shape = model.get_layer("features").output.shape[1:]
        found[name] = parameters(model), list(shape)
        if name.startswith("resnet50"):
            decay[name] = undecayed(model)
        keras.backend.clear_session()
    steps = {
        "lars": moved(resnet50.build(2, 32, 10), Lars(0.1)),
        "adam_larc": moved(cosmoflow.build_mlperf(32, 1, 3, dropout=0.0), AdamLarc()),
    }
    print(
        "FOUND",
        json.dumps(
            {"backend": keras.backend.backend(), "built": found, "steps": steps, "decay": decay}
        ),
    )


main()
